"""Where Numba keeps compiled kernels when it can keep them neither beside the sources nor in the user's home.

Numba refuses to compile then. A folder of the user's own among the temporary files does instead: compiled code is run
when it is read back, so nobody else may be able to write to it.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from labelwise.errors import ConfigError

log = logging.getLogger("labelwise")
VARIABLE = "NUMBA_CACHE_DIR"


def find_cache_place(sources: Path, stamp: str) -> Path | None:
    """Give Numba a temporary folder if it has no other; tells which. To be called before Numba is imported.

    Parameters
    ----------
    sources
        The folder of the kernels.
    stamp
        Changes when a kernel does. Kernels of other stamps go into other folders.
    """
    given = os.environ.get(VARIABLE)
    if any(can_be_written(place) for place in (*([Path(given)] if given else []), sources / "__pycache__", _of_user())):
        return None
    try:
        place = _private_folder() / stamp[:16]
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"there is no folder that compiled kernels could be kept in ({error}); set {VARIABLE} to one that can be "
            "written"
        ) from None
    log.warning("compiled kernels are kept in %s; %s names a better place", place, VARIABLE)
    os.environ[VARIABLE] = str(place)
    if "numba" in sys.modules:  # somebody was faster, and the variable has been read already
        sys.modules["numba"].config.CACHE_DIR = str(place)
    return place


def can_be_written(path: Path) -> bool:
    """Whether a folder can be written to, or made where it is not there yet."""
    for place in (path, *path.absolute().parents):
        try:
            place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return False
        return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _of_user() -> Path:
    """What Numba takes for the user's cache folder."""
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches/numba"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "numba"


def _private_folder() -> Path:
    """A folder that only this user can write to and that outlives the process; where that cannot be had, one that
    ends with it."""
    user = os.geteuid() if hasattr(os, "geteuid") else None
    if user is not None:
        folder = Path(tempfile.gettempdir()) / f"labelwise-kernels-{user}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()  # not what a link points to: anybody could have put one here
        except OSError:
            found = None
        if found and stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077:
            return folder
    made = tempfile.mkdtemp(prefix="labelwise-kernels-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
