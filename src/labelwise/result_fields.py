"""Which settings decide a result: all of them, but for those that are marked where they are declared.

    threads: Annotated[int | None, Decides.NOTHING] = None

A field in a union must be marked as a whole, as above. From the marks follow which runs may be resumed, which trials of
a sweep are the same one, and what is part of the fingerprints of unfinished work.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from labelwise.config import Config, sections_of


class Decides(Enum):
    """What a marked field decides."""

    NOTHING = "nothing"
    """Speed, memory, files, what is shown. The result is the same with any value."""
    END = "end"
    """When training ends. Unfinished work is resumed with another value; finished work is another result."""
    ASSEMBLY = "assembly"
    """How trained parts become a model. The parts are the same with any value."""


Scope = frozenset[Decides]
RESULT: Scope = frozenset({Decides.NOTHING})
"""Fields that do not tell one result from another."""
UNFINISHED: Scope = RESULT | {Decides.END}
"""Fields that may change while a run is unfinished."""
PART: Scope = UNFINISHED | {Decides.ASSEMBLY}
"""Fields that do not tell one trained part of a model from another."""

Fields = dict[str, Any]
"""Names of fields, each with True or with the fields of a section: what pydantic's `exclude` takes."""


def fields_beside(kind: type[Config], scope: Scope) -> Fields:
    """The fields of a config, and of its sections, that decide nothing in this scope."""
    found: Fields = {}
    for name, field in kind.model_fields.items():
        if any(mark in scope for mark in field.metadata if isinstance(mark, Decides)):
            found[name] = True
            continue
        inner: Fields = {}
        for section in sections_of(field.annotation):
            inner |= fields_beside(section, scope)
        if inner:
            found[name] = inner
    return found


def deciding(config: Config, scope: Scope) -> dict[str, Any]:
    """The values of a config that decide the result in this scope, as plain data."""
    return config.model_dump(mode="json", exclude=fields_beside(type(config), scope))


def deciding_json(config: Config, scope: Scope, elsewhere: Fields) -> str:
    """The same as JSON, for a fingerprint; without fields that are in it elsewhere."""
    return config.model_dump_json(exclude={**fields_beside(type(config), scope), **elsewhere})


def without(values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Plain values without these fields."""
    kept = {}
    for name, value in values.items():
        inner = fields.get(name)
        if inner is not True:
            kept[name] = without(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def with_values_of(values: Mapping[str, Any], others: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Plain values in which these fields are as they are in others."""
    found = dict(values)
    for name, inner in fields.items():
        if inner is True:
            found[name] = others.get(name)
        elif isinstance(values.get(name), Mapping):
            found[name] = with_values_of(values[name], others.get(name) or {}, inner)
    return found


def leaves(values: Any, place: str = "") -> dict[str, Any]:
    """All values that are no section, by their dotted place."""
    if not isinstance(values, Mapping) or not values:
        return {place: values}
    return {
        path: leaf
        for key, value in values.items()
        for path, leaf in leaves(value, f"{place}.{key}" if place else str(key)).items()
    }


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The places at which two configs differ, those of the first in order."""
    earlier, later = leaves(before), leaves(now)
    return [path for path in dict.fromkeys([*earlier, *later]) if earlier.get(path) != later.get(path)]
