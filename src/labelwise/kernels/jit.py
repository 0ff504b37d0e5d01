"""`jit`: compile a kernel with Numba and cache the machine code per user, not per copy of the sources.

Numba's own cache is beside the sources, depends on one source file only, and has an index that concurrent processes
can overwrite. Here the folder is named by a hash of the kernel's source and of all modules of its package that it
imports, so that a changed callee leads to compilation and every clone or environment of a user shares one cache; every
signature is one file, written atomically. Nothing is written before a kernel is compiled.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import pickle
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import parse_assembly
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from labelwise.errors import ConfigError, DataError
from labelwise.io.atomic import replacing

log = logging.getLogger("labelwise")
VARIABLE = "NUMBA_CACHE_DIR"
_IMPORT = re.compile(r"^[ \t]*(?:from +(\.*)([\w.]*) +import +(\([^)]*\)|[^\n(#]+)|import +([^\n#]+))", re.MULTILINE)
OUTDATED = 30 * 24 * 3600
"""Age in seconds after which machine code of other versions of a module is removed."""
before_compiling: Callable[[Path], None] | None = None
"""Called with the missing file before a kernel is compiled; if the file is there afterwards, it is read instead."""


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` without the global interpreter lock and with our cache; takes Numba's options."""
    if function is None:
        return partial(jit, **options)
    dispatcher = numba.njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    if hasattr(dispatcher, "enable_caching"):  # a plain function under NUMBA_DISABLE_JIT
        dispatcher._cache = _Cache(function)
    return dispatcher


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`jit` for functions that only kernels call; a call from Python raises TypeError.

    They are compiled as a part of each kernel, without separate machine code or cached files, in half the time.
    """
    if function is None:
        return partial(inner, **options)
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    dispatcher = numba.njit(nogil=True, **wrappers, pipeline_class=_InnerCompiler, **options)(function)
    if isinstance(dispatcher, CPUDispatcher):  # a plain function under NUMBA_DISABLE_JIT
        dispatcher.__class__ = _InnerDispatcher
    return dispatcher


def is_cached(kernel: Any) -> bool:
    """Whether machine code of a kernel is there, for whatever types; a kernel that is never compiled counts as well."""
    files = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    return not isinstance(files, _Files) or files.exist()


class _InnerDispatcher(CPUDispatcher):
    """A function for Numba as any other, without the entry point that a call from Python needs."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.py_func.__qualname__} is `inner`: only kernels can call it")


class _InnerLibrary(JITCodeLibrary):
    """LLVM code that is linked into its callers, where it is optimised and compiled."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        own = [f'@"{v.name}" = common global i8* null' for v in self._final_module.global_variables if _is_own(v.name)]
        self._codegen._add_module(parse_assembly("\n".join(own)))  # Numba sets these; nothing else is needed
        self._codegen._engine.finalize_object()
        self._finalized = True


def _is_own(name: str) -> bool:
    """Whether a global variable is the environment of a function, which Numba creates."""
    return name.startswith("_ZN08NumbaEnv")


class _InnerCompiler(Compiler):
    def define_pipelines(self) -> Any:
        self.state.library = _InnerLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _Locator:
    """Provides Numba with the folder for the machine code of a function."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        source = Path(path)
        self._folder = cache_folder() / f"{source.stem}-{source_hash(source)}"
        self._line = function.__code__.co_firstlineno
        self._py_file = path  # for Numba's warning about functions that cannot be cached

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> _Locator:
        return cls(function, path)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)

    def ensure_cache_path(self) -> None:
        if self._folder.is_dir():
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
        module = self._folder.name.rpartition("-")[0]
        for other in self._folder.parent.glob(f"{module}-*"):
            with suppress(OSError):
                if other.stat().st_mtime < time.time() - OUTDATED:
                    shutil.rmtree(other, ignore_errors=True)


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [_Locator]


