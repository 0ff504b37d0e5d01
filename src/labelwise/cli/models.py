"""labelwise models [NAME]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.terminal import echo

if TYPE_CHECKING:
    from pydantic import BaseModel

WIDTH, MIN_WIDTH = 100, 60
MAX_DEFAULT_WIDTH, MIN_MEANING_WIDTH = 20, 30
Row = tuple[str, str, str]


def models_command(
    name: Annotated[str | None, typer.Argument(help="Show the parameters of this method.")] = None,
) -> None:
    """List the methods, or show one with its parameters."""
    import shutil
    import sys
    from textwrap import fill

    from labelwise.registry import method_class, method_names

    width = max(shutil.get_terminal_size((WIDTH, 24)).columns, MIN_WIDTH) if sys.stdout.isatty() else WIDTH
    if name is None:
        for line in overview_lines(method_names(), width):
            echo(line)
        return
    method_type = method_class(name)
    about = (sys.modules[method_type.__module__].__doc__ or "").strip()
    echo("\n\n".join(fill(paragraph, width) for paragraph in about.split("\n\n")))
    rows = list(parameter_rows(method_type.Config, None))
    echo("\nparameters\n" if rows else "\nNo parameters.")
    for line in table_lines([("name", "default", "meaning"), *rows], width) if rows else ():
        echo(line)
    for preset, parameters in method_type.presets.items():
        echo(f"\npreset {preset}")
        echo(fill(_shown(parameters), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def overview_lines(names: list[str], width: int) -> Iterator[str]:
    """Per method its description, what it suits and how fast it is, what it reads and needs; folded to the width."""
    from inspect import getdoc
    from textwrap import wrap

    from labelwise.registry import method_class, method_package

    before = max(map(len, names)) + 2
    for name in names:
        method, package = method_class(name), method_package(name)
        about = {
            "": (getdoc(method) or "").splitlines()[0],
            "good for": method.good_for,
            "speed": method.speed,
            "reads": ", ".join(method.inputs),
            "needs": ", ".join(method.needs) or "nothing else",
            "package": "" if package is None else " ".join(package),
        }
        for key, text in about.items():
            head = f"{key:<9}" if key else ""
            for line in wrap(text, width - before - len(head), break_on_hyphens=False) if text else ():
                yield f"{name if not key else '':<{before}}{head}{line}".rstrip()
                name, head = "", " " * len(head)


def parameter_rows(config_class: type[BaseModel], given: BaseModel | None, prefix: str = "") -> Iterator[Row]:
    """One row per field, fields of a section after the section, with the defaults of that section."""
    from pydantic import BaseModel

    for key, field in config_class.model_fields.items():
        default: Any = getattr(given, key) if given is not None else field.get_default(call_default_factory=True)
        about = " ".join((field.description or "").split())
        if isinstance(default, BaseModel):
            yield prefix + key, "", about
            yield from parameter_rows(type(default), default, f"{prefix}{key}.")
            continue
        yield prefix + key, _shown(default) if not field.is_required() else "required", about
        for section in _sections(field.annotation):
            yield from parameter_rows(section, None, f"{prefix}{key}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The config class a field may hold instead of its default."""
    from pydantic import BaseModel

    options = [annotation, *getattr(annotation, "__args__", ())]
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def _shown(value: Any) -> str:
    """A value as it is written in a config."""
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)


def table_lines(rows: list[Row], width: int) -> Iterator[str]:
    """Rows in three columns with folded meanings; on a narrow terminal the meaning is on the next line."""
    from textwrap import wrap

    longest = max(len(name) for name, _, _ in rows)
    second = min(max(len(default) for _, default, _ in rows), MAX_DEFAULT_WIDTH)
    before = longest + second + 4
    if width - before < MIN_MEANING_WIDTH:
        before = 4
    for name, default, about in rows:
        first = f"{name:<{longest}}  {default:<{second}}  "
        meaning = wrap(about, width - before, break_on_hyphens=False)
        if len(first) == before and meaning:  # a long default is not cut, so that it can be copied
            first += meaning.pop(0)
        yield first.rstrip() if len(first.rstrip()) <= width else f"{name}  {default}"
        for line in meaning:
            yield " " * before + line
