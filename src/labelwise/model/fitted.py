"""What was learned: the contract of the part of a model that ranks labels, and what it can do beyond that.

A `Method` holds the parameters and the steps from data to a `Fitted`; several methods share one class of `Fitted`. What
only some can do is a member that others do not have, so that no flag can be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from labelwise.data.csr import check_distinct
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.io import folder as store
from labelwise.registry import can, methods_that
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.model.inputs import Documents, FeatureWidth
    from labelwise.model.method import Method


@dataclass(frozen=True)
class Saved:
    """What a model folder says about a model besides its arrays.

    Parameters
    ----------
    config
        The parameters that it was trained with.
    input
        The type of its documents: texts, features, paths or arrays.
    labels
        The names of its labels.
    width
        Columns of its features; None if it reads none.
    path
        Where the arrays come from, for messages.
    members
        The models that it is made of.
    """

    config: Any
    input: str
    labels: Strings
    width: FeatureWidth | None = None
    path: Path = Path("memory")
    members: tuple[Method, ...] = ()

    @classmethod
    def of(cls, config: Any, train: Dataset, width: FeatureWidth | None = None) -> Saved:
        """The same of a model that is being trained."""
        return cls(config, train.kind, train.label_names, width)

    @property
    def n_labels(self) -> int:
        """The number of labels."""
        return len(self.labels)


class Fitted(Protocol):
    """The required members; `ABILITIES` has the optional ones."""

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        """The best k labels of each document, at most as many as there are; `config` has the changeable parameters."""
        ...

    def tensors(self) -> dict[str, np.ndarray]:
        """All that was learned, as named arrays."""
        ...

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Saved) -> Self:
        """Rebuild from `tensors`. The arrays may be damaged: check everything that a kernel relies on."""
        ...


class Ability(NamedTuple):
    """An optional member of a `Fitted`, and how a message says that a method lacks it."""

    lacking: str
    verb: str = "can"


ABILITIES = {
    "top_of": Ability("cannot leave out or weight labels"),
    "explain": Ability("cannot explain its predictions"),
    "pixels": Ability("cannot explain images"),
    "vectors": Ability("has no document vectors"),
    "image_vectors": Ability("has no vectors to compare images by", "has"),
    "attention": Ability("has no attention among tokens", "has"),
    "learned": Ability("cannot learn more documents", "can; fit it on all documents"),
    "shrunk": Ability("cannot be shrunk after training"),
}
"""Members that a `Fitted` may have:

- `top_of(documents, k, config, chosen)`: `top` among some labels, or with weights of labels (a `LabelFilter`)
- `explain(documents, labels, config)`: per tree the `LabelPath` of each label, for one document. With it
  `names(columns)` of features, `counted(words)`: what words of a text are counted as, and, where a batch is faster than
  single documents, `contributions(documents, labels, count)`: features with the largest contributions, and the amounts
- `explanations(model, document, labels, k, terms)`: in place of what is made from `explain`
- `pixels(document, labels, cells, config)`: how the scores of labels fall when a part of the image is covered
- `vectors(documents, config)`, `image_vectors(documents, config)`, `attention(documents, tokens, config)`
- `learned(new, config)`: trained on more documents (`NewDocuments`), the number of new features, and the reasons why a
  full training is due
- `shrunk(precision, threshold, config)`: a smaller one, and the parameters that differ
- `tree`: the first label tree; `remarks`: what a person should know before relying on it; `members`: models inside
- `check()`: what `from_tensors` leaves to be checked; not called with `verify=False`
- `lacks`: members of the class that this one cannot offer, or a mapping from them to who is to blame, and
  `saved_lacks(config, arrays, members)`, the same of a model that is not loaded, from the names of its arrays and the
  abilities of its members
- `about(known)`, `facts()`: of a model made of others, attributes of the model such as label names, from those of its
  training documents, and what `Method.fact` says of it
"""


def require(model: Method, ability: str) -> None:
    """Raise an error that names the methods that can, unless this model can."""
    if not can(model, ability):
        about, lacks = ABILITIES[ability], getattr(model.fitted_, "lacks", ())
        who = lacks.get(ability, model.name) if isinstance(lacks, Mapping) else model.name
        raise ConfigError(f"{who} {about.lacking}; {methods_that(ability)} {about.verb}")


# --- label file ---
# The labels in a model folder: names, texts and training counts.

LABELS_FILE = "labels.safetensors"


@dataclass(frozen=True)
class ModelLabels:
    """Names, texts and training counts of a model's labels."""

    names: Strings
    texts: Strings | None
    counts: np.ndarray

    def write(self, folder: store.FolderWriter) -> None:
        """Write the labels into a new folder."""
        tensors = store.strings_to_tensors("names", self.names)
        tensors["counts"] = self.counts.astype(np.int64)
        if self.texts is not None:
            tensors |= store.strings_to_tensors("texts", self.texts)
        folder.write_tensors(LABELS_FILE, tensors)

    @classmethod
    def unchecked(cls, folder: store.Folder) -> ModelLabels:
        """The labels of a folder, not compared with its manifest: to be shown, not to predict with."""
        path, tensors = folder.file(LABELS_FILE), folder.tensors(LABELS_FILE)
        names = store.strings_from_tensors("names", tensors, path)
        texts = store.strings_from_tensors("texts", tensors, path) if "texts.ends" in tensors else None
        return cls(names, texts, store.get_tensor(tensors, "counts", path))

    @classmethod
    def read(cls, folder: store.Folder, inputs: Sequence[str]) -> ModelLabels:
        """Read the labels of a folder, checked against its manifest: both may be untrusted."""
        path, manifest = folder.file(LABELS_FILE), folder.manifest
        labels = cls.unchecked(folder)
        names, texts, counts = labels.names, labels.texts, labels.counts
        n_documents, numbered = manifest.get("n_documents"), manifest.get("numbered_labels")
        sound = (
            counts.ndim == 1
            and counts.dtype == np.int64
            and len(names) == manifest.get("n_labels") == len(counts) > 0
            and (texts is None or len(texts) == len(names))
            and type(n_documents) is int
            and (counts >= 0).all()
            and (counts <= n_documents).all()
            and manifest.get("input") in inputs
            and (numbered is False or (numbered is True and names == Strings.numbers(len(names))))
        )
        if not sound:
            raise ModelFormatError(f"{path}: the labels do not fit the manifest")
        try:
            check_distinct(names, str(path))
        except DataError as error:
            raise ModelFormatError(str(error)) from None
        names.column_numbers = numbered
        return labels
