"""Which columns of a table, or fields of a record, hold text, labels and ids, if the options name none that exist.

Nothing is guessed while reading: the error names all columns that are missing at once and proposes likely ones.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labelwise.data.formats.checks import near_miss
from labelwise.data.options import ReadOptions, how_to_set
from labelwise.errors import DataError

TITLES = ("title", "name", "heading", "headline")
BODIES = ("abstract", "description", "summary", "body", "content", "fulltext", "full_text", "text")
LABELS = (
    "labels", "label", "subjects", "subject", "keywords", "keyword", "tags", "tag", "categories", "category", "topics",
    "topic", "descriptors", "classes", "class", "terms", "codes",
)  # fmt: skip
IDS = ("id", "identifier", "doc_id", "document_id", "record_id", "uri", "key", "number")


class MissingColumnsError(DataError):
    """Columns that the options name do not exist; `proposed` has a column per option, or None where none is likely."""

    def __init__(
        self, problem: str, proposed: Mapping[str, str | None], remedy: str, path: Path, line: int | None
    ) -> None:
        super().__init__(f"{problem}; {remedy}", path, line)
        self.problem, self.proposed, self.remedy = problem, dict(proposed), remedy

    def __reduce__(self) -> tuple:
        return type(self), (self.problem, self.proposed, self.remedy, self.path, self.line)


def missing_columns(
    missing: Sequence[tuple[str, str]],
    options: ReadOptions,
    names: Iterable[str],
    path: Path,
    line: int | None,
    what: str = "column",
    before: str = "",
) -> MissingColumnsError:
    """The error for (option, column) pairs that are not among the names of the columns."""
    names = list(names)
    lacking = " and ".join(f"no {what} '{column}'" for column in dict.fromkeys(column for _, column in missing))
    problem = f"{before}there is {lacking} among {', '.join(names) or 'nothing'}"
    proposed: dict[str, str | None] = {}
    for option, _ in missing:
        proposed[option] = _similar(getattr(options, option), names) or _likely(option, names)
    if len(proposed) == 1:
        option, column = next(iter(proposed.items()))
        asked = "".join(near_miss(lacking, names) for _, lacking in missing)
        shown = "..." if asked or column is None else column
        return MissingColumnsError(problem, proposed, asked + how_to_set(option, shown), path, line)
    settings = " ".join(f"--set {option}={column or '...'}" for option, column in proposed.items())
    keys = ", ".join(f"data.options.{option}" for option in proposed)
    remedy = f"set the options {' and '.join(proposed)} ({settings}, in a config {keys})"
    return MissingColumnsError(problem, proposed, remedy, path, line)


def _similar(given: str, names: Sequence[str]) -> str | None:
    """The given columns with small mistakes corrected; None if one is like no column."""
    by_word = {name.casefold(): name for name in reversed(names)}
    corrected: list[str] = []
    for part in given.split("+"):
        near = difflib.get_close_matches(part.strip().casefold(), by_word, n=1)
        if part not in names and not near:
            return None
        corrected.append(part if part in names else by_word[near[0]])
    return "+".join(corrected)


def _likely(option: str, names: Sequence[str]) -> str | None:
    """A column whose name says that it holds what the option is for."""
    if option == "text_column":
        title, body = _first(TITLES, names), _first(BODIES, names)
        found = [column for column in (title, body) if column is not None]
        return "+".join(found) or None
    words = {"label_column": LABELS, "id_column": IDS}.get(option, ())
    return _first(words, names)


def _first(words: Sequence[str], names: Sequence[str]) -> str | None:
    by_word = {re.sub(r"[\s-]+", "_", name.strip().casefold()): name for name in reversed(names)}
    return next((by_word[word] for word in words if word in by_word), None)
