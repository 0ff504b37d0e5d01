"""labelwise predict MODEL [TEXTS]"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelwise.cli.options import (
    AddressOption,
    EncodeSetOption,
    ForceOption,
    LauncherOption,
    ReadSetOption,
    SetOption,
    TaskCpusOption,
    TaskGpusOption,
    VectorsOption,
    WorkersOption,
)
from labelwise.cli.terminal import echo, echo_json
from labelwise.registry import can

if TYPE_CHECKING:
    from labelwise.config import ConfigSource
    from labelwise.data.dataset import Dataset


def predict_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    documents: Annotated[
        str,
        typer.Argument(help="A text, a file of texts (one per line), a data file or folder; - is stdin."),
    ] = "-",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Output file: .csv, .jsonl, .tsv or .npz; - is stdout.")
    ] = "-",
    k: Annotated[
        int | None,
        typer.Option(
            "-k", "--k", help="Maximum number of labels per document. Not given: 10; with --threshold no maximum."
        ),
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(help="Leave out labels whose score is below this. auto: the calibrated threshold.")
    ] = None,
    explain: Annotated[
        int | None, typer.Option(metavar="N", help="Add the N words that contributed most to each label.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="CSV: wide (default), the input's columns plus labels; long, one row per label."),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="File of allowed labels, one per line.")] = None,
    label_weights: Annotated[
        str | None, typer.Option(help="File of label<TAB>factor lines; scores are multiplied by the factors.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="Format of DOCUMENTS: text (one per line) or a data format. auto: by the name.")
    ] = "auto",
    split: Annotated[str, typer.Option(help="Part to use when DOCUMENTS is a folder.")] = "test",
    to: Annotated[
        str | None, typer.Option(help="Output format: csv, jsonl, tsv or npz. Not given: by the name.")
    ] = None,
    features: VectorsOption = None,
    overrides: ReadSetOption = None,
    force: ForceOption = False,
    launcher: LauncherOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    task_cpus: TaskCpusOption = None,
    task_gpus: TaskGpusOption = None,
) -> None:
    """Predict labels for a text, texts or any data file.

    On a terminal the result is a table, in a pipe one JSON object per document.

    Without --threshold the 10 best labels are written, with it all labels that reach it; -k sets a maximum for both.

    --set takes options for reading a data file, e.g. --set text_column=title; the default is how the run read its data.

    With --launcher processes or ray, batches of a file are predicted by other processes or on a cluster.
    """
    from labelwise.cli.output import PredictionTable, on_terminal
    from labelwise.commands.predict import chosen_threshold, predict_file, read_options
    from labelwise.config import ConfigSource
    from labelwise.errors import ConfigError
    from labelwise.io.folder import model_folder
    from labelwise.model.method import load
    from labelwise.runs.data import Request, is_text_argument
    from labelwise.runtime.tasks import Launcher

    where = Launcher(launcher, address, workers, task_cpus, task_gpus)
    typed = is_text_argument(documents, format, model)
    if not where.is_local and (typed or documents == "-"):
        raise ConfigError(f"--launcher {launcher}: for files of documents; lines and single texts are answered here")
    source = ConfigSource({}, "predict").override(overrides or [])
    options = read_options(model, "-" if typed else documents, source.values, source)
    fitted = load(model)
    limit = chosen_threshold(threshold, fitted, model)
    request = Request(documents, format, split, options, k, limit, labels, label_weights, explain, typed, features)
    table = PredictionTable(fitted, request) if on_terminal(output, to) else None
    with where.opened(None) as tasks:
        predict_file(fitted, request, output, to, force, layout, table, model_folder(model), tasks)


# --- explain ---
# labelwise explain MODEL [TEXT]


def explain_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    text: Annotated[str | None, typer.Argument(help="The text itself; - reads it from stdin.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="Explain this label, predicted or not. May be repeated.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of best labels to explain.")] = 3,
    terms: Annotated[
        int | None, typer.Option(help="Words to show per label, 10; of images: parts per side that are covered, 8.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.png", help="Of an image: also draw the maps.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Take the document from this data file, folder or data set.")] = None,
    document: Annotated[str, typer.Option(help="With --data: the document's id, or its index from 0.")] = "0",
    split: Annotated[str, typer.Option(help="Part to use when the data is a folder.")] = "test",
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: ReadSetOption = None,
) -> None:
    """Explain predicted labels: words and tree paths, or parts of an image.

    Shows for each label the words with the largest contributions for and against it, and its path in each tree. For an
    image (TEXT is its path): how much the score depends on each part, by covering it.
    """
    from labelwise.cli.output import show_explanation
    from labelwise.cli.train import stdin_text
    from labelwise.config import ConfigSource
    from labelwise.errors import ConfigError
    from labelwise.model.method import load

    if text is not None and data is not None:
        raise ConfigError("give a TEXT or a document of --data, not both")
    nothing = "no text given: explain MODEL 'some text', - for standard input, or --data FILE --document 17"
    if data is None and not (text or "").strip():
        raise ConfigError(nothing)
    source = ConfigSource({}, "explain").override(overrides or [])
    fitted = load(model)
    given: Any = text
    if data is not None:
        given = _document(model, data, document, split, format, source)
    elif text == "-":
        given = stdin_text("the text")
        if not given.strip():
            raise ConfigError(nothing)
    count = {"terms": terms if terms is not None or can(fitted, "pixels") else 10}
    explanations = fitted.explain(given, label or None, k=k, **count)
    if output is not None:
        _write_maps(explanations, output)
    if json_output:
        echo_json([one.to_dict() for one in explanations])
        return
    for index, one in enumerate(explanations):
        if index:
            echo("")
        show_explanation(one)


def _write_maps(maps: list[Any], path: str) -> None:
    """Write a PNG: the image, and next to it the map of each label with its name."""
    from pathlib import Path

    from labelwise.errors import ConfigError
    from labelwise.formatting import printable
    from labelwise.io.atomic import replacing
    from labelwise.model.explanation import SIDE, PixelMap

    if not maps or not all(isinstance(one, PixelMap) for one in maps):
        raise ConfigError(f"{path}: only explanations of images are written as a picture; use --json for words")
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"{path}: the map is a PNG file; give a name that ends in .png")
    from PIL import Image, ImageDraw, ImageFont

    caption = 18
    whole = Image.new("RGB", ((len(maps) + 1) * (SIDE + 4), SIDE + caption), "white")
    whole.paste(maps[0].plain().convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST), (0, 0))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default()
    for index, one in enumerate(maps, 1):
        left = index * (SIDE + 4)
        whole.paste(one.image(), (left, 0))
        draw.text((left, SIDE + 3), printable(f"{one.text or one.label} {one.score:.3g}")[:40], "black", font)
    with replacing(Path(path), binary=True) as file:
        whole.save(file, "PNG")


def _document(model: str, data: str, document: str, split: str, format: str, source: ConfigSource) -> Dataset:
    from labelwise.commands.predict import read_options
    from labelwise.errors import DataError
    from labelwise.runs.data import read_part

    options = read_options(model, data, source.values, source)
    part = read_part(data, format, split, options, labels=False)
    row = part.ids.positions.get(document) if part.ids is not None else None
    if row is None and document.isdecimal() and int(document) < len(part):
        row = int(document)
    if row is None:
        raise DataError(f"{part.name}: there is no document '{document}'; indices go from 0 to {len(part) - 1:,}")
    return part.take(slice(row, row + 1))


# --- evaluate ---
# labelwise evaluate MODEL DATA


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
    from labelwise.cli.output import show_evaluation, show_remarks
    from labelwise.cli.train import refuse_existing
    from labelwise.commands.predict import read_options, section_of_run
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions
    from labelwise.io.atomic import replacing
    from labelwise.metrics.names import parse_metric
    from labelwise.model.method import load
    from labelwise.runs.config import EvaluateSection
    from labelwise.runs.data import read_part, scratch_for
    from labelwise.runs.evaluate import evaluate_model
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


# --- encode ---
# labelwise encode MODEL TEXTS -o X.emb.npy


def encode_command(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model folder, run folder, or a pretrained encoder (folder or hub name).", show_default=False
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Argument(help="Texts, one per line, or a data file or folder; - is stdin.", show_default=False),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", "--save-emb-path", help="Output file, .npy.", show_default=False)
    ] = None,
    model_folder_option: Annotated[
        str | None, typer.Option("--model-folder", "-m", help="MODEL, as an option.", show_default=False)
    ] = None,
    text_path: Annotated[
        str | None, typer.Option("--text-path", "-t", help="DOCUMENTS, as an option.", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Documents that are encoded and written at a time.", show_default="2048")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    format: Annotated[
        str, typer.Option(help="Format of DOCUMENTS: text (one per line) or a data format. auto: by the name.")
    ] = "auto",
    split: Annotated[str, typer.Option(help="Part to use when DOCUMENTS is a folder.")] = "test",
    overrides: EncodeSetOption = None,
    force: ForceOption = False,
    launcher: LauncherOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    task_cpus: TaskCpusOption = None,
    task_gpus: TaskGpusOption = None,
) -> None:
    """Write the vectors of documents; run the same command again to resume.

    --set takes options for reading a data file (text_column=title) and settings of a pretrained encoder
    (encoder.pooling=first, encoder.max_length=512; the default is the mean of 128 tokens, and for a folder of
    XR-Transformer what it was trained with). The options of PECOS's encode command are accepted:
    labelwise encode --model-folder MODEL --text-path X.txt --save-emb-path X.npy

    With --launcher processes or ray, batches are encoded by other processes or on a cluster.
    """
    from labelwise.commands.encode import encode_file, pretrained_encoder, trained_encoder
    from labelwise.commands.predict import read_options
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions
    from labelwise.errors import ConfigError
    from labelwise.io.folder import MANIFEST, model_folder
    from labelwise.nn.config import EncoderConfig
    from labelwise.nn.text.files import matcher_settings
    from labelwise.runs.data import Request
    from labelwise.runtime.tasks import Launcher

    where = Launcher(launcher, address, workers, task_cpus, task_gpus)
    if documents is None and text_path is None and model_folder_option is not None:
        model, documents = None, model  # labelwise encode --model-folder M TEXTS
    model = _one_of("MODEL", model, "--model-folder", model_folder_option)
    documents = _one_of("DOCUMENTS", documents, "--text-path", text_path)
    output = _one_of("--output", output, "--save-emb-path", None)
    source = ConfigSource({}, "encode").override(overrides or [])
    settings = source.values.pop("encoder", {})
    folder = model_folder(model)
    if (folder / MANIFEST).exists():
        if settings:
            raise ConfigError("--set encoder...: a trained model has its own encoder settings; leave this out")
        options = read_options(model, documents, source.values, source)
        encoder = trained_encoder(folder)
    else:
        if not isinstance(settings, dict):
            raise ConfigError("--set encoder: name a setting, for example encoder.pooling=first")
        options = validated(ReadOptions, source.values, source)
        given = {"pooling": "mean", **matcher_settings(model), **settings, "model": model}
        encoder = pretrained_encoder(validated(EncoderConfig, given, source, ("encoder",)))
    with where.opened(None) as tasks:
        encode_file(encoder, Request(documents, format, split, options), output, dtype, force, batch_size, tasks)


def _one_of(name: str, value: str | None, option: str, other: str | None) -> str:
    """What was given in one of two ways."""
    if value is not None and other is not None:
        raise typer.BadParameter(f"{name} and {option} are the same thing, and both are given: '{value}' and '{other}'")
    given = value if other is None else other
    if given is None:
        raise typer.BadParameter(f"{name} is missing; labelwise encode MODEL DOCUMENTS -o X.npy")
    return given


# --- verify ---
# labelwise verify MODEL PAIRS

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
    from labelwise.cli.output import print_table
    from labelwise.cli.train import refuse_existing
    from labelwise.commands.small import verify_model
    from labelwise.errors import ConfigError
    from labelwise.io.atomic import replacing
    from labelwise.metrics.verification import RATES
    from labelwise.model.method import load
    from labelwise.report.verification import verification_rows, write_verification

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
