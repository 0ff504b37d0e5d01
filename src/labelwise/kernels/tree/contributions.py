"""Contributions of a document's features to the margins of labels, and the largest of them: explanations by batch."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.lanes import as_float


@inner
def _first_not_below(ascending, begin, end, value):
    """The first index in begin..end whose value is not below `value`; end if there is none."""
    while begin < end:
        middle = (begin + end) // 2
        if ascending[middle] < value:
            begin = middle + 1
        else:
            end = middle
    return begin


@jit
def add_contributions(
    indptr, indices, values, nodes, chunks, children_offsets, chunk_offsets, features, row_offsets, lanes, weights,
    scales, factor, begin, end, sums,
):  # fmt: skip
    """Add factor * value * weight for each feature of the documents begin..end and each of their nodes.

    nodes and chunks [documents, k] are nodes of one level and their parents; nodes below 0 are left out. Document d
    has sums[k * indptr[d] : k * indptr[d + 1]], node by node. `weights` is float32, int8, or float16's bits as uint16.
    """
    k = nodes.shape[1]
    for document in range(begin, end):
        first, count = indptr[document], indptr[document + 1] - indptr[document]
        for rank in range(k):
            node, chunk = nodes[document, rank], chunks[document, rank]
            if node < 0:
                continue
            lane = node - children_offsets[chunk]
            width = children_offsets[chunk + 1] - children_offsets[chunk]
            scale = np.float64(factor)
            if len(scales) > 0:
                scale *= scales[node]
            row, last_row = chunk_offsets[chunk], chunk_offsets[chunk + 1]
            base = k * first + rank * count
            for j in range(count):
                row = _first_not_below(features, row, last_row, indices[first + j])
                if row == last_row:
                    break
                if features[row] != indices[first + j]:
                    continue
                entry, last = row_offsets[row], row_offsets[row + 1]
                if last - entry == width:  # a full row
                    entry += lane
                else:
                    entry = _first_not_below(lanes, entry, last, lane)
                if entry < last and lanes[entry] == lane:
                    sums[base + j] += scale * values[first + j] * as_float(weights[entry])


@jit
def largest_contributions(indptr, indices, sums, begin, end, features, amounts):
    """The features with the largest positive sums of each document and node, largest first.

    features and amounts [documents, k, n] must hold -1 and 0.
    """
    k, n = features.shape[1], features.shape[2]
    for document in range(begin, end):
        first, count = indptr[document], indptr[document + 1] - indptr[document]
        for rank in range(k):
            base = k * first + rank * count
            for j in range(count):
                amount = sums[base + j]
                if amount <= amounts[document, rank, n - 1]:
                    continue
                position = n - 1
                while position > 0 and amount > amounts[document, rank, position - 1]:
                    amounts[document, rank, position] = amounts[document, rank, position - 1]
                    features[document, rank, position] = features[document, rank, position - 1]
                    position -= 1
                amounts[document, rank, position] = amount
                features[document, rank, position] = indices[first + j]
