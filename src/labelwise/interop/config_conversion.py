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

from labelwise.config import ConfigSource, Place, to_yaml
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
    "section": "a section with keys of its own",
}


@dataclass(frozen=True)
class Note:
    """A key that was not converted as it is, and why."""

    where: str
    key: str
    says: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.says}" if self.key else f"{self.where}: {self.says}"


class ConfigConversion:
    """A run config that is being built from the values of `source`."""

    def __init__(self, source: ConfigSource) -> None:
        self.source = source
        self.values: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.filled: list[str] = []
        self.seen: set[Place] = set()
        self._lines: dict[Place, int] = {}

    def has(self, *place: str) -> bool:
        """Whether the key is there with a value."""
        return self._found(place) is not None

    def get(self, *place: str, kind: str) -> Any:
        """The checked value of a key, or None; marks the key as read."""
        self.seen.add(place)
        found = self._found(place)
        if found is None:
            return None
        value = self._as_kind(found, place, kind)
        if value is None:
            raise ConfigError(f"{self.source.where(place)}: {'.'.join(place)}: {KINDS[kind]} is needed, got {found!r}")
        return value

    def put(self, ours: str, value: Any, *place: str) -> None:
        """Set one of our fields; `place` is the key it came from."""
        parts = tuple(ours.split("."))
        section = self.values
        for part in parts[:-1]:
            section = section.setdefault(part, {})
        section[parts[-1]] = value
        if place in self.source.lines:
            self._lines[parts] = self.source.lines[place]

    def move(self, *place: str, to: str, kind: str, default: Any = None) -> Any:
        """Copy a value to our field; a default of the other tool is written out."""
        value = self.get(*place, kind=kind)
        if value is None and default is not None:
            value = default
            self.filled.append(f"{to} {default}")
        if value is not None:
            self.put(to, value, *place)
        return value

    def note(self, text: str, *place: str) -> None:
        """Add a note on a key, if the file has it."""
        self.seen.add(place)
        if self.has(*place):
            where = self.source.where(place)
            self.notes.append(Note(where, ".".join(place), text, self.source.lines.get(place, 0)))

    def note_file(self, text: str) -> None:
        """Add a note on the whole file."""
        self.notes.append(Note(self.source.name, "", text))

    def note_unknown(self, known: Iterable[str], section: str | None = None) -> None:
        """Add a note on every key that was not read; `known` are the candidates for a misspelt one."""
        values = self.source.values if section is None else self.source.values.get(section)
        for key in values if isinstance(values, dict) else ():
            place = (str(key),) if section is None else (section, str(key))
            if place not in self.seen:
                near = did_you_mean(str(key), known)
                hint = f"; {near}" if near.startswith("did") else ""
                line = self.source.lines.get(place, 0)
                says = f"unknown key, ignored{hint}"
                self.notes.append(Note(self.source.where(place), ".".join(place), says, line))

    def finished(self) -> RunConfig:
        """The validated result; errors name the line of the other tool's file."""
        self.notes.sort(key=lambda note: (note.line == 0, note.line))
        return run_config(ConfigSource(self.values, self.source.name, self._lines))

    def to_yaml(self, heading: str) -> str:
        """The fields that were set, with the notes as comments above them."""
        notes = [line for note in self.notes for line in str(note).splitlines()]
        ordered = {name: self.values[name] for name in RunConfig.model_fields if name in self.values}
        return "".join(f"# {line}\n" for line in (heading, *notes)) + to_yaml(ordered)

    def _found(self, place: tuple[str, ...]) -> Any:
        value: Any = self.source.values
        for part in place:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def _as_kind(self, value: Any, place: tuple[str, ...], kind: str) -> Any:
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
            return None if isinstance(value, dict | list | bool) else str(self.source.texts.get(place, value))
        items = value if isinstance(value, list) else re.split(r"[\s,]+", str(value)) if kind == "words" else [value]
        if kind == "words":
            return [str(item) for item in items]
        return items if all(isinstance(item, int) and not isinstance(item, bool) for item in items) else None
