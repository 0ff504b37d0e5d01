"""Where a chunk keeps a feature: a table of starts over ranges of features, so that a look-up is one short scan.

A chunk's features are sorted; range b covers the features from b << shift on, and the shift is chosen so that a range
holds one or two of the chunk's features. The table takes two to four bytes a feature, however large the vocabulary.
"""

from __future__ import annotations

from numba import njit

from labelwise.kernels.prefetch import prefetch


@njit(nogil=True, cache=True)
def directory_shape(chunk_offsets, n_features, shifts, offsets):
    """Choose each chunk's shift and lay the tables end to end; offsets[-1] is their whole size."""
    offsets[0] = 0
    for c in range(len(chunk_offsets) - 1):
        count = chunk_offsets[c + 1] - chunk_offsets[c]
        shift = 1
        while (n_features >> shift) > max(count, 1):
            shift += 1
        shifts[c] = shift
        offsets[c + 1] = offsets[c] + (n_features >> shift) + 2


@njit(nogil=True, cache=True)
def fill_directory(chunk_offsets, features, shifts, offsets, first, last, starts):
    """Fill the tables of the chunks first..last; starts count from the chunk's own first feature."""
    for c in range(first, last):
        low, high = chunk_offsets[c], chunk_offsets[c + 1]
        filled = offsets[c]
        for r in range(low, high):
            place = offsets[c] + (features[r] >> shifts[c])
            while filled <= place:
                starts[filled] = r - low
                filled += 1
        while filled < offsets[c + 1]:
            starts[filled] = high - low
            filled += 1


@njit(nogil=True, cache=True)
def look_up(begin, end, indices, data, low, features, shift, offset, starts, hit_rows, hit_values):
    """The chunk's rows of a document's features with the document's values; returns how many were found."""
    found = 0
    for k in range(begin, end):
        prefetch(starts, offset + (indices[k] >> shift))
    for k in range(begin, end):
        prefetch(features, low + starts[offset + (indices[k] >> shift)])
    for k in range(begin, end):
        wanted = indices[k]
        place = offset + (wanted >> shift)
        r, stop = low + starts[place], low + starts[place + 1]
        while r < stop and features[r] < wanted:
            r += 1
        hit_rows[found] = r
        hit_values[found] = data[k]
        found += r < stop and features[r] == wanted
    return found
