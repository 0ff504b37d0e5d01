"""What a model folder or a run folder holds, as plain data. Neither weights nor documents are read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.config import ConfigSource, differing_keys, flattened
from labelwise.errors import ConfigError
from labelwise.io import folder as files
from labelwise.io.atomic import is_locked
from labelwise.io.folder import MANIFEST, Folder
from labelwise.io.json import read_json
from labelwise.model.card import read_card
from labelwise.model.folder import (
    CONFIG_FILE,
    STATE_FILE,
    member_folders,
    plugin_of,
    read_calibration,
    read_parameters,
)
from labelwise.model.method import Method
from labelwise.registry import can, method_class
from labelwise.report.schema import (
    TRIED,
    AutoRecord,
    Results,
    State,
    read_metrics,
)
from labelwise.runs.folder import has_run, is_begun, is_interrupted
from labelwise.runtime.budget import RECORD_FILE
from labelwise.runtime.job import SAMPLED

STOPPED = "stopped"
"""The status of a run that is not finished and in which no process works: it was killed."""
EXPECTED = ("precision", "recall", "micro-F1")
ABILITIES = {
    "explain": "explain",
    "pixels": "explain by maps of pixels",
    "vectors": "encode",
    "attention": "attention",
    "image_vectors": "verify",
    "top_of": "predict among some labels",
    "shrunk": "shrink",
    "learned": "learn",
}
"""What models can do besides predict and calibrate, by the member of `Fitted` that does it."""


def describe(path: str | Path) -> dict[str, Any]:
    """Describe a model folder, or a run folder in any stage, with its model if there is one."""
    folder = Path(path)
    about: dict[str, Any] = {"folder": str(folder)}
    if files.is_search(folder):
        return {**about, "search": _describe_search(folder)}
    if files.is_run_folder(folder):
        about["run"] = _describe_run(folder, folder)
        replacement = _describe_replacement(folder)
        if replacement is not None:
            about["replacement"] = replacement
        if not (folder / files.MODEL / MANIFEST).exists():
            return about
    return {**about, "model": describe_model(files.model_folder(folder))}


def find_damages(path: str | Path) -> list[str]:
    """What is wrong with the files of a model, which are all read for that."""
    return Folder(files.model_folder(Path(path)), "model").damages()


def _describe_search(folder: Path) -> dict[str, Any]:
    """A search whose lock is in its folder; nothing is known of it before its first model is trained."""
    path = folder / files.AUTO
    record = read_json(path, AutoRecord) if path.is_file() else None
    options = () if record is None else record.options
    return {
        "status": files.RUNNING if is_locked(folder) else STOPPED,
        "metric": None if record is None else record.metric,
        "budget": None if record is None else record.budget,
        "tried": {option.name: option.value for option in options if option.status == TRIED},
        "chosen": None if record is None else record.chosen,
    }


def _describe_run(folder: Path, home: Path) -> dict[str, Any]:
    """A run whose lock is in the folder `home`."""
    state = read_json(folder / files.STATE, State)
    stopped = state.status == files.RUNNING and not is_locked(home)
    if stopped:  # or finished since the state was read
        state = read_json(folder / files.STATE, State)
        stopped = state.status == files.RUNNING
    stages = {
        "trained": (folder / files.MODEL / MANIFEST).exists(),
        "calibrated": (folder / files.CALIBRATION).exists(),
        "evaluated": (folder / files.RESULTS).exists(),
    }
    lacks_refit = state.status != files.FINISHED and stages["evaluated"] and _lacks_refit(folder)
    records = read_metrics(folder / files.METRICS, damaged="skip")
    begun = [record["stage"] for record in records if isinstance(record.get("stage"), str)]
    return {
        "method": state.method,
        "status": STOPPED if stopped else state.status,
        "error": state.error,
        "started": state.started,
        "finished": state.finished,
        "done": [stage for stage, done in stages.items() if done],
        "last_stage": begun[-1] if begun else None,
        "unfinished_bytes": _unfinished_bytes(folder),
        "missing": [files.REFIT] if lacks_refit else [],
    }


def _describe_replacement(folder: Path) -> dict[str, Any] | None:
    """The run that is to replace this one (`--force`) and has not done so; None: there is none."""
    path = folder / files.REPLACEMENT
    if is_interrupted(folder):
        return {"folder": str(folder), "status": files.FINISHED, "error": None, "done": []}
    if not is_begun(folder):
        return None
    about = _describe_run(path, folder) if has_run(path) else {"status": "searching", "error": None, "done": []}
    return {"folder": str(path), **{key: about[key] for key in ("status", "error", "done")}}


def _unfinished_bytes(folder: Path) -> int:
    """Bytes of the work that a stopped training resumes from."""
    folders = [folder / name for name in (files.CHECKPOINTS, files.REFIT_CHECKPOINTS)]
    count = 0
    for path in (path for one in folders for path in one.rglob("*")):
        if path.name == RECORD_FILE or path.parent.name == SAMPLED:
            continue
        with suppress(OSError):  # removed meanwhile
            count += path.stat().st_size if path.is_file() else 0
    return count


def _lacks_refit(folder: Path) -> bool:
    """Whether an evaluated run is to be refitted and has not been."""
    config = folder / files.CONFIG
    section = ConfigSource.from_file(config).values.get("run") if config.is_file() else None
    wanted = isinstance(section, dict) and section.get("refit") is True
    return wanted and read_json(folder / files.RESULTS, Results).refit is None


def describe_model(path: Path) -> dict[str, Any]:
    """Describe a model folder; the method may be unknown here."""
    folder = Folder(path, "model")
    manifest, card = folder.manifest, read_card(folder)
    calibration, plugin = read_calibration(folder), plugin_of(manifest)
    method, members = _method(manifest.get("method")), member_folders(folder)
    arrays = Folder(path, "model", verify=False).tensors(STATE_FILE)
    return {
        "method": str(manifest.get("method")),
        "known": method is not None,
        "plugin": None if plugin is None else {"package": plugin[0], "version": plugin[1]},
        "labelwise_version": manifest.get("labelwise_version"),
        "reads": manifest.get("input"),
        "labels": manifest.get("n_labels"),
        "documents": manifest.get("n_documents"),
        "features": manifest.get("n_features"),
        "parameters": _parameters(folder, method),
        "threshold": None if calibration is None else calibration.threshold,
        "expected": None if calibration is None else dict(zip(EXPECTED, calibration.expected, strict=True)),
        "can": _abilities_in_words(Folder(path, "model", verify=False)),
        "members": [_member(folder, number, inner) for number, inner in enumerate(members)],
        "bytes": {name: entry["bytes"] for name, entry in manifest["files"].items()},
        "state_bytes": _state_bytes(arrays),
        "changed_since_judged": None if card.scores is None else card.note_on_changes(card.scores.at),
        "card": card.model_dump(mode="json", exclude_none=True),
    }


def _abilities(folder: Folder) -> set[str]:
    """What a saved model can do; some of it depends on its members, and on what was saved with it."""
    method = _method(folder.manifest.get("method"))
    if method is None:
        return set()
    members = [_abilities(member) for member in member_folders(folder)]
    arrays = folder.tensors(STATE_FILE)
    config = read_parameters(folder, method.Config)
    saved_lacks = getattr(method.Fitted, "saved_lacks", None)
    lacking = set() if saved_lacks is None else saved_lacks(config, arrays, members)
    return {ability for ability in ABILITIES if can(method, ability)} - lacking


def _abilities_in_words(folder: Folder) -> list[str]:
    """The same for a person."""
    able, method = _abilities(folder), _method(folder.manifest.get("method"))
    words = [what for ability, what in ABILITIES.items() if ability in able]
    return [*words, *(["train in parts"] if hasattr(method, "fit_parts") else [])]


def _member(folder: Folder, number: int, member: Folder) -> dict[str, Any]:
    """A model that the described one is made of, in short."""
    weights = folder.tensors(STATE_FILE).get("weights")
    manifest = member.manifest
    return {
        "method": str(manifest.get("method")),
        "weight": None if weights is None or number >= len(weights) else float(weights[number]),
        "labels": manifest.get("n_labels"),
        "documents": manifest.get("n_documents"),
        "card": read_card(member).model_dump(mode="json", exclude_none=True),
    }


def _method(name: Any) -> type[Method] | None:
    try:
        return method_class(str(name))
    except ConfigError:
        return None


def _parameters(folder: Folder, method: type[Method] | None) -> dict[str, Any]:
    """The parameters that differ from their defaults; all plain ones if the method is not known here."""
    if method is None:
        values = folder.read_json(CONFIG_FILE)
        given = values if isinstance(values, dict) else {}
        return {key: value for key, value in given.items() if not isinstance(value, dict | list)}
    given = read_parameters(folder, method.Config).model_dump(mode="json")
    defaults = method.Config().model_dump(mode="json")
    flat = flattened(given)
    return {key: flat.get(key) for key in differing_keys(given, defaults) if key in flat}


def _state_bytes(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Bytes of the learned arrays by the first part of their names without numbers, the largest first."""
    sizes: Counter[str] = Counter()
    for name, array in arrays.items():
        sizes[re.sub(r"\d+", "", name.partition(".")[0]) or name] += array.nbytes
    return dict(sizes.most_common())
