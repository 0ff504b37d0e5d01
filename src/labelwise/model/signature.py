"""Signatures and documentation of methods, from the fields of their configs.

`help(LinearTree)` and editors that run the code use `__signature__` and `__doc__`. Editors that only read it use
`signatures.pyi`, which ``python -m labelwise.model.signature`` writes and a test compares.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from labelwise.config import Config, sections_of
from labelwise.io.atomic import replacing


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


# --- the stub for editors that do not run the code -------------------------------------------------------------------

STUB = Path(__file__).parents[1] / "signatures.pyi"
HEADER = '''"""Parameters of the methods, for editors: written by `python -m labelwise.model.signature`."""

from collections.abc import Mapping
from typing import Any, Literal, Optional, Union

'''


def stub_text(methods: Iterable[type]) -> str:
    """A stub module with one class per method, whose constructor lists the parameters."""
    imports: set[str] = set()
    classes: list[str] = []
    for method in methods:
        module, name = method.__module__, method.__name__
        imports.add(f"from {module} import {name} as _{name}\n")
        lines = [f"class {name}(_{name}):", _quoted(method.__doc__ or "", "    "), "    def __init__(", "        self,"]
        fields = method.Config.model_fields  # type: ignore[attr-defined]
        lines += ["        *,"] if fields else []
        for key, field in fields.items():
            imports |= {f"from {one.__module__} import {one.__name__}\n" for one in sections_of(field.annotation)}
            default = "..." if sections_of(field.annotation) else repr(field.get_default(call_default_factory=True))
            lines.append(
                f"        {key}: {_type_text(field.annotation)}{'' if field.is_required() else f' = {default}'},"
            )
        classes.append("\n".join([*lines, "    ) -> None: ...\n"]))
    return HEADER + "".join(sorted(imports)) + "\n" + "\n".join(classes)


def _type_text(annotation: Any) -> str:
    """A type as it is written; a section is its config or a mapping."""
    sections = sections_of(annotation)
    if sections:
        nothing = ["None"] if type(None) in get_args(annotation) else []
        return " | ".join(["Mapping[str, Any]", *(section.__name__ for section in sections), *nothing])
    return inspect.formatannotation(plain_type(annotation)).replace("typing.", "").replace("NoneType", "None")


def _quoted(text: str, indent: str) -> str:
    lines = [f"{indent}{line}".rstrip() for line in text.splitlines()]
    return "\n".join([f'{indent}"""{lines[0].strip()}', *lines[1:], f'{indent}"""'])


def write_stub() -> None:
    """Write the stub of all built-in methods."""
    from labelwise.registry import METHODS, method_class

    with replacing(STUB) as file:
        file.write(stub_text(method_class(name) for name in METHODS))


if __name__ == "__main__":
    write_stub()
