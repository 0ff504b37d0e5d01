"""Which settings decide a result: all of them, except those that are marked where they are declared.

    threads: Annotated[int | None, Decides.NOTHING] = None

A field with a union type must be marked as a whole, as above. The marks decide which runs may be resumed, which trials
of a sweep are identical, and what is part of the fingerprints of unfinished work.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from labelwise.config import Config, sections_of


class Decides(Enum):
    """What a marked field decides."""

    NOTHING = "nothing"
    """Speed, memory, files, output. The result is the same with any value."""
    END = "end"
    """When training ends. Unfinished work is resumed with another value; finished work is another result."""
    ASSEMBLY = "assembly"
    """How trained parts become a model. The parts are the same with any value."""


Scope = frozenset[Decides]
RESULT: Scope = frozenset({Decides.NOTHING})
"""Fields that do not distinguish two results."""
UNFINISHED: Scope = RESULT | {Decides.END}
"""Fields that may change while a run is unfinished."""
PART: Scope = UNFINISHED | {Decides.ASSEMBLY}
"""Fields that do not distinguish two trained parts of a model."""

Fields = dict[str, Any]
"""Names of fields, each with True or with the fields of a section: what pydantic's `exclude` takes."""


def ignored_fields(config_class: type[Config], scope: Scope) -> Fields:
    """The fields of a config, and of its sections, that decide nothing in this scope."""
    ignored: Fields = {}
    for name, field in config_class.model_fields.items():
        if any(mark in scope for mark in field.metadata if isinstance(mark, Decides)):
            ignored[name] = True
            continue
        inner: Fields = {}
        for section in sections_of(field.annotation):
            inner |= ignored_fields(section, scope)
        if inner:
            ignored[name] = inner
    return ignored


def deciding_fields(config: Config, scope: Scope) -> dict[str, Any]:
    """The values of a config that decide the result in this scope, as plain data."""
    return config.model_dump(mode="json", exclude=ignored_fields(type(config), scope))


def deciding_json(config: Config, scope: Scope, elsewhere: Fields) -> str:
    """The same as JSON, for a fingerprint, without the fields in `elsewhere`, which it includes separately."""
    return config.model_dump_json(exclude={**ignored_fields(type(config), scope), **elsewhere})


def without_fields(values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Plain values without these fields, and without sections of which nothing is left."""
    kept = {}
    for name, value in values.items():
        inner = fields.get(name)
        if inner and inner is not True and isinstance(value, Mapping):
            rest = without_fields(value, inner)
            if rest or not value:
                kept[name] = rest
        elif inner is not True:
            kept[name] = value
    return kept


def with_fields_from(values: Mapping[str, Any], others: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Plain values with these fields taken from `others`."""
    merged = dict(values)
    for name, inner in fields.items():
        if inner is True:
            merged[name] = others.get(name)
        elif isinstance(values.get(name), Mapping):
            merged[name] = with_fields_from(values[name], others.get(name) or {}, inner)
    return merged


def flattened(values: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one flat mapping with dotted keys."""
    if not isinstance(values, Mapping) or not values:
        return {prefix: values}
    return {
        path: leaf
        for key, value in values.items()
        for path, leaf in flattened(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys at which two configs differ, those of the first in order."""
    earlier, later = flattened(before), flattened(now)
    return [path for path in dict.fromkeys([*earlier, *later]) if earlier.get(path) != later.get(path)]
