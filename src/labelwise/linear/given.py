"""What a user gives a linear tree besides documents: a hierarchy, negatives, names of labels."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import sparse

from labelwise.data.dataset import Dataset, canonical_csr
from labelwise.data.label_texts import with_label_documents
from labelwise.data.read import read
from labelwise.data.vocabulary import read_thesaurus
from labelwise.errors import ConfigError, DataError
from labelwise.labelspace.hierarchy import hierarchy_of_labels
from labelwise.labelspace.tree import LabelTree

if TYPE_CHECKING:
    from labelwise.runtime.job import Job


@dataclass(frozen=True)
class UserInput:
    """What files and label texts add to the training of trees.

    Parameters
    ----------
    trees
        The user's hierarchy; None: labels are clustered.
    negatives
        CSR [documents, labels] of ones: additional training documents of each label and its siblings.
    names
        All names of each label in one text, to cluster labels by them too.
    """

    trees: list[LabelTree] | None = None
    negatives: Any = None
    names: list[str] | None = None


def user_input(config: Any, train: Dataset, job: Job) -> tuple[UserInput, Dataset]:
    """What the user gives, and the documents to train on, which `label_documents` adds to.

    Files are read here, before anything is computed, so that an error in one of them is reported first.
    """
    names = None
    if config.label_text_weight > 0:
        _check_reads_texts(train, "label_text_weight")
        names = [" ".join(names) for names in names_of_labels(train, config)]
    train = training_documents(config, train, job)
    trees = negatives = None
    if config.tree == "hierarchy":
        parents = hierarchy_of_labels(config.hierarchy, train.label_names, config.label_language)
        trees = [LabelTree.from_parents(*parents)]
    if "user" in config.negatives:
        negatives = read_negatives(config.user_negatives, train)
    return UserInput(trees, negatives, names), train


def training_documents(config: Any, train: Dataset, job: Job) -> Dataset:
    """The documents to train on: those given and, with `label_documents`, one per name of a label.

    With a scratch folder all texts are in a file there.
    """
    if config.label_documents is not None:
        _check_reads_texts(train, "label_documents")
        train = with_label_documents(train, names_of_labels(train, config), job.scratch)
    if config.relevance:
        check_relevance(train)
    return train


def names_of_labels(train: Dataset, config: Any) -> list[tuple[str, ...]]:
    """The names of each label: all names in the vocabulary of `label_documents`, else its text or name in the data."""
    if config.label_documents in (None, "texts"):
        return [(text,) for text in (train.label_names if train.label_texts is None else train.label_texts)]
    thesaurus = read_thesaurus(config.label_documents, config.label_language)
    thesaurus.check_language()
    found = thesaurus.match(train.label_names)
    return [() if one is None else tuple(one.all_names(thesaurus.language)) for one in found]


def _check_reads_texts(train: Dataset, option: str) -> None:
    if train.kind != "texts":
        raise ConfigError(f"{option}: label names are texts, but {train.name} is read as {train.kind}")


def check_relevance(train: Dataset) -> None:
    """Raise unless labels' values can be used as weights of examples."""
    if (train.labels.data < 0).any():
        raise DataError(f"{train.name}: relevance needs values above 0, some labels have a negative one")


def read_negatives(path: str | Path, data: Dataset) -> Any:
    """CSR [documents, labels] of ones: the additional training documents of each label and its siblings.

    A .npz is a sparse matrix as SciPy saves it, with the documents and labels of `data` in their order. Anything else
    is read as a data set with the same documents; its labels are matched by name.
    """
    path = Path(path)
    if not path.exists():
        raise DataError("user_negatives: there is no such file", path)
    matrix = _matrix(path, data) if path.suffix == ".npz" else _labels(path, data)
    if matrix.shape[0] != len(data):
        raise DataError(
            f"user_negatives: {matrix.shape[0]:,} documents, but training has {len(data):,}; "
            "both must hold the same documents in the same order (splits and limits count)",
            path,
        )
    ones = canonical_csr(matrix, "user_negatives").copy()
    ones.data[:] = 1
    return ones


def _matrix(path: Path, data: Dataset) -> Any:
    try:
        matrix = sparse.load_npz(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"user_negatives: not a sparse matrix saved by SciPy: {error}", path) from None
    if matrix.shape[1] != data.n_labels:
        raise DataError(f"user_negatives: {matrix.shape[1]:,} labels, but training has {data.n_labels:,}", path)
    return matrix


def _labels(path: Path, data: Dataset) -> Any:
    negatives = read(path)
    aligned = negatives.align(data.label_names)
    unknown = aligned.n_labels - data.n_labels
    if unknown:
        raise DataError(
            f"user_negatives: {unknown:,} labels that training does not have, for example "
            f"'{aligned.label_names[data.n_labels]}'",
            path,
        )
    return aligned.labels
