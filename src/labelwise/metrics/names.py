"""Metric names such as `P@5`, `nDCG@3`, `macro-F1`: parsed case-insensitively, printed in canonical form.

Kept free of heavy imports: configurations check metric names without importing NumPy or the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from labelwise.errors import ConfigError, did_you_mean

RANKING = ("P", "nDCG", "R", "RP", "PSP", "PSnDCG", "coverage")
F1 = ("micro-F1", "macro-F1", "example-F1")
NEEDS_PROPENSITY = ("PSP", "PSnDCG")
NOT_A_SUM = ("coverage", "macro-F1")

_KINDS = {kind.lower(): kind for kind in (*RANKING, *F1)}
_FORM = re.compile(r"([a-z0-9-]+?)\s*(?:@\s*([0-9]{1,9}))?")


@dataclass(frozen=True)
class Metric:
    """A type of metric and its k; None for F1 at a score threshold."""

    kind: str
    k: int | None

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.kind if self.k is None else f"{self.kind}@{self.k}"

    @property
    def needs_propensity(self) -> bool:
        """Whether training counts are needed to weigh the labels."""
        return self.kind in NEEDS_PROPENSITY

    @property
    def needs_threshold(self) -> bool:
        """Whether a label counts as predicted from a score threshold on."""
        return self.k is None

    @property
    def is_sum(self) -> bool:
        """Whether it is a ratio of sums over documents, which can be resampled."""
        return self.kind not in NOT_A_SUM


def parse_metric(text: str) -> Metric:
    """Parse a metric name."""
    if not isinstance(text, str):
        raise ConfigError(f"a metric is a name such as 'P@5', got {text!r}")
    match = _FORM.fullmatch(text.strip().lower().replace("_", "-"))
    kind = _KINDS.get(match[1]) if match else None
    if match is None or kind is None:
        cut = match[2] if match and match[2] else "5"
        accepted = [f"{kind}@{cut}" for kind in _KINDS.values()] + list(F1)
        raise ConfigError(f"there is no metric '{text}'; {did_you_mean(text, accepted)}")
    if match[2] is None:
        if kind not in F1:
            raise ConfigError(f"metric '{text}' needs a k, for example '{kind}@5'")
        return Metric(kind, None)
    if int(match[2]) == 0:
        raise ConfigError(f"metric '{text}' has k = 0; the number after @ starts at 1")
    return Metric(kind, int(match[2]))


def parse_metrics(names: str | Iterable[str]) -> list[Metric]:
    """Parse metric names, without duplicates, in the order given."""
    texts = [names] if isinstance(names, str) else list(names)
    metrics = list(dict.fromkeys(parse_metric(text) for text in texts))
    if not metrics:
        raise ConfigError("no metric was requested; name at least one, such as 'P@1'")
    return metrics


def default_metrics(k: int, propensity: bool = False, threshold: bool = False) -> list[str]:
    """The metrics computed by default for lists of k predictions.

    P@1, P@3, P@5, nDCG@3, nDCG@5 and R@5 (nDCG@1 is P@1); with training counts PSP@1, PSP@3 and PSP@5 too;
    with a threshold the three F1 too.
    """
    kinds = [("P", (1, 3, 5)), ("nDCG", (3, 5)), ("R", (5,))]
    if propensity:
        kinds.append(("PSP", (1, 3, 5)))
    names = [f"{kind}@{cut}" for kind, cuts in kinds for cut in cuts if cut <= k]
    return [*names, *F1] if threshold else names


def check_depth(metrics: Iterable[Metric], k: int) -> None:
    """Refuse metrics whose k is larger than the lists of predictions."""
    for metric in metrics:
        if metric.k is not None and metric.k > k:
            raise ConfigError(
                f"{metric.name} needs {metric.k} predictions per document, but there are {k}; "
                f"predict with k={metric.k} or more"
            )
