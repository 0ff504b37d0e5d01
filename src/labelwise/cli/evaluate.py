"""labelwise evaluate MODEL DATA"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, SetOption, VectorsOption
from labelwise.cli.terminal import echo


def evaluate_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    data: Annotated[str, typer.Argument(help="Labelled documents: a file, or a folder with a test part.")],
    split: Annotated[str, typer.Option(help="Part to use when DATA is a folder.")] = "test",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    features: VectorsOption = None,
    overrides: SetOption = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write the scores as JSON.")] = None,
    force: ForceOption = False,
) -> None:
    """Evaluate a model on labelled documents.

    A run is evaluated with its own config. --set takes the fields of a config's evaluate section, e.g.
    --set metrics=[P@1,PSP@5] --set limit=1000 (evaluate a random sample), and those of data.options, e.g.
    --set text_column=title. F1 uses the calibrated threshold unless one is set.
    """
    from labelwise.atomic import replacing
    from labelwise.cli.sources import refuse_existing
    from labelwise.cli.tables import show_evaluation, show_remarks
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions
    from labelwise.methods.base import load
    from labelwise.metrics.names import parse_metric
    from labelwise.runs.config import EvaluateSection
    from labelwise.runs.evaluate import evaluate_model
    from labelwise.runs.load_data import read_part, scratch_for
    from labelwise.runs.open_model import read_options, section_of_run
    from labelwise.runs.remarks import evaluation_remarks
    from labelwise.runs.vectors import check_reads_vectors, with_vectors

    source = ConfigSource({}, "evaluate").override(overrides or [])
    reading_fields = {key: value for key, value in source.values.items() if key in ReadOptions.model_fields}
    evaluation_fields = {key: value for key, value in source.values.items() if key not in reading_fields}
    section = validated(EvaluateSection, {**section_of_run(model, "evaluate"), **evaluation_fields}, source)
    options = read_options(model, data, reading_fields, source)
    target = refuse_existing(output, force) if output not in (None, "-") else None
    fitted = load(model)
    with scratch_for(data, None if target is None else str(target)) as scratch:
        documents = read_part(data, format, split, options, scratch=scratch)
        if features is not None:
            check_reads_vectors(fitted)
            documents = with_vectors(documents, features)
        measured = evaluate_model(fitted, documents, section)
    evaluation = measured.evaluation.to_dict()
    text = json.dumps(evaluation, indent=1) + "\n"
    remarks = evaluation_remarks(measured)
    if output == "-":
        echo(text, nl=False)
        show_remarks(remarks)
        return
    if target is not None:
        with replacing(target) as file:
            file.write(text)
    rate = len(measured.test) / max(measured.seconds["predict"], 1e-9)
    title = f"{model} on {documents.name}: {measured.evaluated} documents, {rate:,.0f} per second"
    show_evaluation(title, evaluation)
    has_f1 = any(parse_metric(name).needs_threshold for name in measured.evaluation.values)
    if has_f1 and section.threshold is None and measured.threshold is not None:
        echo(f"F1 with the calibrated threshold of the model, {measured.threshold:.4g}")
    if measured.unknown.labels:
        echo(str(measured.unknown))
    show_remarks(remarks)
