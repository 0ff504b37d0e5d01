"""Assign labels to the least loaded of their preferred buckets (the power of several choices)."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit


@jit
def least_loaded(choices, order, n_buckets):
    """The bucket of each label: of its `choices` [labels, n], best first, the one with the fewest labels so far.

    Labels are assigned in the given order; ties go to the better bucket.
    """
    loads = np.zeros(n_buckets, np.int64)
    chosen = np.empty(len(choices), np.int64)
    for label in order:
        best = choices[label, 0]
        for bucket in choices[label, 1:]:
            if loads[bucket] < loads[best]:
                best = bucket
        chosen[label] = best
        loads[best] += 1
    return chosen
