"""The files of a run folder, read and checked. Reports are a pure function of what is returned here.

Every file may be missing: a run that was stopped has only some. A file that is there but damaged is an error
that names it, because a report that silently leaves out figures would be worse than none. The per-label table
can have millions of lines, so it is read as a stream and only a few lines of it are kept.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from labelwise.config import ConfigSource
from labelwise.errors import DataError

CONFIG, STATE, METRICS, RESULTS = "config.yml", "state.json", "metrics.jsonl", "results.json"
MACHINE, EXAMPLES, LABELS = "machine.json", "examples.jsonl", "labels.tsv"
FILES = (CONFIG, STATE, METRICS, RESULTS, MACHINE, EXAMPLES, LABELS)

MAX_FILE_BYTES = 64 << 20
MAX_EXAMPLES = 200
LABELS_SHOWN = 20
RARE = 10
"""Labels with fewer training documents than this are the rare ones a few are drawn from."""


class Part(BaseModel):
    """A piece of a JSON file. Unknown keys are left alone, so that newer runs work; null means absent."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class State(Part):
    """state.json"""

    status: str = "unknown"
    error: str | None = None
    started: str | None = None
    finished: str | None = None
    method: str | None = None
    name: str | None = None


class Group(Part):
    """The figures of one frequency group of labels (head, torso, tail)."""

    name: str
    labels: int | None = Field(None, validation_alias=AliasChoices("n_labels", "labels"))
    occurrences: int | None = None
    share: float | None = None
    contribution: dict[int, float | None] = {}
    recall: dict[int, float | None] = {}


class Evaluation(Part):
    """What `Evaluation.to_dict` wrote."""

    values: dict[str, float | None]
    intervals: dict[str, tuple[float, float] | None] = {}
    groups: tuple[Group, ...] = ()
    ties: dict[str, tuple[float, float] | None] = {}
    ties_cut_off: dict[str, int] = {}
    propensity: dict[str, float | None] | None = None
    n_documents: int | None = None
    n_without_labels: int | None = None
    n_unseen_labels: int | None = None


class Curve(Part):
    """How often the labels occur, the most frequent first."""

    rank: tuple[float, ...]
    count: tuple[float, ...]


class Baseline(Part):
    """The figures of a baseline on the same documents."""

    method: str
    values: dict[str, float | None]


class Reliability(Part):
    """Predicted labels with scores of one range: how many, their mean score, and the share that was right."""

    low: float
    high: float
    pairs: int = 0
    mean: float | None = None
    share: float | None = None


class Calibration(Part):
    """What the calibration found on held-out documents."""

    n_documents: int | None = None
    wanted_precision: float | None = None
    reached: bool = True
    threshold: float
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    error_before: float | None = None
    error_after: float | None = None
    before: tuple[Reliability, ...] = ()
    after: tuple[Reliability, ...] = ()


class Results(Part):
    """results.json"""

    split: str = "test"
    n_documents: int | None = None
    evaluation: Evaluation
    timings: dict[str, float | None] = {}
    memory: dict[str, float | None] = {}
    model: dict[str, int | float | str | None] = {}
    data: dict[str, Any] = {}
    frequency_curve: Curve | None = None
    baseline: Baseline | None = None
    calibration: Calibration | None = None


class Machine(Part):
    """machine.json"""

    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    memory_bytes: int | None = None
    python: str | None = None
    platform: str | None = None
    packages: dict[str, str | None] = {}


class TrueLabel(Part):
    """A label a document has."""

    label: str
    text: str | None = None
    count: int | None = None


class PredictedLabel(Part):
    """A label a document was given by the model."""

    label: str
    text: str | None = None
    score: float | None = None
    correct: bool = False


class Example(Part):
    """One line of examples.jsonl."""

    id: str | None = None
    text: str | None = None
    truth: tuple[TrueLabel, ...] = ()
    predicted: tuple[PredictedLabel, ...] = ()


@dataclass(frozen=True)
class LabelTable:
    """A few lines of labels.tsv: the most frequent labels, and some of the rare ones drawn at random."""

    columns: tuple[str, ...]
    frequent: tuple[tuple[str, ...], ...]
    rare: tuple[tuple[str, ...], ...]
    n_rows: int


