"""Beam search in a tree of linear classifiers; the scores of kept nodes are exact.

Work is grouped by chunk: all documents that expand the same node are processed together. With many of them the chunk's
features are written to a table once, in which every document looks up its own; with few (a single query) each document
uses the chunk's sets of features. Both add the same products in the same order, so they are bitwise equal.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.feature_sets import decode, look_up
from labelwise.kernels.tree.lanes import LANES, add_spans, as_float
from labelwise.kernels.tree.packed_rows import SOUND, WANTED, row_begin
from labelwise.kernels.tree.prefetch import prefetch
from labelwise.kernels.tree.sizes import BLOCK
from labelwise.kernels.tree.sorting import sort_from_bit
from labelwise.topk import NO_LABEL

_LOW = 0xFFFFFFFF
SIGMOID, PLAIN, SMOOTH_HINGE = 1, 2, 3  # 0 is the hinge
SHARPNESS = np.float32(3)  # of the smooth hinge: the larger, the closer to the hinge
MAX_LOG = np.float32(88)  # beyond it e^x overflows float32; only a user's label weights lead there


@inner
def expand(
    indptr, indices, data, block, first_row, nodes, scores, children_offsets, sets, rows, bias, scales, checked, widest,
    transform, power, allowed, extra, names, keep, position, out_nodes, out_scores,
):  # fmt: skip
    """Score the children of every document's kept nodes and keep the best `keep` of them.

    block is (dense [documents, columns], first_dense, zeros): dense features with the indices from first_dense on,
    summed also if 0 with `zeros`; it may have no columns. nodes, scores [documents, beam]: the kept nodes of the level
    above, padded with NO_LABEL; scores are logarithms unless the transform is PLAIN. sets and rows are the weights, see
    `feature_sets` and `packed_rows`. allowed [children] is a mask of
    children (empty: all), extra [children] is added to scores (empty: nothing), names [children] are their ids in the
    result (empty: their indices). `position` [features] must hold -1 (empty: never used) and is reset to it; `widest`
    is the maximum number of children per chunk. Ties go to the lower id.

    If some of the chunks are not known to be sound, marks them as WANTED in `checked` and returns False.
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
    known = True
    for p in range(count):
        if checked[pairs[p] >> 32] != SOUND:
            checked[pairs[p] >> 32] = WANTED
            known = False
    if not known:
        return False
    sums = np.empty(widest + LANES, np.float32)  # blocks are added as a whole; the rest of the last one is ignored
    longest = 0
    for row in range(first_row, first_row + n):
        longest = max(longest, indptr[row + 1] - indptr[row])
    n_dense = dense.shape[1]
    longest += n_dense
    # of full rows, then of others: the number of hits, their ranks, and the document's values
    found, hits = np.empty(2, np.int64), np.empty((2, longest + 1), np.int64)
    factors, ends = np.empty((2, longest + 1), np.float32), np.empty(longest + 1, np.int64)
    columns, numbers = np.arange(first_dense, first_dense + n_dense), np.arange(n_dense)
    block_found, block_hits = np.zeros(2, np.int64), np.empty((2, n_dense + 1), np.int64)
    block_columns = np.empty((2, n_dense + 1), np.int64)
    table = np.empty(len(position), np.int32)  # the features of a chunk that are in `position`
    begin = 0
    while begin < count:
        chunk = pairs[begin] >> 32
        end = begin
        entries = 0
        while end < count and pairs[end] >> 32 == chunk:
            row = first_row + (pairs[end] & _LOW) // beam
            entries += indptr[row + 1] - indptr[row]
            end += 1
        size = sets[0][2 * chunk + 2] - sets[0][2 * chunk]
        use_table = len(position) > 0 and 6 * entries > size  # a look-up in two sets takes as long as decoding six
        if use_table:
            before = np.int64(0)
            for kind in range(2):
                after = before + decode(2 * chunk + kind, sets, table[before:])
                for r in range(before, after):
                    position[table[r]] = 2 * (r - before) + kind
                before = after
        if n_dense > 0:
            for kind in range(2):
                block_found[kind] = look_up(
                    0, n_dense, columns, numbers, 2 * chunk + kind, sets, 0, block_hits[kind], block_columns[kind]
                )
        first = children_offsets[chunk]
        width = children_offsets[chunk + 1] - first
        for p in range(begin, end):
            pair = pairs[p] & _LOW
            i = pair // beam
            row = first_row + i
            for lane in range(width):
                sums[lane] = 0
            found[0] = found[1] = 0
            start, stop = indptr[row], indptr[row + 1]
            middle = _lower_bound(indices, start, stop, first_dense) if n_dense > 0 else stop
            for side in range(2):  # the document's features before its dense ones, and after them
                if side == 1:
                    start, middle = middle, stop
                if start == middle:
                    pass
                elif use_table:
                    _look_up_in_table(start, middle, indices, data, position, found, hits, factors)
                else:
                    for kind in range(2):
                        found[kind] = look_up(
                            start, middle, indices, data, 2 * chunk + kind, sets, found[kind], hits[kind], factors[kind]
                        )
                if n_dense > 0 and side == 0:
                    for kind in range(2):
                        for h in range(block_found[kind]):
                            value, to = dense[i, block_columns[kind, h]], found[kind]
                            hits[kind, to], factors[kind, to] = block_hits[kind, h], value
                            found[kind] += zeros or value != 0
            _add_full(found[0], hits[0], factors[0], rows[0][chunk], rows[6], width, sums)
            _add_others(found[1], hits[1], factors[1], rows[1][chunk], rows, ends, sums)
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
            for r in range(size):
                position[table[r]] = -1
        begin = end
    return True


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
def _look_up_in_table(start, stop, indices, data, position, found, hits, factors):
    """`look_up` in both sets of a chunk by table; branch-free, so that look-ups overlap."""
    full, other = found[0], found[1]
    for k in range(start, stop):
        r = position[indices[k]]
        hits[0, full] = hits[1, other] = r >> 1
        factors[0, full] = factors[1, other] = data[k]
        full += (r >= 0) & (r & 1 == 0)
        other += (r >= 0) & (r & 1 == 1)
    found[0], found[1] = full, other


@inner
def _add_full(found, hits, factors, begin, full_values, width, sums):
    """Add full rows (a weight for every child) as vectors; overwrites the hits."""
    blocks = (width + LANES - 1) // LANES
    for h in range(found):
        hits[h] = begin + hits[h] * width
        for block in range(blocks):
            prefetch(full_values, hits[h] + block * LANES)
    for block in range(blocks):
        add_spans(full_values, hits, factors, found, block, sums)


@inner
def _add_others(found, hits, factors, first_row, rows, ends, sums):
    """Add rows with weights for some of the children; overwrites the hits."""
    _, _, anchors, counts, lanes, values, _ = rows
    for h in range(found):
        row = first_row + hits[h]
        prefetch(anchors, row // BLOCK)
        prefetch(counts, row)
    for h in range(found):
        row = first_row + hits[h]
        begin = row_begin(row, anchors, counts)
        hits[h], ends[h] = begin, begin + np.int64(counts[row])
        prefetch(lanes, begin)
        prefetch(values, begin)
    for h in range(found):  # unsigned indices: Numba need not test for negative ones
        entry, end, x = np.uint64(hits[h]), np.uint64(ends[h]), factors[h]
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
