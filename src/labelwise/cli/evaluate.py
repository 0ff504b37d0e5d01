"""labelwise evaluate MODEL DATA"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from labelwise.cli.train import ForceOption, SetOption


def evaluate_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    data: Annotated[str, typer.Argument(help="Labelled documents: a file, or a folder with a test part.")],
    split: Annotated[str, typer.Option(help="Part to use when DATA is a folder.")] = "test",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    overrides: SetOption = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write the scores as JSON.")] = None,
    force: ForceOption = False,
) -> None:
    """Evaluate a model on labelled documents.

    Fields of the config's evaluate section are set with --set, e.g. --set metrics=[P@1,PSP@5] --set bootstrap=0.
    """
    from pathlib import Path

    from labelwise.atomic import replacing
    from labelwise.cli.sources import open_model, refuse_existing
    from labelwise.cli.tables import show_evaluation
    from labelwise.config import ConfigSource, validated
    from labelwise.data.read import read
    from labelwise.runs.config import EvaluateSection
    from labelwise.runs.judge import judge

    source = ConfigSource({}, "evaluate").override(overrides or [])
    section = validated(EvaluateSection, source.values, source)
    target = refuse_existing(output, force) if output else None
    fitted = open_model(model)
    documents = read(data, format, split if Path(data).is_dir() else None)
    judgement = judge(fitted, documents, section)
    evaluation = judgement.evaluation.to_dict()
    if target is not None:
        with replacing(target) as file:
            file.write(json.dumps(evaluation, indent=1) + "\n")
    rate = len(documents) / max(judgement.seconds["predict"], 1e-9)
    show_evaluation(f"{model} on {data}: {len(documents):,} documents, {rate:,.0f} a second", evaluation)
