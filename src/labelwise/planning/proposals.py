"""Propose buckets, repetitions and hidden units for a task and a machine, with their memory cost.

Rules and their origin: the published settings of MACH have about 12 x sqrt(labels) buckets (2,000 for 31 thousand
labels, 5,000 for 205 thousand, 10,000 for 670 thousand) and never more than 20,000; R tables of B buckets distinguish
all pairs of K labels with probability 1 - p if R >= 2 ln(K / sqrt(p)) / ln B; more repetitions only make scores less
noisy, and published settings stop at 32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from labelwise.errors import ConfigError
from labelwise.formatting import size
from labelwise.labelspace.buckets import BucketTables, bucket_dtype, expected_collisions, repetitions_needed
from labelwise.labelspace.digits import DigitCode, balanced_radices, group_radices

BUCKETS_PER_ROOT, MAX_BUCKETS = 12, 20_000
USUAL_REPETITIONS, MAX_REPETITIONS = (16, 8), 32
USUAL_WIDTH = 256
WIDTHS = (4096, 2048, 1024, 512, 256, 128, 64, 32)
FEW_DOCUMENTS, WIDTH_FOR_FEW = 200_000, 512
"""With fewer documents than this, wider layers overfit."""
HASHED_ROWS = (1_000_000, 500_000, 200_000, 100_000, 50_000, 20_000, 10_000)
"""Rows that features may be hashed into when one per feature is too expensive."""
BATCH = 256
MOMENTS = 2
"""State arrays of Adam per weight."""
ORDER_BYTES = 4
"""Bytes per label in the list of labels by bucket, from which the search begins."""
NAME_BYTES = 24
"""Approximate bytes of a label's name in a model."""


@dataclass(frozen=True)
class BucketPlan:
    """Proposed settings and their memory.

    Attributes
    ----------
    rows
        Feature rows of each network: the features themselves, or fewer rows that they are hashed into.
    universal
        Whether tables are computed on demand, because storing them would take too much memory.
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
        """Number of weights per repetition."""
        return (self.rows + self.buckets) * self.hidden + self.hidden + self.buckets

    @property
    def training_bytes(self) -> int:
        """Memory to train one repetition: weights, moments, output gradients, scores of a batch, and the table."""
        scores = 4 * BATCH * self.buckets * 4
        gradients = self.buckets * self.hidden * 4
        lookup = self.n_labels * bucket_dtype(self.buckets).itemsize
        return self.weights * 4 * (1 + MOMENTS) + gradients + scores + lookup

    @property
    def serving_bytes(self) -> int:
        """Memory to serve: all repetitions, their tables, the labels by their first bucket and the label names."""
        each = self.repetitions * bucket_dtype(self.buckets).itemsize + ORDER_BYTES
        tables = 0 if self.universal else self.n_labels * each
        return self.repetitions * self.weights * 4 + tables + self.n_labels * NAME_BYTES

    @property
    def collisions(self) -> float:
        """Expected number of pairs of labels that cannot be distinguished."""
        return expected_collisions(self.n_labels, self.buckets, self.repetitions)

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
        Accepted probability that some pair of labels cannot be distinguished.
    repetitions, buckets
        Fixed values; None to choose them.
    """
    for name, value in (("labels", n_labels), ("documents", n_documents), ("features", n_features)):
        if value < 1:
            raise ConfigError(f"{name}: must be 1 or more, got {value}")
    if not 0 < confusion < 1:
        raise ConfigError(f"confusion is a probability between 0 and 1, got {confusion}")
    count = buckets or max(2, min(_round(BUCKETS_PER_ROOT * n_labels**0.5), MAX_BUCKETS, n_labels))
    BucketTables(n_labels, count, ())  # raises where no table is possible
    least = repetitions_needed(n_labels, count, confusion)
    repetition_choices = [repetitions] if repetitions else [max(least, usual) for usual in (*USUAL_REPETITIONS, 1)]
    widest = WIDTH_FOR_FEW if n_documents < FEW_DOCUMENTS else WIDTHS[0]
    widths = [width for width in WIDTHS if width <= widest]
    usual = [width for width in widths if width >= USUAL_WIDTH]
    sizes = [n_features, *(size for size in HASHED_ROWS if size < n_features)]
    # first the settings that usually learn well; where none fits, narrower ones
    for width_choices in (usual, widths):
        choices = product(repetition_choices, sizes, width_choices, (False, True))
        for n_repetitions, rows, width, universal in choices:
            plan = BucketPlan(n_labels, n_features, count, n_repetitions, width, rows, universal)
            if max(plan.training_bytes, plan.serving_bytes) <= memory:
                return plan if repetitions else _with_more(plan, memory)
    fewest = repetition_choices[-1]
    small = BucketPlan(n_labels, n_features, count, fewest, WIDTHS[-1], sizes[-1], universal=True)
    raise ConfigError(
        f"{size(memory)} are not enough for {n_labels:,} labels: the smallest setting with {fewest} repetitions "
        f"of {count:,} buckets needs {size(small.training_bytes)} to train and {size(small.serving_bytes)} to serve"
    )


def _with_more(plan: BucketPlan, memory: int) -> BucketPlan:
    """The plan with as many more repetitions as fit: they make scores less noisy."""
    best = plan
    while best.repetitions < MAX_REPETITIONS:
        more = replace(best, repetitions=best.repetitions + 1)
        if more.serving_bytes > memory:
            break
        best = more
    return best


def _round(number: float) -> int:
    """The nearest of 1, 2, 5, 10, 20 ... on a logarithmic scale."""
    steps = [factor * 10**power for power in range(12) for factor in (1, 2, 5)]
    return min(steps, key=lambda step: abs(math.log(step / max(number, 1))))


