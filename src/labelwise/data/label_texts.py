"""Label texts (descriptions of labels), read from a file beside the data.

Three types of files are supported: one `name<TAB>text` per line (`label_names.tsv`) and vocabularies (`thesaurus`), for
any data set, and one text per line, for a data set with the same number of labels, named by their column numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.options import (
    LABEL_NAMES,
    ReadOptions,
    files_in,
    plain_name,
    stem_and_extension,
)
from labelwise.data.out_of_core import concatenate_texts
from labelwise.data.stream import line_bounds, text_blocks
from labelwise.data.vocabulary import is_thesaurus, read_thesaurus
from labelwise.errors import ConfigError, DataError
from labelwise.strings import Strings

log = logging.getLogger(__name__)

NAMED_FILE = f"{LABEL_NAMES}.tsv"
LISTED_FILES = ("output-items.txt", "Yf.txt", "label_map.txt", "lbl_raw_texts.txt")


def attach_label_texts(dataset: Dataset, part: Path, options: ReadOptions) -> Dataset:
    """The data set with label texts: from the file the options name, else `train_label_names.tsv`, else the folder's.

    In `name<TAB>text` files names that the data set lacks are ignored, and a label that is not in the file gets its
    name as text. Without such a file the data set is returned unchanged.
    """
    if options.label_names is not None:
        return _attach(dataset, Path(options.label_names), options)
    if dataset.label_texts is not None or part.is_dir():
        return dataset
    own = side_file_name(part)
    files = {plain_name(path): path for path in reversed(files_in(part.parent))}
    return _attach_first(dataset, [files.get(name) for name in (own, NAMED_FILE, *LISTED_FILES)], options)


def side_file_name(part: Path) -> str:
    """'train.csv' and 'train_texts.txt' have their label texts in 'train_label_names.tsv'."""
    stem = stem_and_extension(part)[0].removesuffix("texts").removesuffix("raw_").rstrip("_.-")
    return f"{stem}_{NAMED_FILE}" if stem else NAMED_FILE


def _attach_first(dataset: Dataset, files: list[Path | None], options: ReadOptions) -> Dataset:
    """Use the first file that fits. A file of texts by column fits only labels without names."""
    for path in files:
        if path is None:
            continue
        if plain_name(path) not in LISTED_FILES:
            return _attach(dataset, path, options)
        if dataset.label_names == Strings.numbers(dataset.n_labels):
            texts = _lines(path, options)
            if len(texts) == dataset.n_labels:
                return replace(dataset, label_texts=texts)
            log.warning(
                "%s: %s lines, but %s labels; the label texts are not used",
                path, f"{len(texts):,}", f"{dataset.n_labels:,}",
            )  # fmt: skip
    return dataset


def _attach(dataset: Dataset, path: Path, options: ReadOptions) -> Dataset:
    if is_thesaurus(path):
        return replace(dataset, label_texts=_from_thesaurus(dataset, path, options))
    if options.label_language is not None:
        raise ConfigError(f"{path}: label_language is for SKOS files (.ttl, .nt, .rdf); this is a list of names")
    lines = _lines(path, options)
    named = stem_and_extension(path)[1] == ".tsv" or any("\t" in line for line in lines[:1])
    if named:
        return replace(dataset, label_texts=_by_name(dataset, path, lines))
    if len(lines) != dataset.n_labels:
        raise DataError(
            f"{len(lines):,} lines for {dataset.n_labels:,} labels; one text per label in the order of the "
            "columns is needed, or lines of name<TAB>text",
            path,
        )
    return replace(dataset, label_texts=lines)


def _from_thesaurus(dataset: Dataset, path: Path, options: ReadOptions) -> Strings:
    """The preferred names of the labels' concepts."""
    thesaurus = read_thesaurus(path, options.label_language)
    thesaurus.check_language()
    found = thesaurus.match(dataset.label_names) if dataset.n_labels else []
    names = (None if concept is None else concept.name(thesaurus.language) for concept in found)
    return Strings.of(name or label for name, label in zip(names, dataset.label_names, strict=True))


def _by_name(dataset: Dataset, path: Path, lines: Strings) -> Strings:
    known = dataset.label_names.positions
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, tab, text = line.partition("\t")
        if not tab:
            if line.strip():
                raise DataError("the line has no tab; name<TAB>text is needed", path, number)
        elif name in known and texts.setdefault(name, text) != text:
            raise DataError(
                f"the label '{name}' has a different text on an earlier line; each label may have one", path, number
            )
    return Strings.of(texts.get(name, name) for name in dataset.label_names)


def _lines(path: Path, options: ReadOptions) -> Strings:
    from labelwise.data.tables import TextAccumulator

    texts = TextAccumulator()
    for block in text_blocks(path, options.encoding, options.on_bad_bytes):
        texts.add(block.data, line_bounds(block.data))
    return texts.columns()[0]


# --- label documents ---
# Training documents made of the names of labels: a label's name is often a word of the documents that have it.


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
