"""Bootstrap confidence intervals over documents, without keeping the documents.

Document i belongs to group i mod RESAMPLING_GROUPS, sums are kept per group, and whole groups are drawn with
replacement. With no more documents than groups this is the ordinary bootstrap over documents. Numerator and
denominator of a metric are drawn together, so ratios of sums get proper intervals as well.
"""

from __future__ import annotations

import numpy as np

from labelwise.errors import ConfigError
from labelwise.metrics.ranking import ratio

RESAMPLING_GROUPS = 4096
LEVEL = 0.95
_REPEATS_PER_CHUNK = 256


def bootstrap_intervals(
    numerators: np.ndarray, denominators: np.ndarray, n_documents: int, repeats: int, seed: int
) -> list[tuple[float, float]]:
    """The 95 % percentile interval per metric.

    Parameters
    ----------
    numerators, denominators
        Sums per group, [metrics, RESAMPLING_GROUPS]; groups beyond the number of documents are empty.
    """
    groups = min(n_documents, RESAMPLING_GROUPS)
    generator = np.random.default_rng(seed)
    samples = []
    for start in range(0, repeats, _REPEATS_PER_CHUNK):
        times = np.zeros((min(_REPEATS_PER_CHUNK, repeats - start), groups))
        for row in times:
            row += np.bincount(generator.integers(0, groups, groups), minlength=groups)
        samples.append(ratio(times @ numerators[:, :groups].T, times @ denominators[:, :groups].T))
    values = np.concatenate(samples)
    edge = (1 - LEVEL) / 2
    low, high = np.quantile(values, [edge, 1 - edge], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def check_repeats(repeats: int) -> int:
    """Validate the number of bootstrap repeats; 0 means no intervals."""
    if isinstance(repeats, bool) or not isinstance(repeats, int | np.integer) or repeats < 0:
        raise ConfigError(
            f"bootstrap is a number of repeats: 0 for no intervals, at least 200 for usable ones; got {repeats!r}"
        )
    return int(repeats)
