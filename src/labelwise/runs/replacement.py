"""The run that replaces another one (`--force`): made in a hidden folder of the old run, moved up when it is finished.

Nothing here decides whether a run may be replaced; `folder.py` does, under the lock of the old run's folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from labelwise.atomic import is_temporary_name, replacing
from labelwise.errors import ConfigError
from labelwise.file_lock import LOCK
from labelwise.run_schema import (
    AUTO,
    AUTO_FOLDER,
    CLEARING,
    CONFIG,
    FINISHED,
    MOVING,
    REPLACED,
    REPLACEMENT,
    STATE,
    WRITTEN_FILES,
    WRITTEN_FOLDERS,
    is_run_folder,
    read_state,
)

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
