"""Folders on disk: models and data sets. Safe to load from untrusted sources, memory-mapped, written atomically.

A folder holds manifest.json (what it is, format version, and for each file its size and SHA-256), JSON files and
safetensors files. Nothing in it is ever executed, and no name in it can point outside the folder. Tensors are mapped
straight from the file, so a model that does not fit in memory can be used and several processes share one copy.
"""

from __future__ import annotations

import codecs
import copy
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labelwise import __version__
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.io.atomic import find_old_copy, naming_file, replacing_folder
from labelwise.io.json import parse_json, read_text
from labelwise.io.tensors import (
    LARGEST_WEIGHT,
    are_offsets,
    are_weights,
    in_range,
    is_non_decreasing,
    release_pages,
    tensor_file_parts,
)
from labelwise.io.tensors import map_tensors as map_tensors
from labelwise.strings import Strings

FORMAT_VERSION, OLDEST_VERSION = 2, 2
"""What is written, and the oldest that is read. In version 1 the weights of linear models had another layout."""
MANIFEST = "manifest.json"
STATE_FILE, CONFIG_FILE, CARD_FILE = "state.safetensors", "config.json", "card.json"
"""Of a model: what was learned, the parameters of its method, and what else is known of it."""
MAX_JSON_BYTES = 64 << 20
MAX_COLUMNS = 1 << 31


# --- writing -----------------------------------------------------------------------------------------------------


