"""Joins data sets: their documents one after another, their labels matched by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import Blocks, positions_in, sorted_label_names, widened
from labelwise.data.dataset import Dataset, Features
from labelwise.data.out_of_core import merge_shards
from labelwise.errors import DataError
from labelwise.strings import Strings


def concat(datasets: Iterable[Dataset], name: str | None = None, *, scratch: str | Path | None = None) -> Dataset:
    """One data set with the documents of all, in this order.

    Labels are matched by name. If the label spaces differ, the new one has the labels of all, in the order in which
    readers sort them, so that two files give what one file with the lines of both would give. All must have the same
    types of documents (texts, features, paths, arrays) and either all ids or none. Sparse features may differ in their
    number of columns. A label text is taken from the first data set that has one.

    Rows selected from one data set (`take`, `split`) share its texts, and so does their concatenation. With a `scratch`
    folder, rows are written to files there and memory-mapped.
    """
    parts = list(datasets)
    for index, part in enumerate(parts):
        if not isinstance(part, Dataset):
            raise DataError(f"concat: item {index} is a {type(part).__name__}, a Dataset is needed")
    if not parts:
        raise DataError("concat: at least one data set is needed")
    chosen = name or " + ".join(dict.fromkeys(part.name for part in parts))
    if len(parts) == 1:
        return replace(parts[0], name=chosen)
    names = _joint_names(parts)
    texts = _joint_texts(parts, names)
    width = max((_sparse_width(part.features) for part in parts), default=0)
    aligned = [replace(part.align(names), label_texts=None, features=_widened(part.features, width)) for part in parts]
    joined = merge_shards(aligned, chosen, None if scratch is None else Path(scratch), "are to be joined")
    return replace(joined, label_texts=texts, open_columns=all(part.open_columns for part in parts))


def _joint_names(parts: list[Dataset]) -> Strings:
    """The label space of all."""
    first = parts[0].label_names
    if all(part.label_names is first or part.label_names == first for part in parts[1:]):
        return first
    return sorted_label_names({label for part in parts for label in part.label_names})


def _joint_texts(parts: list[Dataset], names: Strings) -> Strings | None:
    """The label texts of all, the first for each label; its name for a label without one."""
    if all(part.label_texts is None for part in parts):
        return None
    candidates, source = names, np.arange(len(names))
    missing = np.ones(len(names), bool)
    for part in parts:
        if part.label_texts is None:
            continue
        own = positions_in(names, part.label_names)
        found = missing & (own >= 0)
        source[found] = len(candidates) + own[found]
        candidates = candidates + part.label_texts
        missing &= ~found
    return candidates[source]


def _sparse_width(features: Features | None) -> int:
    block = features.sparse if isinstance(features, Blocks) else features
    return block.shape[1] if isinstance(block, sparse.csr_array) else 0


def _widened(features: Any, width: int) -> Any:
    """The same features with more columns in their sparse block."""
    if isinstance(features, Blocks):
        return Blocks(_widened(features.sparse, width), features.dense)
    return widened(features, width) if sparse.issparse(features) else features
