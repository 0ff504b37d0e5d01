"""Predict from a file, a text or standard input, batch by batch: the input may be an endless stream."""

from __future__ import annotations

import logging
import math
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice, tee
from pathlib import Path
from typing import IO, Any

from labelwise.commands.writers import (
    BYTE_ORDER_MARK,
    InputTable,
    JsonLines,
    LongTable,
    Predicted,
    WideTable,
    Writer,
    input_table,
    needs_mark,
    write_npz,
)
from labelwise.config import ConfigSource, validated
from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions
from labelwise.data.stream import warn_replaced
from labelwise.errors import ConfigError, DataError
from labelwise.io.atomic import replacing
from labelwise.io.folder import CONFIG, Folder, model_folder
from labelwise.io.tensors import release_pages
from labelwise.model.card import Reading, read_card
from labelwise.model.explanation import check_explains, top_words
from labelwise.model.method import Method
from labelwise.model.predictions import LabelFilter
from labelwise.runs.config import DataSection
from labelwise.runs.data import (
    PIECE,
    Request,
    decode_lines,
    is_text,
    open_documents,
    read_part,
    scratch_for,
    warn_empty,
)
from labelwise.runs.train import OpenModel, to_send
from labelwise.runs.vectors import check_reads_vectors, vector_batches
from labelwise.runtime.progress import progress
from labelwise.runtime.tasks import HERE, Tasks
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

# --- label files ---
# Label files: a list of allowed labels, the names of all, and factors for scores.


def read_label_list(path: str | Path, known: Strings) -> list[str]:
    """Labels of the model, one per line; blank lines are ignored."""
    labels = []
    for number, line in _lines(path):
        if line not in known.positions:
            raise DataError(f"the model has no label '{line[:80]}'", path, number)
        labels.append(line)
    if not labels:
        raise DataError("the file is empty; label names are needed, one per line", path)
    return labels


def read_label_names(path: str | Path) -> Strings:
    """The names of all labels in the order of their numbers, one per line."""
    names = []
    for number, line in _lines(path):
        if number != len(names) + 1:
            raise DataError("the line is blank; every label needs a name, one per line", path, len(names) + 1)
        names.append(line)
    if not names:
        raise DataError("the file is empty; label names are needed, one per line", path)
    return Strings.of(names)


def read_label_weights(path: str | Path) -> dict[str, float]:
    """Factors by label, from lines of label<TAB>factor."""
    weights: dict[str, float] = {}
    for number, line in _lines(path):
        label, tab, text = line.rpartition("\t")
        try:
            factor = float(text) if tab else None
        except ValueError:
            factor = None
        if factor is None or not math.isfinite(factor) or not label:
            raise DataError(f"{line[:80]!r} is not label<TAB>factor", path, number)
        if weights.get(label, factor) != factor:
            raise DataError(f"'{label}' has another factor on an earlier line", path, number)
        weights[label] = factor
    if not weights:
        raise DataError("the file is empty; lines of label<TAB>factor are needed", path)
    return weights


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines, without blank lines."""
    from labelwise.data.stream import line_bounds, text_blocks

    for block in text_blocks(Path(path)):
        for number, line in enumerate(Strings(block.data, *line_bounds(block.data)), block.first_line):
            if line.strip():
                yield number, line.strip("\r")


log = logging.getLogger("labelwise")

BATCH = 1024
WRITERS = ("jsonl", "csv", "tsv", "npz")
LAYOUTS = ("wide", "long")
LINES = ("texts", "paths")
"""Input types that can be given one per line."""
PROMPT = "text> "


@dataclass(frozen=True)
class Batch:
    """Some of the documents, with their rows in the input table if they are from one."""

    ids: list[str]
    documents: Strings | Dataset
    rows: list[list[str]] | None = None

    @property
    def texts(self) -> Strings | None:
        """The documents' texts, if they have some."""
        return self.documents.texts if isinstance(self.documents, Dataset) else self.documents


def predict_file(
    model: Method,
    request: Request,
    output: str,
    to: str | None,
    force: bool,
    layout: str | None = None,
    show: Callable[[Predicted], None] | None = None,
    folder: Path | None = None,
    tasks: Tasks = HERE,
) -> None:
    """Predict for every document and write the result; `-` stands for standard output.

    With `show`, batches are given to that function instead, as for a table on a terminal. `folder` is that of the
    model, from which tasks in other processes load it.
    """
    file_format = to or (Path(output).suffix.lstrip(".") if output != "-" else "jsonl")
    _check_output(output, file_format, layout, request)
    if request.explain is not None:
        check_explains(model, request.explain)
    table = input_table(request) if file_format == "csv" and layout != "long" else None
    batches = _text_batches(request, model) if is_text(request) else _data_batches(request, table, output)
    if request.features is not None:
        check_reads_vectors(model)
        batches = _with_vectors(batches, request.features)
    predictor = Predictor(OpenModel(folder or Path(), model), request, _label_filter(model, request))
    predicted = _predict_batches(predictor, batches, tasks)
    if show is not None:
        for batch in predicted:
            show(batch)
        return
    predicted = _warn_without_labels(predicted, model, request.threshold)
    with _open_output(output, force, binary=file_format == "npz") as file:
        if file_format == "npz":
            write_npz(file, predicted, len(model.label_names_))
            return
        writer = None
        for batch in predicted:
            if writer is None:  # only now is it known whether the documents have texts
                writer = _writer(model, request, output, file_format, layout, table or batch.columns)
                _begin(writer, file, request)
            writer.write(file, batch)
            file.flush()
        if writer is None:
            writer = _writer(model, request, output, file_format, layout, table or InputTable(["id"]))
            _begin(writer, file, request)


