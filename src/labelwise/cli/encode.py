"""labelwise encode MODEL TEXTS -o X.emb.npy"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import (
    AddressOption,
    EncodeSetOption,
    ForceOption,
    LauncherOption,
    TaskCpusOption,
    TaskGpusOption,
    WorkersOption,
)


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
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions
    from labelwise.encoders.config import EncoderConfig
    from labelwise.encoders.encoder_files import matcher_settings
    from labelwise.errors import ConfigError
    from labelwise.executors.launcher import Launcher
    from labelwise.run_schema import model_folder
    from labelwise.runs.documents import Request
    from labelwise.runs.encode import encode_file, pretrained_encoder, trained_encoder
    from labelwise.runs.open_model import read_options
    from labelwise.store import MANIFEST

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
    with where.opened(None):
        encode_file(encoder, Request(documents, format, split, options), output, dtype, force, batch_size)


def _one_of(name: str, value: str | None, option: str, other: str | None) -> str:
    """What was given in one of two ways."""
    if value is not None and other is not None:
        raise typer.BadParameter(f"{name} and {option} are the same thing, and both are given: '{value}' and '{other}'")
    given = value if other is None else other
    if given is None:
        raise typer.BadParameter(f"{name} is missing; labelwise encode MODEL DOCUMENTS -o X.npy")
    return given
