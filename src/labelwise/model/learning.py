"""Learn more documents with a fitted model: which of them are new, how well they were predicted before, the report.

How the documents are learned is up to what was fitted (`learned`); this module is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.hashing import document_hashes
from labelwise.errors import DataError
from labelwise.model.fitted import require
from labelwise.model.inputs import as_dataset

if TYPE_CHECKING:
    from labelwise.model.method import Method

AT = 5
MOST = 0.5
"""Fraction of the training documents that are enough to train new labels against."""
JUDGED = 1000
"""Documents, drawn at random, on which the model is evaluated before it learns them."""


@dataclass(frozen=True)
class NewDocuments:
    """What `Fitted.learned` gets: documents in the model's label space, with new labels after those of the model."""

    data: Dataset
    removed: Any
    """CSR [documents, labels]: labels that documents had in `old` and no longer have; None if there are none."""
    old: Dataset | None
    """Documents the model was trained on, in the same label space."""
    hits: int
    """Right labels among the first five that the model predicted for some of the documents."""
    predicted: int
    """Number of labels predicted for that."""
    n_labels: int
    """Labels that the model has; those after them are new."""
    n_documents: int
    """Documents that the model was trained on."""


@dataclass(frozen=True)
class LearningReport:
    """The result of `Method.learn`; `print` shows a summary."""

    n_documents: int
    """Documents that were learned."""
    n_known: int
    """Documents that were skipped, because the model was trained on them."""
    n_changed: int
    """Documents among the learned ones that the model was trained on with other labels."""
    n_new_labels: int
    n_new_features: int
    precision_before: float | None
    """P@5 on the new documents, before they were learned; None without documents."""
    calibrated: bool
    """Whether the model has a calibration, which is kept as it is."""
    reasons: tuple[str, ...]
    """Why a full training is due; empty if it is not."""

    def __str__(self) -> str:
        lines = [
            f"learned {self.n_documents:,} documents; new labels: {self.n_new_labels:,}, new features: "
            f"{self.n_new_features:,}"
        ]
        if self.n_changed:
            lines.append(f"documents that had other labels before: {self.n_changed:,}")
        if self.n_known:
            lines.append(f"documents skipped, because the model was trained on them: {self.n_known:,}")
        if self.precision_before is not None:
            lines.append(f"P@{AT} on these documents before they were learned: {100 * self.precision_before:.1f}")
        if self.calibrated and self.n_documents:
            lines.append("the calibration was kept; calibrate again on held-out documents for exact probabilities")
        lines += [f"a full training is due: {reason}" for reason in self.reasons]
        return "\n".join(lines)


def learn(model: Method, data: Any, labels: Any, old: Any) -> LearningReport:
    """Train a fitted model on more documents; see `Method.learn`."""
    model._check_fitted()
    require(model, "learned")
    given = _in_label_space(model, as_dataset(data, labels, (model.input_,), model.label_names_), model.label_names_)
    trained_on = None if old is None else _old_documents(model, old, given)
    calibrated = model.calibration_ is not None
    if not len(given):
        return LearningReport(0, 0, 0, 0, 0, None, calibrated, ())
    hashes = document_hashes(given, model.input_)
    rows, before, n_changed, trained_on = _unknown_rows(model, given, hashes, trained_on)
    if not len(rows):
        return LearningReport(0, len(given), 0, 0, 0, None, calibrated, ())
    new = given.take(rows)
    used = (np.arange(new.n_labels) < len(model.label_names_)) | (new.label_counts() > 0)
    if not used.all():  # labels of skipped documents only, from which they cannot be learned
        new, trained_on = _with_labels(new, used), None if trained_on is None else _with_labels(trained_on, used)
        before = None if before is None else before[:, used]
    removed = None if not n_changed else sparse.csr_array(before - before.multiply(new.labels != 0))
    hits, predicted = _hits(model, new)
    more = NewDocuments(new, removed, trained_on, hits, predicted, len(model.label_names_), model.n_documents_)
    model.fitted_, n_features, reasons = model.fitted_.learned(more, model.config)
    counts = new.label_counts()
    counts[: len(model.label_counts_)] += model.label_counts_
    if before is not None:
        counts -= np.bincount(before.indices, minlength=len(counts))
    n_new_labels = new.n_labels - len(model.label_names_)
    if n_new_labels and model.label_texts_ is not None:
        own = new.label_texts if new.label_texts is not None else new.label_names
        model.label_texts_ = model.label_texts_ + own[len(model.label_names_) :]
    model.n_documents_ += len(new) - n_changed
    model.label_names_, model.label_counts_ = new.label_names, counts.clip(0, model.n_documents_)  # duplicates count
    if model.trained_on_ is not None:
        model.trained_on_ = replace(model.trained_on_, hashes=np.union1d(model.trained_on_.hashes, hashes[rows]))
    model.card_ = model.card_.with_change(f"learned {len(new):,} documents; new labels: {n_new_labels:,}")
    return LearningReport(
        len(new), len(given) - len(new), n_changed, n_new_labels, n_features, hits / predicted, calibrated, reasons
    )


