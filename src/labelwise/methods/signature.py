"""Signatures and documentation of methods, from the fields of their configs.

`help(LinearTree)` and editors that run the code use `__signature__` and `__doc__`. Editors that only read it use
`signatures.pyi`, which ``python -m labelwise.methods.signature`` writes and a test compares.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from labelwise.config import Config, sections_of


def signature_of(config: type[Config]) -> inspect.Signature:
    """Keyword-only parameters with types and defaults."""
    return inspect.Signature([
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=plain_type(field.annotation),
            default=inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True),
        )
        for name, field in config.model_fields.items()
    ])  # fmt: skip


def documented(text: str | None, config: type[Config]) -> str:
    """A class's documentation with a section on its parameters."""
    about = inspect.cleandoc(text or "")
    entries = [f"{name}\n    {meaning}" for name, meaning in meanings(config)]
    return "\n".join([about, "", "Parameters", "----------", *entries]) if entries else about


def meanings(config: type[Config]) -> Iterator[tuple[str, str]]:
    """Each parameter with the sentence under its field, and the keys of a section."""
    for name, field in config.model_fields.items():
        text = " ".join((field.description or "").split())
        keys = [key for section in sections_of(field.annotation) for key in section.model_fields]
        yield name, f"{text} Keys: {', '.join(keys)}." if keys else text


def plain_type(annotation: Any) -> Any:
    """A type without the bounds that pydantic checks."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return plain_type(arguments[0])
    if origin in (Union, UnionType):
        return reduce(or_, (plain_type(argument) for argument in arguments))
    if origin is None or origin is Literal or not arguments:
        return annotation
    return origin[tuple(argument if argument is ... else plain_type(argument) for argument in arguments)]
