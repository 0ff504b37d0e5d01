"""Predict from a file or standard input to JSONL, TSV or npz, batch by batch: the input may be an endless stream."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from labelwise.atomic import replacing
from labelwise.data.dataset import Dataset
from labelwise.data.stream import warn_replaced
from labelwise.errors import ConfigError, DataError
from labelwise.formatting import CONTROL, json_text
from labelwise.methods.base import Method
from labelwise.methods.label_filter import LabelFilter
from labelwise.progress import progress
from labelwise.runs.documents import PIECE, Request, decode_lines, is_text, open_documents
from labelwise.runs.label_files import read_label_list, read_label_weights
from labelwise.runs.load_data import read_part
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

BATCH = 1024
WRITERS = ("jsonl", "tsv", "npz")
LINES = ("texts", "paths")
"""Input types that can be given one per line."""

Batch = tuple[list[str], Strings | Dataset]


def predict_file(model: Method, request: Request, output: str, to: str | None, force: bool) -> None:
    """Predict for every document and write the result; `-` stands for standard output."""
    file_format = to or (Path(output).suffix.lstrip(".") if output != "-" else "jsonl")
    if request.threshold is not None and math.isnan(request.threshold):
        raise ConfigError("threshold: a number is needed, got nan")
    if file_format not in WRITERS:
        raise ConfigError(
            f"{output}: cannot write predictions as '{file_format}'; give a name that ends in .jsonl, .tsv or .npz"
        )
    if file_format == "npz" and output == "-":
        raise ConfigError("npz is written to a file: give one with -o")
    batches = _text_batches(request, model) if is_text(request) else _data_batches(request)
    tops = _predict_batches(model, batches, request.k, request.threshold, _label_filter(model, request))
    with _open_output(output, force, binary=file_format == "npz") as file:
        if file_format == "npz":
            _write_npz(file, tops, len(model.label_names_))
        else:
            write = _write_jsonl if file_format == "jsonl" else _write_tsv
            for ids, top in tops:
                write(file, ids, top, model.label_texts_)
                file.flush()


def _text_batches(request: Request, model: Method) -> Iterator[Batch]:
    if model.input_ not in LINES and model.learns:
        raise DataError(f"the model was trained on {model.input_}: give a data file and its --format")
    name = "stdin" if request.documents == "-" else request.documents
    count = replaced = 0
    with open_documents(request.documents) as stream, progress("predicting") as step:
        for lines in _line_batches(stream):
            texts, changed = decode_lines(lines, name, count + 1, request.options)
            replaced += changed
            yield [str(count + row) for row in range(len(texts))], Strings.of(texts)
            step(len(texts))
            count += len(texts)
    warn_replaced(name, replaced, request.options.encoding)


def _line_batches(stream: Any) -> Iterator[list[bytes]]:
    """Lines as they arrive: one answer per line for typed input, large batches for piped input."""
    rest = b""
    while piece := stream.read1(PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for begin in range(0, len(lines), BATCH):
            yield lines[begin : begin + BATCH]
    if rest:
        yield [rest]


def _data_batches(request: Request) -> Iterator[Batch]:
    data = read_part(request.documents, request.format, request.split, request.options, labels=False)
    with progress("predicting", len(data)) as step:
        for begin in range(0, len(data), BATCH):
            part = data.take(slice(begin, begin + BATCH))
            ids = list(part.ids) if part.ids is not None else [str(begin + i) for i in range(len(part))]
            yield ids, part
            step(len(part))


def _label_filter(model: Method, request: Request) -> LabelFilter | None:
    """The label filter of the request's files, checked before anything is written."""
    labels = read_label_list(request.labels, model.label_names_) if request.labels is not None else None
    weights = read_label_weights(request.label_weights) if request.label_weights is not None else None
    return model.label_filter(labels, weights)


def _predict_batches(
    model: Method, batches: Iterable[Batch], k: int | None, threshold: float | None, chosen: LabelFilter | None
) -> Iterator[tuple[list[str], TopK]]:
    for ids, batch in batches:
        yield ids, model.predict(batch, k, threshold=threshold, labels=chosen)


def _write_jsonl(file: IO[str], ids: list[str], top: TopK, label_texts: Strings | None) -> None:
    for name, row, numbers in zip(ids, top, top.ids, strict=True):
        labels = [
            {
                "label": label,
                **({"text": label_texts[number]} if label_texts is not None else {}),
                "score": score,
            }
            for (label, score), number in zip(row, numbers[numbers != NO_LABEL].tolist(), strict=True)
        ]
        file.write(json_text({"id": name, "labels": labels}) + "\n")


def _write_tsv(file: IO[str], ids: list[str], top: TopK, label_texts: Strings | None) -> None:
    del label_texts
    for name, row in zip(ids, top, strict=True):
        for label, score in row:
            file.write(f"{_tsv_field(name)}\t{_tsv_field(label)}\t{score:.6g}\n")


def _tsv_field(text: str) -> str:
    return CONTROL.sub(" ", text.replace("\t", " ").replace("\n", " "))


def _write_npz(file: IO[bytes], tops: Iterable[tuple[list[str], TopK]], n_labels: int) -> None:
    from scipy import sparse

    parts = [top.to_csr(n_labels) for _, top in tops]
    if not parts:
        parts = [sparse.csr_array((0, n_labels))]
    sparse.save_npz(file, sparse.csr_matrix(sparse.vstack(parts, format="csr")))


@contextmanager
def _open_output(output: str, force: bool, binary: bool) -> Iterator[IO]:
    """Standard output, or a file that gets its name only when it is complete."""
    if output == "-":
        if sys.stdout is None:
            raise DataError("standard output is closed: give a file with -o", "stdout")
        yield sys.stdout
        return
    path = Path(output)
    if path.exists() and not force:
        raise DataError(f"{path} exists already; --force replaces it")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: there is no such folder")
    with replacing(path, binary) as file:
        yield file
