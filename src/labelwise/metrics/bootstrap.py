"""Bootstrap confidence intervals over documents, without keeping the documents.

Document i belongs to group i mod RESAMPLING_GROUPS, sums are kept per group, and whole groups are drawn with
replacement. With no more documents than groups this is the ordinary bootstrap over documents. Numerator and
denominator of a metric are drawn together, so ratios of sums get proper intervals as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise.errors import ConfigError
from labelwise.metrics.formulas import ratio

LEVEL = 0.95
_REPEATS_PER_CHUNK = 256


@dataclass(frozen=True, eq=False)
class ResamplingSums:
    """Numerators and denominators of metrics, summed per resampling group: what intervals and differences need."""

    metrics: tuple[str, ...]
    numerators: np.ndarray
    """[metrics, groups], float64; groups beyond the number of documents are left out."""
    denominators: np.ndarray
    n_documents: int
    truth: int
    """Hash of the number of true labels per document, in order: equal for evaluations on the same documents."""

    def resampled(self, repeats: int, seed: int) -> np.ndarray:
        """Values of the metrics in each bootstrap sample, [repeats, metrics].

        With the same seed, sums of the same documents are resampled alike, so that differences are paired.
        """
        groups = self.numerators.shape[1]
        generator = np.random.default_rng(seed)
        samples = [np.empty((0, len(self.metrics)))]
        for start in range(0, repeats, _REPEATS_PER_CHUNK):
            times = np.zeros((min(_REPEATS_PER_CHUNK, repeats - start), groups))
            for row in times:
                row += np.bincount(generator.integers(0, groups, groups), minlength=groups)
            samples.append(ratio(times @ self.numerators.T, times @ self.denominators.T))
        return np.concatenate(samples)

    def values(self) -> np.ndarray:
        """The metrics of all documents."""
        return ratio(self.numerators.sum(1), self.denominators.sum(1))

    def intervals(self, repeats: int, seed: int) -> dict[str, tuple[float, float]]:
        """The 95 % percentile interval per metric."""
        low, high = percentiles(self.resampled(repeats, seed))
        return dict(zip(self.metrics, zip(low.tolist(), high.tolist(), strict=True), strict=True))

    def pairs_with(self, other: ResamplingSums) -> bool:
        """Whether both are of the same documents, as far as their true labels show."""
        return self.n_documents == other.n_documents and self.truth == other.truth


@dataclass(frozen=True)
class Difference:
    """How much larger one value is than another on the same documents, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def paired_differences(
    one: ResamplingSums, other: ResamplingSums, repeats: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """The metrics of one evaluation minus those of another on the same documents, by paired bootstrap."""
    shared = [metric for metric in one.metrics if metric in other.metrics]
    mine, theirs = ([sums.metrics.index(metric) for metric in shared] for sums in (one, other))
    values = one.values()[mine] - other.values()[theirs]
    low, high = percentiles(one.resampled(repeats, seed)[:, mine] - other.resampled(repeats, seed)[:, theirs])
    return {
        metric: Difference(*bounds)
        for metric, *bounds in zip(shared, values.tolist(), low.tolist(), high.tolist(), strict=True)
    }


def percentiles(samples: np.ndarray) -> np.ndarray:
    """Lower and upper end of the 95 % interval of each column."""
    edge = (1 - LEVEL) / 2
    return np.quantile(samples, [edge, 1 - edge], axis=0)


def check_repeats(repeats: int) -> int:
    """Validate the number of bootstrap repeats; 0 means no intervals."""
    if isinstance(repeats, bool) or not isinstance(repeats, int | np.integer) or repeats < 0:
        raise ConfigError(
            f"bootstrap is a number of repeats: 0 for no intervals, at least 200 for usable ones; got {repeats!r}"
        )
    return int(repeats)
