"""Training documents made of the names of labels: a label's name is often a word of the documents that have it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.out_of_core import concatenate_texts
from labelwise.errors import ConfigError
from labelwise.strings import Strings


def with_label_documents(data: Dataset, names: Sequence[Sequence[str]], scratch: Path | None = None) -> Dataset:
    """The data set with one more document per name of a label, which has this label alone.

    Parameters
    ----------
    data
        Documents with texts.
    names
        The names of each label; it may have none.
    scratch
        For texts larger than memory: the folder for a file with all texts.
    """
    if data.texts is None:
        raise ConfigError(f"label_documents: needs texts, and the documents of {data.name} have none")
    columns = np.repeat(np.arange(data.n_labels), [len(one) for one in names])
    added = sparse.csr_array(
        (np.ones(len(columns), data.labels.dtype), columns, np.arange(len(columns) + 1)),
        shape=(len(columns), data.n_labels),
    )
    return Dataset(
        labels=sparse.vstack([data.labels, added], format="csr"),
        label_names=data.label_names,
        texts=concatenate_texts([data.texts, Strings.of(text for one in names for text in one)], scratch),
        label_texts=data.label_texts,
        name=data.name,
    )
