"""Converts another tool's config to one of ours: typed values, the line each came from, and notes on all other keys.

Every key is either converted or gets a note; keys that were never read are reported at the end. Line numbers of the
other tool's file are kept, so that an error in the result names the line that caused it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from labelwise.config import ConfigSource, KeyPath, to_yaml
from labelwise.errors import ConfigError, did_you_mean
from labelwise.runs.config import RunConfig, run_config

YAML_1_1 = {"yes": True, "on": True, "no": False, "off": False}
"""Words that most YAML readers parse as true and false, and ours as strings."""
KINDS = {
    "count": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "word": "a word",
    "words": "a list of words",
    "counts": "a list of whole numbers",
    "section": "a section with keys",
}


@dataclass(frozen=True)
class Note:
    """A key that was not converted unchanged, and why."""

    where: str
    key: str
    text: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}" if self.key else f"{self.where}: {self.text}"


class ConfigConversion:
    """A run config that is being built from the values of `source`."""

    def __init__(self, source: ConfigSource) -> None:
        self.source = source
        self.values: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.defaults_used: list[str] = []
        self.seen: set[KeyPath] = set()
        self._lines: dict[KeyPath, int] = {}

    def has(self, *keys: str) -> bool:
        """Whether the key is present with a value."""
        return self._raw_value(keys) is not None

    def get(self, *keys: str, kind: str) -> Any:
        """The checked value of a key, or None; marks the key as read."""
        self.seen.add(keys)
        raw = self._raw_value(keys)
        if raw is None:
            return None
        value = self._as_kind(raw, keys, kind)
        if value is None:
            raise ConfigError(f"{self.source.where(keys)}: {'.'.join(keys)}: {KINDS[kind]} is needed, got {raw!r}")
        return value

    def put(self, ours: str, value: Any, *keys: str) -> None:
        """Set one of our fields; `keys` is the key it came from."""
        parts = tuple(ours.split("."))
        section = self.values
        for part in parts[:-1]:
            section = section.setdefault(part, {})
        section[parts[-1]] = value
        if keys in self.source.lines:
            self._lines[parts] = self.source.lines[keys]

    def move(self, *keys: str, to: str, kind: str, default: Any = None) -> Any:
        """Copy a value to our field; a default of the other tool is written out."""
        value = self.get(*keys, kind=kind)
        if value is None and default is not None:
            value = default
            self.defaults_used.append(f"{to} {default}")
        if value is not None:
            self.put(to, value, *keys)
        return value

    def note(self, text: str, *keys: str) -> None:
        """Add a note on a key, if the file has it."""
        self.seen.add(keys)
        if self.has(*keys):
            where = self.source.where(keys)
            self.notes.append(Note(where, ".".join(keys), text, self.source.lines.get(keys, 0)))

    def note_file(self, text: str) -> None:
        """Add a note on the whole file."""
        self.notes.append(Note(self.source.name, "", text))

    def note_unknown(self, known: Iterable[str], section: str | None = None) -> None:
        """Add a note on every key that was not read; `known` are the candidates for spelling suggestions."""
        values = self.source.values if section is None else self.source.values.get(section)
        for key in values if isinstance(values, dict) else ():
            keys = (str(key),) if section is None else (section, str(key))
            if keys not in self.seen:
                hint = did_you_mean(str(key), known)
                suggestion = f"; {hint}" if hint.startswith("did") else ""
                line = self.source.lines.get(keys, 0)
                text = f"unknown key, ignored{suggestion}"
                self.notes.append(Note(self.source.where(keys), ".".join(keys), text, line))

    def validate(self) -> RunConfig:
        """The validated result; errors name the line of the other tool's file."""
        self.notes.sort(key=lambda note: (note.line == 0, note.line))
        return run_config(ConfigSource(self.values, self.source.name, self._lines))

    def to_yaml(self, heading: str) -> str:
        """The fields that were set, with the notes as comments above them."""
        notes = [line for note in self.notes for line in str(note).splitlines()]
        ordered = {name: self.values[name] for name in RunConfig.model_fields if name in self.values}
        return "".join(f"# {line}\n" for line in (heading, *notes)) + to_yaml(ordered)

    def _raw_value(self, keys: tuple[str, ...]) -> Any:
        value: Any = self.source.values
        for part in keys:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def _as_kind(self, value: Any, keys: tuple[str, ...], kind: str) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if kind == "section":
            return value if isinstance(value, dict) else None
        if kind == "switch":
            return value if isinstance(value, bool) else YAML_1_1.get(str(value).lower())
        if kind == "count":
            return int(value) if is_number and int(value) == value else None
        if kind == "number":
            return value if is_number else None
        if kind == "word":
            return None if isinstance(value, dict | list | bool) else str(self.source.texts.get(keys, value))
        items = value if isinstance(value, list) else re.split(r"[\s,]+", str(value)) if kind == "words" else [value]
        if kind == "words":
            return [str(item) for item in items]
        return items if all(isinstance(item, int) and not isinstance(item, bool) for item in items) else None
