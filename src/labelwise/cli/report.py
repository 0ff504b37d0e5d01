"""labelwise report RUN|STUDY"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from labelwise.cli.options import ForceOption, SetOption
from labelwise.cli.terminal import echo, echo_json

if TYPE_CHECKING:
    from pathlib import Path

    from labelwise.report.compare import Comparison


def report_command(
    run: Annotated[str, typer.Argument(help="Folder of a run, or of a study (labelwise sweep).")],
    plots: Annotated[
        str | None, typer.Option(help="Also write the charts as SVG and PNG files into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace charts in the folder of --plots.")] = False,
) -> None:
    """Write the report of a run or of a study again: one self-contained HTML page.

    The page is report.html in the folder. It is built only from the other files there, so an older one is always
    replaced. The charts of a study are always written to files too: to its own plots/, where older ones are replaced,
    or to the folder of --plots, where existing charts are replaced only with --force.
    """
    from pathlib import Path

    from labelwise.errors import DataError
    from labelwise.report.plots import save_plots
    from labelwise.report.run import write_report
    from labelwise.report.study import write_study_report
    from labelwise.report.study_files import is_run, is_study
    from labelwise.runs.folder import RunFolder

    folder = RunFolder(run)
    if not folder.path.is_dir():
        raise DataError("there is no such folder; give the folder of a run or of a study", folder.path)
    if is_study(folder.path):
        for path in write_study_report(folder.path, plots, force):
            echo(f"written: {path}")
        return
    if not is_run(folder.path):
        raise DataError(_neither_message(folder.path), folder.path)
    _ = folder.state
    # Charts first: if they may not be written, the old report is kept.
    charts = [] if plots is None else save_plots(folder.path, Path(plots), force=force)
    for path in [write_report(folder.path), *charts]:
        echo(f"written: {path}")


def _neither_message(folder: Path) -> str:
    """The message for a folder that is neither, with the runs and studies inside it."""
    from labelwise.report.study_files import is_run, is_study

    inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and (is_run(path) or is_study(path)))
    hint = f"; it contains {', '.join(inside[:5])}{', ...' * (len(inside) > 5)}" if inside else ""
    return f"neither the folder of a run (with state.json) nor of a study (with trials/){hint}"


# --- compare ---
# labelwise compare RUN...


def compare_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write one HTML page with charts.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Run that differences refer to. Not given: the best of each column.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    force: ForceOption = False,
) -> None:
    """Compare runs: scores with intervals, differences on the same test documents, time, memory, size.

    Differences have 95 % intervals from a paired bootstrap over the documents. Marked scores are the best and those
    that cannot be distinguished from it. Tables on a terminal, Markdown when the output goes to a file or a pipe.
    """
    import sys
    from pathlib import Path

    from labelwise.cli.train import refuse_existing
    from labelwise.report.compare import compare_runs, write_comparison

    target = refuse_existing(output, force) if output else None
    folders = [Path(run) for run in runs]
    comparison = compare_runs(folders, against)
    if json_output:
        echo_json(comparison.to_dict())
    elif sys.stdout.isatty():
        _show(comparison)
    else:
        echo(comparison.to_markdown())
    if target is not None:
        write_comparison(folders, target, against)
        echo(f"written: {target}")


def _show(comparison: Comparison) -> None:
    """Print the tables, then the notes on them."""
    from labelwise.cli.output import print_table
    from labelwise.formatting import MISSING
    from labelwise.report.compare import TABLES

    for kind in TABLES:
        lines = comparison.rows_of(kind)
        names = ["run", *(row.name for row in lines)]
        columns = [["method", *(row.method or MISSING for row in lines)]] if kind == "score" else []
        for column in comparison.columns_of(kind):
            cells = [row.cells[column.name] for row in lines]
            columns.append([column.title, *(f"* {cell.text}" if cell.best else cell.text for cell in cells)])
        if not comparison.columns_of(kind) and kind != "score":
            continue
        for part in _split_columns(names, columns):
            heads, *rows = zip(names, *part, strict=True)
            print_table(comparison.title(kind), heads, rows)
        if meaning := comparison.mark_meaning(kind):
            echo(f"* {meaning}")
    for note in comparison.notes:
        echo(f"- {note}")


def _split_columns(names: Sequence[str], columns: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Split columns into as many tables as the terminal width requires, at least one column in each."""
    from rich.console import Console

    # The frame takes three characters per column; long run names are folded.
    available = Console().width
    available -= min(max(map(len, names)), available // 3) + 4
    parts: list[list[Sequence[str]]] = []
    left = 0
    for column in columns:
        width = max(map(len, column)) + 3
        if not parts or width > left:
            parts.append([])
            left = available
        parts[-1].append(column)
        left -= width
    return parts


# --- config ---
# labelwise config show|schema|import

app = typer.Typer(help="Show configs, and import those of other tools.", no_args_is_help=True)


@app.command("show")
def show_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG.yml", help="Config file; - is stdin.")],
    overrides: SetOption = None,
) -> None:
    """Check a config and print it with every default filled in."""
    from labelwise.cli.train import config_source
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
    from labelwise.cli.train import config_source, refuse_existing
    from labelwise.interop.libmultilabel import import_libmultilabel
    from labelwise.io.atomic import replacing

    conversion = import_libmultilabel(config_source(config))
    text = conversion.to_yaml(f"From LibMultiLabel's {config}, by `labelwise config import`.")
    for note in conversion.notes:
        echo(str(note), err=True)
    if output == "-":
        echo(text, nl=False)
        return
    with replacing(refuse_existing(output, force)) as file:
        file.write(text)