class _Cache(FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(Path(self._cache_path), self._impl.filename_base)


class _Files:
    """One file per signature and processor, instead of Numba's index and numbered files."""

    def __init__(self, folder: Path, base: str) -> None:
        self._folder, self._base = folder, base

    def _path(self, key: Any) -> Path:
        options = (numba.__version__, numba.config.BOUNDSCHECK, numba.config.OPT)  # type: ignore[missing-attribute]
        digest = hashlib.sha256(f"{options!r} {key!r}".encode()).hexdigest()
        return self._folder / f"{self._base}.{digest[:24]}.nbc"

    def exist(self) -> bool:
        return any(self._folder.glob(f"{self._base}.*.nbc"))

    def load(self, key: Any) -> Any:
        path = self._path(key)
        found = _unpickled(path)
        if found is None and before_compiling is not None:
            before_compiling(path)
            found = _unpickled(path)
        return found

    def save(self, key: Any, data: Any) -> None:
        with (
            suppress(DataError, OSError),
            replacing(self._path(key), binary=True) as file,
        ):  # on a full disk the kernel is compiled again next time
            file.write(dumps(data))

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._base}.*.nbc"):
            path.unlink(missing_ok=True)


def _unpickled(path: Path) -> Any:
    try:
        return pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        return None


@cache
def source_hash(path: Path) -> str:
    """A hash of a module's source and, recursively, of the modules and packages of its own that it imports."""
    root = path.parent
    while (root.parent / "__init__.py").exists():
        root = root.parent
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        source = waiting.pop()
        if source not in seen:
            seen.add(source)
            waiting += _imported_files(source, root)
    digest = hashlib.sha256()
    for source in sorted(seen):
        digest.update(f"{source.relative_to(root).as_posix()} {_content_hash(source)}\n".encode())
    return digest.hexdigest()[:24]


@cache
def _content_hash(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


@cache
def _imported_files(source: Path, root: Path) -> list[Path]:
    """The modules and packages below `root` that a source imports, by its import statements alone: parsing is slow."""
    package = source.parent.relative_to(root.parent).parts
    names: list[tuple[str, ...]] = []
    for dots, module, imported, plain in _IMPORT.findall(source.read_text(encoding="utf-8")):
        above = package[: len(package) + 1 - len(dots)] if dots else ()
        parts = (*above, *(module.split(".") if module else ()))
        names += [parts, *((*parts, name.split()[0]) for name in imported.strip("()").split(",") if name.strip())]
        names += [tuple(name.split()[0].split(".")) for name in plain.split(",") if name.strip()]
    files = []
    for first, *rest in filter(None, names):
        module = root.joinpath(*rest)
        paths = (module / "__init__.py", *([module.with_name(f"{module.name}.py")] if rest else []))
        files += [path for path in paths if first == root.name and path.is_file()]
    return files


@cache
def cache_folder() -> Path:
    """`NUMBA_CACHE_DIR`, else the user's cache folder, else a private temporary folder."""
    variable = os.environ.get(VARIABLE)
    if variable and is_writable(Path(variable)):
        return Path(variable) / "labelwise"
    folder = user_cache() / "labelwise" / "kernels"
    if is_writable(folder):
        return folder
    try:
        folder = _private_folder()
    except OSError as error:
        raise ConfigError(
            f"no folder for compiled kernels can be created ({error}); set {VARIABLE} to a writable folder"
        ) from None
    log.warning("compiled kernels are stored in %s; set %s to a permanent folder", folder, VARIABLE)
    return folder


def is_writable(path: Path) -> bool:
    """Whether a folder can be written to, or created where it does not exist yet."""
    for folder in (path, *path.absolute().parents):
        try:
            folder.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return False
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return False


def user_cache() -> Path:
    """The folder in which programs of this user keep what can be computed again."""
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches"))
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def _private_folder() -> Path:
    """A folder that only this user can write to, because cached code is executed.

    It is kept after the process ends where possible.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else None
    if user is not None:
        folder = Path(tempfile.gettempdir()) / f"labelwise-kernels-{user}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            status = folder.lstat()  # lstat: another user could have created a link here
        except OSError:
            status = None
        if status and stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077:
            return folder
    temporary = tempfile.mkdtemp(prefix="labelwise-kernels-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)
