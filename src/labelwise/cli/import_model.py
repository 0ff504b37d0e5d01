"""labelwise import SOURCE -o MODEL"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.terminal import echo

log = logging.getLogger("labelwise")


def import_command(
    source: Annotated[str, typer.Argument(help="Model folder of PECOS (XR-Linear, text2text) or omikuji.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="MODEL", help="Folder of the imported model.")],
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="Label names, one per line in the order of label numbers.")
    ] = None,
    tfidf: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A labelwise model whose TF-IDF the features are; the result then reads texts."
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Import a model that PECOS or omikuji has trained, to predict with it here.

    The result is a linear_tree (or linear_flat) model that ranks labels as SOURCE does. It reads features with the
    columns that SOURCE was trained on or, with --tfidf, texts. Nothing in SOURCE is executed.
    """
    from labelwise.errors import ConfigError
    from labelwise.interop.import_model import import_model, read_foreign_model, tfidf_of
    from labelwise.runs.label_files import read_label_names

    if Path(output).exists() and not force:
        raise ConfigError(f"{output} exists already; --force replaces it, -o names another folder")
    names = None if labels is None else read_label_names(labels)
    foreign = read_foreign_model(source)
    model = import_model(foreign, names, None if tfidf is None else tfidf_of(tfidf))
    model.save(output, force)
    for note in foreign.notes:
        log.info("%s", note)
    sizes = "; ".join(" > ".join(f"{size:,}" for size in tree.sizes) for tree, _ in model.trees_)
    reads = "texts" if tfidf is not None else f"{foreign.n_features:,} features"
    echo(f"{foreign.origin}: {len(model.label_names_):,} labels, {reads}, {len(model.trees_)} trees ({sizes})")
    echo(f"model: {output}")
