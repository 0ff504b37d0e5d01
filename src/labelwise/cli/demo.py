"""labelwise demo: data, training, a table and a report in one command."""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.terminal import echo

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

    from labelwise.cli.explanations import show_documents
    from labelwise.cli.sources import refuse_existing
    from labelwise.cli.tables import show_results
    from labelwise.config import ConfigSource
    from labelwise.data.builders.pydocs import build_pydocs
    from labelwise.data.read import read
    from labelwise.errors import ConfigError
    from labelwise.methods.base import load
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
