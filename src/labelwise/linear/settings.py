"""Settings of training and searching linear trees, and the types of a config's fields that say them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field
from scipy import sparse

from labelwise.config import Config as BaseConfig
from labelwise.config import Decides
from labelwise.data.dataset import Dataset, canonical_csr
from labelwise.data.label_texts import with_label_documents
from labelwise.data.read import read
from labelwise.data.vocabulary import read_thesaurus
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.io.contents import content_of_path
from labelwise.labelspace.hierarchy import hierarchy_of_labels
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import Memory as Memory
from labelwise.linear.search import POST_PROCESSORS, check_combination, per_level
from labelwise.linear.solver import SolverConfig

if TYPE_CHECKING:
    from labelwise.runtime.job import Job


Negatives = Literal["teacher", "matcher"]
Ties = Literal["label", "tree"]
Precision = Literal["float32", "float16", "int8"]
PRECISIONS = get_args(Precision)
"""From the most to the fewest bits per weight."""
SEED_STEP = 1009
"""Difference between the seeds of two trees."""

# --- types of fields ---

PostProcessor = Literal[tuple(POST_PROCESSORS)]  # type: ignore[valid-type]
FeatureNorm = Literal["l2"] | None
Seed = Annotated[int, Field(ge=0, lt=2**31)]
VectorScale = Annotated[float, Field(gt=0, le=1e6)] | None
TimeLimit = Annotated[Annotated[float, Field(gt=0)] | None, Decides.END]
LabelDocuments = Annotated[str, Field(min_length=1)] | None
"""`texts`, or a vocabulary file."""


def _beams(value: Any) -> Any:
    """Checked before the types are: the errors of a union would name both."""
    found = [_whole_number(item) for item in _listed(value)]
    if not found or min(found) < 1:
        raise ValueError("must be a whole number of 1 or more, or a list with one for each level above the labels")
    return tuple(found) if isinstance(value, list | tuple) else found[0]


def _names(value: Any) -> Any:
    for item in _listed(value):
        if item not in tuple(POST_PROCESSORS):
            raise ValueError(f"there is no post-processor {item!r}; {did_you_mean(str(item), POST_PROCESSORS)}")
    if isinstance(value, list | tuple) and not value:
        raise ValueError("must be a post-processor, or a list with one for each level")
    return value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _whole_number(item: Any) -> int:
    """The number, or 0 for anything else."""
    try:
        return int(item) if not isinstance(item, bool) and float(item) == int(item) else 0
    except (TypeError, ValueError, OverflowError):
        return 0


Beam = Annotated[int | tuple[int, ...], BeforeValidator(_beams)]
"""One value for all levels of a tree, or one for each."""
PostProcessors = Annotated[PostProcessor | tuple[PostProcessor, ...], BeforeValidator(_names)]


class LinearConfig(BaseConfig):
    """Base of the parameters of linear methods."""

    @property
    def reads_vectors(self) -> bool:
        return getattr(self, "vector_scale", None) is not None

    def contents(self) -> list[Any]:
        named = [getattr(self, name, None) for name in ("label_documents", "hierarchy", "user_negatives")]
        return [*super().contents(), *(content_of_path(name) for name in named if name not in (None, "texts"))]


def check_label_documents(config: Any, *files: str) -> None:
    """Refuse label names as documents next to vectors, and a language without a vocabulary file it could apply to."""
    if config.label_documents is not None and config.reads_vectors:
        raise ValueError("label names have no vectors, so label_documents cannot be used with vector_scale")
    if config.label_language is not None and all(getattr(config, name) in (None, "texts") for name in files):
        raise ValueError(f"label_language chooses names of a vocabulary; it needs a file in {' or '.join(files)}")


# --- what training and search read ---


@dataclass(frozen=True)
class SearchSettings:
    """How trees are searched."""

    post_processor: str | tuple[str, ...] = "l3_hinge"
    """How a node's margin is transformed to a score, which is combined with its parent's; or one per level."""
    beam: int | tuple[int, ...] = 1
    """Nodes kept per level, or for each level above the labels."""
    labels_per_tree: int = 20
    """Minimum labels that each of several trees contributes to the average: for smaller `k` the result is a prefix."""
    ties: Ties = "label"
    """Order of labels with equal scores: by their index in the label space, or by position in the (first) tree."""

    @classmethod
    def of(cls, config: Any) -> SearchSettings:
        """Those of a method's parameters; one-versus-rest has no beam."""
        if not hasattr(config, "beam"):
            return cls(config.post_processor)
        return cls(config.post_processor, config.beam, config.labels_per_tree, config.ties)

    def check(self, levels: int) -> None:
        """Refuse lists that do not have a value for each level of a tree, or whose scores cannot be combined."""
        check_combination(per_level(self.post_processor, levels, "post_processor"))
        per_level(self.beam, levels - 1, "beam")

    def upper(self, levels: int) -> tuple[str | tuple[str, ...], int | tuple[int, ...], int]:
        """Post-processors and beams of a search in the first levels only, and the nodes kept at the last of them."""
        names, beams = self.post_processor, self.beam
        if isinstance(names, tuple):
            names = names[:levels]
        if isinstance(beams, tuple):
            return names, beams[: levels - 1], beams[min(levels, len(beams)) - 1]
        return names, beams, beams


@dataclass(frozen=True)
class TrainingSettings:
    """How trees are trained."""

    solver: SolverConfig = field(default_factory=SolverConfig)
    search: SearchSettings = field(default_factory=SearchSettings)
    negatives: Negatives = "teacher"
    """The training documents of a node: see `train_tree`."""
    relevance: bool = False
    """Weight positive examples by the labels' values."""
    precision: Precision = "float32"
    """The type of stored weights."""
    memory: Memory = "check"
    seed: int = 0

    @classmethod
    def of(cls, config: Any) -> TrainingSettings:
        """Those of a method's parameters."""
        negatives = "matcher" if "matcher" in getattr(config, "negatives", "") else "teacher"
        return cls(
            config.solver, SearchSettings.of(config), negatives, config.relevance, config.precision, config.memory,
            config.seed,
        )  # fmt: skip

    def seeds(self, trees: int) -> list[int]:
        """One seed per tree."""
        return [self.seed + SEED_STEP * number for number in range(trees)]


# --- given ---
# What a user gives a linear tree besides documents: a hierarchy, negatives, names of labels.


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
