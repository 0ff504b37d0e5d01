"""The k best codes by the sum of their digits' scores, one document after the other."""

from __future__ import annotations

import numpy as np

from labelwise.kernels.jit import inner, jit


@jit
def best_codes(scores, radices, n_codes, best, codes, begin, end):
    """Write the best codes below `n_codes` of documents begin..end, best first, ties in order of codes.

    `scores` [documents, digits' values side by side], `best` and `codes` [documents, k] are the result; ranks that no
    finite score fills keep -inf and -1. After each digit the k best prefixes suffice: whatever follows them may follow
    any other. The one exception is the last prefix that has codes at all, which may lack some; it is always kept.
    """
    k, depth = best.shape[1], len(radices)
    kept, kept_nodes = np.empty(k + 1, np.float32), np.empty(k + 1, np.int64)
    found, found_nodes = np.empty(k, np.float32), np.empty(k, np.int64)
    for document in range(begin, end):
        place, first = np.int64(1), np.int64(0)
        for digit in range(depth):
            place *= radices[digit]
        kept[0], kept_nodes[0] = 0.0, 0
        n_kept = 1
        for digit in range(depth):
            radix = radices[digit]
            place //= radix
            n_nodes = (n_codes + place - 1) // place
            last = n_nodes - 1 if n_codes % place else n_nodes  # the prefix that lacks codes
            for rank in range(k):
                found[rank], found_nodes[rank] = -np.inf, -1
            last_score = np.float32(-np.inf)
            for prefix in range(n_kept):
                node = kept_nodes[prefix] * radix
                own = kept[prefix]
                count = min(radix, n_nodes - node)
                for value in range(count):
                    score = own + scores[document, first + value]
                    if node + value == last:
                        last_score = score
                    elif score >= found[k - 1]:
                        _insert(score, node + value, found, found_nodes)
            n_kept = 0
            for rank in range(k):
                if found_nodes[rank] >= 0:
                    kept[n_kept], kept_nodes[n_kept] = found[rank], found_nodes[rank]
                    n_kept += 1
            if last < n_nodes:
                kept[n_kept], kept_nodes[n_kept] = last_score, last
                n_kept += 1
            first += min(radix, n_nodes)
        for rank in range(n_kept):
            best[document, rank], codes[document, rank] = kept[rank], kept_nodes[rank]


@inner
def _insert(score, node, best, nodes):
    """Insert into a list sorted by score, then by node; NaN and -inf are never inserted."""
    rank = len(best) - 1
    if not (score > best[rank] or (score == best[rank] and score > -np.inf and node < nodes[rank])):
        return
    while rank > 0 and (score > best[rank - 1] or (score == best[rank - 1] and node < nodes[rank - 1])):
        best[rank], nodes[rank] = best[rank - 1], nodes[rank - 1]
        rank -= 1
    best[rank], nodes[rank] = score, node
