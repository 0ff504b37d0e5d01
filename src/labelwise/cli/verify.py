"""labelwise verify MODEL PAIRS"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from labelwise.cli.options import ForceOption
from labelwise.cli.terminal import echo

KINDS = (".html", ".json")


def verify_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder of a model of images, such as mhe_face.")],
    pairs: Annotated[
        str,
        typer.Argument(
            help="LFW's pairs.txt, a table of two paths and 1 or 0, a .bin set, or a folder of IJB-B or IJB-C."
        ),
    ],
    images: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of the images.", show_default=False)
    ] = None,
    far: Annotated[
        list[float] | None,
        typer.Option(help="False accept rate to report. May be repeated.", show_default="1e-1 to 1e-6"),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Also write a page (.html) or the scores (.json).", show_default=False),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Verify a model: do two images show the same person? Cosines of vectors, on pairs or on templates of images.

    Prints accuracy by folds (the protocol of LFW), AUC, equal error rate, and true accept rates at false accept rates.
    """
    from labelwise.atomic import replacing
    from labelwise.cli.sources import refuse_existing
    from labelwise.cli.tables import print_table
    from labelwise.errors import ConfigError
    from labelwise.methods.base import load
    from labelwise.metrics.verification import RATES
    from labelwise.report.verification import verification_rows, write_verification
    from labelwise.runs.verify import verify_model

    target = None if output is None else refuse_existing(output, force)
    if target is not None and target.suffix not in KINDS:
        raise ConfigError(f"{target}: the result is written as .html or .json; give a name that ends in one of them")
    found = verify_model(load(model), pairs, images, tuple(far or RATES)).to_dict()
    counts = f"{found['n_same']:,} pairs of the same, {found['n_different']:,} of different people"
    title = f"{model} on {found['pairs']}: {counts}"
    print_table(title, ["metric", "%", ""], verification_rows(found))
    if target is None:
        return
    if target.suffix == ".json":
        with replacing(target) as file:
            file.write(json.dumps({"model": model, **found}, indent=1) + "\n")
    else:
        write_verification(found, model, target)
    echo(f"written: {target}")