class FolderWriter:
    """Writes files into a folder that gets its name only when it is complete."""

    def __init__(self, folder: Path, about: Mapping[str, Any] | None = None, prefix: str = "") -> None:
        self.folder = folder
        self.about = about or {}  # what the manifest will say
        self.prefix = prefix
        self.files: dict[str, dict[str, Any]] = {}
        self.unlisted: set[str] = set()

    @contextmanager
    def nested(self, prefix: str, kind: str, about: Mapping[str, Any]) -> Iterator[FolderWriter]:
        """Write another folder's files into this one, under names with a prefix; `Folder.nested` opens it.

        Their sizes and hashes are in the manifest of this folder.
        """
        inner = FolderWriter(self.folder, about, self.prefix + prefix)
        inner.files = self.files
        yield inner
        inner.write_json(MANIFEST, _manifest(kind, about, {}))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
        self._write(name, [text.encode()])

    def write_tensors(self, name: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Write a safetensors file, array by array without a copy of the whole."""
        self._write(name, tensor_file_parts(tensors))

    def write_page(self, name: str, text: str) -> None:
        """Write a text for people in UTF-8. It is not in the manifest: nobody depends on it, and it may be edited."""
        (self.folder / _check_file_name(name)).write_bytes(text.encode())
        self.unlisted.add(name)

    def _write(self, name: str, parts: Any) -> None:
        digest, size, name = hashlib.sha256(), 0, self.prefix + name
        path = self.folder / _check_file_name(name)
        with naming_file(path), path.open("xb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = {"bytes": size, "sha256": digest.hexdigest()}


@contextmanager
def new_folder(path: str | Path, kind: str, about: Mapping[str, Any], force: bool = False) -> Iterator[FolderWriter]:
    """Write a folder of the given type; it gets its name only when the block ends without an error."""
    target = Path(path)
    if target.exists() and not force:
        raise ConfigError(f"{target} exists already; choose another path, or replace it with force")
    if target.exists() and not _is_ours(target):
        raise ConfigError(f"{target} exists and is not a labelwise folder; it will not be replaced")
    with replacing_folder(target) as hidden:
        writer = FolderWriter(hidden, about)
        yield writer
        FolderWriter(hidden).write_json(MANIFEST, _manifest(kind, about, writer.files))


def _manifest(kind: str, about: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": f"labelwise-{kind}",
        "format_version": FORMAT_VERSION,
        "labelwise_version": __version__,
        **about,
        "files": files,
    }


@contextmanager
def update_folder(path: str | Path, kind: str, about: Mapping[str, Any]) -> Iterator[FolderWriter]:
    """Add or replace files of an existing folder; `about` is merged into its manifest.

    The changed folder replaces the old one when the block ends without an error. Unchanged files are hard-linked, not
    copied, where the disk supports it.
    """
    target = Path(os.path.realpath(path))
    before = Folder(target, kind, verify=False)
    with replacing_folder(target) as hidden:
        hidden.chmod(0o700)  # until it has the permissions of the target
        writer = FolderWriter(hidden, {**before.manifest, **about})
        yield writer
        for item in target.iterdir():
            if item.name != MANIFEST and item.name not in writer.files and item.name not in writer.unlisted:
                _link(item, hidden / item.name)
        files = {**before.manifest["files"], **writer.files}
        FolderWriter(hidden).write_json(MANIFEST, {**before.manifest, **about, "files": files})
        hidden.chmod(target.stat().st_mode & 0o777)


def _link(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _is_ours(folder: Path) -> bool:
    """Whether a folder may be replaced: it is empty, or its manifest is one of labelwise."""
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        manifest = _load_json(folder / MANIFEST)
    except ModelFormatError:
        return False
    return isinstance(manifest, dict) and str(manifest.get("format", "")).startswith("labelwise-")


# --- reading -----------------------------------------------------------------------------------------------------


class Folder:
    """A folder opened for reading: its manifest has been checked, and every file is checked before it is used."""

    def __init__(self, path: str | Path, kind: str, verify: bool = True) -> None:
        self.path = Path(path)
        self.prefix = ""
        self.verify = verify
        if not self.path.exists():
            copy = find_old_copy(self.path)
            hint = "" if copy is None else f"; its replacement was interrupted, rename {copy} to restore it"
            raise ModelFormatError(f"{self.path}: there is no such folder{hint}")
        if not (self.path / MANIFEST).is_file():
            inside = f"; did you mean {self.path / kind}?" if (self.path / kind / MANIFEST).is_file() else ""
            raise ModelFormatError(f"{self.path}: not a labelwise {kind} folder, {MANIFEST} is missing{inside}")
        if (self.path / MANIFEST).is_symlink():
            raise ModelFormatError(f"{self.path / MANIFEST}: a link to another file is not read; copy the file itself")
        self.manifest: dict[str, Any] = _checked_manifest(_load_json(self.path / MANIFEST), kind, self.path / MANIFEST)

    def nested(self, prefix: str, kind: str) -> Folder:
        """The folder that `FolderWriter.nested` has written into this one; its files are checked as all others."""
        inner = copy.copy(self)
        manifest = _checked_manifest(self.read_json(prefix + MANIFEST), kind, self.file(prefix + MANIFEST))
        inner.prefix, files = self.prefix + prefix, self.manifest["files"]
        own = {name.removeprefix(prefix): entry for name, entry in files.items() if name.startswith(prefix)}
        inner.manifest = {**manifest, "files": own}
        return inner

    def file(self, name: str) -> Path:
        """The path of a file of this folder, which need not exist."""
        return self.path / (self.prefix + name)

    def read_json(self, name: str) -> Any:
        """A JSON file of the folder."""
        return _load_json(self._verified_path(name))

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a safetensors file of the folder, mapped read-only."""
        return map_tensors(self._verified_path(name))

    def damages(self) -> list[str]:
        """What is wrong with the files of the manifest, which are all read."""
        found = []
        for name in self.manifest["files"]:
            try:
                self._verified_path(name)
            except ModelFormatError as error:
                found.append(str(error))
        return found

    def check_files(self) -> None:
        """Raise the first error of a file of the manifest; all are read."""
        for name in self.manifest["files"]:
            self._verified_path(name)

    def _verified_path(self, name: str) -> Path:
        """The path of a listed file, after comparing its size and (with `verify`) its hash."""
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise ModelFormatError(f"{self.path / MANIFEST}: the file {self.prefix + name} is not listed")
        path = self.path / _check_file_name(self.prefix + name)
        if path.is_symlink() or not path.is_file():
            raise ModelFormatError(f"{path}: the file is missing or not a regular file")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise ModelFormatError(
                f"{path}: {size:,} bytes where the manifest says {expected['bytes']:,}; copy it again"
            )
        if self.verify:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected["sha256"]:
                raise ModelFormatError(
                    f"{path}: the contents are damaged (SHA-256 differs from the manifest); copy it again"
                )
        return path


def _checked_manifest(manifest: Any, kind: str, path: Path) -> dict[str, Any]:
    """A manifest of this type and version with a list of files, or an error."""
    if not isinstance(manifest, dict) or manifest.get("format") != f"labelwise-{kind}":
        actual = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise ModelFormatError(f"{path}: this is not a labelwise {kind} (format: {actual!r})")
    version = manifest.get("format_version")
    if type(version) is not int or not OLDEST_VERSION <= version <= FORMAT_VERSION:
        advice = "; it has to be trained again" if version == 1 else ""
        raise ModelFormatError(
            f"{path}: format version {version!r}; this labelwise {__version__} reads versions {OLDEST_VERSION} to "
            f"{FORMAT_VERSION}. It was written by labelwise {manifest.get('labelwise_version')!r}{advice}"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(e, dict) and isinstance(e.get("bytes"), int) and isinstance(e.get("sha256"), str)
        for e in files.values()
    ):
        raise ModelFormatError(f"{path}: the list of files is damaged")
    return manifest


def _check_file_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ModelFormatError(f"{name!r} is not a plain file name")
    return name


def _finite(text: str) -> float:
    """A number of JSON; ValueError if it is too large for a float, such as 1e400, or none, such as NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _load_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFormatError(f"{path}: too large for a JSON file of labelwise")
        return json.loads(path.read_bytes().decode("utf-8"), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: not valid JSON: {error}") from None
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error.strerror}") from None


# --- strings and sparse matrices as tensors ----------------------------------------------------------------------


def strings_to_tensors(prefix: str, strings: Strings) -> dict[str, np.ndarray]:
    """Strings as two tensors."""
    packed = strings.compact()
    return {f"{prefix}.buffer": packed.buffer, f"{prefix}.ends": packed.ends}


def strings_from_tensors(prefix: str, tensors: Mapping[str, np.ndarray], path: Path) -> Strings:
    """Strings from two tensors, checked: ends never decrease and every text is UTF-8."""
    buffer, ends = (get_tensor(tensors, f"{prefix}.{part}", path) for part in ("buffer", "ends"))
    if buffer.dtype != np.uint8 or ends.dtype != np.int64 or buffer.ndim != 1 or ends.ndim != 1:
        raise ModelFormatError(f"{path}: {prefix} is not a list of texts")
    last = int(ends[-1]) if len(ends) else 0
    if last != len(buffer) or (len(ends) and ends[0] < 0) or not is_non_decreasing(ends):
        raise ModelFormatError(f"{path}: the text positions of {prefix} are damaged")
    _check_utf8(buffer, f"{path}: {prefix} is not UTF-8")
    inside = ends[:-1][ends[:-1] < last]
    if len(inside) and ((buffer[inside] & 0xC0) == 0x80).any():
        raise ModelFormatError(f"{path}: {prefix} splits a UTF-8 character")
    return Strings.packed(buffer, ends)


def _check_utf8(buffer: np.ndarray, message: str, piece: int = 1 << 22) -> None:
    """Decode piece by piece, so that the check of a large buffer does not need several times its memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for begin in range(0, len(buffer), piece):
            decoder.decode(buffer[begin : begin + piece].tobytes())
            release_pages(buffer)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise ModelFormatError(message) from None


def csr_to_tensors(prefix: str, matrix: Any) -> dict[str, np.ndarray]:
    """A CSR matrix as four tensors."""
    return {
        f"{prefix}.indptr": matrix.indptr,
        f"{prefix}.indices": matrix.indices,
        f"{prefix}.data": matrix.data,
        f"{prefix}.shape": np.array(matrix.shape, np.int64),
    }


def csr_from_tensors(prefix: str, tensors: Mapping[str, np.ndarray], path: Path) -> Any:
    """A CSR matrix from four tensors, checked in full: a kernel may trust every index afterwards."""
    from scipy import sparse

    indptr, indices, data, shape = (
        get_tensor(tensors, f"{prefix}.{part}", path) for part in ("indptr", "indices", "data", "shape")
    )
    valid = (
        indptr.ndim == indices.ndim == data.ndim == 1
        and shape.shape == (2,)
        and all(a.dtype in (np.int32, np.int64) for a in (indptr, indices, shape))
        and data.dtype in (np.float32, np.float64)
        and (shape >= 0).all()
        and shape[1] <= MAX_COLUMNS
        and len(indptr) == int(shape[0]) + 1
        and len(indices) == len(data)
        and are_offsets(indptr, len(indices))
        and in_range(indices, int(shape[1]))
    )
    if not valid:
        raise ModelFormatError(f"{path}: the sparse matrix {prefix} is damaged")
    matrix: Any = sparse.csr_array((int(shape[0]), int(shape[1])), dtype=data.dtype)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr  # the constructor would copy them
    return matrix


def check_weights(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Refuse arrays that hold NaN, infinity, or numbers so large that products overflow."""
    for key, array in tensors.items():
        if not are_weights(array):
            raise ModelFormatError(
                f"{path}: {key} holds NaN, infinity or numbers above {LARGEST_WEIGHT:g}; the file is damaged, or the "
                "training has diverged"
            )


def get_tensor(tensors: Mapping[str, np.ndarray], key: str, path: Path) -> np.ndarray:
    """A tensor by name, or an error that it is missing."""
    if key not in tensors:
        raise ModelFormatError(
            f"{path}: the tensor {key!r} is missing; the folder is damaged, or was written by an early labelwise, "
            "whose models of this method have to be trained again"
        )
    return tensors[key]


# --- run folder ---
# The folder of a run: the names of its files, its state, and the model inside it.
#
# Every file may be missing: a run that was stopped has only some.

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
