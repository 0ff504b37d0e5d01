"""Options for reading data files, for what the files themselves do not specify."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from labelwise.config import Config, validated
from labelwise.errors import ConfigError


class ReadOptions(Config):
    """Options of all readers; each reader uses those that apply to its format."""

    encoding: str = "utf-8"
    """Encoding of the text. Bytes that do not fit it are an error unless `on_bad_bytes` says otherwise."""
    on_bad_bytes: Literal["error", "replace"] = "error"
    """`error` stops at the line; `replace` substitutes U+FFFD for each bad byte and reports how many lines had some."""
    header: Literal["check", "ignore"] = "check"
    """Counts in a file's first line: `check` stops when they are wrong, `ignore` takes the counts from the content."""
    text_column: str = "text"
    """CSV and JSONL: the column or field with the text. Several, joined by a blank, are given as `title+abstract`."""
    labels: bool = True
    """Whether labels are read. `false`: documents need no labels and get none, as for prediction."""
    label_column: str = "labels"
    """CSV and JSONL: the column or field with the labels. Given as '': the documents have none."""
    id_column: str = "id"
    """CSV and JSONL: the column or field with the document's identifier, if there is one."""
    path_column: str = "path"
    """CSV and JSONL: the column or field with the path of a file (an image), if there is one."""
    label_separator: Annotated[str, Field(min_length=1)] | None = None
    """Separator of labels. Not given: blanks in line files and TSV, `;` in CSV, none in JSONL."""
    delimiter: str | None = None
    """CSV: separator of columns. Not given: comma, semicolon or tab, detected from the first line."""
    label_prefix: str = "__label__"
    """fastText: prefix of labels."""
    hash_bits: Annotated[int, Field(ge=1, le=30)] | None = None
    """Vowpal Wabbit: hash feature names into 2^bits columns. Not given: names must be column numbers."""
    label_names: str | None = None
    """File of label texts: `name<TAB>text` per line, one text per line, or a vocabulary (SKOS, or a table with a
    header). Not given: a file beside the data."""
    label_language: Annotated[str, Field(min_length=2)] | None = None
    """Language of the names in a SKOS file, such as `en`. May be left out if the file has one language."""

    @field_validator("label_separator", "delimiter")
    @classmethod
    def _tab(cls, given: str | None) -> str | None:
        """Accept `\\t` for a tab, which is hard to type on a command line."""
        return None if given is None else given.replace("\\t", "\t")

    @property
    def chosen(self) -> set[str]:
        """The options that differ from their defaults."""
        return {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default}

    @property
    def chosen_label_column(self) -> str | None:
        """The column or field of the labels, if one was named."""
        return self.label_column if "label_column" in self.chosen else None


_COLUMNS = ("csv", "jsonl")
APPLIES_TO: dict[str, tuple[str, ...]] = {
    "encoding": ("lines", "fulltext", "tsv", "fasttext", "csv", "jsonl", "vowpal", "xc", "pecos"),
    "on_bad_bytes": ("lines", "fulltext", "tsv", "fasttext", "csv", "jsonl", "vowpal", "xc", "pecos"),
    "header": ("xc",),
    "text_column": _COLUMNS,
    "label_column": _COLUMNS,
    "id_column": _COLUMNS,
    "path_column": _COLUMNS,
    "label_separator": ("csv", "tsv", "lines", "jsonl"),
    "delimiter": ("csv",),
    "label_prefix": ("fasttext",),
    "hash_bits": ("vowpal",),
}
"""The formats each option applies to; options that are not listed apply to all."""


def refuse_without_effect(options: ReadOptions, format: str, path: object) -> None:
    """Refuse options that have no effect for this format."""
    unused = [name for name in sorted(options.chosen) if format not in APPLIES_TO.get(name, (format,))]
    if unused:
        formats = "; ".join(f"{name} is for {', '.join(APPLIES_TO[name])}" for name in unused)
        raise ConfigError(f"{path}: read as {format}, for which {', '.join(unused)} has no effect ({formats})")


def as_options(given: ReadOptions | Mapping[str, Any] | None) -> ReadOptions:
    """Convert to ReadOptions: from a mapping, which is validated, or the defaults for None."""
    if given is None:
        return ReadOptions()
    if isinstance(given, ReadOptions):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"options: ReadOptions or a mapping is needed, got a {type(given).__name__}")
    return validated(ReadOptions, given, prefix=("options",))


def how_to_set(option: str, value: str = "...") -> str:
    """For messages: how this option is given in Python, on the command line and in a config."""
    plain = value == "..." or value.replace("-", "").isalnum()
    quote = "" if plain else "'"
    of_run = f"{quote}data.options.{option}={value}{quote}"
    given = f"{quote}{option}={value}{quote}"
    return f"set the option {option} (--set {given}; with train and auto --set {of_run}, also a key of configs)"


# --- splits ---
# Parts of a data set (train, valid, test), recognised by common variants of their file names.

ALIASES = {
    "train": ("train", "trn", "training"),
    "valid": ("valid", "val", "dev", "validation"),
    "test": ("test", "tst", "testing"),
}
COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2")
LABEL_NAMES = "label_names"
"""Files whose name before the extension ends in this contain label texts, not documents."""

_SPLIT_OF = {alias: split for split, aliases in ALIASES.items() for alias in aliases}


def canonical_split(name: str) -> str:
    """'trn' is 'train', 'dev' is 'valid'; other names are returned unchanged."""
    return _SPLIT_OF.get(name.lower(), name)


