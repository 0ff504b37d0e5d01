"""What a model remembers of its training documents: 8 bytes each, to recognise them, and how many labels they have.

Scores on documents that a model was trained on say little about new ones, and neither do probabilities and thresholds
fitted to them. Evaluation and calibration therefore count such documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.checks import is_increasing
from labelwise.data.document_hash import document_hashes
from labelwise.errors import ModelFormatError
from labelwise.store import get_tensor

MANY = 0.99


@dataclass(frozen=True)
class Overlap:
    """How many of some documents were in the training data."""

    documents: int
    seen: int

    def remark(self, consequence: str) -> str:
        """Count and fraction in words, and what follows from it."""
        fraction = f"{self.seen / max(self.documents, 1):.1%}".replace("%", " %")
        return f"{self.seen:,} of {self.documents:,} documents ({fraction}) were in the training data: {consequence}"


@dataclass(frozen=True, eq=False)
class TrainingDocuments:
    """Hashes of the training documents, ascending, and the labels that 99 % of them have at most."""

    hashes: np.ndarray
    labels_per_document: int

    @classmethod
    def of(cls, labels: Any, hashes: np.ndarray) -> TrainingDocuments:
        """From the label matrix and the hashes of the documents, none for methods that ignore the document."""
        return cls(np.unique(hashes), int(np.quantile(np.diff(labels.indptr), MANY, method="higher")))

    def overlap(self, documents: Any, kind: str) -> Overlap | None:
        """How many of these documents were trained on, where documents had this type; None if these do not have it."""
        if len(self.hashes) and getattr(documents, kind) is None:
            return None
        given = document_hashes(documents, kind) if len(self.hashes) else np.empty(0, np.uint64)
        index = np.minimum(np.searchsorted(self.hashes, given), len(self.hashes) - 1)
        return Overlap(len(documents), int(np.count_nonzero(self.hashes[index] == given)))

    def to_tensors(self) -> dict[str, np.ndarray]:
        """As named arrays for a model folder."""
        return {"hashes": self.hashes, "labels_per_document": np.array([self.labels_per_document], np.int64)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], path: Path, verify: bool) -> TrainingDocuments:
        """Rebuild from `to_tensors`; the hashes stay mapped from the file."""
        hashes, many = (get_tensor(tensors, name, path) for name in ("hashes", "labels_per_document"))
        sound = (
            hashes.ndim == 1
            and hashes.dtype == np.uint64
            and many.shape == (1,)
            and many.dtype == np.int64
            and many[0] >= 0
            and (not verify or is_increasing(hashes))
        )
        if not sound:
            raise ModelFormatError(f"{path}: the hashes of the training documents are damaged")
        return cls(hashes, int(many[0]))
