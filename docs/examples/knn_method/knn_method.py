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
from labelwise.features.featurizers import csr_rows, featurizer_of, saved_featurizer
from labelwise.features.rows import as_csr
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.io import folder as store
from labelwise.model.method import Method
from labelwise.topk import TopK

BATCH = 256
PRIOR = 1e-6


class Neighbours:
    """The training documents and their labels."""

    def __init__(self, features, documents, labels):
        self.features, self.documents, self.labels = features, documents, labels

    def top(self, documents, k, config):
        starts = range(0, max(len(documents), 1), BATCH)
        return TopK.concatenate([self._vote(documents.take(slice(i, i + BATCH)), k, config) for i in starts])

    def _vote(self, documents, k, config):
        similarity = unit_rows(csr_rows(self.features, documents)) @ self.documents.T
        nearest = TopK.from_csr(similarity, config.neighbours).to_csr(self.documents.shape[0])
        return TopK.from_csr(nearest @ self.labels + self._prior(len(documents), k), k)

    def _prior(self, count, k):
        """A little for the most frequent labels: documents without neighbours get these."""
        frequency = np.bincount(self.labels.indices, minlength=self.labels.shape[1])
        best = np.argsort(-frequency, kind="stable")[:k]
        values = np.tile(PRIOR * (1 + frequency[best]), count)
        return sparse.csr_array(
            (values, np.tile(best, count), np.arange(count + 1) * len(best)), shape=(count, len(frequency))
        )

    def tensors(self):
        return {
            **self.features.tensors(),
            **store.csr_to_tensors("documents", self.documents),
            **store.csr_to_tensors("labels", self.labels),
        }

    @classmethod
    def from_tensors(cls, tensors, about):
        features = saved_featurizer(tensors, about)
        documents = store.csr_from_tensors("documents", tensors, about.path)  # mapped from the file, and checked
        labels = store.csr_from_tensors("labels", tensors, about.path)
        expected = (documents.shape[0], features.n_features, about.n_labels)
        if (labels.shape[0], documents.shape[1], labels.shape[1]) != expected:
            raise ModelFormatError(f"{about.path}: documents and labels do not fit each other")
        return cls(features, documents, labels)


class Knn(Method):
    """The labels of the most similar training documents."""

    name = "knn"
    Fitted = Neighbours
    inputs = ("features", "texts")

    class Config(BaseConfig):
        """Parameters."""

        neighbours: Annotated[int, Field(ge=1)] = 10
        """Most similar training documents whose labels are counted, weighted by cosine similarity."""
        tfidf: TfidfConfig = LINEAR_TFIDF
        """How texts become features (not used when the data has features)."""

    def _fit(self, train, valid, job):
        features, rows = featurizer_of(self.config, train).learn(self.config, train, job)
        return Neighbours(features, unit_rows(as_csr(rows)), train.labels)


def unit_rows(features):
    """Rows of L2 norm 1; empty rows stay empty."""
    norms = np.sqrt(features.multiply(features).sum(axis=1))
    scale = sparse.dia_array((1 / np.where(norms > 0, norms, 1)[None], [0]), shape=(len(norms), len(norms)))
    return sparse.csr_array(scale @ features, dtype=np.float32)
