"""One model of the ladder: trained, saved and asked about the validation documents; or read from an earlier attempt.

A folder per trial: `checkpoints` while it is trained, `model`, and last of all `outcome`, a store folder with the
predictions for the validation documents under the fingerprint of data and parameters. An interrupted training resumes.
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
from labelwise.time_budget import TimeBudget
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
    method = _trained(folder / MODEL)
    if method is None:
        method = make_method(model)
        folder.mkdir(parents=True, exist_ok=True)
        with stopwatch() as fitting:
            method.fit(train, context=FitContext(folder / CHECKPOINTS, budget=budget))
        with replacing(folder / FIT) as file:
            json.dump({"seconds": fitting.seconds, "cut": budget.expired()}, file)
        method.save(folder / MODEL, force=True)
    spent, cut = _fit_record(folder / FIT)
    count = min(k, len(method.label_names_))
    with stopwatch() as predicting:
        top = predict_in_blocks(lambda part: method.predict(part, count), valid, f"{name}, validation documents")
    about = {"seconds": spent, "predict_seconds": predicting.seconds, "cut": cut, "bytes": folder_bytes(folder / MODEL)}
    with finished_folder(folder / OUTCOME, KIND, own, about) as kept_folder:
        kept_folder.write_tensors(TENSORS, {"ids": top.ids, "scores": top.scores})
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return Trial(name, model, folder, top, spent, predicting.seconds, int(about["bytes"]), cut)


def _fit_record(path: Path) -> tuple[float, bool]:
    """Seconds of a training, and whether the time budget has ended it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return float(content["seconds"]), bool(content["cut"])
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
        n_labels = len(load(folder / MODEL, verify=False).label_names_)
    except (KeyError, TypeError, ValueError, LabelwiseError) as error:
        log.warning("%s: not used: %s", folder, error)
        return None
    if top.k < min(k, n_labels) or not in_range(top.ids.reshape(-1) + 1, n_labels + 1):
        return None
    return Trial(name, model, folder, top, numbers[0], numbers[1], int(numbers[2]), bool(about.get("cut")))
