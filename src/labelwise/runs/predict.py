"""Predict from a file or standard input to JSONL, TSV or npz, batch by batch: the input may be endless."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from labelwise.atomic import replacing
from labelwise.data.dataset import Dataset
from labelwise.data.read import read
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.methods.base import Method
from labelwise.progress import progress
from labelwise.strings import Strings
from labelwise.topk import TopK

BATCH = 1024
WRITERS = ("jsonl", "tsv", "npz")


def predict_file(
    model: Method,
    documents: str,
    output: str,
    k: int,
    threshold: float | None,
    format: str,
    to: str | None,
    force: bool,
) -> None:
    """Predict for every document; `-` stands for standard input and output."""
    kind = to or (Path(output).suffix.lstrip(".") if output != "-" else "jsonl")
    if kind not in WRITERS:
        raise ConfigError(f"cannot write predictions as '{kind}'; {did_you_mean(kind, WRITERS)}")
    if kind == "npz" and output == "-":
        raise ConfigError("npz is written to a file: give one with -o")
    batches = _text_batches(documents, model) if format == "text" else _data_batches(documents, format)
    tops = _predicted(model, batches, k, threshold)
    with _target(output, force, binary=kind == "npz") as file:
        if kind == "npz":
            _write_npz(file, tops, len(model.label_names_))
        else:
            write = _write_jsonl if kind == "jsonl" else _write_tsv
            for ids, top in tops:
                write(file, ids, top, model.label_texts_)
                file.flush()


Batch = tuple[list[str], Strings | Dataset]


def _text_batches(documents: str, model: Method) -> Iterator[Batch]:
    if model.input_ != "texts" and model.learns:
        raise DataError(f"the model was trained on {model.input_}: give a data file and name its --format")
    stream = sys.stdin.buffer if documents == "-" else _open(documents)
    batch: list[str] = []
    count = 0
    with stream, progress("predicting") as step:
        for number, line in enumerate(stream, 1):
            try:
                batch.append(line.rstrip(b"\r\n").decode())
            except UnicodeDecodeError as error:
                name = "stdin" if documents == "-" else documents
                raise DataError(f"not UTF-8 (byte {error.start + 1} of the line)", name, number) from None
            if len(batch) == BATCH or documents == "-":
                yield [str(i) for i in range(count, count + len(batch))], Strings.of(batch)
                step(len(batch))
                count += len(batch)
                batch = []
        if batch:
            yield [str(i) for i in range(count, count + len(batch))], Strings.of(batch)


def _open(path: str) -> Any:
    from labelwise.data.stream import open_stream

    return open_stream(path)


def _data_batches(documents: str, format: str) -> Iterator[Batch]:
    if documents == "-":
        raise ConfigError("standard input is read as texts, one a line; other formats need a file")
    data = read(documents, format)
    with progress("predicting", len(data)) as step:
        for begin in range(0, len(data), BATCH):
            part = data.take(slice(begin, begin + BATCH))
            ids = list(part.ids) if part.ids is not None else [str(begin + i) for i in range(len(part))]
            yield ids, part
            step(len(part))


def _predicted(
    model: Method, batches: Iterable[Batch], k: int, threshold: float | None
) -> Iterator[tuple[list[str], TopK]]:
    for ids, batch in batches:
        top = model.predict(batch, k)
        yield ids, top if threshold is None else top.above(threshold)


def _write_jsonl(file: IO[str], ids: list[str], top: TopK, label_texts: Strings | None) -> None:
    places = top.label_names.positions if label_texts is not None and top.label_names is not None else {}
    for name, row in zip(ids, top, strict=True):
        labels = [
            {
                "label": label,
                **({"text": label_texts[places[label]]} if label_texts is not None else {}),
                "score": score,
            }
            for label, score in row
        ]
        file.write(json.dumps({"id": name, "labels": labels}, ensure_ascii=False) + "\n")


def _write_tsv(file: IO[str], ids: list[str], top: TopK, label_texts: Strings | None) -> None:
    del label_texts
    for name, row in zip(ids, top, strict=True):
        for label, score in row:
            file.write(f"{_field(name)}\t{_field(label)}\t{score:.6g}\n")


def _field(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ").replace("\r", " ")


def _write_npz(file: IO[bytes], tops: Iterable[tuple[list[str], TopK]], n_labels: int) -> None:
    from scipy import sparse

    parts = [top.to_csr(n_labels) for _, top in tops]
    if not parts:
        parts = [sparse.csr_array((0, n_labels))]
    sparse.save_npz(file, sparse.csr_matrix(sparse.vstack(parts, format="csr")))


@contextmanager
def _target(output: str, force: bool, binary: bool) -> Iterator[IO]:
    """Standard output, or a file that appears under its name only when it is whole."""
    if output == "-":
        yield sys.stdout
        return
    path = Path(output)
    if path.exists() and not force:
        raise DataError(f"{path} exists already; --force replaces it")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent}: there is no such folder")
    with replacing(path, binary) as file:
        yield file
