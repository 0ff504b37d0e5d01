"""labelwise encode MODEL TEXTS -o X.emb.npy"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.options import EncodeSetOption, ForceOption


def encode_command(
    model: Annotated[
        str, typer.Argument(help="Model folder, run folder, or a pretrained encoder (folder or hub name).")
    ],
    documents: Annotated[str, typer.Argument(help="Texts, one per line, or a data file or folder; - is stdin.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Output file, .npy.")],
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    format: Annotated[
        str, typer.Option(help="Format of DOCUMENTS: text (one per line) or a data format. auto: by the name.")
    ] = "auto",
    split: Annotated[str, typer.Option(help="Part to use when DOCUMENTS is a folder.")] = "test",
    overrides: EncodeSetOption = None,
    force: ForceOption = False,
) -> None:
    """Write the vectors of documents; run the same command again to resume.

    --set takes options for reading a data file (text_column=title) and settings of a pretrained encoder
    (encoder.pooling=first, encoder.max_length=512; the default is the mean of 128 tokens).
    """
    from labelwise.config import ConfigSource, validated
    from labelwise.data.options import ReadOptions
    from labelwise.encoders.config import EncoderConfig
    from labelwise.errors import ConfigError
    from labelwise.run_schema import model_folder
    from labelwise.runs.documents import Request
    from labelwise.runs.encode import encode_file, pretrained_encoder, trained_encoder
    from labelwise.runs.open_model import read_options
    from labelwise.store import MANIFEST

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
        given = {"pooling": "mean", **settings, "model": model}
        encoder = pretrained_encoder(validated(EncoderConfig, given, source, ("encoder",)))
    encode_file(encoder, Request(documents, format, split, options), output, dtype, force)
