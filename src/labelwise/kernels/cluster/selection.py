"""The k-th smallest value by quickselect (NumPy's own partition takes seconds to compile)."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner


@inner
def kth_smallest(values: np.ndarray, k: int) -> float:
    """The value at index `k` of the sorted values; reorders `values`. None may be NaN."""
    low, high = 0, len(values) - 1
    while low < high:
        first, middle, last = values[low], values[(low + high) >> 1], values[high]
        pivot = max(min(first, middle), min(max(first, middle), last))
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            break
    return values[k]
