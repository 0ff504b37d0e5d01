"""Options for reading data files, for what the files themselves do not specify."""

from __future__ import annotations

from collections.abc import Mapping
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
