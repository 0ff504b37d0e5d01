"""The labels in a model folder: names, texts and training counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.data.csr import check_distinct
from labelwise.errors import DataError, ModelFormatError
from labelwise.io import folder as store
from labelwise.strings import Strings

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
        n_documents, numbered = manifest.get("n_documents"), manifest.get("numbered_labels", False)
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
