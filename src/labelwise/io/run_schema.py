"""The files of a run folder: their names, and the schema of the JSON in them. Runs write by it, all others read by it.

Every file may be missing: a run that was stopped has only some. A damaged file is an error that names it, because a
report that silently leaves out figures would be worse than none.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from labelwise.errors import ConfigError, DataError
from labelwise.io.folder import MANIFEST

CONFIG, STATE, METRICS, LOG, MODEL = "config.yml", "state.json", "metrics.jsonl", "log.txt", "model"
RESULTS, MACHINE, LABELS, EXAMPLES = "results.json", "machine.json", "labels.tsv", "examples.jsonl"
REPORT, CALIBRATION, INSPECTION, CONFUSION = "report.html", "calibration.json", "inspection.json", "confusion.json"
CHECKPOINTS, REFIT_CHECKPOINTS = "checkpoints", "checkpoints-refit"
REFIT = "refit"
"""Stage in metrics.jsonl: training on the held-out documents as well, after the scores are known."""
PREDICTIONS = "predictions.safetensors"
TIME = "time.json"
"""Seconds that an unfinished run with a time budget has spent."""
AUTO, AUTO_FOLDER = "auto.json", "auto"
"""What `labelwise auto` has tried: the table of it (auto_schema.py), and a folder with the models."""
SCRATCH = ".rows"
"""Folder for the rows of memory-mapped data while a process uses them."""
TASKS = ".tasks"
"""Folder for the inputs of tasks in other processes (`train --launcher`) while they run."""
REPLACEMENT, MOVING, REPLACED = ".replacement", ".replacement.finished", ".replaced"
"""Folders in that of a run: the run that replaces it (`--force`) until it is finished, the same one while its files
move up, and what they replace."""
WRITTEN_FILES = (
    CONFIG, METRICS, LOG, CALIBRATION, RESULTS, MACHINE, LABELS, EXAMPLES, CONFUSION, PREDICTIONS, INSPECTION, REPORT,
    TIME,
)  # fmt: skip
WRITTEN_FOLDERS = (MODEL, CHECKPOINTS, REFIT_CHECKPOINTS, SCRATCH, TASKS)
FORMAT = "labelwise-run"
FINISHED, RUNNING, FAILED, CLEARING = "finished", "running", "failed", "clearing"
"""Values of `status` in state.json. A run whose clearing was interrupted is started over, unless another one was taking
its place: that is then completed."""

MAX_FILE_BYTES = 64 << 20


class Record(BaseModel):
    """Base of the JSON schemas. Unknown keys are ignored, so that newer runs can be read; null means absent."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


class State(Record):
    """state.json"""

    format: str | None = None
    status: str = "unknown"
    error: str | None = None
    started: str | None = None
    finished: str | None = None
    method: str | None = None
    name: str | None = None
    launch: str | None = None
    """The start of torchrun that began the run, or has resumed it last."""


class LabelGroup(Record):
    """The figures of one frequency group of labels (head, torso, tail)."""

    name: str
    low: int | None = None
    high: int | None = None
    labels: int | None = Field(None, validation_alias=AliasChoices("n_labels", "labels"))
    n_test_labels: int | None = None
    occurrences: int | None = None
    share: float | None = None
    contribution: dict[int, float | None] = {}
    recall: dict[int, float | None] = {}


class Evaluation(Record):
    """The output of `metrics.evaluate.Evaluation.to_dict`."""

    values: dict[str, float | None]
    intervals: dict[str, tuple[float, float] | None] = {}
    groups: tuple[LabelGroup, ...] = ()
    ties: dict[str, tuple[float, float] | None] = {}
    ties_cut_off: dict[str, int] = {}
    propensity: dict[str, float | None] | None = None
    n_documents: int | None = None
    n_without_labels: int | None = None
    n_unseen_labels: int | None = None
    n_cut: int | None = None


class Curve(Record):
    """Label frequencies by rank, the most frequent label first."""

    rank: tuple[float, ...]
    count: tuple[float, ...]


class Baseline(Record):
    """The figures of a baseline on the same documents."""

    method: str
    values: dict[str, float | None]


class Reliability(Record):
    """Predicted labels with scores in one range: count, mean score, and the fraction that is correct."""

    low: float
    high: float
    pairs: int = 0
    mean: float | None = None
    share: float | None = None


class ThresholdPoint(Record):
    """Precision, recall and micro-F1 of the labels whose probability reaches a threshold."""

    threshold: float
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


class Calibration(Record):
    """Results of the calibration on held-out documents."""

    n_documents: int | None = None
    n_pairs: int | None = None
    n_true: int | None = None
    k: int | None = None
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
    curve: tuple[ThresholdPoint, ...] = ()
    """Runs from before there was a curve have none."""
    n_cut: int | None = None
    n_seen: int | None = None
    """Documents that the model was trained on."""
    n_available: int | None = None
    """Documents that were given, if a time budget ended the prediction before all were used."""
    remarks: tuple[str, ...] = ()


class Refit(Record):
    """The saved model of a run with `run.refit`; the scores are those of the judged model before it."""

    n_documents: int
    """Documents that the saved model was trained on."""
    n_judged: int
    """Documents that the judged model was trained on."""
    n_labels: int | None = None
    bytes: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        fraction = f"{100 * self.n_judged / max(self.n_documents, 1):.0f} %"
        return (
            f"scores: of a model trained on {self.n_judged:,} of {self.n_documents:,} documents ({fraction}); the "
            f"saved model was then trained on all {self.n_documents:,}"
        )


class LabelCounts(Record):
    """Which predictions labels.tsv counts."""

    threshold: float | None = None
    k: int | None = None
    """Best labels per document; None: all that reach the threshold."""

    def __str__(self) -> str:
        if self.threshold is not None:
            return f"labels that reach the threshold of {self.threshold:.4g}, as F1 without @k does"
        return f"the best {self.k} labels of each document" if self.k != 1 else "the best label of each document"