def fit_or_learn(self: Method, data: Any, labels: Any = None) -> Method:
    """`fit` at the first call, then `learn`: scikit-learn's name for training in steps."""
    if "label_names_" not in self.__dict__:
        return self.fit(data, labels)
    self.learn(data, labels)
    return self


def _in_label_space(model: Method, data: Dataset, names: Any) -> Dataset:
    """Documents with the model's type of input and features, and these labels first."""
    if getattr(data, model.input_) is None and len(data):
        raise DataError(f"{data.name}: the model was trained on {model.input_}, the data has none")
    if model.feature_width_ is not None and data.features is not None:
        data = replace(data, features=model.feature_width_.fitted(data.features, data.open_columns))
    return data.align(names)


def _old_documents(model: Method, old: Any, given: Dataset) -> Dataset:
    """Documents that the model was trained on, in the label space of the new ones."""
    aligned = _in_label_space(model, as_dataset(old, None, (model.input_,)), given.label_names)
    if aligned.n_labels > given.n_labels:
        raise DataError(
            f"{aligned.name}: these are not documents that the model was trained on: it does not have the label "
            f"'{aligned.label_names[given.n_labels]}'"
        )
    return aligned


def _with_labels(data: Dataset, chosen: np.ndarray) -> Dataset:
    """The documents with some of the labels only."""
    columns = np.flatnonzero(chosen)
    texts = None if data.label_texts is None else data.label_texts[columns]
    return replace(data, labels=data.labels[:, columns], label_names=data.label_names[columns], label_texts=texts)


def _unknown_rows(
    model: Method, new: Dataset, hashes: np.ndarray, old: Dataset | None
) -> tuple[np.ndarray, Any, int, Dataset | None]:
    """The documents to learn, what labels they had before as CSR (None: none), how many had, and the old documents.

    Documents that the model recognises are skipped, except those among the old documents with other labels. Without old
    documents these are the ones it recognises, if they are most of its training documents, as in a file that grows.
    """
    seen = np.zeros(len(new), bool) if model.trained_on_ is None else np.isin(hashes, model.trained_on_.hashes)
    if old is not None and len(old):
        return *_changed_rows(new, hashes, seen, old, document_hashes(old, model.input_)), old
    enough = old is None and seen.any() and seen.sum() >= MOST * model.n_documents_
    return np.flatnonzero(~seen), None, 0, new.take(np.flatnonzero(seen)) if enough else old


def _changed_rows(
    new: Dataset, hashes: np.ndarray, seen: np.ndarray, old: Dataset, known: np.ndarray
) -> tuple[np.ndarray, Any, int]:
    """The documents that are neither among the old ones with the same labels nor seen elsewhere.

    Also the labels that they have among the old ones, and how many are there.
    """
    order = np.argsort(known, kind="stable")
    index = order[np.minimum(np.searchsorted(known[order], hashes), len(known) - 1)]
    is_known = known[index] == hashes
    before, after = old.labels[index], new.labels.copy()
    before.data[:] = after.data[:] = 1
    before = sparse.csr_array(sparse.diags_array(is_known.astype(np.float32)) @ before)
    before.eliminate_zeros()
    differs = np.asarray(abs(after - before).sum(axis=1)).ravel() > 0
    rows = np.flatnonzero(np.where(is_known, differs, ~seen))
    return rows, before[rows], int(is_known[rows].sum())


def _hits(model: Method, new: Dataset) -> tuple[int, int]:
    """Right labels among the first five predicted for some of the documents, and all labels predicted so."""
    rows = np.sort(np.random.default_rng(0).permutation(len(new))[:JUDGED])
    judged = new.take(rows)
    top = model._ranked(model._as_documents(judged), AT)
    predicted = top.to_csr(judged.n_labels)
    predicted.data[:] = 1
    return int((predicted.multiply(judged.labels != 0)).sum()), AT * len(rows)
