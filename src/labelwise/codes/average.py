"""Combine the predictions of several models: their mean score, or all their labels side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.parallel import ranges, run_all, threads
from labelwise.topk import NO_LABEL, TopK

MISSING = -1
"""The rank of a label that a model does not predict."""


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


@dataclass(frozen=True, eq=False)
class Candidates:
    """The labels that any of several models predicts for a document, with the score and rank in each.

    A row holds its labels in ascending order, then NO_LABEL. Labels that a model does not predict have the rank MISSING
    and its score of the document's last predicted label, or NaN if it predicts none for the document.
    """

    labels: np.ndarray
    """[documents, candidates]"""
    scores: np.ndarray
    """float32 [documents, candidates, models]"""
    ranks: np.ndarray
    """int32 [documents, candidates, models], from 0"""

    @property
    def filled(self) -> np.ndarray:
        """Where there is a label [documents, candidates]."""
        return self.labels != NO_LABEL

    def best(self, values: np.ndarray, k: int) -> TopK:
        """The k candidates with the highest values [documents, candidates], ties by lower id."""
        scores = np.where(self.filled, values, -np.inf).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        ids, scores = np.take_along_axis(self.labels, order, 1), np.take_along_axis(scores, order, 1)
        return TopK(ids, scores).padded(k)


def side_by_side(tops: Sequence[TopK]) -> Candidates:
    """All labels of several predictions for the same documents, in one label space."""
    ids = np.concatenate([top.ids for top in tops], axis=1)
    scores = np.concatenate([top.scores for top in tops], axis=1)
    models = np.repeat(np.arange(len(tops)), [top.k for top in tops])
    ranks = np.concatenate([np.arange(top.k) for top in tops])
    last = np.iinfo(np.int64).max
    keys = ids.astype(np.int64)
    keys[ids == NO_LABEL] = last
    order = np.argsort(keys, axis=1, kind="stable")
    keys = np.take_along_axis(keys, order, 1)
    filled = keys != last
    first = filled.copy()
    first[:, 1:] &= keys[:, 1:] != keys[:, :-1]
    column = np.cumsum(first, axis=1) - 1
    shape = (len(ids), max(int(column.max(initial=0)) + 1, 1), len(tops))
    labels = np.full(shape[:2], NO_LABEL, np.int32)
    rows, places = np.nonzero(first)
    labels[rows, column[rows, places]] = keys[rows, places]
    rows, places = np.nonzero(filled)
    where = rows, column[rows, places], models[order[rows, places]]
    found_scores, found_ranks = np.empty(shape, np.float32), np.full(shape, MISSING, np.int32)
    found_scores[:] = _last_scores(tops)[:, None, :]
    found_scores[where] = scores[rows, order[rows, places]]
    found_ranks[where] = ranks[order[rows, places]]
    return Candidates(labels, found_scores, found_ranks)


def _last_scores(tops: Sequence[TopK]) -> np.ndarray:
    """Each model's score of the last label that it predicts for a document [documents, models], NaN if for none."""
    scores = np.full((len(tops[0]), len(tops)), np.nan, np.float32)
    for model, top in enumerate(tops):
        counts = (top.ids != NO_LABEL).sum(1)
        rows = np.flatnonzero(counts)
        scores[rows, model] = top.scores[rows, counts[rows] - 1]
    return scores