def _check_output(output: str, file_format: str, layout: str | None, request: Request) -> None:
    """Refuse settings that do not fit together, before anything is read."""
    if request.threshold is not None and math.isnan(request.threshold):
        raise ConfigError("threshold: a number is needed, got nan")
    if output != "-" and Path(output).is_dir():
        raise ConfigError(f"{output}: it is a folder; give the name of a file to write, such as {output}/out.csv")
    if file_format not in WRITERS:
        raise ConfigError(
            f"{output}: cannot write predictions as '{file_format}'; "
            "give a name that ends in .csv, .jsonl, .tsv or .npz"
        )
    if file_format == "npz" and output == "-":
        raise ConfigError("npz is written to a file: give one with -o")
    if layout is not None and layout not in LAYOUTS:
        raise ConfigError(f"--layout: wide or long is needed, got '{layout}'")
    if layout is not None and file_format != "csv":
        raise ConfigError(f"--layout is for CSV; the output is {file_format}")
    if request.explain is not None and file_format == "npz":
        raise ConfigError("--explain: npz has no words; write .csv, .jsonl or .tsv")


def _writer(
    model: Method, request: Request, output: str, file_format: str, layout: str | None, table: InputTable
) -> Writer:
    words, to_terminal = request.explain is not None, output == "-" and sys.stdout.isatty()
    if file_format == "jsonl":
        return JsonLines(model)
    if file_format == "tsv" or layout == "long":
        return LongTable(model, words, file_format == "tsv", to_terminal)
    return WideTable(model, table, request.options, words, to_terminal, output)


def _begin(writer: Writer, file: IO[str], request: Request) -> None:
    if not isinstance(writer, JsonLines) and needs_mark(request):
        file.write(BYTE_ORDER_MARK)
    writer.begin(file)


def _text_batches(request: Request, model: Method) -> Iterator[Batch]:
    kinds = {model.input_, *(model.inputs if model.reads_all_inputs else ())}
    if not kinds & {*LINES} and model.learns:
        raise DataError(f"the model was trained on {model.input_}: give a data file and its --format")
    if request.is_the_text:
        yield Batch(["0"], Strings.of([request.documents]))
        return
    name = "stdin" if request.documents == "-" else request.documents
    typed = request.documents == "-" and sys.stdin is not None and sys.stdin.isatty()
    count = replaced = 0
    with open_documents(request.documents) as stream, _bar(typed) as step:
        for lines in _typed_lines(stream) if typed else _line_batches(stream):
            texts, changed = decode_lines(lines, name, count + 1, request.options)
            replaced += changed
            with nullcontext() if step is None else step.part(len(texts)):
                yield Batch([str(count + row) for row in range(len(texts))], Strings.of(texts))
            count += len(texts)
    if not count and not typed:
        warn_empty(name)
    warn_replaced(name, replaced, request.options.encoding)


def _bar(typed: bool) -> Any:
    """A progress bar, but none over the line that somebody types."""
    return nullcontext() if typed else progress("predicting")


