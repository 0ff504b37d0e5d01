"""A run folder: resolved config, log, metrics.jsonl, model, results, report. One process at a time writes to it.

A run that was stopped, by Ctrl-C or a power cut, is resumed when the same command is given again: all settings that
decide the result must be the same, and every finished stage is kept. A finished run is only replaced on demand. What
killed processes have left half-written is removed at the next start.
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
from typing import Any

from labelwise.atomic import clean_up, is_left_over, replacing
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, LabelwiseError
from labelwise.file_lock import LOCK, locked
from labelwise.result_fields import RESULT, UNFINISHED, differing
from labelwise.run_schema import (
    CHECKPOINTS,
    CLEARING,
    CONFIG,
    FAILED,
    FINISHED,
    FORMAT,
    LOG,
    MACHINE,
    METRICS,
    MODEL,
    RUNNING,
    STATE,
    WRITTEN_FILES,
    WRITTEN_FOLDERS,
    is_run_folder,
    read_metrics,
    read_state,
)
from labelwise.runs.config import RunConfig, deciding_values
from labelwise.runs.machine import describe_machine

log = logging.getLogger("labelwise")

FILES = (*WRITTEN_FILES, STATE)


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
        state = read_state(self.path)
        if state is None:
            problem = f"not a run folder, {STATE} is missing" if self.path.exists() else "there is no such run folder"
            raise ConfigError(f"{self.path}: {problem}")
        return state

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.state.get("status") == FINISHED

    @contextmanager
    def opened(self, config: RunConfig, force: bool) -> Iterator[None]:
        """Make the folder, or resume what a stopped run left, and keep other processes out meanwhile."""
        self._claim()
        with locked(self.path, ConfigError(f"{self.path}: another process is working in this run folder")):
            self._prepare(config, force)
            with _log_to(self / LOG):
                self._drop_cut_line()
                try:
                    yield
                except LabelwiseError as error:
                    self._note(f"ERROR {error}")
                    with suppress(OSError, LabelwiseError):  # the first error is the one to report
                        self.write_json(STATE, {**self.state, "status": FAILED, "error": str(error)})
                    raise

    def _claim(self) -> None:
        """Make sure there is a folder that is ours or can be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            others = [
                path.name
                for path in self.path.iterdir()
                if path.name != LOCK and not is_left_over(path.name, FILES, WRITTEN_FOLDERS)
            ]
        except OSError as error:
            raise ConfigError(f"run.folder: {self.path} cannot be used: {error.strerror}") from None
        if others and not is_run_folder(self.path):
            raise ConfigError(f"{self.path} exists and is not a run folder; choose another with --set run.folder=...")
        linked = [name for name in FILES if (self / name).is_symlink()]
        if linked:
            raise ConfigError(f"{self / linked[0]}: this is a link, where a run writes a file of its own; remove it")

    def _prepare(self, config: RunConfig, force: bool) -> None:
        clean_up(self.path, FILES, WRITTEN_FOLDERS)
        if not (self / STATE).exists():
            self._start(config)
        elif force or self.state.get("status") == CLEARING:
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
            self._resume(config)

    def _resume(self, config: RunConfig) -> None:
        before = ConfigSource.from_file(self / CONFIG).values
        scope = RESULT if (self / MODEL).exists() else UNFINISHED  # a model is there: when its training ended is past
        different = differing(deciding_values(before, scope), deciding_values(config.resolved(), scope))
        if different:
            more = f" and {len(different) - 5} more" if len(different) > 5 else ""
            raise ConfigError(
                f"{self.path}: an unfinished run with another config is here ({', '.join(different[:5])}{more}); give "
                "the same config to resume it, --force to start over, or --set run.folder=... for another folder"
            )
        self.write_text(CONFIG, config.to_yaml())
        state = {key: value for key, value in self.state.items() if key != "error"}
        self.write_json(STATE, {**state, "name": self.path.resolve().name, "status": RUNNING})
        self._note_threads(config)
        log.info("resuming the run in %s", self.path)

    def _note_threads(self, config: RunConfig) -> None:
        """Record another number of threads than before, which changes sums of networks in their last digits."""
        machine = describe_machine()
        try:
            before = json.loads((self / MACHINE).read_text(encoding="utf-8"))
            threads = int(before["threads"])
        except (OSError, ValueError, KeyError, TypeError):
            self.write_json(MACHINE, machine)
            return
        if threads == machine["threads"]:
            return
        held = before.get("threads_before")
        earlier = [*(held if isinstance(held, list) else []), threads]
        self.write_json(MACHINE, {**before, "threads": machine["threads"], "threads_before": earlier})
        if not config.make_method().same_on_any_threads:
            log.warning(
                "this run used %d threads before and uses %d now: weights may differ in their last digits from those "
                "of a run without interruption; run.threads=%d avoids that", threads, machine["threads"], threads,
            )  # fmt: skip

    def _clear(self) -> None:
        """Remove what a run writes and nothing else; until the next run starts, state.json says what was begun."""
        self.write_json(STATE, {**self.state, "status": CLEARING})
        for path in [self / name for name in (*WRITTEN_FILES, *WRITTEN_FOLDERS)]:
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
            "status": RUNNING,
            "name": self.path.resolve().name,
            "method": config.model["method"],
            "started": _now(),
            "finished": None,
        }
        self.write_json(STATE, state)  # first: it is what makes the folder ours
        self.write_text(CONFIG, config.to_yaml())
        self.write_json(MACHINE, describe_machine())

    def learned(self) -> None:
        """All but the report is done: note when; unfinished work of methods is not needed any more."""
        shutil.rmtree(self / CHECKPOINTS, ignore_errors=True)
        self.write_json(STATE, {**self.state, "finished": _now()})

    def finish(self) -> None:
        """Mark the run as finished."""
        self.write_json(STATE, {**self.state, "status": FINISHED})

    def record(self, stage: str, **numbers: Any) -> None:
        """Add a line to metrics.jsonl."""
        entry = {"time": round(time.monotonic() - self.begin, 3), "stage": stage, **numbers}
        with (self / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def records(self) -> tuple[dict[str, Any], ...]:
        """The lines of metrics.jsonl so far."""
        return read_metrics(self / METRICS)

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
        with replacing(self / name, follow=False) as file:
            file.write(text)


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