def split_of(stem: str) -> str | None:
    """The split in a file name ('eurlex_trn' contains 'train'); None if it contains none, or several."""
    if stem.lower() in _SPLIT_OF:
        return _SPLIT_OF[stem.lower()]
    splits = {_SPLIT_OF[word] for word in re.split(r"[._\-]", stem.lower()) if word in _SPLIT_OF}
    return splits.pop() if len(splits) == 1 else None


def plain_name(path: Path) -> str:
    """The file's name without the suffix of a compressed file."""
    return path.name.removesuffix(path.suffix) if path.suffix.lower() in COMPRESSED_SUFFIXES else path.name


def stem_and_extension(path: Path) -> tuple[str, str]:
    """'train.tsv.gz' is 'train' and '.tsv'."""
    name = Path(plain_name(path))
    return name.stem, name.suffix.lower()


def natural_order(path: Path) -> list[tuple[int, str]]:
    """For sorting: numbers in a name are compared as numbers, so that part-10 comes after part-2."""
    return [(int(piece) if piece.isdigit() else -1, piece) for piece in re.split(r"([0-9]+)", str(path))]


def files_in(folder: Path) -> list[Path]:
    """The visible files of a folder by name, plain before compressed ones; none if unreadable."""
    try:
        files = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file()]
    except OSError:
        return []
    return sorted(files, key=lambda path: (plain_name(path), path.name))


def split_files(folder: Path, recognises: Callable[[Path], bool], extensions: Iterable[str] = ()) -> dict[str, Path]:
    """The parts of a format with one file per part.

    A file is used if its name contains a split or has one of the extensions, and the format recognises it. A part is
    named by its split, or by its file name if that contains no split or the same one as another file. If a file exists
    both plain and compressed, the plain one is used. Files of predictions are skipped. Numbered files of one split,
    such as train-1.csv and train-2.csv, are one part, whose path is a pattern.
    """
    from labelwise.data.read import is_prediction_file

    chosen: dict[str, Path] = {}
    for path in files_in(folder):
        stem, extension = stem_and_extension(path)
        relevant = split_of(stem) is not None or extension in extensions
        if plain_name(path) in chosen or not relevant or stem.endswith(LABEL_NAMES) or not recognises(path):
            continue
        if not is_prediction_file(path):
            chosen[plain_name(path)] = path
    stems = {path: stem_and_extension(path)[0] for path in chosen.values()}
    pattern = _numbered_files(stems)
    if pattern is None:
        return named_parts(stems)
    split, path, members = pattern
    others = named_parts({path: stem for path, stem in stems.items() if path not in members})
    return sort_parts({**others, split: path})


def _numbered_files(stems: dict[Path, str]) -> tuple[str, Path, list[Path]] | None:
    """The one split whose files differ only in a number at the end: its name, a pattern for them, and the files.

    None if another file is of that split too, or if several splits are numbered: those may be folds of an experiment.
    """
    groups: dict[tuple[str, str, str], list[Path]] = {}
    for path, stem in stems.items():
        numbered = re.fullmatch(r"(.*?[._\-]?)\d+", stem)
        split = split_of(numbered[1].rstrip("._-")) if numbered else None
        if numbered and split:
            groups.setdefault((split, numbered[1], path.name.removeprefix(stem)), []).append(path)
    if len(groups) != 1:
        return None
    (split, prefix, suffix), members = groups.popitem()
    if len(members) < 2 or any(split_of(stem) == split for path, stem in stems.items() if path not in members):
        return None
    return split, members[0].with_name(f"{prefix}[0-9]*{suffix}"), members


def is_numbered(path: Path) -> bool:
    """Whether this is the pattern of numbered files."""
    return "[0-9]*" in path.name and not path.exists()


def named_parts(stems: dict[Path, str]) -> dict[str, Path]:
    """Name parts with these stems: by the split in the stem unless another part has the same, else by the stem."""
    claims: dict[str, list[Path]] = {}
    for path, stem in stems.items():
        claims.setdefault(split_of(stem) or stem, []).append(path)
    parts: dict[str, Path] = {}
    for split, paths in claims.items():
        exact = [path for path in paths if canonical_split(stems[path]) == split]
        owner = paths[0] if len(paths) == 1 else exact[0] if exact else None
        for path in paths:
            parts[split if path == owner else stems[path]] = path
    return sort_parts(parts)


def sharded_parts(stems: dict[Path, str], folder: Path, extension: str = "") -> dict[str, Path]:
    """As `named_parts`, but several files of one split are one part, with a pattern such as `*train*` as its path.

    If one of them is named exactly like the split, it alone is that part, and the others are named by their stems.
    """
    claims: dict[str, list[Path]] = {}
    for path, stem in stems.items():
        claims.setdefault(split_of(stem) or "", []).append(path)
    parts = {stems[path]: path for path in claims.pop("", [])}
    for split, paths in claims.items():
        exact = [path for path in paths if stems[path].lower() in ALIASES[split]]
        if exact:
            owner = min(exact, key=lambda path: ALIASES[split].index(stems[path].lower()))
            parts |= {split if path == owner else stems[path]: path for path in paths}
        else:
            parts[split] = paths[0] if len(paths) == 1 else folder / f"*{split}*{extension}"
    return sort_parts(parts)


def sharded_split(path: Path, extension: str = "") -> str | None:
    """The split of a pattern returned by `sharded_parts`; None for the path of a single file or folder."""
    if path.exists():
        return None
    return next((split for split in ALIASES if path.name == f"*{split}*{extension}"), None)


def sort_parts(parts: dict[str, Path]) -> dict[str, Path]:
    """Train, valid and test first, then the others by name."""
    order = list(ALIASES)
    return {
        split: parts[split]
        for split in sorted(parts, key=lambda split: (order.index(split) if split in order else 9, split))
    }
