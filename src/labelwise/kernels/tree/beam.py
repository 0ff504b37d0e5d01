"""Beam search in a tree of linear classifiers; the scores of kept nodes are exact.

Work is grouped by chunk: all documents that expand the same node are processed together. With many of them the chunk's
features are written to a table once, in which every document looks up its own; with few (a single query) each document
uses the chunk's directory. Both add the same products in the same order, so they are bitwise equal.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.chunk_directory import look_up
from labelwise.kernels.tree.lanes import LANES, add_spans, as_float
from labelwise.kernels.tree.prefetch import prefetch
from labelwise.kernels.tree.sorting import sort_from_bit
from labelwise.topk import NO_LABEL

_LOW = 0xFFFFFFFF
SIGMOID, PLAIN, SMOOTH_HINGE = 1, 2, 3  # 0 is the hinge
SHARPNESS = np.float32(3)  # of the smooth hinge: the larger, the closer to the hinge
MAX_LOG = np.float32(88)  # beyond it e^x overflows float32; only a user's label weights lead there


@inner
def expand(
    indptr, indices, data, block, first_row, nodes, scores, children_offsets, chunk_offsets, features, row_offsets,
    lanes, values, bias, scales, word_offsets, words, shifts, range_offsets, starts, widest, transform, power, allowed,
    extra, names, keep, position, out_nodes, out_scores,
):  # fmt: skip
    """Score the children of every document's kept nodes and keep the best `keep` of them.

    block is (dense [documents, columns], first_dense, zeros): dense features with the indices from first_dense on,
    summed also if 0 with `zeros`; it may have no columns. nodes, scores [documents, beam]: the kept nodes of the level
    above, padded with NO_LABEL; scores are logarithms unless the transform is PLAIN. allowed [children] is a mask of
    children (empty: all), extra [children] is added to scores (empty: nothing), names [children] are their ids in the
    result (empty: their indices). `position` [features] must hold -1 (empty: never used) and is reset to it;
    word_offsets to starts are the chunks' directories, `widest` is the maximum number of children per chunk. Ties go to
    the lower id.
    """
    dense, first_dense, zeros = block
    n, beam = nodes.shape
    unsorted_pairs = np.empty(n * beam, np.int64)
    count = np.int64(0)
    for i in range(n):
        for slot in range(beam):
            if nodes[i, slot] != NO_LABEL:
                unsorted_pairs[count] = (np.int64(nodes[i, slot]) << 32) | (i * beam + slot)
                count += 1
        for rank in range(keep):
            out_nodes[i, rank] = NO_LABEL
            out_scores[i, rank] = -np.inf
    pairs = sort_from_bit(32, unsorted_pairs, count, len(children_offsets), np.empty(n * beam, np.int64))
    sums = np.empty(widest + LANES, np.float32)  # blocks are added as a whole; the rest of the last one is ignored
    longest = 0
    for row in range(first_row, first_row + n):
        longest = max(longest, indptr[row + 1] - indptr[row])
    n_dense = dense.shape[1]
    longest += n_dense
    hit_rows, rest_rows = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    hit_values, rest_values = np.empty(longest + 1, np.float32), np.empty(longest + 1, np.float32)
    begin = 0
    while begin < count:
        chunk = pairs[begin] >> 32
        end = begin
        entries = 0
        while end < count and pairs[end] >> 32 == chunk:
            row = first_row + (pairs[end] & _LOW) // beam
            entries += indptr[row + 1] - indptr[row]
            end += 1
        low, high = chunk_offsets[chunk], chunk_offsets[chunk + 1]
        use_table = len(position) > 0 and 4 * entries > high - low
        if use_table:
            for r in range(low, high):
                position[features[r]] = r - low
        dense_low, dense_high = low, low
        if n_dense > 0:
            dense_low = _lower_bound(features, low, high, first_dense)
            dense_high = _lower_bound(features, low, high, first_dense + n_dense)
        first = children_offsets[chunk]
        width = children_offsets[chunk + 1] - first
        for p in range(begin, end):
            pair = pairs[p] & _LOW
            i = pair // beam
            row = first_row + i
            for lane in range(width):
                sums[lane] = 0
            start, stop = indptr[row], indptr[row + 1]
            middle = stop
            if dense_high > dense_low:
                middle = _lower_bound(indices, start, stop, first_dense)
            found = 0
            if use_table:
                found = _look_up_in_table(start, middle, indices, data, low, position, found, hit_rows, hit_values)
            else:
                found = look_up(
                    start, middle, indices, data, chunk, low, features, word_offsets, words, shifts, range_offsets,
                    starts, found, hit_rows, hit_values,
                )  # fmt: skip
            for r in range(dense_low, dense_high):
                value = dense[i, features[r] - first_dense]
                hit_rows[found], hit_values[found] = r, value
                found += zeros or value != 0
            if middle < stop:
                if use_table:
                    found = _look_up_in_table(middle, stop, indices, data, low, position, found, hit_rows, hit_values)
                else:
                    found = look_up(
                        middle, stop, indices, data, chunk, low, features, word_offsets, words, shifts, range_offsets,
                        starts, found, hit_rows, hit_values,
                    )  # fmt: skip
            _add(found, hit_rows, hit_values, row_offsets, lanes, values, width, rest_rows, rest_values, sums)
            above = scores[i, pair % beam]
            best_nodes, best_scores = out_nodes[i], out_scores[i]
            for lane in range(width):
                child = first + lane
                if len(allowed) > 0 and not allowed[child]:
                    continue
                total = sums[lane] * scales[child] if len(scales) > 0 else sums[lane]
                # An exact score is needed only of a child that can be kept; what is added to it is not known there.
                least = best_scores[keep - 1] if len(extra) == 0 else np.float32(-np.inf)
                score = _score(total + bias[child], above, transform, power, least)
                if len(extra) > 0:
                    score += extra[child]
                if score >= best_scores[keep - 1]:
                    _insert(best_nodes, best_scores, keep, names[child] if len(names) > 0 else child, score)
        if use_table:
            for r in range(low, high):
                position[features[r]] = -1
        begin = end


@inner
def _lower_bound(numbers, begin, end, minimum):
    """The first index in begin..end, where numbers ascend, with a number of at least `minimum`."""
    while begin < end:
        middle = (begin + end) >> 1
        if numbers[middle] < minimum:
            begin = middle + 1
        else:
            end = middle
    return begin


@inner
def _look_up_in_table(start, stop, indices, data, low, position, found, hit_rows, hit_values):
    """`look_up` by table; branch-free, so that look-ups overlap."""
    for k in range(start, stop):
        r = position[indices[k]]
        hit_rows[found] = low + r
        hit_values[found] = data[k]
        found += r >= 0
    return found


@inner
def _add(found, hit_rows, hit_values, row_offsets, lanes, values, width, rest_rows, rest_values, sums):
    """Add the weights of the features found: first, as vectors, those of full rows (a weight for every child)."""
    blocks = (width + LANES - 1) // LANES
    last = len(values) - blocks * LANES
    for h in range(found):
        prefetch(row_offsets, hit_rows[h])
    full = rest = 0
    for h in range(found):  # branch-free partition; the offsets of full rows overwrite hits already read
        r, x = hit_rows[h], hit_values[h]
        begin = row_offsets[r]
        is_full = (row_offsets[r + 1] - begin == width) & (begin <= last)
        hit_rows[full], hit_values[full] = begin, x
        rest_rows[rest], rest_values[rest] = r, x
        full += is_full
        rest += not is_full
        prefetch(values, begin)
        prefetch(lanes, begin)
    for block in range(1, blocks):
        for h in range(full):
            prefetch(values, hit_rows[h] + block * LANES)
    for block in range(blocks):
        add_spans(values, hit_rows, hit_values, full, block, sums)
    for h in range(rest):  # unsigned indices: Numba need not test for negative ones
        r, x = rest_rows[h], rest_values[h]
        entry, end = np.uint64(row_offsets[r]), np.uint64(row_offsets[r + 1])
        while entry < end:
            sums[lanes[entry]] += x * as_float(values[entry])
            entry += np.uint64(1)


@jit(inline="always")
def _score(margin, above, transform, power, least):
    """A child's score combined with its parent's; in logarithms, so that products are sums without underflow.

    Any number below `least` may be returned for a score below it.
    """
    if transform == PLAIN:
        return margin
    if transform == SIGMOID:
        if margin > 0:
            return np.float32(above - np.log1p(np.exp(-margin)))
        return np.float32(above + margin - np.log1p(np.exp(margin)))
    short = max(np.float32(1) - margin, np.float32(0))
    cost = _to_power(short, power)
    if transform == SMOOTH_HINGE and above - cost >= least:  # the hinge's cost is never above the smooth one's
        rest = np.log1p(np.exp(-SHARPNESS * abs(np.float32(1) - margin))) / SHARPNESS
        cost = _to_power(short + rest, power)
    return np.float32(above - cost)


@jit(inline="always")
def _to_power(number, power):
    result = number
    for _ in range(power - 1):
        result *= number
    return result


@jit(inline="always")
def _insert(nodes, scores, keep, node, score):
    """Insert a node into a row sorted best first, if it is among the best."""
    last = keep - 1
    if nodes[last] != NO_LABEL and (score < scores[last] or (score == scores[last] and node > nodes[last])):
        return
    rank = last
    while rank > 0 and (
        nodes[rank - 1] == NO_LABEL
        or score > scores[rank - 1]
        or (score == scores[rank - 1] and node < nodes[rank - 1])
    ):
        nodes[rank] = nodes[rank - 1]
        scores[rank] = scores[rank - 1]
        rank -= 1
    nodes[rank] = node
    scores[rank] = score


@inner
def from_logarithms(ids, scores, begin, end):
    """Exponentiate the scores of some rows; where that makes scores equal, lower ids are moved first again."""
    for i in range(begin, end):
        for rank in range(ids.shape[1]):
            node = ids[i, rank]
            if node == NO_LABEL:
                break
            score = np.exp(min(scores[i, rank], MAX_LOG))
            to = rank
            while to > 0 and scores[i, to - 1] == score and ids[i, to - 1] > node:
                ids[i, to] = ids[i, to - 1]
                scores[i, to] = scores[i, to - 1]
                to -= 1
            ids[i, to] = node
            scores[i, to] = score
