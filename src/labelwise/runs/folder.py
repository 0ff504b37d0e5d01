"""A run folder: resolved config, log, metrics.jsonl, model, results, report. One process at a time writes to it.

A run that was stopped, by Ctrl-C or a power cut, is resumed by running the same command again: all settings that
decide the result must be the same, and every finished stage is kept. A finished run is replaced only with `force`, by a
run in its folder `.replacement`, which takes its place when it is finished (`replacement.py`). Temporary files of
killed processes are removed at the next start.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from labelwise.config import RESULT, UNFINISHED, ConfigSource, differing_keys
from labelwise.errors import ConfigError, LabelwiseError
from labelwise.io.atomic import (
    LOCK,
    clean_up,
    is_temporary_name,
    lock_folder,
    naming_file,
    replacing,
)
from labelwise.io.folder import (
    AUTO,
    AUTO_FOLDER,
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
    MOVING,
    REFIT_CHECKPOINTS,
    REPLACED,
    REPLACEMENT,
    RUNNING,
    STATE,
    TIME,
    WRITTEN_FILES,
    WRITTEN_FOLDERS,
    is_run_folder,
    read_state,
)
from labelwise.report.schema import read_metrics
from labelwise.runs.config import RunConfig, deciding_values
from labelwise.runs.machine import describe_machine
from labelwise.runtime.budget import RECORD_FILE
from labelwise.runtime.job import SAMPLED
from labelwise.runtime.ranks import is_restarted, launch_id

# --- replacement ---
# The run that replaces another one (`--force`): made in a hidden folder of the old run, moved up when it is finished.
#
# Nothing here decides whether a run may be replaced; `folder.py` does, under the lock of the old run's folder.

WRITTEN = (*WRITTEN_FILES, *WRITTEN_FOLDERS, AUTO, AUTO_FOLDER)


def check_names(home: Path) -> None:
    """Refuse anything but folders under the names that are needed here, and a replacement as a run of its own."""
    for path in (home / REPLACEMENT, home / MOVING, home / REPLACED):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            what = "a link" if path.is_symlink() else "not a folder"
            raise ConfigError(
                f"{path}: this is {what}; `--force` makes the new run in a folder of this name; remove it"
            )
    if (home / REPLACEMENT).exists() and is_foreign(home / REPLACEMENT):
        raise ConfigError(f"{home / REPLACEMENT} exists and is not a run folder; `--force` needs this name; rename it")
    whole = home.resolve()
    if whole.name in (REPLACEMENT, MOVING, REPLACED) and is_run_folder(whole.parent):
        raise ConfigError(f"run.folder: {home} belongs to the run in {whole.parent}; give that folder")


def is_foreign(folder: Path) -> bool:
    """Whether a folder holds files and is not that of a run or of a search that has begun."""
    known = (LOCK, AUTO, AUTO_FOLDER)
    temporary = (*WRITTEN_FILES, STATE, AUTO), WRITTEN_FOLDERS
    others = [
        path for path in folder.iterdir() if path.name not in known and not is_temporary_name(path.name, *temporary)
    ]
    return bool(others) and not is_run_folder(folder)


def has_run(folder: Path) -> bool:
    """Whether a run has begun in this folder, with a config that says which."""
    state = read_state(folder)
    return state is not None and state.get("status") != CLEARING and (folder / CONFIG).exists()


def is_begun(home: Path) -> bool:
    """Whether a replacement has begun. What was stopped before that is as if it had never been asked for."""
    return has_run(home / REPLACEMENT) or (home / REPLACEMENT / AUTO).exists()


def is_interrupted(home: Path) -> bool:
    """Whether a finished replacement has not taken its place, because the process was killed before or meanwhile."""
    return (home / MOVING).is_dir() or _is_finished(home / REPLACEMENT)


def take_over(home: Path) -> bool:
    """Put the finished run of the folder `.replacement` in the place of the old one; whether there was one.

    What is interrupted is completed at the next call. Files are replaced in one step and folders by two renames, the
    old ones are removed last, and state.json, which says `clearing` meanwhile, is the last file to be replaced.
    """
    new, moving = home / REPLACEMENT, home / MOVING
    if not moving.exists():
        if not _is_finished(new):
            return False
        _mark(home)
        for name in WRITTEN:
            if not (new / name).exists():
                _put_aside(home, name)
        new.rename(moving)  # from here on a file that is not in the folder has been moved
    for path in sorted(moving.iterdir(), key=lambda path: path.name == STATE):
        if path.name == LOCK:
            continue
        if path.is_dir():
            _put_aside(home, path.name)
        path.replace(home / path.name)
    shutil.rmtree(home / REPLACED, ignore_errors=True)
    shutil.rmtree(moving)
    return True


def _is_finished(folder: Path) -> bool:
    state = read_state(folder)
    return state is not None and state.get("status") == FINISHED


def _mark(home: Path) -> None:
    """Write to the old run's state.json that the run is being replaced."""
    state = {**(read_state(home) or {}), "status": CLEARING}
    with replacing(home / STATE, follow=False) as file:
        file.write(json.dumps(state, indent=1, ensure_ascii=False) + "\n")


