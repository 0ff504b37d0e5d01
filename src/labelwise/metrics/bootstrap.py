"""Intervals by resampling documents, without keeping the documents.

Document i belongs to group i mod GROUPS, sums are kept a group, and whole groups are drawn with replacement.
With no more documents than groups this is the ordinary bootstrap over documents. Numerator and denominator of
a metric are drawn together, so ratios of sums get proper intervals as well.
"""

from __future__ import annotations

import numpy as np

from labelwise.errors import ConfigError
from labelwise.metrics.ranking import ratio

GROUPS = 4096
LEVEL = 0.95
_AT_ONCE = 256


def bootstrap_intervals(
    above: np.ndarray, below: np.ndarray, n_documents: int, repeats: int, seed: int
) -> list[tuple[float, float]]:
    """The 95 % percentile interval of each metric.

    Parameters
    ----------
    above, below
        Sums of numerators and denominators, [metrics, GROUPS]; groups beyond the number of documents are
        empty.
    """
    groups = min(n_documents, GROUPS)
    generator = np.random.default_rng(seed)
    drawn = []
    for start in range(0, repeats, _AT_ONCE):
        times = np.zeros((min(_AT_ONCE, repeats - start), groups))
        for row in times:
            row += np.bincount(generator.integers(0, groups, groups), minlength=groups)
        drawn.append(ratio(times @ above[:, :groups].T, times @ below[:, :groups].T))
    values = np.concatenate(drawn)
    edge = (1 - LEVEL) / 2
    low, high = np.quantile(values, [edge, 1 - edge], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def check_repeats(repeats: int) -> int:
    """A number of repeats that makes sense; 0 is none."""
    if isinstance(repeats, bool) or not isinstance(repeats, int | np.integer) or repeats < 0:
        raise ConfigError(f"bootstrap is a number of repeats, 0 for none and 200 or more for use; got {repeats!r}")
    return int(repeats)
