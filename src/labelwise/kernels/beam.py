"""Beam search down a tree of linear classifiers, exact for the nodes it keeps.

Work is grouped by chunk: all documents that look into the same node come together. With many of them the chunk's
features are laid out in a table once and every document looks its own up; with few (a single query) each document
searches the chunk's sorted features. Both add the same products in the same order, so they agree to the last bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

HINGE, SIGMOID, PLAIN = 0, 1, 2
NOTHING = -1


@njit(nogil=True, cache=True)
def expand(
    indptr, indices, data, first_row, nodes, scores, children_offsets, chunk_offsets, features, row_offsets, lanes,
    values, codes, decode, bias, scales, transform, power, allowed, extra, names, keep, position, out_nodes, out_scores,
):  # fmt: skip
    """Look at the children of every document's kept nodes and keep the best `keep` of them.

    nodes, scores [documents, beam]: what is kept of the level above (NOTHING: empty); scores are logarithms unless
    the transform is PLAIN. allowed [children] leaves children out (empty: none), extra [children] is added to scores
    (empty: nothing), names [children] is what they are called in the result (empty: their number). `position`
    [features] must hold -1 (empty: always search) and is left so. Of equal scores the lower name wins.
    """
    n, beam = nodes.shape
    pairs = np.empty(n * beam, np.int64)
    parents = np.empty(n * beam, np.int64)
    count = 0
    for i in range(n):
        for slot in range(beam):
            if nodes[i, slot] != NOTHING:
                pairs[count] = i * beam + slot
                parents[count] = nodes[i, slot]
                count += 1
    order = np.argsort(parents[:count], kind="mergesort")
    out_nodes[:] = NOTHING
    out_scores[:] = -np.inf
    widest = 0
    for c in range(len(children_offsets) - 1):
        widest = max(widest, children_offsets[c + 1] - children_offsets[c])
    sums = np.empty(widest, np.float32)
    longest = 0
    for row in range(first_row, first_row + n):
        longest = max(longest, indptr[row + 1] - indptr[row])
    hit_rows = np.empty(longest + 1, np.int64)
    hit_values = np.empty(longest + 1, np.float32)
    begin = 0
    while begin < count:
        chunk = parents[order[begin]]
        end = begin
        entries = 0
        while end < count and parents[order[end]] == chunk:
            row = first_row + pairs[order[end]] // beam
            entries += indptr[row + 1] - indptr[row]
            end += 1
        low, high = chunk_offsets[chunk], chunk_offsets[chunk + 1]
        tabled = len(position) > 0 and 4 * entries > high - low
        if tabled:
            for r in range(low, high):
                position[features[r]] = r
        first = children_offsets[chunk]
        width = children_offsets[chunk + 1] - first
        for p in range(begin, end):
            i = pairs[order[p]] // beam
            row = first_row + i
            sums[:width] = 0
            start, stop = indptr[row], indptr[row + 1]
            if tabled:
                found = _look_up(start, stop, indices, data, position, hit_rows, hit_values)
            else:
                found = _search(start, stop, indices, data, low, high, features, hit_rows, hit_values)
            _add(found, hit_rows, hit_values, row_offsets, lanes, values, codes, decode, sums)
            above = scores[i, pairs[order[p]] % beam]
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


@njit(nogil=True, cache=True)
def _look_up(start, stop, indices, data, position, hit_rows, hit_values):
    """The chunk's rows for the document's features, by table; without a branch, so that look-ups overlap."""
    found = 0
    for k in range(start, stop):
        r = position[indices[k]]
        hit_rows[found] = r
        hit_values[found] = data[k]
        found += r >= 0
    return found


@njit(nogil=True, cache=True)
def _search(start, stop, indices, data, low, high, features, hit_rows, hit_values):
    """The same by steps that double, then halve; both sides are sorted."""
    found = 0
    r = low
    for k in range(start, stop):
        wanted = indices[k]
        step = 1
        below = r
        while r < high and features[r] < wanted:
            below = r + 1
            r += step
            step *= 2
        top = min(r, high)
        while below < top:
            middle = (below + top) // 2
            if features[middle] < wanted:
                below = middle + 1
            else:
                top = middle
        r = below
        if r >= high:
            break
        if features[r] == wanted:
            hit_rows[found] = r
            hit_values[found] = data[k]
            found += 1
    return found


@njit(nogil=True, cache=True)
def _add(found, hit_rows, hit_values, row_offsets, lanes, values, codes, decode, sums):
    """Add the weights of the features found; stored codes are looked up, plain values taken as they are."""
    coded = len(decode) > 0
    for h in range(found):
        r, x = hit_rows[h], hit_values[h]
        if coded:
            for e in range(row_offsets[r], row_offsets[r + 1]):
                sums[lanes[e]] += x * decode[codes[e]]
        else:
            for e in range(row_offsets[r], row_offsets[r + 1]):
                sums[lanes[e]] += x * values[e]


@njit(nogil=True, cache=True, inline="always")
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


@njit(nogil=True, cache=True, inline="always")
def _keep(nodes, scores, keep, node, score):
    """Insert into a row sorted best first, if it belongs there."""
    last = keep - 1
    if nodes[last] != NOTHING and (score < scores[last] or (score == scores[last] and node > nodes[last])):
        return
    place = last
    while place > 0 and (
        nodes[place - 1] == NOTHING
        or score > scores[place - 1]
        or (score == scores[place - 1] and node < nodes[place - 1])
    ):
        nodes[place] = nodes[place - 1]
        scores[place] = scores[place - 1]
        place -= 1
    nodes[place] = node
    scores[place] = score
