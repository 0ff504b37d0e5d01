"""labelwise config show|schema|import"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, SetOption
from labelwise.cli.terminal import echo

app = typer.Typer(help="Show configs, and import those of other tools.", no_args_is_help=True)


@app.command("show")
def show_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yml", help="Config file; - is stdin.")],
    overrides: SetOption = None,
) -> None:
    """Check a config and print it with every default filled in."""
    from labelwise.cli.sources import config_source
    from labelwise.runs.config import run_config

    echo(run_config(config_source(config).override(overrides or [])).to_yaml(), nl=False)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of configs, for editors that complete YAML."""
    import json

    from labelwise.runs.config import json_schema

    echo(json.dumps(json_schema(), indent=1))


@app.command("import")
def import_command(
    config: Annotated[str, typer.Argument(metavar="FILE.yml", help="LibMultiLabel's config; - is stdin.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT.yml", help="Output file; - is stdout.")] = "-",
    force: ForceOption = False,
) -> None:
    """Convert a LibMultiLabel config (AttentionXML, BiGRU/BiLSTM with label attention, linear).

    Keys without a counterpart are reported with their lines, on stderr and as comments in the result.
    """
    from labelwise.atomic import replacing
    from labelwise.cli.sources import config_source, refuse_existing
    from labelwise.interop.libmultilabel import import_libmultilabel

    conversion = import_libmultilabel(config_source(config))
    text = conversion.to_yaml(f"From LibMultiLabel's {config}, by `labelwise config import`.")
    for note in conversion.notes:
        echo(str(note), err=True)
    if output == "-":
        echo(text, nl=False)
        return
    with replacing(refuse_existing(output, force)) as file:
        file.write(text)
