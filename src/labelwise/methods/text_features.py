"""`TextFeatures`: texts for methods that learn from features, by TF-IDF.

A method that adds it before `Method` to its base classes, declares ``inputs = ("features", "texts")`` and has a field
``tfidf: TfidfConfig`` in its Config reads both: features as they are, texts through TF-IDF, which is saved with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.features.rows import as_csr
from labelwise.features.tfidf import Tfidf
from labelwise.model.inputs import Documents


class TextFeatures:
    """Features of documents: those given, or TF-IDF of their texts."""

    config: Any
    input_: str
    tfidf_: Tfidf | None

    def learn_features(self, data: Dataset, kind: str) -> Any:
        """Features of training documents as CSR; for `_fit`. Fits the TF-IDF if `kind` is texts."""
        self.tfidf_ = Tfidf(self.config.tfidf) if kind == "texts" else None
        return as_csr(data.features) if self.tfidf_ is None else self.tfidf_.fit_transform(data.texts or ())

    def features_of(self, data: Dataset | Documents) -> Any:
        """Features of other documents as CSR with the same columns; for `_predict`."""
        return as_csr(data.features) if self.tfidf_ is None else self.tfidf_.transform(data.texts or ())

    @property
    def feature_count(self) -> int:
        """Columns of the features."""
        if self.tfidf_ is not None:
            return self.tfidf_.n_features
        return int(self.n_features_in_ or 0)  # type: ignore[missing-attribute]

    def features_state(self) -> dict[str, np.ndarray]:
        """What `_state` adds to its arrays: the vocabulary."""
        return {} if self.tfidf_ is None else self.tfidf_.for_model()

    def restore_features(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        """Restore what `features_state` returned; for `_restore`."""
        self.tfidf_ = Tfidf.of_model(self.config.tfidf, tensors, path) if self.input_ == "texts" else None
