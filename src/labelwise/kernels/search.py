"""Beam search in a tree of linear classifiers; the scores of kept nodes are exact.

Work is grouped by chunk: all documents that expand the same node are processed together. With many of them the chunk's
features are written to a table once, in which every document looks up its own; with few (a single query) each document
uses the chunk's sets of features. Both add the same products in the same order, so they are bitwise equal.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.intrinsics import (
    BLOCK,
    LANES,
    add_spans,
    array_at,
    as_float,
    prefetch,
    sort_from_bit,
)
from labelwise.kernels.jit import inner, jit
from labelwise.kernels.packing import (
    SOUND,
    WANTED,
    decode,
    look_up,
    row_begin,
)
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
    above, padded with NO_LABEL; scores are logarithms unless the transform is PLAIN. sets and rows are the weights, as
    in `PackedWeights`. allowed [children] is a mask of children (empty: all), extra [children] is added to scores
    (empty: nothing), names [children] are their ids in the result (empty: their indices). `position` [features] must
    hold -1 (empty: never used) and is reset to it; `widest` is the maximum number of children per chunk. Ties go to the
    lower id.

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


# --- tree search ---
# Beam search through several levels of a tree in one call; a call per level took a third of a document's time.

ARRAYS = 19
WIDEST, BEFORE = 2 * ARRAYS, 2 * ARRAYS + 1


@jit
def descend(
    levels, lane_type, value_type, word_type, byte_type, is_first, is_last, indptr, indices, data, block, begin, end,
    nodes, kept, rules, product, allowed, extra, names, position, ids, scores,
):  # fmt: skip
    """Search for the documents begin..end in some consecutive levels, which may be all (`is_first` and `is_last`).

    levels [levels, numbers]: a level's arrays (children_offsets, those of `sets` and `rows` of `PackedWeights`, bias,
    scales, checked) as an address row, then its widest chunk and the number of children of all levels above; lane_type,
    value_type, word_type and byte_type are arrays of the types of lanes, values, words and bytes. rules [levels, 3]:
    the nodes to keep (not of the last level), and the transform and power of the scores.
    nodes, kept [documents, beam]: the nodes kept by the levels above, replaced by those kept here, or with `is_last`
    written to the rows begin..end of ids and scores. block (of the documents begin..end), allowed [children
    of all levels], extra and names [labels] and position are as in `expand`; with `product` the scores are
    exponentiated at the end. Returns -1, or the index of the first of the levels in which chunks have
    to be checked before they are searched, see `expand`.
    """
    if is_first:
        for i in range(len(nodes)):
            for slot in range(nodes.shape[1]):
                nodes[i, slot] = NO_LABEL if slot > 0 else 0
                kept[i, slot] = 0
    found, found_scores = nodes, kept
    for depth in range(len(levels)):
        level = levels[depth]
        bias = array_at(level, 16, scores)
        children = len(bias)
        leaf = is_last and depth == len(levels) - 1
        keep = min(ids.shape[1] if leaf else rules[depth, 0], children)
        out_nodes = np.empty((end - begin, keep), np.int32)
        out_scores = np.empty((end - begin, keep), np.float32)
        sets = (
            array_at(level, 1, levels), array_at(level, 2, levels), array_at(level, 3, word_type),
            array_at(level, 4, levels), array_at(level, 5, levels), array_at(level, 6, ids), array_at(level, 7, levels),
            array_at(level, 8, byte_type),
        )  # fmt: skip
        rows = (
            array_at(level, 9, levels), array_at(level, 10, levels), array_at(level, 11, levels),
            array_at(level, 12, lane_type), array_at(level, 13, lane_type), array_at(level, 14, value_type),
            array_at(level, 15, value_type),
        )  # fmt: skip
        known = expand(
            indptr, indices, data, block, begin, found, found_scores, array_at(level, 0, levels), sets, rows, bias,
            array_at(level, 17, scores), array_at(level, 18, byte_type), level[WIDEST],
            rules[depth, 1], rules[depth, 2], allowed[level[BEFORE] : level[BEFORE] + children],
            extra if leaf else extra[:0], names if leaf else names[:0], keep, position, out_nodes, out_scores,
        )  # fmt: skip
        if not known:
            return depth
        found, found_scores = out_nodes, out_scores
    if not is_last:
        _copy_rows(found, found_scores, np.int64(0), nodes, kept)
        return -1
    _copy_rows(found, found_scores, begin, ids, scores)
    if product:
        from_logarithms(ids, scores, begin, end)
    return -1


@inner
def _copy_rows(nodes, scores, first, out_nodes, out_scores):
    """Copy rows into wider ones from row `first` on, padded with NO_LABEL."""
    width = nodes.shape[1]
    for i in range(len(nodes)):
        for slot in range(out_nodes.shape[1]):
            out_nodes[first + i, slot] = nodes[i, slot] if slot < width else NO_LABEL
            out_scores[first + i, slot] = scores[i, slot] if slot < width else -np.inf


# --- averaging ---
# Average the best labels of several models.


@jit
def average(ids, scores, models, product, begin, end, out_ids, out_scores):
    """Labels by their mean score over the models, best first, ties by lower id.

    ids, scores [documents, models * n_ranks]: the predictions of each model, side by side, padded with NO_LABEL. A
    label that a model does not predict counts 0 there if scores are products (`product`), otherwise as much as the
    model's lowest prediction for the document.
    """
    n_ranks = ids.shape[1] // models
    keep = out_ids.shape[1]
    labels = np.empty(ids.shape[1], np.int32)
    sums = np.empty(ids.shape[1], np.float64)
    for i in range(begin, end):
        floors = 0.0
        count = np.int64(0)
        for model in range(models):
            first = model * n_ranks
            last = first
            while last < first + n_ranks and ids[i, last] != NO_LABEL:
                last += 1
            floor = 0.0 if product or last == first else np.float64(scores[i, last - 1])
            floors += floor
            for p in range(first, last):
                count = _add(labels, sums, count, ids[i, p], scores[i, p] - floor)
        for p in range(keep):
            out_ids[i, p] = NO_LABEL
            out_scores[i, p] = -np.inf
        for c in range(count):
            mean = np.float32((sums[c] + floors) / models)
            p = min(c, keep)
            while p > 0 and (mean > out_scores[i, p - 1]):
                if p < keep:
                    out_ids[i, p], out_scores[i, p] = out_ids[i, p - 1], out_scores[i, p - 1]
                p -= 1
            if p < keep:
                out_ids[i, p], out_scores[i, p] = labels[c], mean


@inner
def _add(labels, sums, count, label, score):
    """Add a score to its label's sum; labels are kept in ascending order. Returns the number of labels."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if labels[middle] < label:
            low = middle + 1
        else:
            high = middle
    if low < count and labels[low] == label:
        sums[low] += score
        return count
    for index in range(count, low, -1):
        labels[index] = labels[index - 1]
        sums[index] = sums[index - 1]
    labels[low], sums[low] = label, score
    return count + 1


# --- contributions ---
# Contributions of a document's features to the margins of labels, and the largest of them: explanations by batch.


@jit
def add_contributions(
    indptr, indices, data, nodes, chunks, children_offsets, sets, rows, scales, factor, begin, end, sums,
):  # fmt: skip
    """Add factor * value * weight for each feature of the documents begin..end and each of their nodes.

    nodes and chunks [documents, k] are nodes of one level and their parents; nodes below 0 are left out. Document d
    has sums[k * indptr[d] : k * indptr[d + 1]], node by node. The weights are `sets` and `rows` of
    `PackedWeights`; the chunks must have been checked.
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
