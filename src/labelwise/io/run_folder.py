"""The folder of a run: the names of its files, its state, and the model inside it.

Every file may be missing: a run that was stopped has only some.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelwise.errors import ConfigError, DataError
from labelwise.io.folder import MANIFEST
from labelwise.io.json import parse_json, read_text

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