# --- digit plan ---
# Propose radices for the heads of multi-head encoding, with their parameters, operations and memory.
#
# Rules: near-equal radices make the product head smallest. A cascade scores `groups` nodes' labels below the first
# digit, so its cheapest number of groups g balances width x g against bottleneck x groups x labels / g. Sampling costs
# the fraction of groups that it draws.

"""State arrays of Adam per weight."""
BLOCK = 8192
"""Labels whose scores a batch holds at a time, where all are scored."""


@dataclass(frozen=True)
class HeadPlan:
    """A head and what it costs."""

    kind: str
    radices: tuple[int, ...]
    surplus: int
    """Codes without a label."""
    parameters: int
    step_operations: int
    """Multiplications and additions of a document's scores and gradients in training."""
    predict_operations: int
    """The same of its scores in prediction."""
    training_bytes: int
    """Weights, moments, gradients of a batch and its scores."""


def plan_heads(
    n_labels: int,
    width: int,
    batch: int = 32,
    bottleneck: int = 400,
    groups: int = 10,
    sampled: int = 10,
    depths: Sequence[int] = (2, 3, 4),
) -> list[HeadPlan]:
    """The four heads for a number of labels, the digit heads with radices of each depth.

    Parameters
    ----------
    n_labels, width
        Labels, and the dimension of the documents' vectors.
    batch
        Documents per batch.
    bottleneck, groups
        Of a cascade: the width of embeddings, and nodes per document and level whose children are scored.
    sampled
        Groups that a batch of sampled softmax is trained against.
    depths
        Numbers of digits.
    """
    named = {"labels": n_labels, "width": width, "batch": batch, "bottleneck": bottleneck, "groups": groups}
    for name, value in {**named, "sampled": sampled}.items():
        if value < 1:
            raise ConfigError(f"{name}: must be 1 or more, got {value}")
    if n_labels < 2:
        raise ConfigError("labels: digits need at least 2 labels")
    plans = [_full("one_hot", n_labels, width, batch)]
    for depth in depths:
        radices = balanced_radices(n_labels, depth)
        plans.append(_product(radices, n_labels, width, batch))
        first = best_groups(n_labels, width, bottleneck, groups)
        cascade = group_radices(n_labels, first) if depth == 2 else _graded(n_labels, depth)
        plans.append(_cascade(cascade, n_labels, width, batch, bottleneck, groups))
    plans.append(_sampling(balanced_radices(n_labels, 2), n_labels, width, batch, sampled))
    return plans


def best_groups(n_labels: int, width: int, bottleneck: int, groups: int) -> int:
    """The number of groups with which a cascade of two digits has the fewest operations."""
    best = round(math.sqrt(bottleneck * groups * n_labels / width))
    return max(1, min(best, n_labels))


def _graded(n_labels: int, depth: int) -> tuple[int, ...]:
    """Near-equal radices for a cascade of several levels, the largest last: upper levels are searched more widely."""
    return tuple(sorted(balanced_radices(n_labels, depth)))


def _full(kind: str, n_labels: int, width: int, batch: int) -> HeadPlan:
    parameters = n_labels * (width + 1)
    scores = batch * min(n_labels, BLOCK) * 3
    memory = 4 * (parameters * (2 + MOMENTS) + scores)
    return HeadPlan(kind, (n_labels,), 0, parameters, 6 * n_labels * width, 2 * n_labels * width, memory)


def _product(radices: tuple[int, ...], n_labels: int, width: int, batch: int) -> HeadPlan:
    code = DigitCode(radices, n_labels)
    outputs = sum(code.sizes)
    parameters = outputs * (width + 1)
    memory = 4 * (parameters * (2 + MOMENTS) + 3 * batch * outputs) + 8 * n_labels * code.depth
    return HeadPlan("product", radices, code.surplus, parameters, 6 * outputs * width, 2 * outputs * width, memory)


def _cascade(radices: tuple[int, ...], n_labels: int, width: int, batch: int, bottleneck: int, groups: int) -> HeadPlan:
    code = DigitCode(radices, n_labels)
    nodes = [code.n_nodes(digit) for digit in range(code.depth)]
    below = sum(nodes[1:])
    scored = [min(groups, nodes[digit - 1]) * radices[digit] for digit in range(1, code.depth)]
    dense = nodes[0] * (width + 1) + (code.depth - 1) * (width + 1) * bottleneck
    parameters = dense + below * (bottleneck + 1)
    operations = width * (nodes[0] + (code.depth - 1) * bottleneck) + bottleneck * sum(scored)
    rows = sum(min(batch * count, total) for count, total in zip(scored, nodes[1:], strict=True))
    memory = 4 * (parameters * (1 + MOMENTS) + dense + 2 * rows * (bottleneck + 1) + 4 * batch * rows)
    return HeadPlan("cascade", radices, code.surplus, parameters, 6 * operations, 2 * operations, memory)


def _sampling(radices: tuple[int, ...], n_labels: int, width: int, batch: int, sampled: int) -> HeadPlan:
    code = DigitCode(radices, n_labels)
    # the groups of the batch's own labels always take part
    own = code.n_nodes(0) * (1 - (1 - 1 / code.n_nodes(0)) ** batch)
    drawn = min(round(max(sampled, own)) * code.places[0], n_labels)
    parameters = n_labels * (width + 1)
    memory = 4 * (parameters * (1 + MOMENTS) + 2 * drawn * width + 3 * batch * min(drawn, BLOCK))
    return HeadPlan("sampling", radices, code.surplus, parameters, 6 * drawn * width, 2 * n_labels * width, memory)