# --- demo ---
# labelwise demo: data, training, a table and a report in one command.

METHODS = ("popularity", "linear_tree")
SHOWN = 3
MIN_CHARACTERS = 200


def demo_command(
    folder: Annotated[str, typer.Argument(help="Folder for the data and the runs.")] = "demo",
    force: ForceOption = False,
) -> None:
    """Build a corpus, train, evaluate and write a report.

    Builds a corpus from the documentation of installed packages, trains on it, evaluates, writes a report, and shows
    some predictions with the words that caused them.

    The documents are docstrings, the labels are parts of module paths and parameter names. Nothing is downloaded, and
    the packages are read, not imported.
    """
    from pathlib import Path

    from labelwise.cli.output import show_documents, show_results
    from labelwise.cli.train import refuse_existing
    from labelwise.config import ConfigSource
    from labelwise.data.builders.pydocs import build_pydocs
    from labelwise.data.read import read
    from labelwise.errors import ConfigError
    from labelwise.model.method import load
    from labelwise.runs.config import run_config
    from labelwise.runs.folder import RunFolder
    from labelwise.runs.train import train

    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is a file; give a folder, or nothing for 'demo'")
    corpus = root / "pydocs"
    if not corpus.exists() or force:
        root.mkdir(parents=True, exist_ok=True)
        build_pydocs(refuse_existing(corpus, force), force=force)
    for method in METHODS:
        values = {
            "data": {"path": str(corpus)},
            "model": {"method": method},
            "run": {"folder": str(root / method)},
        }
        run = RunFolder(root / method)
        if force or not run.is_complete():
            train(run_config(ConfigSource(values, "demo")), force)
        show_results(run.path)
    test = read(corpus, split="test")
    long_enough = [row for row, text in enumerate(test.texts or ()) if len(text) >= MIN_CHARACTERS]
    if not long_enough:
        return
    shown = [long_enough[(2 * i + 1) * len(long_enough) // (2 * SHOWN)] for i in range(SHOWN)]
    echo(f"\n{METHODS[-1]} on {len(shown)} test documents, with the words that caused each label:")
    show_documents(load(str(root / METHODS[-1])), test, shown)


# --- serve ---
# labelwise serve MODEL...


def serve_command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model folders or run folders; NAME=FOLDER gives a name.")
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: all of this machine.")] = "127.0.0.1",
    workers: Annotated[int, typer.Option(help="Processes, which share the mapped model files.")] = 1,
    api_keys: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="API keys, one per line. Also: LABELWISE_API_KEYS, separated by commas."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Let pages of this origin send requests. May be repeated.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept requests for this host name, as behind a proxy. May be repeated."),
    ] = None,
    max_request: Annotated[float, typer.Option(metavar="MB", help="Maximum size of a request.")] = 16,
    max_text: Annotated[int, typer.Option(help="Maximum number of characters of a text.")] = 1_000_000,
    max_documents: Annotated[int, typer.Option(help="Maximum number of documents in a request.")] = 1000,
    max_k: Annotated[int, typer.Option(help="Maximum number of labels per document.")] = 1000,
    max_bodies: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            help="Maximum size of all requests at a time, per worker; others get 503. Not given: 256, or --max-request "
            "if that is more.",
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option(help="Maximum number of connections per worker; others get 503.")
    ] = 1000,
    queue: Annotated[int, typer.Option(help="Documents per model that may wait; others are answered with 429.")] = 2000,
    batch: Annotated[int, typer.Option(help="Documents of several requests computed together; 1: none.")] = 256,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Maximum time of a request.")] = 30,
    reload: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often to look for changed model folders; 0: never.")
    ] = 2,
    language: Annotated[str, typer.Option(help="Language of the labels, for Annif's clients.")] = "und",
    uri_prefix: Annotated[
        str, typer.Option(metavar="URI", help="Put before names of labels that are no URIs, for Annif's clients.")
    ] = "",
    log_requests: Annotated[bool, typer.Option(help="Write a line per request to the log.")] = True,
    log_format: Annotated[
        str | None, typer.Option(help="Log as json or text. Not given: text on a terminal, else json.")
    ] = None,
) -> None:
    """Serve models over HTTP, with a page for people at /.

    The API is described at /docs; it includes Annif's. Without --host only programs on this machine can connect.
    A changed model folder is loaded again without dropping requests.
    """
    import sys

    from labelwise.errors import import_required

    import_required("labelwise serve", "serve", "fastapi", "uvicorn", "python_multipart")
    from labelwise.serve.server import serve
    from labelwise.serve.settings import named_models, settings_of_options

    terminal = sys.stderr is not None and sys.stderr.isatty()
    given = {
        "models": named_models(models), "host": host, "port": port, "workers": workers, "keys_file": api_keys,
        "allow_origins": tuple(allow_origin or ()), "allow_hosts": tuple(allow_host or ()),
        "max_request": round(max_request * 1e6), "max_text": max_text, "max_documents": max_documents,
        "max_k": max_k, "max_bodies": None if max_bodies is None else round(max_bodies * 1e6),
        "max_connections": max_connections, "queue": queue, "batch": batch, "timeout": timeout, "reload": reload,
        "language": language, "uri_prefix": uri_prefix, "log_requests": log_requests,
        "log_format": log_format or ("text" if terminal else "json"),
    }  # fmt: skip
    serve(settings_of_options(given))
