"""From features to labels: the bucket scores of some networks, and the search for labels by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.codes.bucket_search import Aggregation, BucketSearch, Score
from labelwise.data.csr import pick_rows
from labelwise.networks.bucket_networks import BucketNetworks, ScoreForm
from labelwise.progress import progress
from labelwise.topk import TopK, sorted_by_score

AGGREGATIONS: dict[Score, Aggregation] = {"least": "least", "median": "median"}
"""How bucket scores are combined, if not by their mean."""
SCORES_AT_ONCE = 1 << 24
"""Maximum number of bucket scores in memory during prediction: 64 MB."""


@dataclass(frozen=True)
class Decoding:
    """How bucket scores become scores of labels.

    Parameters
    ----------
    score
        How the bucket scores of a label are combined.
    form
        The form of probabilities that the networks were trained for.
    candidates
        The best buckets per table whose labels are scored, and the tables in which a label must be among them; None
        scores all labels.
    """

    score: Score
    form: ScoreForm
    candidates: tuple[int, int] | None = None

    def probabilities(self, scores: np.ndarray, n_buckets: int) -> np.ndarray:
        """Convert combined bucket scores to the scores that are predicted; -inf stays -inf."""
        if self.score == "logits":
            converted = 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
        elif self.score == "unbiased":
            converted = n_buckets / (n_buckets - 1) * (scores - 1 / n_buckets)
        else:
            return scores
        return np.where(np.isneginf(scores), -np.inf, converted).astype(np.float32)


@dataclass(frozen=True, eq=False)
class BucketDecoder:
    """The networks of some repetitions and the search over their tables."""

    networks: BucketNetworks
    search: BucketSearch

    def best(
        self,
        features: Any,
        k: int,
        decoding: Decoding,
        labels: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> TopK:
        """The k best labels of each document, or of some labels, which are searched exactly.

        `weights`, one per label, multiply the scores; they need `labels`.
        """
        n_buckets = self.search.tables.n_buckets
        combined = AGGREGATIONS.get(decoding.score, "mean")
        at_once = max(32, SCORES_AT_ONCE // (len(self.search.tables) * n_buckets) // 32 * 32)

        def converted(scores: np.ndarray) -> np.ndarray:
            return decoding.probabilities(scores, n_buckets)

        parts = []
        with progress("predicting", features.shape[0]) as step:
            for begin in range(0, features.shape[0], at_once):
                scores = self.scores(pick_rows(features, slice(begin, begin + at_once)), decoding)
                if weights is not None and labels is not None:
                    top = self.search.best_weighted(scores, k, labels, weights, converted, combined)
                elif decoding.candidates is not None and labels is None:
                    top = self.search.best_candidates(scores, k, *decoding.candidates, combined)
                else:
                    top = self.search.best(scores, k, labels, combined)
                parts.append(top)
                step(len(top))
        if not parts:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        top = TopK.concatenate(parts)
        return top if weights is not None else sorted_by_score(top.ids, converted(top.scores))

    def scores(self, features: Any, decoding: Decoding) -> np.ndarray:
        """Bucket scores [repetitions, buckets, documents], in the form to be combined."""
        return self.networks.scores(features, "logits" if decoding.score == "logits" else decoding.form)
