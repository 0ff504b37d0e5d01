"""labelwise config show|schema"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import SetOption

app = typer.Typer(help="Look at configs.", no_args_is_help=True)


@app.command("show")
def show_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yml", help="Config file; - is stdin.")],
    overrides: SetOption = None,
) -> None:
    """Check a config and print it with every default filled in."""
    from labelwise.cli.sources import config_source
    from labelwise.runs.config import run_config

    typer.echo(run_config(config_source(config).override(overrides or [])).to_yaml(), nl=False)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of configs, for editors that complete YAML."""
    import json

    from labelwise.runs.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
