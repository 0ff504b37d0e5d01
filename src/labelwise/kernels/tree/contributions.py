"""Contributions of a document's features to the margins of labels, and the largest of them: explanations by batch."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import jit
from labelwise.kernels.tree.feature_sets import look_up
from labelwise.kernels.tree.lanes import as_float
from labelwise.kernels.tree.packed_rows import row_begin


@jit
def add_contributions(
    indptr, indices, data, nodes, chunks, children_offsets, sets, rows, scales, factor, begin, end, sums,
):  # fmt: skip
    """Add factor * value * weight for each feature of the documents begin..end and each of their nodes.

    nodes and chunks [documents, k] are nodes of one level and their parents; nodes below 0 are left out. Document d
    has sums[k * indptr[d] : k * indptr[d + 1]], node by node. The weights are those of `feature_sets` and
    `packed_rows`; the chunks must have been checked.
    """
    full_offsets, first_rows, anchors, counts, lanes, values, full_values = rows
    k = nodes.shape[1]
    longest = 0
    for document in range(begin, end):
        longest = max(longest, indptr[document + 1] - indptr[document])
    numbers, hits, hit_numbers = np.arange(longest), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    for document in range(begin, end):
        first, count = indptr[document], indptr[document + 1] - indptr[document]
        own = indices[first : first + count]
        for rank in range(k):
            node, chunk = nodes[document, rank], chunks[document, rank]
            if node < 0:
                continue
            lane = node - children_offsets[chunk]
            width = children_offsets[chunk + 1] - children_offsets[chunk]
            scale = np.float64(factor)
            if len(scales) > 0:
                scale *= scales[node]
            base = k * first + rank * count
            found = look_up(0, count, own, numbers, 2 * chunk, sets, 0, hits, hit_numbers)
            for h in range(found):
                j, weight = hit_numbers[h], as_float(full_values[full_offsets[chunk] + hits[h] * width + lane])
                sums[base + j] += scale * data[first + j] * weight
            found = look_up(0, count, own, numbers, 2 * chunk + 1, sets, 0, hits, hit_numbers)
            for h in range(found):
                row, j = first_rows[chunk] + hits[h], hit_numbers[h]
                entry = row_begin(row, anchors, counts)
                last = entry + counts[row]
                while entry < last and lanes[entry] != lane:
                    entry += 1
                if entry < last:
                    sums[base + j] += scale * data[first + j] * as_float(values[entry])


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
