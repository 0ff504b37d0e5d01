"""labelwise models [NAME]"""

from __future__ import annotations

from typing import Annotated

import typer


def models_command(
    name: Annotated[str | None, typer.Argument(help="Show the parameters of this method.")] = None,
) -> None:
    """List the methods, or show one with its parameters."""
    import sys
    from inspect import getdoc

    from labelwise.cli.tables import print_table
    from labelwise.registry import method_class, method_names

    if name is None:
        rows = [(n, (getdoc(method_class(n)) or "").splitlines()[0]) for n in method_names()]
        width = max(len(n) for n, _ in rows)
        for method, about in rows:
            typer.echo(f"{method:<{width}}  {about}")
        return
    kind = method_class(name)
    typer.echo((sys.modules[kind.__module__].__doc__ or "").strip())
    fields = kind.Config.model_fields
    if not fields:
        typer.echo("\nNo parameters.")
        return
    typer.echo("")
    rows = [(key, repr(f.get_default(call_default_factory=True)), f.description or "") for key, f in fields.items()]
    print_table("parameters", ["name", "default", "meaning"], rows)