@dataclass(frozen=True)
class Run:
    """All that is known of a run; None or empty where the file is missing."""

    folder: Path
    config: str | None
    data_section: dict[str, Any]
    """The section `data` of the config."""
    state: State
    metrics: tuple[dict[str, Any], ...]
    results: Results | None
    machine: Machine | None
    examples: tuple[Example, ...]
    labels: LabelTable | None
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's name, the folder's where it has none."""
        return self.state.name or self.folder.resolve().name

    @property
    def data_name(self) -> str | None:
        """What the data are called: as in the config, or as the data call themselves."""
        given = (self.data_section.get(key) for key in ("path", "train"))
        return next((name for name in given if isinstance(name, str) and name), self._name_of("train"))

    @property
    def test_set(self) -> tuple[str | None, ...]:
        """What must be equal where scores are to be compared: split, name and size of the test documents."""
        if self.results is None:
            return ()
        name = self._name_of(self.results.split) or self.data_name
        # The same files may be given by a relative path in one run and an absolute one in another.
        short = "/".join(Path(name).parts[-2:]) if name else None
        part = self.results.data.get(self.results.split)
        occurrences = part.get("occurrences") if isinstance(part, dict) else None
        return self.results.split, short, str(self.results.n_documents), str(occurrences)

    def _name_of(self, part: str) -> str | None:
        about = self.results.data.get(part) if self.results else None
        name = about.get("name") if isinstance(about, dict) else None
        return name if isinstance(name, str) and name else None


def read_run(folder: str | Path) -> Run:
    """Read a run folder; what is missing is listed in `missing`, what is damaged raises a DataError."""
    path = Path(folder)
    if not path.is_dir():
        raise DataError("there is no such run folder", path)
    missing = tuple(name for name in FILES if not (path / name).is_file())
    if len(missing) == len(FILES):
        raise DataError(f"not a run folder: none of {', '.join(FILES)} is in it", path)
    notes: list[str] = []
    config = _read_text(path / CONFIG) if CONFIG not in missing else None
    section = ConfigSource.from_yaml(config, str(path / CONFIG)).values.get("data") if config else None
    return Run(
        folder=path,
        config=config,
        data_section=section if isinstance(section, dict) else {},
        state=read_json(path / STATE, State) if STATE not in missing else State(),
        metrics=read_metrics(path / METRICS, notes) if METRICS not in missing else (),
        results=read_json(path / RESULTS, Results) if RESULTS not in missing else None,
        machine=read_json(path / MACHINE, Machine) if MACHINE not in missing else None,
        examples=_examples(path / EXAMPLES) if EXAMPLES not in missing else (),
        labels=_labels(path / LABELS) if LABELS not in missing else None,
        missing=missing,
        notes=tuple(notes),
    )


# --- one reader a kind of file ------------------------------------------------------------------------

AnyPart = TypeVar("AnyPart", bound=Part)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"larger than the {MAX_FILE_BYTES >> 20} MiB such a file of a run can have", path)
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"damaged: not UTF-8 at byte {error.start:,}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def _parsed(text: str, path: Path, line: int | None = None) -> Any:
    """JSON, with NaN and the infinities (which Python writes, though JSON has none) read as 'not known'."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DataError(f"damaged: not valid JSON: {error}", path, line) from None


def _checked(value: Any, kind: type[AnyPart], path: Path, line: int | None = None) -> AnyPart:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise DataError(f"damaged: {place}: {fault['msg'].removeprefix('Input ')}", path, line) from None


def read_json(path: Path, kind: type[AnyPart]) -> AnyPart:
    return _checked(_parsed(_read_text(path), path), kind, path)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for place, line in enumerate(file, start=1):
                yield place, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"damaged: not UTF-8: {error.reason}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def read_metrics(path: Path, notes: list[str]) -> tuple[dict[str, Any], ...]:
    """metrics.jsonl. Lines are added while a run goes on, so the last one may be cut: that is no damage."""
    entries: list[dict[str, Any]] = []
    lines = [(place, line) for place, line in _lines(path) if line.strip()]
    for place, line in lines:
        try:
            entry = _parsed(line, path, place)
        except DataError:
            if place == lines[-1][0] and not path.read_bytes().endswith(b"\n"):
                notes.append(f"The last line of {METRICS} is cut and was left out; the run stopped while writing it.")
                break
            raise
        if not isinstance(entry, dict):
            raise DataError(f"damaged: a mapping is needed, not a {type(entry).__name__}", path, place)
        entries.append(entry)
    return tuple(entries)


def _examples(path: Path) -> tuple[Example, ...]:
    examples: list[Example] = []
    for place, line in _lines(path):
        if line.strip() and len(examples) < MAX_EXAMPLES:
            examples.append(_checked(_parsed(line, path, place), Example, path, place))
    return tuple(examples)


def _labels(path: Path) -> LabelTable:
    """The most frequent labels and a fixed random draw of rare ones that the test part has, in one pass."""
    rows = _lines(path)
    header = next(rows, None)
    if header is None:
        raise DataError("damaged: the file is empty, a line with the columns' names is needed", path)
    columns = tuple(header[1].split("\t"))
    train, test = (columns.index(name) if name in columns else None for name in ("train", "test"))
    draw = random.Random(0)
    frequent: list[tuple[float, int, tuple[str, ...]]] = []
    rare: list[tuple[int, tuple[str, ...]]] = []
    n_rows = n_rare = 0
    for place, line in rows:
        if not line:
            continue
        cells = tuple(line.split("\t"))
        if len(cells) != len(columns):
            raise DataError(f"damaged: {len(cells)} columns where the first line has {len(columns)}", path, place)
        count = _count(cells, train, path, place)
        n_rows += 1
        entry = (count, -place, cells)
        if len(frequent) < LABELS_SHOWN:
            heapq.heappush(frequent, entry)
        else:
            heapq.heappushpop(frequent, entry)
        if 0 < count < RARE and (test is None or _count(cells, test, path, place) > 0):
            n_rare += 1
            slot = n_rare - 1 if n_rare <= LABELS_SHOWN else draw.randrange(n_rare)
            if slot < LABELS_SHOWN:
                rare[slot : slot + 1] = [(place, cells)]
    shown = {-entry[1] for entry in frequent}
    return LabelTable(
        columns=columns,
        frequent=tuple(cells for _, _, cells in sorted(frequent, reverse=True)),
        rare=tuple(cells for place, cells in sorted(rare) if place not in shown),
        n_rows=n_rows,
    )


def _count(cells: tuple[str, ...], column: int | None, path: Path, place: int) -> float:
    """A number of documents; 0 where the table does not tell."""
    cell = "" if column is None else cells[column]
    try:
        count = float(cell or 0)
    except ValueError:
        count = math.nan
    if not math.isfinite(count):
        raise DataError(f"damaged: {cell[:40]!r} is not a number of documents", path, place)
    return count
