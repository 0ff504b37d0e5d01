"""How many buckets, repetitions and hidden units fit a task and a machine, and what they cost in memory.

Rules, and where they are from: the published settings of MACH have about 12 x sqrt(labels) buckets (2,000 for 31
thousand labels, 5,000 for 205 thousand, 10,000 for 670 thousand) and never more than 20,000; R tables of B buckets tell
all pairs of K labels apart, but for a probability p, if R >= 2 ln(K / sqrt(p)) / ln B; more repetitions only make
scores less noisy, and published settings stop at 32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from labelwise.codes.buckets import BucketTables, narrow, pairs_alike, repetitions_needed
from labelwise.errors import ConfigError
from labelwise.formatting import size

PER_ROOT, MOST_BUCKETS = 12, 20_000
USUAL_REPETITIONS, MOST_REPETITIONS = (16, 8), 32
USUAL_WIDTH = 256
WIDTHS = (4096, 2048, 1024, 512, 256, 128, 64, 32)
FEW_DOCUMENTS, WIDTH_FOR_FEW = 200_000, 512
"""Below so many documents wider layers learn by heart."""
HASHED = (1_000_000, 500_000, 200_000, 100_000, 50_000, 20_000, 10_000)
"""Rows that features may be hashed into when one per feature is too expensive."""
BATCH = 256
MOMENTS = 2
"""Arrays beside each weight in Adam."""
ORDER_BYTES = 4
"""Of a label in the list of labels by bucket, from which the search begins."""
NAME_BYTES = 24
"""Of a label's name in a model, about."""


@dataclass(frozen=True)
class BucketPlan:
    """A proposal, and what it needs.

    Attributes
    ----------
    rows
        Feature rows of each network: the features themselves, or what they are hashed into.
    universal
        Whether tables are computed when needed, because storing them would take too much.
    """

    n_labels: int
    n_features: int
    buckets: int
    repetitions: int
    hidden: int
    rows: int
    universal: bool = False

    @property
    def weights(self) -> int:
        """Weights of one repetition."""
        return (self.rows + self.buckets) * self.hidden + self.hidden + self.buckets

    @property
    def training_bytes(self) -> int:
        """To train one repetition: weights and moments, gradients of the outputs, scores of a batch, its table."""
        scores = 4 * BATCH * self.buckets * 4
        gradients = self.buckets * self.hidden * 4
        lookup = self.n_labels * narrow(self.buckets).itemsize
        return self.weights * 4 * (1 + MOMENTS) + gradients + scores + lookup

    @property
    def serving_bytes(self) -> int:
        """All repetitions, their tables, the labels by their first bucket and the labels' names."""
        each = self.repetitions * narrow(self.buckets).itemsize + ORDER_BYTES
        tables = 0 if self.universal else self.n_labels * each
        return self.repetitions * self.weights * 4 + tables + self.n_labels * NAME_BYTES

    @property
    def alike(self) -> float:
        """Pairs of labels that are expected to be indistinguishable."""
        return pairs_alike(self.n_labels, self.buckets, self.repetitions)

    def config(self) -> dict[str, object]:
        """The fields of the method's config."""
        fields: dict[str, object] = {
            "method": "mach",
            "repetitions": self.repetitions,
            "buckets": self.buckets,
            "hidden": [self.hidden],
        }
        if self.rows < self.n_features:
            fields["feature_hashing"] = self.rows
        if self.universal:
            fields["hash"] = "universal"
        return fields


def plan_buckets(
    n_labels: int,
    n_documents: int,
    n_features: int,
    memory: int,
    confusion: float = 0.01,
    repetitions: int | None = None,
    buckets: int | None = None,
) -> BucketPlan:
    """Propose settings whose training of one repetition, and whose serving, each stay within `memory` bytes.

    Parameters
    ----------
    n_labels, n_documents, n_features
        The task.
    memory
        Bytes.
    confusion
        Probability that some pair of labels cannot be told apart.
    repetitions, buckets
        Fixed by the user, where given.
    """
    for name, value in (("labels", n_labels), ("documents", n_documents), ("features", n_features)):
        if value < 1:
            raise ConfigError(f"{name}: a number from 1 up is needed, got {value}")
    if not 0 < confusion < 1:
        raise ConfigError(f"confusion is a probability between 0 and 1, got {confusion}")
    count = buckets or max(2, min(_round(PER_ROOT * n_labels**0.5), MOST_BUCKETS, n_labels))
    BucketTables(n_labels, count, ())  # tells what no table can hold
    least = repetitions_needed(n_labels, count, confusion)
    wishes = [repetitions] if repetitions else [max(least, wish) for wish in (*USUAL_REPETITIONS, 1)]
    widest = WIDTH_FOR_FEW if n_documents < FEW_DOCUMENTS else WIDTHS[0]
    widths = [width for width in WIDTHS if width <= widest]
    usual = [width for width in widths if width >= USUAL_WIDTH]
    sizes = [n_features, *(size for size in HASHED if size < n_features)]
    # first what usually learns well; where that does not fit, less of everything
    for choice in (usual, widths):
        for wanted, rows, width, universal in product(wishes, sizes, choice, (False, True)):
            plan = BucketPlan(n_labels, n_features, count, wanted, width, rows, universal)
            if max(plan.training_bytes, plan.serving_bytes) <= memory:
                return plan if repetitions else _with_more(plan, memory)
    small = BucketPlan(n_labels, n_features, count, wishes[-1], WIDTHS[-1], sizes[-1], universal=True)
    raise ConfigError(
        f"{size(memory)} are not enough for {n_labels:,} labels: the smallest setting with {wishes[-1]} repetitions "
        f"of {count:,} buckets needs {size(small.training_bytes)} to train and {size(small.serving_bytes)} to serve"
    )


def _with_more(plan: BucketPlan, memory: int) -> BucketPlan:
    """As many more repetitions as fit: they make scores less noisy."""
    best = plan
    while best.repetitions < MOST_REPETITIONS:
        more = replace(best, repetitions=best.repetitions + 1)
        if more.serving_bytes > memory:
            break
        best = more
    return best


def _round(number: float) -> int:
    """To one of 1, 2, 5, 10, 20 ...: the nearest on a logarithmic scale."""
    steps = [factor * 10**power for power in range(12) for factor in (1, 2, 5)]
    return min(steps, key=lambda step: abs(math.log(step / max(number, 1))))
