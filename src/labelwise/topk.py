"""TopK: what every method returns, the k best labels of each document.

Never a dense documents x labels array. Rows are sorted by score, best first; equal scores go to the lower label id.
A rank without a prediction holds id -1 and score -inf, always at the end of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.errors import DataError, MissingDependencyError
from labelwise.formatting import printable
from labelwise.strings import Strings

NO_LABEL = -1
SHOWN = 3
"""Documents, and labels of each, in a `repr`."""


@dataclass(frozen=True, eq=False, repr=False)
class TopK:
    """The k best labels of n documents: ``ids`` and ``scores`` of shape [n, k], and the labels' names if known.

    ``for pairs in top`` gives each document's (label name, score) pairs, best first; ``top[i:j]`` some of the
    documents. NumPy functions do not take it, except `numpy.concatenate`: see `to_lists`, `to_csr` and `to_frame`.
    """

    ids: np.ndarray
    scores: np.ndarray
    label_names: Strings | None = None

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape != self.scores.shape:
            raise ValueError(f"ids {self.ids.shape} and scores {self.scores.shape} must both have shape [n, k]")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Ranks per document, filled or not."""
        return self.ids.shape[1]

    def __getitem__(self, rows: Any) -> TopK:
        """A subset of the documents (by slice, index array or mask)."""
        ids = self.ids[rows]
        if ids.ndim != 2:
            raise TypeError("index documents with a slice or an array; for one document use top[i:i+1]")
        return TopK(ids, self.scores[rows], self.label_names)

    def __iter__(self) -> Iterator[list[tuple[str, float]]]:
        """For each document its (label name, score) pairs, best first."""
        for ids, scores in zip(self.ids, self.scores, strict=True):
            filled = ids != NO_LABEL
            yield [(self._name(i), float(s)) for i, s in zip(ids[filled].tolist(), scores[filled], strict=True)]

    def __repr__(self) -> str:
        """The size, and the first labels of the first documents."""
        count = "" if self.label_names is None else f", {len(self.label_names):,} labels"
        lines = [f"TopK({len(self):,} documents, k={self.k}{count})"]
        for row, pairs in enumerate(self[:SHOWN].head(SHOWN + 1)):
            shown = [f"{label[:40]} {score:.4g}" for label, score in pairs[:SHOWN]]
            lines.append(f"  {row}: " + printable(", ".join(shown + ["..."] * (len(pairs) > SHOWN)) or "no labels"))
        return "\n".join(lines + ["  ..."] * (len(self) > SHOWN))

    @property
    def labels(self) -> list[list[str]]:
        """The names of each document's labels, best first (their ids if there are no names)."""
        return self.to_lists()

    def to_lists(self) -> list[list[str]]:
        """The names of each document's labels, best first (their ids if there are no names)."""
        return [[self._name(i) for i in row[row != NO_LABEL].tolist()] for row in self.ids]

    def to_frame(self, documents: Sequence[Any] | None = None) -> Any:
        """A pandas DataFrame with a row per predicted label: document, rank (from 1), label, score.

        `documents` are the documents' identifiers; their row numbers when not given.
        """
        if documents is not None and len(documents) != len(self):
            raise DataError(f"{len(documents):,} identifiers for predictions of {len(self):,} documents")
        try:
            from pandas import DataFrame  # type: ignore[missing-import]
        except ImportError:
            raise MissingDependencyError("pandas", None, "to_frame") from None
        rows, ranks = np.nonzero(self.ids != NO_LABEL)
        return DataFrame({
            "document": rows if documents is None else [documents[row] for row in rows.tolist()],
            "rank": ranks + 1,
            "label": [self._name(i) for i in self.ids[rows, ranks].tolist()],
            "score": self.scores[rows, ranks],
        })  # fmt: skip

    def _name(self, label: int) -> str:
        return str(label) if self.label_names is None else self.label_names[label]

    def head(self, k: int) -> TopK:
        """Only the first k ranks."""
        return TopK(self.ids[:, :k], self.scores[:, :k], self.label_names)

    def padded(self, k: int) -> TopK:
        """With empty ranks at the end up to k; the same object if there are as many already."""
        missing = k - self.k
        if missing <= 0:
            return self
        ids = np.pad(self.ids, ((0, 0), (0, missing)), constant_values=NO_LABEL)
        scores = np.pad(self.scores, ((0, 0), (0, missing)), constant_values=-np.inf)
        return TopK(ids, scores, self.label_names)

    def above(self, threshold: float) -> TopK:
        """Without predictions whose score is below the threshold."""
        keep = self.scores >= threshold
        return TopK(np.where(keep, self.ids, NO_LABEL), np.where(keep, self.scores, -np.inf), self.label_names)

    def to_csr(self, n_labels: int | None = None) -> sparse.csr_array:
        """Scores as a sparse documents x labels matrix."""
        filled = self.ids != NO_LABEL
        if n_labels is None:
            names = self.label_names
            n_labels = len(names) if names is not None else int(self.ids.max(initial=-1)) + 1
        indptr = np.concatenate([[0], np.cumsum(filled.sum(1))])
        matrix = sparse.csr_array((self.scores[filled], self.ids[filled], indptr), shape=(len(self), n_labels))
        matrix.sort_indices()
        return matrix

    @classmethod
    def from_csr(cls, scores: Any, k: int, label_names: Strings | None = None) -> TopK:
        """The k best stored entries of each row of a sparse score matrix."""
        if k < 1:
            raise ValueError(f"k must be 1 or more, got {k}")
        matrix = sparse.csr_array(
            scores, dtype=np.float32, copy=True
        )  # ranks must follow the rounded scores that are returned
        matrix.sum_duplicates()
        if np.isnan(matrix.data).any():
            raise DataError("scores contain NaN, which cannot be ranked")
        n = matrix.shape[0]
        counts = np.diff(matrix.indptr)
        rows = np.repeat(np.arange(n), counts)
        order = np.lexsort((matrix.indices, -matrix.data, rows))
        rank = np.arange(len(order)) - np.repeat(matrix.indptr[:-1], counts)
        kept = rank < k
        ids = np.full((n, k), NO_LABEL, np.int32)
        best = np.full((n, k), -np.inf, np.float32)
        ids[rows[kept], rank[kept]] = matrix.indices[order][kept]
        best[rows[kept], rank[kept]] = matrix.data[order][kept]
        return cls(ids, best, label_names)

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError(
            "predictions have no single array: use top.ids, top.scores, top.to_lists(), top.to_csr() or top.to_frame()"
        )

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """`numpy.concatenate` of predictions, which scikit-learn's `cross_val_predict` uses; nothing else."""
        if function is np.concatenate and not options and len(args) == 1 and set(types) == {TopK}:
            return _in_one_label_space(args[0])
        return NotImplemented

    @classmethod
    def concatenate(cls, parts: Sequence[TopK]) -> TopK:
        """Concatenate the documents of several TopK; all must have the same k and label names."""
        for part in parts[1:]:
            if part.k != parts[0].k or not _same_names(part.label_names, parts[0].label_names):
                raise ValueError("only predictions with the same k and the same label names can be concatenated")
        return cls(
            np.concatenate([p.ids for p in parts]),
            np.concatenate([p.scores for p in parts]),
            parts[0].label_names,
        )


