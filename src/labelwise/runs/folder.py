"""A run folder: resolved config, log, metrics.jsonl, model, results, report. One process at a time writes to it.

A run that was stopped, by Ctrl-C or a power cut, goes on when the same command is given again: its config must be the
same, and every finished stage is kept. A finished run is never written over unless told so.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from labelwise.atomic import replacing
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.runs.config import RunConfig
from labelwise.runs.machine import describe_machine

log = logging.getLogger("labelwise")

CONFIG, STATE, METRICS, LOG, MODEL = "config.yml", "state.json", "metrics.jsonl", "log.txt", "model"
RESULTS, MACHINE, LABELS, EXAMPLES, REPORT = (
    "results.json",
    "machine.json",
    "labels.tsv",
    "examples.jsonl",
    "report.html",
)
CALIBRATION, INSPECTION, CHECKPOINTS, LOCK = "calibration.json", "inspection.json", "checkpoints", ".lock"
SCRATCH = ".rows"
"""Rows of data that is mapped, while a process uses them."""
WRITTEN = (
    CONFIG,
    METRICS,
    LOG,
    MODEL,
    CALIBRATION,
    RESULTS,
    MACHINE,
    LABELS,
    EXAMPLES,
    INSPECTION,
    REPORT,
    CHECKPOINTS,
    SCRATCH,
)
INSPECT = ("inspect.enabled", "inspect.documents", "inspect.tokens", "inspect.vectors")
MAY_CHANGE = ("run.threads", "run.report", "model.memory", "data.mapped", *INSPECT)
"""What a run that goes on may have been told otherwise: nothing learned depends on it."""
FORMAT = "labelwise-run"


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.begin = time.monotonic()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def state(self) -> dict[str, Any]:
        """What state.json says; an error when it is not there or damaged."""
        try:
            state = json.loads((self / STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            problem = f"not a run folder, {STATE} is missing" if self.path.exists() else "there is no such run folder"
            raise ConfigError(f"{self.path}: {problem}") from None
        except (OSError, ValueError) as error:
            raise ModelFormatError(f"{self / STATE}: damaged: {error}") from None
        if not isinstance(state, dict):
            raise ModelFormatError(f"{self / STATE}: damaged: a mapping is needed")
        return state

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.state.get("status") == "finished"

    @contextmanager
    def opened(self, config: RunConfig, force: bool) -> Iterator[None]:
        """Make the folder, or take up what a stopped run left, and keep others out meanwhile."""
        self._claim()
        with locked(self.path, "in this run folder"):
            self._prepare(config, force)
            with _log_to(self / LOG):
                self._drop_cut_line()
                try:
                    yield
                except LabelwiseError as error:
                    self._note(f"ERROR {error}")
                    with suppress(OSError, LabelwiseError):  # the first error is the one to tell
                        self.write_json(STATE, {**self.state, "status": "failed", "error": str(error)})
                    raise

    def _claim(self) -> None:
        """Make sure there is a folder that is ours or can be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            foreign = any(path.name != LOCK for path in self.path.iterdir()) and not self._ours()
        except OSError as error:
            raise ConfigError(f"run.folder: {self.path} cannot be used: {error.strerror}") from None
        if foreign:
            raise ConfigError(f"{self.path} exists and is not a run folder; choose another with --set run.folder=...")

    def _ours(self) -> bool:
        """Whether state.json says that this folder is a run's."""
        try:
            return self.state.get("format") == FORMAT
        except LabelwiseError:
            return False

    def _prepare(self, config: RunConfig, force: bool) -> None:
        if not (self / STATE).exists():
            self._start(config)
        elif force:
            self._clear()
            self._start(config)
        elif self.finished:
            raise ConfigError(
                f"{self.path}: this run is finished; --force replaces it, --set run.folder=... keeps both"
            )
        elif not (self / MODEL).exists() and not (self / CHECKPOINTS).exists():
            self._clear()  # nothing has been learned yet, so nothing is lost whatever the config
            self._start(config)
        else:
            different = self._differences(config)
            if different:
                raise ConfigError(
                    f"{self.path}: an unfinished run with another config is here ({', '.join(different[:5])}); "
                    "give the same config to go on, --force to start over, or --set run.folder=... for another place"
                )
            self.write_text(CONFIG, config.to_yaml())
            state = {key: value for key, value in self.state.items() if key != "error"}
            self.write_json(STATE, {**state, "status": "running"})
            log.info("going on with the run in %s", self.path)

    def _clear(self) -> None:
        """Remove what a run writes, state.json last, and nothing else that may lie there."""
        for path in [self / name for name in (*WRITTEN, STATE)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _note(self, text: str) -> None:
        with (self / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")

    def _start(self, config: RunConfig) -> None:
        state = {
            "format": FORMAT,
            "status": "running",
            "name": self.path.name,
            "method": config.model["method"],
            "started": _now(),
            "finished": None,
        }
        self.write_json(STATE, state)  # first: it is what makes the folder ours
        self.write_text(CONFIG, config.to_yaml())
        self.write_json(MACHINE, describe_machine())

    def _differences(self, config: RunConfig) -> list[str]:
        before = ConfigSource.from_file(self / CONFIG).values
        now = config.resolved()
        return sorted(
            f"{section}.{key}"
            for section in {*before, *now}
            for key in {*_mapping(before, section), *_mapping(now, section)}
            if _mapping(before, section).get(key) != _mapping(now, section).get(key)
            and f"{section}.{key}" not in MAY_CHANGE
        )

    def learned(self) -> None:
        """All but the report is done: note when; unfinished work of methods is not needed any more."""
        shutil.rmtree(self / CHECKPOINTS, ignore_errors=True)
        self.write_json(STATE, {**self.state, "finished": _now()})

    def finish(self) -> None:
        """Mark the run as finished."""
        self.write_json(STATE, {**self.state, "status": "finished"})

    def record(self, stage: str, **numbers: Any) -> None:
        """Add a line to metrics.jsonl."""
        entry = {"time": round(time.monotonic() - self.begin, 3), "stage": stage, **numbers}
        with (self / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl so far."""
        if not (self / METRICS).exists():
            return []
        entries = []
        for number, line in enumerate((self / METRICS).read_text(encoding="utf-8").splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ModelFormatError(f"{self / METRICS}:{number}: damaged: {error}") from None
            entries.append(entry if isinstance(entry, dict) else {})
        return entries

    def _drop_cut_line(self) -> None:
        """A kill may have left half a line at the end of metrics.jsonl; the next one must not be glued to it."""
        if (self / METRICS).exists():
            text = (self / METRICS).read_text(encoding="utf-8")
            if text and not text.endswith("\n"):
                self.write_text(METRICS, text[: text.rfind("\n") + 1])

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file in one step."""
        self.write_text(name, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Replace a text file in one step."""
        with replacing(self / name) as file:
            file.write(text)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Keep other processes out of a folder."""
    with (path / LOCK).open("w") as file:
        if not _take_lock(file):
            raise ConfigError(f"{path}: another process is working {what}")
        yield


def _take_lock(file: IO[str]) -> bool:
    """Lock until the file is closed, by whatever means the process ends. Systems without flock go unlocked."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.setLevel(logging.INFO)
    level = log.level
    log.addHandler(handler)
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()


def _mapping(values: dict[str, Any], section: str) -> dict[str, Any]:
    value = values.get(section)
    return value if isinstance(value, dict) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