def _typed_lines(stream: Any) -> Iterator[list[bytes]]:
    """Lines from a terminal, with a prompt on standard error."""
    _say("Type a text and press Enter; Ctrl-D ends.\n" + PROMPT)
    while line := stream.readline():
        if line.strip():
            yield [line.removesuffix(b"\n")]
            _say(PROMPT)
        else:
            _say("An empty line is skipped.\n" + PROMPT)
    _say("\n")


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _line_batches(stream: Any) -> Iterator[list[bytes]]:
    """Lines as they arrive: one answer per line for input that comes slowly, large batches for piped input."""
    rest = b""
    while piece := stream.read1(PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for begin in range(0, len(lines), BATCH):
            yield lines[begin : begin + BATCH]
    if rest:
        yield [rest]


def _data_batches(request: Request, table: InputTable | None, output: str) -> Iterator[Batch]:
    """Documents of a data set; those of a large one are in a temporary file meanwhile, and mapped."""
    with scratch_for(request.documents, output) as scratch:
        given = request.documents, request.format, request.split, request.options
        yield from _batches_of(read_part(*given, labels=False, scratch=scratch), request, table)


def _batches_of(data: Dataset, request: Request, table: InputTable | None) -> Iterator[Batch]:
    with progress("predicting", len(data)) as step:
        for begin in range(0, len(data), BATCH):
            part = data.take(slice(begin, begin + BATCH))
            named = part.ids if part.ids is not None else part.paths
            ids = list(named) if named is not None else [str(begin + i) for i in range(len(part))]
            rows = None if table is None else list(islice(table.rows, len(part)))
            if rows is not None and len(rows) != len(part):
                raise DataError("the file has changed while it was read", request.documents)
            with step.part(len(part)):
                yield Batch(ids, part, rows)
            if data.texts is not None:
                release_pages(data.texts.buffer)


def _with_vectors(batches: Iterator[Batch], path: str) -> Iterator[Batch]:
    """Batches with the vectors of a file next to their documents."""
    own, others = tee(batches)
    for documents in vector_batches((other.documents for other in others), path):
        yield replace(next(own), documents=documents)


def _label_filter(model: Method, request: Request) -> LabelFilter | None:
    """The label filter of the request's files, checked before anything is written."""
    labels = read_label_list(request.labels, model.label_names_) if request.labels is not None else None
    weights = read_label_weights(request.label_weights) if request.label_weights is not None else None
    return model.label_filter(labels, weights)


@dataclass(frozen=True)
class Predictor:
    """A model and how it predicts."""

    opened: OpenModel
    request: Request
    chosen: LabelFilter | None


def predict_some(predictor: Predictor, documents: Strings | Dataset) -> tuple[TopK, Any]:
    """A task: labels of some documents, and their words if they are wanted."""
    model, request = predictor.opened.model, predictor.request
    top = model.predict(documents, request.k, threshold=request.threshold, labels=predictor.chosen)
    return top, None if request.explain is None else top_words(model, documents, top, request.explain)


def _predict_batches(predictor: Predictor, batches: Iterable[Batch], tasks: Tasks) -> Iterator[Predicted]:
    waiting = deque[Batch]()

    def documents() -> Iterator[Strings | Dataset]:
        for batch in batches:
            waiting.append(batch)
            yield batch.documents if tasks.shares_memory else to_send(batch.documents)

    with tasks.share(predictor) as shared:
        for _, (top, words) in tasks.map(predict_some, documents(), shared, ordered=True):
            batch = waiting.popleft()
            yield Predicted(batch.ids, batch.texts, batch.rows, top, words)


def _warn_without_labels(predicted: Iterable[Predicted], model: Method, threshold: float | None) -> Iterator[Predicted]:
    """The same batches; at their end a warning if the threshold has left no document a label."""
    documents, found = 0, False
    for batch in predicted:
        documents += len(batch.ids)
        found = found or bool((batch.top.ids != NO_LABEL).any())
        yield batch
    if documents and not found and threshold is not None:
        scale = (
            "probabilities are between 0 and 1"
            if model.calibration_ is not None
            else ("the scores of this model are not probabilities; without --threshold they are shown")
        )
        log.warning("no document has a label that reaches the threshold %g: %s", threshold, scale)


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


# --- open model ---
# What commands with a model need of its run: the options its documents were read with, and its threshold.


def chosen_threshold(given: str | None, model: Method, path: str) -> float | None:
    """Parse --threshold: a number, or `auto` for the calibrated threshold of the model from this path."""
    if given is None:
        return None
    if given == "auto":
        if model.threshold_ is None:
            raise ConfigError(
                f"--threshold auto: this model is not calibrated; `labelwise calibrate {shlex.quote(path)} DATA` does "
                "that, or give a number"
            )
        return model.threshold_
    try:
        threshold = float(given)
    except ValueError:
        raise ConfigError(f"--threshold: a number or auto is needed, got '{given}'") from None
    if model.calibration_ is not None and threshold > 1:
        auto = "" if model.threshold_ is None else f", for example {model.threshold_:.4g}, which is `auto`"
        raise ConfigError(
            f"--threshold {given}: no label can reach it, because this model is calibrated and its scores are "
            f"probabilities; give a number between 0 and 1{auto}"
        )
    return threshold


def read_options(model: str, documents: str, overrides: Mapping[str, Any], source: ConfigSource) -> ReadOptions:
    """How to read documents for a model: as files of this type were read for its training, with overrides."""
    recorded = _reading(model).options_for(documents)
    try:
        validated(ReadOptions, recorded)
    except ConfigError as error:
        raise ConfigError(f"{model}: the options its documents were read with: {error}") from None
    return validated(ReadOptions, {**recorded, **overrides}, source)


def _reading(model: str) -> Reading:
    """From the card of the model; for one without, from the config of its run."""
    reading = read_card(Folder(model_folder(model), "model")).reading
    if reading is None:
        data = section_of_run(model, "data")
        if data:
            section = validated(DataSection, data)
            reading = Reading.of(section.training_path, section.format, section.options)
    return reading or Reading()


def section_of_run(model: str, name: str) -> dict[str, Any]:
    """One section of the config of a run; empty for a model folder."""
    config = Path(model) / CONFIG
    section: Any = ConfigSource.from_file(config).values.get(name) if config.exists() else None
    return section if isinstance(section, dict) else {}
