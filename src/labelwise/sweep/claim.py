"""Whose folder it is: a study's folder is marked by study.json, a copy of the study with all defaults.

A sweep goes on in the folder of the same study and nowhere else. Trials are named by their own configs, so more values,
more seeds and more settings are still the same study; another run underneath, or fields that vary no more, are not.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labelwise.atomic import clean_up, is_left_over, replacing
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.file_lock import LOCK
from labelwise.result_fields import RESULT, leaves
from labelwise.run_schema import STATE
from labelwise.runs.config import deciding_values, run_config
from labelwise.sweep.study import Study

log = logging.getLogger("labelwise")

MARK, FORMAT = "study.json", "labelwise-study"
WRITTEN = ("trials", "results.csv", "results.json", "proposed.json", "report.html", "plots")
FILES = (MARK, *WRITTEN)
MUST_STAY = ("search.kind", "search.seed", "seed_field", "valid_fraction")
ELSEWHERE = "--set folder=... keeps both"


def resolved(study: Study) -> dict[str, Any]:
    """A study as plain values: its config, the run that all trials share, and which fields vary in each group."""
    values = study.config.model_dump(mode="json", exclude={"base", "folder", "run"})
    base = copy.deepcopy(study.base)
    try:
        run = run_config(base).resolved()
    except LabelwiseError:  # a run that is whole only with what varies stays as it is written
        run = base.values
    return {
        **values,
        "run": deciding_values(run, RESULT),
        "varies": {group.name: sorted(group.vary) for group in study.groups},
    }


def check_folder(study: Study, force: bool) -> bool:
    """Whether this study has been here before; an error if the folder is not for it. Nothing is written."""
    folder, mark = study.folder, study.folder / MARK
    try:
        held = {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
        held = {name for name in held if not is_left_over(name, FILES, ())}
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be used: {error.strerror}") from None
    if not held:
        return False
    if STATE in held:
        raise ConfigError(f"{folder} is the folder of a run; choose another for the study with --set folder=...")
    if MARK not in held:
        raise ConfigError(f"{folder} exists and is not a study's folder; choose another with --set folder=...")
    before = _read_mark(mark)
    if force:
        return True
    different = differences(before, resolved(study))
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise ConfigError(
            f"{folder}: another study is here; it differs in {', '.join(different[:5])}{more}. --force replaces it, "
            f"{ELSEWHERE}"
        )
    return True


def claim(study: Study, force: bool) -> None:
    """Mark the folder as this study's; with `force`, after removing all that a sweep has written there.

    The mark of before stays until the new one takes its place, so that a kill in between leaves the folder ours.
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
    with replacing(study.folder / MARK) as file:
        file.write(json.dumps({"format": FORMAT, "study": resolved(study)}, indent=1, ensure_ascii=False) + "\n")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes two studies different ones, as fields with both values; nothing if the second carries on the first."""
    found = []
    earlier, later = (leaves({**study, "run": deciding_values(study["run"], RESULT)}) for study in (before, now))
    for group, paths in before["varies"].items():
        if group not in now["varies"]:
            found.append(f"groups ({group} is gone)" if group else "groups (there were none)")
        else:
            gone = [path for path in paths if path not in now["varies"][group]]
            found += [f"vary ({path} varies no more)" for path in gone]
    for path in MUST_STAY:
        was, value = earlier.get(path), later.get(path)
        if was != value and not (path == "seed_field" and was is None):  # seeds may be added
            found.append(f"{path} ({_shown(was)}, now {_shown(value)})")
    varying = {f"run.{path}" for values in (before, now) for paths in values["varies"].values() for path in paths}
    varying |= {f"run.{values.get('seed_field')}" for values in (before, now)}
    for path in dict.fromkeys([*earlier, *later]):
        if not path.startswith("run.") or any(f"{path}.".startswith(f"{field}.") for field in varying):
            continue
        was, value = earlier.get(path), later.get(path)
        if was != value:
            found.append(f"{path} ({_shown(was)}, now {_shown(value)})")
    return found


def _read_mark(path: Path) -> dict[str, Any]:
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))
        if (
            mark["format"] == FORMAT
            and isinstance(mark["study"]["varies"], dict)
            and isinstance(mark["study"]["run"], dict)
        ):
            return mark["study"]
        problem = "not the file of a study"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    raise ModelFormatError(f"{path}: damaged: {problem}; choose another folder with --set folder=...")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
