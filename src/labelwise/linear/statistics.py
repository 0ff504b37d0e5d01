"""What linear trees remember of their training documents, so that more can be learned without them.

Per feature the sum of its squares, per node the number of its documents. From both follows how much a change of a
weight would change the old documents' losses. Also kept: what has been learned since the last full training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.checks import all_finite
from labelwise.codes.tree import LabelTree
from labelwise.errors import ModelFormatError
from labelwise.features.rows import FeatureRows
from labelwise.mapped import in_pieces, release_pages
from labelwise.store import get_tensor

SQUARES, LEARNED = "feature_squares", "learned"
BLOCK, DENSE_BLOCK = 1 << 22, 1 << 12
MAX_TIMES, MAX_DOCUMENTS = 1 << 20, 1 << 53


class Learned(NamedTuple):
    """One call of `learn`, or the sum of several."""

    documents: float = 0
    labels: float = 0
    """New labels."""
    labels_alone: float = 0
    """New labels that were learned without old documents."""
    features: float = 0
    """New features."""
    hits: float = 0
    """Correct labels among the first five that the model predicted for the documents before it learned them."""
    predicted: float = 0
    """All labels predicted so."""


@dataclass(frozen=True)
class TrainingStatistics:
    """Statistics of the training documents.

    Parameters
    ----------
    squares
        Per feature in the model's order, the sum of its squares over all documents; without the last ones, which do not
        occur.
    documents
        Per tree the documents of each node: the root, then level by level the inner nodes.
    learned
        What was learned since the last full training, a row per call.
    """

    squares: np.ndarray
    documents: tuple[np.ndarray, ...]
    learned: tuple[Learned, ...] = ()

    @classmethod
    def of(cls, features: FeatureRows, documents: Sequence[np.ndarray]) -> TrainingStatistics:
        """Of training documents; `documents` from `document_counts`, for each tree."""
        return cls(sums_of_squares(features).astype(np.float32), tuple(documents))

    def added(self, features: FeatureRows, documents: Sequence[np.ndarray], learned: Learned) -> TrainingStatistics:
        """With more documents, which may have more features."""
        new = sums_of_squares(features)
        sums = np.zeros(max(len(new), len(self.squares)))
        sums[: len(new)] = new
        sums[: len(self.squares)] += self.squares
        counts = tuple(before + new for before, new in zip(self.documents, documents, strict=True))
        return TrainingStatistics(sums.astype(np.float32), counts, (*self.learned, learned))

    def mean_squares(self, features: np.ndarray) -> np.ndarray:
        """The mean square of some features over all documents; 0 for those that do not occur."""
        sums = np.zeros(len(features), np.float32)
        known = features < len(self.squares)
        sums[known] = self.squares[features[known]]
        return sums / max(int(self.documents[0][0]), 1)

    def node_documents(self, tree: int, sizes: Sequence[int], depth: int) -> np.ndarray:
        """The documents of each node whose children are a level: of the root, or of the level above."""
        begins = np.cumsum([0, 1, *sizes[:-1]])
        return self.documents[tree][begins[depth] : begins[depth + 1]]

    def to_tensors(self) -> dict[str, np.ndarray]:
        """The statistics as named arrays."""
        tensors = {SQUARES: self.squares, LEARNED: np.array(self.learned, np.float64).reshape(-1, len(Learned._fields))}
        return tensors | {f"tree{number}.documents": counts for number, counts in enumerate(self.documents)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, np.ndarray], n_features: int, trees: Sequence[LabelTree], path: Path
    ) -> TrainingStatistics | None:
        """Restore what `to_tensors` returned, checked; None for a model that was saved without."""
        if SQUARES not in tensors:
            return None
        squares, learned = get_tensor(tensors, SQUARES, path), get_tensor(tensors, LEARNED, path)
        documents = tuple(get_tensor(tensors, f"tree{number}.documents", path) for number in range(len(trees)))
        valid = (
            squares.dtype == np.float32
            and squares.ndim == 1
            and len(squares) <= n_features
            and learned.dtype == np.float64
            and learned.shape[1:] == (len(Learned._fields),)
            and len(learned) <= MAX_TIMES
            and all(counts.dtype == np.int64 and counts.ndim == 1 for counts in documents)
            and all(len(c) == 1 + sum(tree.sizes[:-1]) for c, tree in zip(documents, trees, strict=True))
            and all(all_finite(array) and (array >= 0).all() for array in (squares, learned, *documents))
            and all((counts <= MAX_DOCUMENTS).all() for counts in documents)
        )
        if not valid:
            raise ModelFormatError(f"{path}: the statistics of the training documents are damaged")
        return cls(squares, documents, tuple(Learned(*row) for row in learned.tolist()))


def document_counts(targets: Sequence[Any]) -> np.ndarray:
    """The number of documents of the root and of each inner node, level by level; `targets` from `aggregate`."""
    counts = [np.array([targets[0].shape[0]])]
    counts += [np.bincount(target.indices, minlength=target.shape[1]) for target in targets[:-1]]
    return np.concatenate(counts).astype(np.int64)


def sums_of_squares(features: FeatureRows) -> np.ndarray:
    """Per feature up to the last that occurs the sum of its squares, float64.

    In blocks, because NumPy converts what it counts.
    """
    dense = slice(features.first_dense, features.first_dense + features.n_dense)
    last = max((int(piece.max(initial=-1)) for piece in in_pieces(features.indices)), default=-1)
    sums = np.zeros(max(last + 1, dense.stop if features.n_dense else 0))
    for begin in range(0, len(features.indices), BLOCK):
        part = slice(begin, begin + BLOCK)
        squares = np.square(features.data[part], dtype=np.float64)
        sums += np.bincount(features.indices[part], squares, len(sums))
        release_pages(features.indices)
        release_pages(features.data)
    for begin in range(0, features.shape[0] if features.n_dense else 0, DENSE_BLOCK):
        block = features.dense[begin : begin + DENSE_BLOCK].astype(np.float64)
        sums[dense] += np.square(block).sum(axis=0)
    return sums