def _in_one_label_space(parts: Sequence[TopK]) -> TopK:
    """Predictions of models with different labels, over the labels of the first, then those that others add."""
    names = parts[0].label_names
    moved: list[TopK] = []
    for part in parts:
        if names is None or part.label_names is None or _same_names(part.label_names, names):
            moved.append(part)
            continue
        if names.column_numbers or part.label_names.column_numbers:
            raise DataError(
                f"predictions over {len(names):,} and over {len(part.label_names):,} labels without names cannot be "
                "concatenated: train all models on label matrices with the same columns, or on lists of labels"
            )
        new = [name for name in part.label_names if name not in names.positions]
        names = names + new if new else names
        ids = np.array([*(names.positions[name] for name in part.label_names), NO_LABEL], np.int32)[part.ids]
        moved.append(sorted_by_score(ids, part.scores))
    return TopK.concatenate([TopK(part.ids, part.scores, names) for part in moved])


def _same_names(one: Strings | None, other: Strings | None) -> bool:
    return one is other or (one is not None and other is not None and one == other)


def sorted_by_score(ids: np.ndarray, scores: np.ndarray) -> TopK:
    """Sort each row by score, then by id: different scores may have become equal probabilities, such as 1."""
    order = np.lexsort((ids, -scores), axis=1)
    return TopK(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))