def _put_aside(home: Path, name: str) -> None:
    """Move a file or folder of the old run into the folder that is removed in the end."""
    if (home / name).exists() or (home / name).is_symlink():
        (home / REPLACED).mkdir(exist_ok=True)
        (home / name).replace(home / REPLACED / name)


# --- log file ---
# The log file of a run: what is logged while it works, next to what a terminal shows.

log = logging.getLogger("labelwise")


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Inside the block, add all that is logged to a file."""
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


FILES = (*WRITTEN_FILES, STATE)
RESTART_SECONDS = 60.0
"""How long a process that torchrun has started again waits for the one before it to end."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.home = Path(path)
        """The folder that was named."""
        self.path = self.home
        """Where the files of the run are: in `home`, or in its folder `.replacement`."""
        self.begin = time.monotonic()
        self.has_data = False
        """Whether the data has been read in this process."""

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def state(self) -> dict[str, Any]:
        """The contents of state.json; an error if it is missing or damaged."""
        state = read_state(self.path)
        if state is None:
            problem = f"not a run folder, {STATE} is missing" if self.path.exists() else "there is no such run folder"
            raise ConfigError(f"{self.path}: {problem}")
        return state

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.state.get("status") == FINISHED

    @contextmanager
    def open_for_run(self, config: RunConfig, force: bool, searched: bool = False) -> Iterator[None]:
        """Lock the folder for the block; create it, or prepare it for resuming.

        A new run that fails before its data is read leaves nothing behind. A finished run that was made to replace
        another one does so in the end. With `searched`, both the lock and this last step are those of `labelwise auto`,
        which has chosen the model.
        """
        created = [path for path in (self.home, *self.home.parents) if not path.exists()]
        self.create_or_check()
        with naming_file(self.home), nullcontext() if searched else self.locked(self._patience()):
            self.choose_path(force)
            is_new = not (self / STATE).exists()
            self._prepare(config, force, searched)
            try:
                with log_to(self / LOG):
                    self._drop_incomplete_line()
                    yield
            except Exception as error:
                with suppress(OSError, LabelwiseError):  # the first error is the one to report
                    if self.replaces and not self.has_trained() and not (self / AUTO).exists():
                        self.drop_replacement()
                    elif isinstance(error, LabelwiseError):
                        self._fail(error, created if is_new and not self.has_data else None)
                raise
            if not searched:
                self.finish_replacement()

    def _fail(self, error: LabelwiseError, created: list[Path] | None) -> None:
        """Record the error, or, given the folders that were `created` for the run, remove it."""
        if created is not None:
            self._remove(created)
            return
        self.append_to_log(f"ERROR {error}")
        self.write_json(STATE, {**self.state, "status": FAILED, "error": str(error)})

    def locked(self, wait: float = 0.0) -> AbstractContextManager[object]:
        """Hold the lock of the folder; an error if another process still has it after so many seconds."""
        return lock_folder(self.home, ConfigError(f"{self.home}: another process is working in this run folder"), wait)

    @property
    def replaces(self) -> bool:
        """Whether this run is to replace an earlier one, which is complete until then."""
        return self.path != self.home

    def choose_path(self, force: bool) -> None:
        """Set the path: the folder itself, or, if a trained model would be lost there, its folder `.replacement`."""
        self.finish_replacement()
        self.path = self.home
        if not (self / STATE).exists() or self.state.get("status") == CLEARING:
            return
        if is_begun(self.home):
            self.path = self.home / REPLACEMENT
        elif force and self.has_trained():
            self.path = self.home / REPLACEMENT
            self.path.mkdir(exist_ok=True)

    def finish_replacement(self) -> None:
        """Replace the run by the finished one in its folder `.replacement`, if there is one."""
        if take_over(self.home):
            self.path = self.home
            log.info("the new run has taken the place of the old one in %s", self.home)

    def drop_replacement(self) -> None:
        """Remove the run that was to replace the one in this folder."""
        shutil.rmtree(self.home / REPLACEMENT, ignore_errors=True)
        self.path = self.home

    def is_complete(self) -> bool:
        """Whether the run is finished, and none that is to replace it has begun."""
        if not (self.home / STATE).exists():
            return False
        with self.locked():
            self.choose_path(force=False)
            return not self.replaces and self.finished

    def begin_or_resume(self, force: bool) -> tuple[bool, bool]:
        """Whether to begin a new run (`force`), and whether this start of torchrun has finished it already.

        What this start of torchrun has begun is resumed: the process is one that it has started again.
        """
        if not self._is_of_this_launch(self.home, self.home / REPLACEMENT, self.home / MOVING):
            return force, False
        with self.locked(RESTART_SECONDS):
            self.choose_path(force=False)
            if not self._is_of_this_launch(self.path):
                return force, False
            if force:
                log.info("--force: this start of torchrun has begun the run in %s, which is resumed", self.home)
            return False, self.finished

    def _is_of_this_launch(self, *folders: Path) -> bool:
        """Whether this start of torchrun has begun, or resumed, the run in one of the folders."""
        launch = launch_id()
        return launch is not None and any((read_state(folder) or {}).get("launch") == launch for folder in folders)

    def _patience(self) -> float:
        """Seconds to wait for the lock: a process that torchrun has ended, on any node, may still have it."""
        is_next = is_restarted() or self._is_of_this_launch(self.home, self.home / REPLACEMENT)
        return RESTART_SECONDS if is_next else 0.0

    def current_path(self) -> Path:
        """Where the files are of the run that would be resumed."""
        return self.home / REPLACEMENT if is_begun(self.home) else self.home

    def create_or_check(self) -> None:
        """Create the folder, or check that the existing one is that of a run, or empty."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            foreign = is_foreign(self.home)
        except OSError as error:
            raise ConfigError(f"run.folder: {self.home} cannot be used: {error.strerror}") from None
        if foreign:
            raise ConfigError(f"{self.home} exists and is not a run folder; choose another with --set run.folder=...")
        linked = [name for name in FILES if (self.home / name).is_symlink()]
        if linked:
            raise ConfigError(f"{self.home / linked[0]}: this is a link, a run needs a regular file here; remove it")
        check_names(self.home)

    def _prepare(self, config: RunConfig, force: bool, searched: bool) -> None:
        clean_up(self.path, FILES, WRITTEN_FOLDERS)
        asked = force or searched or not self.replaces  # an old run is replaced only by what was asked for with force
        if not asked and not has_run(self.path):
            raise ConfigError(
                f"{self.path}: an unfinished search of labelwise auto is to replace the run in {self.home}; the same "
                "auto command without --force resumes it, --force starts over"
            )
        if not (self / STATE).exists():
            if force:
                self.remove_trials()
            self._start(config)
        elif force or self.state.get("status") == CLEARING:
            self._clear()
            if force:
                self.remove_trials()
            self._start(config)
        elif self.finished:
            raise self.finished_error(self._differing(config))
        elif self.has_trained() or (not asked and self._differing(config)):
            self._resume(config)
        elif not self._has_spent_time() or self._differing(config):
            self._clear()  # nothing has been trained yet, so nothing is lost with any config
            self._start(config)
        else:
            self._resume(config)

    def finished_error(self, different: Sequence[str] = ()) -> ConfigError:
        """That the run is finished; the settings that are `different` now are named."""
        keep = f"--set run.folder={_free(self.home)} keeps both"
        other = f", with another config ({_some(different)})" if different else ""
        return ConfigError(f"{self.home}: this run is finished{other}; --force replaces it, {keep}")

    def remove_trials(self) -> None:
        """Remove what `labelwise auto` has tried."""
        shutil.rmtree(self / AUTO_FOLDER, ignore_errors=True)
        (self / AUTO).unlink(missing_ok=True)

    def remove_run(self) -> None:
        """Remove all files of a run and what was tried for it; the folder stays."""
        self._remove([])
        self.remove_trials()

    def has_trained(self) -> bool:
        """Whether there is a model, or unfinished work of one."""
        checkpoints = self / CHECKPOINTS
        return (self / MODEL).exists() or (
            checkpoints.is_dir() and any(path.name not in (RECORD_FILE, SAMPLED) for path in checkpoints.iterdir())
        )

    def _has_spent_time(self) -> bool:
        """Whether an earlier attempt has recorded time that a time budget has to count."""
        return (self / TIME).exists() or (self / CHECKPOINTS / RECORD_FILE).exists()

    def _differing(self, config: RunConfig) -> list[str]:
        """Settings that decide the result and differ from those of the run."""
        before = ConfigSource.from_file(self / CONFIG).values
        scope = RESULT if (self / MODEL).exists() else UNFINISHED  # once there is a model, its training has ended
        return differing_keys(deciding_values(before, scope), deciding_values(config.resolved(), scope))

    def _resume(self, config: RunConfig) -> None:
        different = self._differing(config)
        if different:
            keep = f"; to keep the run in {self.home} as it is, remove {self.path}" if self.replaces else ""
            raise ConfigError(
                f"{self.path}: an unfinished run with another config exists ({_some(different)}); use "
                f"the same config to resume it, --force to start over, or --set run.folder=... for another folder{keep}"
            )
        self.write_text(CONFIG, config.to_yaml())
        state = {key: value for key, value in self.state.items() if key != "error"}
        now = {"name": self.home.resolve().name, "status": RUNNING, "launch": launch_id()}
        self.write_json(STATE, {**state, **now})
        self._record_threads(config)
        log.info("resuming the run in %s", self.path)

    def _record_threads(self, config: RunConfig) -> None:
        """Record a changed number of threads, which changes floating-point sums of networks in their last digits."""
        machine = describe_machine()
        try:
            before = json.loads((self / MACHINE).read_text(encoding="utf-8"))
            threads = int(before["threads"])
        except (OSError, ValueError, KeyError, TypeError):
            self.write_json(MACHINE, machine)
            return
        if threads == machine["threads"]:
            return
        recorded = before.get("threads_before")
        earlier = [*(recorded if isinstance(recorded, list) else []), threads]
        self.write_json(MACHINE, {**before, "threads": machine["threads"], "threads_before": earlier})
        if not config.make_method().fact("same_on_any_threads"):
            log.warning(
                "this run used %d threads before and uses %d now: weights may differ in their last digits from those "
                "of a run without interruption; run.threads=%d avoids that", threads, machine["threads"], threads,
            )  # fmt: skip

    def _clear(self) -> None:
        """Remove the files that runs write and nothing else; state.json records that clearing has begun."""
        self.write_json(STATE, {**self.state, "status": CLEARING})
        for path in [self / name for name in (*WRITTEN_FILES, *WRITTEN_FOLDERS)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _remove(self, created: list[Path]) -> None:
        """Remove the files of the run, and those of the `created` folders that are empty then."""
        self._clear()
        (self / STATE).unlink()
        if created:
            (self / LOCK).unlink()
        for folder in created:
            folder.rmdir()

    def append_to_log(self, *texts: str) -> None:
        """Write lines to the log file alone."""
        with (self / LOG).open("a", encoding="utf-8") as file:
            file.writelines(f"{datetime.now():%Y-%m-%d %H:%M:%S} {text}\n" for text in texts)

    def _start(self, config: RunConfig) -> None:
        state = {
            "format": FORMAT,
            "status": RUNNING,
            "name": self.home.resolve().name,
            "method": config.model["method"],
            "started": _now(),
            "finished": None,
            "launch": launch_id(),
        }
        self.write_json(STATE, state)  # first: it marks the folder as a run folder
        self.write_text(CONFIG, config.to_yaml())
        self.write_json(MACHINE, describe_machine())

    def finish_stages(self) -> None:
        """Record the time at which all but the report is done, and remove the checkpoints."""
        for name in (CHECKPOINTS, REFIT_CHECKPOINTS):
            shutil.rmtree(self / name, ignore_errors=True)
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

    def _drop_incomplete_line(self) -> None:
        """Remove an incomplete last line of metrics.jsonl, so that the next record starts on a new line."""
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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _free(folder: Path) -> Path:
    """A folder that does not exist, with a number after this one's name."""
    return next(path for number in count(2) if not (path := folder.with_name(f"{folder.name}-{number}")).exists())


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
