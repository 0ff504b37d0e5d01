"""Nearest neighbours: a document gets the labels of the training documents that are most similar to it.

Cost: nothing is learned; a prediction computes one product with every training document that shares a feature.
Memory: the training documents and their labels.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from scipy import sparse

from labelwise.config import Config as BaseConfig
from labelwise.errors import ModelFormatError
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.io import folder as store
from labelwise.methods.text_features import TextFeatures
from labelwise.model.method import Method
from labelwise.topk import TopK

BATCH = 256
PRIOR = 1e-6


class Knn(TextFeatures, Method):
    """The labels of the most similar training documents."""

    name = "knn"
    inputs = ("features", "texts")

    class Config(BaseConfig):
        """Parameters."""

        neighbours: Annotated[int, Field(ge=1)] = 10
        """Most similar training documents whose labels are counted, weighted by cosine similarity."""
        tfidf: TfidfConfig = LINEAR_TFIDF
        """How texts become features (not used when the data has features)."""

    def _fit(self, data, kind, valid, context):
        self.documents_ = unit_rows(self.learn_features(data, kind))
        self.labels_ = data.labels

    def _predict(self, data, k):
        parts = [self._vote(data.take(slice(i, i + BATCH)), k) for i in range(0, max(len(data), 1), BATCH)]
        return TopK.concatenate(parts)

    def _vote(self, data, k):
        similarity = unit_rows(self.features_of(data)) @ self.documents_.T
        nearest = TopK.from_csr(similarity, self.config.neighbours).to_csr(self.documents_.shape[0])
        return TopK.from_csr(nearest @ self.labels_ + self._prior(len(data), k), k)

    def _prior(self, count, k):
        """A little for the most frequent labels: documents without neighbours get these."""
        frequency = np.bincount(self.labels_.indices, minlength=self.labels_.shape[1])
        best = np.argsort(-frequency, kind="stable")[:k]
        values = np.tile(PRIOR * (1 + frequency[best]), count)
        return sparse.csr_array(
            (values, np.tile(best, count), np.arange(count + 1) * len(best)), shape=(count, len(frequency))
        )

    def _state(self):
        return {
            **self.features_state(),
            **store.csr_to_tensors("documents", self.documents_),
            **store.csr_to_tensors("labels", self.labels_),
        }

    def _restore(self, tensors, path):
        self.restore_features(tensors, path)
        self.documents_ = store.csr_from_tensors("documents", tensors, path)  # mapped from the file, and checked
        self.labels_ = store.csr_from_tensors("labels", tensors, path)
        expected = (self.documents_.shape[0], self.feature_count, len(self.label_names_))
        if (self.labels_.shape[0], self.documents_.shape[1], self.labels_.shape[1]) != expected:
            raise ModelFormatError(f"{path}: documents and labels do not fit each other")


def unit_rows(features):
    """Rows of L2 norm 1; empty rows stay empty."""
    norms = np.sqrt(features.multiply(features).sum(axis=1))
    scale = sparse.dia_array((1 / np.where(norms > 0, norms, 1)[None], [0]), shape=(len(norms), len(norms)))
    return sparse.csr_array(scale @ features, dtype=np.float32)
