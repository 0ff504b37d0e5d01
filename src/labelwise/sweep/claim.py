"""Checks that a folder belongs to a study: study.json in it is a copy of the study with all defaults.

A sweep resumes only in the folder of the same study. Trials are named by hashes of their configs, so adding values,
seeds or settings keeps the study the same; another base run, or removing a field from `vary`, makes it a different one.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.atomic import clean_up, is_temporary_name, replacing
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.file_lock import LOCK
from labelwise.result_fields import RESULT, flattened
from labelwise.run_schema import STATE, TASKS
from labelwise.runs.config import deciding_values, run_config
from labelwise.sweep.study import Study

log = logging.getLogger("labelwise")

STUDY, FORMAT = "study.json", "labelwise-study"
WRITTEN = ("trials", "results.csv", "results.json", "best.yml", "proposed.json", "report.html", "plots")
FILES = (STUDY, *WRITTEN)
FIXED_FIELDS = ("search.kind", "search.seed", "seed_field", "valid_fraction")


def resolved(study: Study) -> dict[str, Any]:
    """A study as plain data: its config, the run that all trials share, and the fields that vary in each group."""
    values = study.config.model_dump(mode="json", exclude={"base", "folder", "run"})
    base = copy.deepcopy(study.base)
    try:
        run = run_config(base).resolved()
    except LabelwiseError:  # a run that is incomplete without the varied fields is kept as written
        run = base.values
    return {
        **values,
        "run": deciding_values(run, RESULT),
        "varies": {group.name: sorted(group.vary) for group in study.groups},
    }


def check_folder(study: Study, force: bool) -> bool:
    """Whether the folder already holds this study; an error if it holds anything else. Nothing is written."""
    folder, path = study.folder, study.folder / STUDY
    try:
        names = {item.name for item in folder.iterdir()} - {LOCK, TASKS} if folder.exists() else set()
        names = {name for name in names if not is_temporary_name(name, FILES, ())}
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be used: {error.strerror}") from None
    if not names:
        return False
    if STATE in names:
        raise ConfigError(f"{folder} is the folder of a run; choose another for the study with --set folder=...")
    if STUDY not in names:
        raise ConfigError(f"{folder} exists and is not a study's folder; choose another with --set folder=...")
    before = _read_study(path)
    if force:
        return True
    different = differences(before, resolved(study))
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise ConfigError(
            f"{folder} holds another study; it differs in {', '.join(different[:5])}{more}. --force replaces it, "
            "--set folder=... keeps both"
        )
    return True


def claim(study: Study, force: bool) -> None:
    """Write study.json; with `force`, after removing everything that a sweep has written there.

    The old study.json stays until the new one replaces it, so that a kill in between leaves a valid study folder.
    """
    clean_up(study.folder, FILES, ())
    if check_folder(study, force):
        if force:
            for path in (study.folder / name for name in WRITTEN):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        else:
            log.info("resuming the study in %s", study.folder)
    with replacing(study.folder / STUDY) as file:
        file.write(json.dumps({"format": FORMAT, "study": resolved(study)}, indent=1, ensure_ascii=False) + "\n")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The fields in which two studies differ, with both values; empty if the second can resume the first."""
    different = []
    earlier, later = (flattened({**study, "run": deciding_values(study["run"], RESULT)}) for study in (before, now))
    for group, paths in before["varies"].items():
        if group not in now["varies"]:
            different.append(f"groups ({group} was removed)" if group else "groups (there were none)")
        else:
            removed = [path for path in paths if path not in now["varies"][group]]
            different += [f"vary ({path} no longer varies)" for path in removed]
    for path in FIXED_FIELDS:
        was, value = earlier.get(path), later.get(path)
        if was != value and not (path == "seed_field" and was is None):  # seeds may be added
            different.append(f"{path} ({_shown(was)}, now {_shown(value)})")
    varying = {f"run.{path}" for values in (before, now) for paths in values["varies"].values() for path in paths}
    varying |= {f"run.{values.get('seed_field')}" for values in (before, now)}
    for path in dict.fromkeys([*earlier, *later]):
        if not path.startswith("run.") or any(f"{path}.".startswith(f"{field}.") for field in varying):
            continue
        was, value = earlier.get(path), later.get(path)
        if was != value:
            different.append(f"{path} ({_shown(was)}, now {_shown(value)})")
    return different


def _read_study(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (
            content["format"] == FORMAT
            and isinstance(content["study"]["varies"], dict)
            and isinstance(content["study"]["run"], dict)
        ):
            return content["study"]
        problem = "not the file of a study"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    raise ModelFormatError(f"{path}: damaged: {problem}; choose another folder with --set folder=...")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
