"""Fields of a Config with one value for all levels of a tree, or a list with one for each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from labelwise.errors import did_you_mean
from labelwise.linear.search import POST_PROCESSORS

Name = Literal[tuple(POST_PROCESSORS)]  # type: ignore[valid-type]


def _beams(value: Any) -> Any:
    """Checked before the types are: the errors of a union would name both."""
    found = [_whole_number(item) for item in _listed(value)]
    if not found or min(found) < 1:
        raise ValueError("must be a whole number of 1 or more, or a list with one for each level above the labels")
    return tuple(found) if isinstance(value, list | tuple) else found[0]


def _names(value: Any) -> Any:
    for item in _listed(value):
        if item not in tuple(POST_PROCESSORS):
            raise ValueError(f"there is no post-processor {item!r}; {did_you_mean(str(item), POST_PROCESSORS)}")
    if isinstance(value, list | tuple) and not value:
        raise ValueError("must be a post-processor, or a list with one for each level")
    return value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _whole_number(item: Any) -> int:
    """The number, or 0 for anything else."""
    try:
        return int(item) if not isinstance(item, bool) and float(item) == int(item) else 0
    except (TypeError, ValueError, OverflowError):
        return 0


Beam = Annotated[int | tuple[int, ...], BeforeValidator(_beams)]
PostProcessors = Annotated[Name | tuple[Name, ...], BeforeValidator(_names)]
