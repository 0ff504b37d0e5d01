"""Labels met in the best buckets of several tables, scored exactly: the quick way from buckets to labels."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.buckets.bucket_scan import _keep, exact_score
from labelwise.kernels.jit import jit

MOST_HITS = 255
"""Up to which the tables that a label is met in are counted: one byte."""


@jit
def candidates_of(scores, rows, order, offsets, chosen, hits, way, counts, best, ids):
    """The best labels of one document among those met `hits` times in its chosen buckets, or less often if too few.

    `scores` [tables, buckets, 1], `rows` [labels, tables], `order` and `offsets` the members of buckets, `chosen`
    [tables, n] the buckets, `counts` one byte a label, all zero before and after. `best` and `ids` are the result.
    """
    tables = len(chosen)
    size = 0
    for table in range(tables):
        for bucket in chosen[table]:
            size += offsets[table, bucket + 1] - offsets[table, bucket]
    met = np.empty(size, np.int32)
    n_met = 0
    enough = np.zeros(tables + 1, np.int64)
    for table in range(tables):
        for bucket in chosen[table]:
            for place in range(offsets[table, bucket], offsets[table, bucket + 1]):
                label = order[table, place]
                if counts[label] == 0:
                    met[n_met] = label
                    n_met += 1
                if counts[label] < MOST_HITS:
                    counts[label] += 1
                    enough[counts[label]] += 1
    while hits > 1 and enough[hits] < len(best):
        hits -= 1
    room = np.empty(tables, np.float32)
    for place in range(n_met):
        label = met[place]
        if counts[label] >= hits:
            _keep(exact_score(rows, label, scores, 0, way, room), label, best, ids)
        counts[label] = 0
