"""The option -q, which every command accepts, before its name or after it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Annotated, Any

import typer

from labelwise.cli.terminal import LogFormatter

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and results.")]


def be_quiet(quiet: bool) -> None:
    """Show only warnings on the screen from now on; the log of a run stays complete."""
    for handler in logging.getLogger().handlers:
        if quiet and isinstance(handler.formatter, LogFormatter):
            handler.setLevel(logging.WARNING)


def accept_quiet(app: typer.Typer) -> None:
    """Let every command of an app, and of the apps in it, accept -q."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_quiet(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            accept_quiet(group.typer_instance)


def _with_quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function, eval_str=True)
    quiet = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=QuietOption)

    @functools.wraps(function)
    def command(*args: Any, quiet: bool = False, **others: Any) -> Any:
        be_quiet(quiet)
        return function(*args, **others)

    parameters = [*signature.parameters.values(), quiet]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command
