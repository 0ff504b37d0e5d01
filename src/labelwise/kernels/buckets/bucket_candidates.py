"""Approximate decoding: labels in the best buckets of several tables, scored exactly."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.buckets.bucket_scan import exact_score, insert_best
from labelwise.kernels.jit import jit

MAX_HITS = 255
"""Maximum count of the tables that a label is found in: one byte."""


@jit
def best_candidates(scores, rows, order, offsets, chosen, hits, aggregation, counts, best, ids):
    """The best labels of one document among those in its chosen buckets of `hits` tables, or of fewer if too few.

    `scores` [tables, buckets, 1], `rows` [labels, tables], `order` and `offsets` the members of buckets, `chosen`
    [tables, n] the buckets, `counts` one byte per label, zero before and after. `best` and `ids` are the result.
    """
    tables = len(chosen)
    size = 0
    for table in range(tables):
        for bucket in chosen[table]:
            size += offsets[table, bucket + 1] - offsets[table, bucket]
    candidates = np.empty(size, np.int32)
    n_candidates = 0
    enough = np.zeros(tables + 1, np.int64)
    for table in range(tables):
        for bucket in chosen[table]:
            for index in range(offsets[table, bucket], offsets[table, bucket + 1]):
                label = order[table, index]
                if counts[label] == 0:
                    candidates[n_candidates] = label
                    n_candidates += 1
                if counts[label] < MAX_HITS:
                    counts[label] += 1
                    enough[counts[label]] += 1
    while hits > 1 and enough[hits] < len(best):
        hits -= 1
    scratch = np.empty(tables, np.float32)
    for index in range(n_candidates):
        label = candidates[index]
        if counts[label] >= hits:
            insert_best(exact_score(rows, label, scores, 0, aggregation, scratch), label, best, ids)
        counts[label] = 0
