"""Beam search down a tree of linear classifiers, exact for the nodes it keeps.

Work is grouped by chunk: all documents that look into the same node come together. With many of them the chunk's
features are laid out in a table once and every document looks its own up; with few (a single query) each document
goes through the chunk's directory. Both add the same products in the same order, so they agree to the last bit.
"""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.chunk_directory import look_up
from labelwise.kernels.tree.lanes import LANES, add_stretches, as_float
from labelwise.kernels.tree.prefetch import prefetch
from labelwise.kernels.tree.sorting import sort_from_bit
from labelwise.topk import NO_LABEL

_LOW = 0xFFFFFFFF
HINGE, SIGMOID, PLAIN = 0, 1, 2
LARGEST_LOG = np.float32(88)  # beyond it e^x is no float32 any more; only labels weighed up by the user get there


@inner
def expand(
    indptr, indices, data, block, first_row, nodes, scores, children_offsets, chunk_offsets, features, row_offsets,
    lanes, values, bias, scales, word_offsets, words, shifts, range_offsets, starts, widest, transform, power, allowed,
    extra, names, keep, position, out_nodes, out_scores,
):  # fmt: skip
    """Look at the children of every document's kept nodes and keep the best `keep` of them.

    block is (dense [documents, columns], first_dense, zeros): numbers that every document has, the features from
    first_dense on, added up also if 0 with `zeros`; without columns if there are none. nodes, scores [documents, beam]:
    what is kept of the level above (NO_LABEL: empty); scores are logarithms unless the transform is PLAIN. allowed
    [children] leaves children out (empty: none), extra [children] is added to scores (empty: nothing), names [children]
    is what they are called in the result (empty: their number). `position` [features] must hold -1 (empty: never used)
    and is left so; word_offsets to starts are the chunks' directories, `widest` is the most children a chunk has. Of
    equal scores the lower name wins.
    """
    dense, first_dense, zeros = block
    n, beam = nodes.shape
    found_pairs = np.empty(n * beam, np.int64)
    count = np.int64(0)
    for i in range(n):
        for slot in range(beam):
            if nodes[i, slot] != NO_LABEL:
                found_pairs[count] = (np.int64(nodes[i, slot]) << 32) | (i * beam + slot)
                count += 1
        for place in range(keep):
            out_nodes[i, place] = NO_LABEL
            out_scores[i, place] = -np.inf
    pairs = sort_from_bit(32, found_pairs, count, len(children_offsets), np.empty(n * beam, np.int64))
    sums = np.empty(widest + LANES, np.float32)  # whole blocks are added, the rest of the last is not looked at
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
        tabled = len(position) > 0 and 4 * entries > high - low
        if tabled:
            for r in range(low, high):
                position[features[r]] = r - low
        dense_low, dense_high = low, low
        if n_dense > 0:
            dense_low = _first_from(features, low, high, first_dense)
            dense_high = _first_from(features, low, high, first_dense + n_dense)
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
                middle = _first_from(indices, start, stop, first_dense)
            found = 0
            if tabled:
                found = _look_up_all(start, middle, indices, data, low, position, found, hit_rows, hit_values)
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
                if tabled:
                    found = _look_up_all(middle, stop, indices, data, low, position, found, hit_rows, hit_values)
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
                score = _score(total + bias[child], above, transform, power)
                if len(extra) > 0:
                    score += extra[child]
                if score >= best_scores[keep - 1]:
                    _keep(best_nodes, best_scores, keep, names[child] if len(names) > 0 else child, score)
        if tabled:
            for r in range(low, high):
                position[features[r]] = -1
        begin = end


@inner
def _first_from(numbers, begin, end, least):
    """The first place of begin..end, where numbers rise, with one of at least `least`."""
    while begin < end:
        middle = (begin + end) >> 1
        if numbers[middle] < least:
            begin = middle + 1
        else:
            end = middle
    return begin


@inner
def _look_up_all(start, stop, indices, data, low, position, found, hit_rows, hit_values):
    """The same as `look_up` by table; without a branch, so that look-ups overlap."""
    for k in range(start, stop):
        r = position[indices[k]]
        hit_rows[found] = low + r
        hit_values[found] = data[k]
        found += r >= 0
    return found


@inner
def _add(found, hit_rows, hit_values, row_offsets, lanes, values, width, rest_rows, rest_values, sums):
    """Add the weights of the features found: first, as vectors, those of rows with a weight for every child."""
    blocks = (width + LANES - 1) // LANES
    last = len(values) - blocks * LANES
    for h in range(found):
        prefetch(row_offsets, hit_rows[h])
    whole = rest = 0
    for h in range(found):  # parted without a branch; of whole rows where they begin is kept, in the place of hits read
        r, x = hit_rows[h], hit_values[h]
        begin = row_offsets[r]
        is_whole = (row_offsets[r + 1] - begin == width) & (begin <= last)
        hit_rows[whole], hit_values[whole] = begin, x
        rest_rows[rest], rest_values[rest] = r, x
        whole += is_whole
        rest += not is_whole
        prefetch(values, begin)
        prefetch(lanes, begin)
    for block in range(1, blocks):
        for h in range(whole):
            prefetch(values, hit_rows[h] + block * LANES)
    for block in range(blocks):
        add_stretches(values, hit_rows, hit_values, whole, block, sums)
    for h in range(rest):  # entries by unsigned number, which cannot count from the end and needs no test for it
        r, x = rest_rows[h], rest_values[h]
        entry, end = np.uint64(row_offsets[r]), np.uint64(row_offsets[r + 1])
        while entry < end:
            sums[lanes[entry]] += x * as_float(values[entry])
            entry += np.uint64(1)


@jit(inline="always")
def _score(margin, above, transform, power):
    """A child's score, with its parent's; in logarithms, so that products are sums and nothing vanishes."""
    if transform == HINGE:
        short = max(np.float32(1) - margin, np.float32(0))
        cost = short
        for _ in range(power - 1):
            cost *= short
        return above - cost
    if transform == SIGMOID:
        if margin > 0:
            return np.float32(above - np.log1p(np.exp(-margin)))
        return np.float32(above + margin - np.log1p(np.exp(margin)))
    return margin


@jit(inline="always")
def _keep(nodes, scores, keep, node, score):
    """Insert into a row sorted best first, if it belongs there."""
    last = keep - 1
    if nodes[last] != NO_LABEL and (score < scores[last] or (score == scores[last] and node > nodes[last])):
        return
    place = last
    while place > 0 and (
        nodes[place - 1] == NO_LABEL
        or score > scores[place - 1]
        or (score == scores[place - 1] and node < nodes[place - 1])
    ):
        nodes[place] = nodes[place - 1]
        scores[place] = scores[place - 1]
        place -= 1
    nodes[place] = node
    scores[place] = score


@inner
def from_logarithms(ids, scores, begin, end):
    """e to the scores of some rows; where that makes two scores equal, the lower id comes first again."""
    for i in range(begin, end):
        for place in range(ids.shape[1]):
            node = ids[i, place]
            if node == NO_LABEL:
                break
            score = np.exp(min(scores[i, place], LARGEST_LOG))
            to = place
            while to > 0 and scores[i, to - 1] == score and ids[i, to - 1] > node:
                ids[i, to] = ids[i, to - 1]
                scores[i, to] = scores[i, to - 1]
                to -= 1
            ids[i, to] = node
            scores[i, to] = score
