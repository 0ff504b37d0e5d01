"""A corpus from the documentation of installed Python packages: real texts, thousands of labels, no download.

A document is the docstring of a module, class or function; its labels are the parts of the module's path and
the names of the function's parameters. Source files are parsed, never imported. Parameters are often
described in the docstring, which makes them predictable; many labels have only one or two documents, as in
real subject indexing.
"""

from __future__ import annotations

import ast
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any

from labelwise.data.builders.corpus import BuiltCorpus, Document, write_corpus
from labelwise.errors import DataError, did_you_mean
from labelwise.runtime.progress import progress

log = logging.getLogger(__name__)

DEFAULT_PACKAGES = (
    "jinja2", "matplotlib", "numba", "numpy", "pydantic", "pyyaml", "rich", "scipy", "typer",
)  # fmt: skip
"""Dependencies of labelwise, so that the corpus is similar wherever it is built."""
EVERYTHING = "all"
MIN_WORDS = 10
MAX_FILE_BYTES = 4 << 20
_SKIPPED_FOLDERS = {
    "tests", "test", "testing", "_tests",
    "vendor", "_vendor", "vendored", "_vendored", "extern", "externals", "_extern",
}  # fmt: skip
_Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def build_pydocs(
    folder: str | Path,
    packages: Sequence[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    min_label_count: int = 1,
    force: bool = False,
) -> BuiltCorpus:
    """Build the corpus into a folder of line files.

    Parameters
    ----------
    packages
        Names of installed distributions; `["all"]` for all of them; not given: the installed ones of
        `DEFAULT_PACKAGES`.
    seed
        Chooses another split into train and test (four to one).
    limit
        Maximum number of documents.
    min_label_count
        Drop labels with fewer documents.
    force
        Replace a corpus that was built before.
    """
    chosen = _select_distributions(packages)
    files = [(package, path) for package in chosen for path in _python_files(package)]
    documents: list[Document] = []
    unparsed = 0
    with progress("reading docstrings", len(files)) as step:
        for package, path in files:
            step(1)
            tree = _parse_file(Path(str(package.locate_file(path))))
            if tree is None:
                unparsed += 1
                continue
            documents += _documents(tree, _module_labels(path))
    if unparsed:
        log.info("%s of %s source files could not be parsed and were left out", unparsed, len(files))
    source: dict[str, Any] = {
        "builder": "pydocs",
        "packages": {package.metadata["Name"]: package.version for package in chosen},
        "source_files": len(files),
        "files_not_parsed": unparsed,
    }
    return write_corpus(folder, documents, source, seed, limit, min_label_count, force)


def _select_distributions(packages: Sequence[str] | None) -> list[Distribution]:
    """The distributions to read, by name; of several with the same name the first on the path is used."""
    installed: dict[str, Distribution] = {}
    for package in distributions():
        name = package.metadata["Name"]
        if name:
            installed.setdefault(_normalise(name), package)
    installed.pop("labelwise", None)
    if packages is None:
        requested: Iterable[str] = [name for name in DEFAULT_PACKAGES if name in installed]
    elif list(packages) == [EVERYTHING]:
        requested = installed
    else:
        requested = [_normalise(name) for name in packages]
    for name in requested:
        if name not in installed:
            raise DataError(f"packages: '{name}' is not installed here; {did_you_mean(name, sorted(installed))}")
    return [installed[name] for name in sorted(set(requested))]


def _normalise(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _python_files(package: Distribution) -> list[PurePosixPath]:
    """The source files of a distribution without tests and copies of other packages, in a fixed order."""
    files = []
    for path in package.files or ():
        folders = set(path.parts[:-1])
        is_test = path.name.startswith("test_") or path.name == "conftest.py"
        if path.suffix == ".py" and ".." not in folders and not is_test and not folders & _SKIPPED_FOLDERS:
            files.append(PurePosixPath(path))
    return sorted(files)


def _parse_file(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in third-party strings do not matter here
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _module_labels(path: PurePosixPath) -> list[str]:
    parts = [*path.parts[:-1], path.stem]
    return [part.strip("_") for part in parts if part not in ("__init__", "__main__") and part.strip("_")]


def _documents(tree: ast.Module, module: list[str]) -> Iterator[Document]:
    for node in _definitions(tree):
        text = " ".join((ast.get_docstring(node, clean=False) or "").split())
        labels = tuple(dict.fromkeys([*module, *_parameters(node)]))
        if text.count(" ") + 1 >= MIN_WORDS and _is_plain(text) and all(" " not in label for label in labels):
            yield Document(text, labels)


def _is_plain(text: str) -> bool:
    """Whether the text can be a line of UTF-8: a docstring may contain a lone surrogate or a zero byte."""
    return text.isprintable() or not any("\ud800" <= c <= "\udfff" or c < " " or c in "\x85\u2028" for c in text)


def _definitions(node: Any) -> Iterator[_Definition]:
    """The module, classes and functions in source order; walks blocks of statements, not expressions."""
    if isinstance(node, _Definition):
        yield node
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for inner in getattr(node, block, ()):
            yield from _definitions(inner)


def _parameters(node: _Definition) -> list[str]:
    if isinstance(node, ast.Module | ast.ClassDef):
        return []
    given = node.args
    stars = [star for star in (given.vararg, given.kwarg) if star is not None]
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *stars]
    names = [one.arg.strip("_") for one in every if one.arg not in ("self", "cls")]
    return [name for name in names if name]
