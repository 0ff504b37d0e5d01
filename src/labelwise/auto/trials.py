"""One model of the ladder: trained, saved and asked about the validation documents; or read from an earlier attempt.

A folder per trial: `checkpoints` while it is trained, `model`, and last of all `outcome`, a store folder with the
predictions for the validation documents under the fingerprint of data and parameters. An interrupted training resumes.
One that the time budget has ended is continued by an attempt with more time; until then its checkpoints stay.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.atomic import replacing
from labelwise.checks import in_range
from labelwise.data.dataset import Dataset
from labelwise.errors import DataError, LabelwiseError
from labelwise.finished import find_finished, fingerprint, finished_folder
from labelwise.fit_context import FitContext
from labelwise.methods.base import Method, load
from labelwise.methods.inputs import predict_in_blocks
from labelwise.registry import method_class
from labelwise.run_schema import CHECKPOINTS, MODEL
from labelwise.runs.folder import folder_bytes
from labelwise.runs.stopwatch import stopwatch
from labelwise.time_budget import SAMPLE_FILE, TimeBudget
from labelwise.topk import TopK

log = logging.getLogger("labelwise")

KIND, OUTCOME, TENSORS, FIT = "auto-trial", "outcome", "top.safetensors", "fit.json"


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model and what it predicts for the validation documents."""

    name: str
    model: Mapping[str, Any]
    """The section `model` of a config."""
    folder: Path
    top: TopK
    seconds: float
    predict_seconds: float
    bytes: int
    cut: bool
    """Whether the time budget has ended the training early."""
    left: float = 0.0
    """Seconds that were left when the training ended."""

    def can_continue(self, budget: TimeBudget) -> bool:
        """Whether the training was ended early and has more time now."""
        return self.cut and _has_more_time(budget, self.seconds, self.left)

    def load(self) -> Method:
        """The model."""
        return load(self.folder / MODEL)


def make_method(model: Mapping[str, Any]) -> Method:
    """An unfitted method from the section `model` of a config."""
    return method_class(model["method"])(**{key: value for key, value in model.items() if key != "method"})


def trial_folder(workspace: Path, name: str, model: Mapping[str, Any], data: str) -> tuple[Path, str]:
    """Where a trial is kept, and its fingerprint."""
    own = fingerprint("auto trial", data, make_method(model).resolved_parameters(), model["method"])
    return workspace / f"{name}-{own[:8]}", own


def run_trial(
    workspace: Path,
    name: str,
    model: Mapping[str, Any],
    data: str,
    train: Dataset,
    valid: Dataset,
    k: int,
    budget: TimeBudget,
) -> Trial:
    """Train a model and predict for the validation documents, which it never sees with their labels."""
    folder, own = trial_folder(workspace, name, model, data)
    shutil.rmtree(folder / OUTCOME, ignore_errors=True)
    before = _remove_unfinished_model(folder, budget)
    method = _trained(folder / MODEL)
    if method is None:
        method, own_budget = make_method(model), budget.for_new_work()
        folder.mkdir(parents=True, exist_ok=True)
        with stopwatch() as fitting:
            method.fit(train, context=FitContext(folder / CHECKPOINTS, budget=own_budget))
        with replacing(folder / FIT) as file:
            spent, cut = before + fitting.seconds, own_budget.ended_early
            json.dump({"seconds": spent, "left": budget.remaining() if cut else 0.0, "cut": cut}, file)
        method.save(folder / MODEL, force=True)
        if cut:
            budget.write_records()  # or an attempt after a kill would seem to have more time
    spent, left, cut = _fit_record(folder / FIT)
    count = min(k, len(method.label_names_))
    with stopwatch() as predicting:
        top = predict_in_blocks(lambda part: method.predict(part, count), valid, f"{name}, validation documents")
    size = folder_bytes(folder / MODEL)
    about = {"seconds": spent, "predict_seconds": predicting.seconds, "cut": cut, "left": left, "bytes": size}
    with finished_folder(folder / OUTCOME, KIND, own, about) as kept_folder:
        kept_folder.write_tensors(TENSORS, {"ids": top.ids, "scores": top.scores})
    if not cut:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return Trial(name, model, folder, top, spent, predicting.seconds, size, cut, left)


def remove_checkpoints(workspace: Path) -> None:
    """Remove the unfinished work of all trials."""
    for path in workspace.glob(f"*/{CHECKPOINTS}"):
        shutil.rmtree(path, ignore_errors=True)


def _has_more_time(budget: TimeBudget, seconds: float, left: float) -> bool:
    """Whether there is more time than was left when a training was ended, and as much as it had."""
    return budget.remaining() > max(seconds, left)


def _remove_unfinished_model(folder: Path, budget: TimeBudget) -> float:
    """Remove the model of a training that was ended early and can continue; the seconds that it has taken."""
    if not (folder / MODEL).exists():
        return 0.0
    seconds, left, cut = _fit_record(folder / FIT)
    if not cut or not _has_more_time(budget, seconds, left):
        return 0.0
    shutil.rmtree(folder / MODEL)
    (folder / CHECKPOINTS / SAMPLE_FILE).unlink(missing_ok=True)  # there is time for more documents
    return seconds


def _fit_record(path: Path) -> tuple[float, float, bool]:
    """Seconds of a training and those that were left, and whether the time budget has ended it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return float(content["seconds"]), float(content.get("left", 0.0)), bool(content["cut"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot be read: {error}; remove the folder to train this model again", path) from None


def _trained(folder: Path) -> Method | None:
    """The model of an attempt that was interrupted after it was saved."""
    if not folder.exists():
        return None
    try:
        return load(folder)
    except LabelwiseError as error:
        log.warning("%s: not used: %s", folder, error)
        shutil.rmtree(folder)
        return None


def read_trial(folder: Path, own: str, name: str, model: Mapping[str, Any], k: int) -> Trial | None:
    """A finished trial; None if there is none, or if it has too few predictions for another metric."""
    found = find_finished(folder / OUTCOME, KIND, own)
    if found is None or not (folder / MODEL).exists():
        return None
    try:
        tensors, about = found.tensors(TENSORS), found.manifest
        top = TopK(tensors["ids"], tensors["scores"])
        numbers = [float(about[key]) for key in ("seconds", "predict_seconds", "bytes")]
        left, n_labels = float(about.get("left", 0.0)), len(load(folder / MODEL, verify=False).label_names_)
    except (KeyError, TypeError, ValueError, LabelwiseError) as error:
        log.warning("%s: not used: %s", folder, error)
        return None
    if top.k < min(k, n_labels) or not in_range(top.ids.reshape(-1) + 1, n_labels + 1):
        return None
    return Trial(name, model, folder, top, numbers[0], numbers[1], int(numbers[2]), bool(about.get("cut")), left)
