"""Average the predictions of several models: the mean score of each label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labelwise.parallel import ranges, run_all, threads
from labelwise.topk import TopK


def averaged(tops: Sequence[TopK], k: int, product: bool) -> TopK:
    """The k labels with the highest mean score.

    A label that a model does not predict counts 0 for that model if scores are products of probabilities (`product`),
    otherwise as much as the model's lowest prediction for the document.
    """
    from labelwise.kernels.tree.averaging import average

    n = len(tops[0])
    ids = np.concatenate([top.ids for top in tops], axis=1)
    scores = np.concatenate([top.scores for top in tops], axis=1)
    out_ids, out_scores = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    parts = ranges(n, threads() if n >= 8 * threads() else 1)
    run_all(lambda part: average(ids, scores, len(tops), product, *part, out_ids, out_scores), parts)
    return TopK(out_ids, out_scores)
