"""Beam search through several levels of a tree in one call; a call per level took a third of a document's time."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit
from labelwise.kernels.tree.addresses import array_at
from labelwise.kernels.tree.beam import expand, from_logarithms
from labelwise.topk import NO_LABEL

ARRAYS = 19
WIDEST, BEFORE = 2 * ARRAYS, 2 * ARRAYS + 1


@jit
def descend(
    levels, lane_type, value_type, word_type, byte_type, is_first, is_last, indptr, indices, data, block, begin, end,
    nodes, kept, rules, product, allowed, extra, names, position, ids, scores,
):  # fmt: skip
    """Search for the documents begin..end in some consecutive levels, which may be all (`is_first` and `is_last`).

    levels [levels, numbers]: a level's arrays (children_offsets, those of `feature_sets` and `packed_rows`, bias,
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