class Results(Record):
    """results.json"""

    split: str = "test"
    n_documents: int | None = None
    """Documents evaluated."""
    n_available: int | None = None
    """Documents of the split, of which `n_documents` were sampled."""
    k: int | None = None
    """Labels predicted per document."""
    n_seen: int | None = None
    """Evaluated documents that the model was trained on."""
    threshold: float | None = None
    """For F1 without @k."""
    label_counts: LabelCounts = LabelCounts(k=5)
    """Runs without this field have counted the best 5."""
    remarks: tuple[str, ...] = ()
    """What to know about the figures before relying on them."""
    evaluation: Evaluation
    timings: dict[str, float | None] = {}
    memory: dict[str, float | None] = {}
    model: dict[str, int | float | str | None] = {}
    data: dict[str, Any] = {}
    frequency_curve: Curve | None = None
    baseline: Baseline | None = None
    calibration: Calibration | None = None
    refit: Refit | None = None

    @property
    def saved_model(self) -> dict[str, int | float | str | None]:
        """Size and labels of the saved model, which is the refitted one if there is one."""
        refitted = {} if self.refit is None else {"bytes": self.refit.bytes, "n_labels": self.refit.n_labels}
        return self.model | {key: value for key, value in refitted.items() if value is not None}

    @property
    def model_bytes(self) -> float | None:
        """Bytes of the saved model."""
        amount = self.saved_model.get("bytes")
        return None if isinstance(amount, str) else amount


class Machine(Record):
    """machine.json"""

    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    threads_before: tuple[int, ...] = ()
    """Thread counts of earlier attempts, if the run was resumed with another number."""
    device: str | None = None
    memory_bytes: int | None = None
    python: str | None = None
    platform: str | None = None
    packages: dict[str, str | None] = {}


# --- readers ---

AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"larger than {MAX_FILE_BYTES >> 20} MiB, the limit for this file of a run", path)
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"damaged: not UTF-8 at byte {error.start:,}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Parse JSON; NaN and infinities, which Python writes although JSON has none, are read as None."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DataError(f"damaged: not valid JSON: {error}", path, line) from None


def validate(value: Any, kind: type[AnyRecord], path: Path, line: int | None = None) -> AnyRecord:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise DataError(f"damaged: {key}: {fault['msg'].removeprefix('Input ')}", path, line) from None


def read_json(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    return validate(parse_json(read_text(path), path), kind, path)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines, without line ends."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"damaged: not UTF-8: {error.reason}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def read_metrics(path: Path, notes: list[str] | None = None, damaged: str = "refuse") -> tuple[dict[str, Any], ...]:
    """The lines of metrics.jsonl; none where there is no such file.

    Lines are appended during a run, so the last one may be cut off: that is added to `notes`, not an error. Other
    damaged lines are an error, or skipped with `damaged="skip"`.
    """
    if not path.is_file():
        return ()
    try:
        content = path.read_bytes()  # once: lines may be added meanwhile
    except OSError as error:
        if damaged == "skip":
            return ()
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    *lines, last = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    entries = [_entry(line, path, number, damaged) for number, line in enumerate(lines, start=1) if line.strip()]
    if last.strip():
        try:
            entries.append(_entry(last, path, len(lines) + 1, "refuse"))
        except DataError:
            if notes is not None:
                notes.append(f"The last line of {METRICS} is cut and was left out; the run stopped while writing it.")
    return tuple(entry for entry in entries if entry is not None)


def _entry(line: bytes, path: Path, number: int, damaged: str) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None if it is damaged and to be skipped."""
    try:
        entry = parse_json(line.decode(), path, number)
        if not isinstance(entry, dict):
            raise DataError(f"damaged: a mapping is needed, not a {type(entry).__name__}", path, number)
    except UnicodeDecodeError as error:
        if damaged == "skip":
            return None
        raise DataError(f"damaged: not UTF-8: {error.reason}", path, number) from None
    except DataError:
        if damaged == "skip":
            return None
        raise
    return entry


def read_state(folder: Path) -> dict[str, Any] | None:
    """The contents of state.json in a folder, unknown keys included; None if it is missing."""
    path = folder / STATE
    if not path.exists():
        return None
    state = parse_json(read_text(path), path)
    if not isinstance(state, dict):
        raise DataError("damaged: a mapping is needed", path)
    return state


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds the state.json of a run."""
    return _state_or_nothing(folder).get("format") == FORMAT


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    return _state_or_nothing(folder).get("status") == FINISHED


def is_search(folder: Path) -> bool:
    """Whether a folder holds a search of `labelwise auto` whose model is not evaluated yet: there is no run so far."""
    begun = (folder / AUTO).is_file() or (folder / AUTO_FOLDER / LOG).is_file()
    return begun and not (folder / STATE).exists() and not (folder / MANIFEST).exists()


def model_folder(path: str | Path) -> Path:
    """The model folder itself, or the one inside a run folder."""
    folder = Path(path)
    if is_search(folder):
        raise ConfigError(f"{folder}: this search has no model yet; run its auto command again to resume it")
    if not (folder / MANIFEST).exists() and (folder / STATE).exists():
        if not (folder / MODEL / MANIFEST).exists():
            clearing = _state_or_nothing(folder).get("status") == CLEARING
            reason = "was stopped while it was replaced (--force)" if clearing else "has no model yet"
            raise ConfigError(f"{folder}: this run {reason}; run its train command again to resume it")
        return folder / MODEL
    return folder


def _state_or_nothing(folder: Path) -> dict[str, Any]:
    try:
        return read_state(folder) or {}
    except DataError:
        return {}
