"""All errors that are raised for bad input.

Every message says what is wrong, where, what is accepted and what to do. The command line prints these without a
traceback and exits with 2; anything else that is raised is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from labelwise.formatting import printable


class LabelwiseError(Exception):
    """Base of all errors that are caused by the input, not by a bug."""

    def __str__(self) -> str:
        """The message, with control characters of quoted names and texts escaped."""
        return printable(super().__str__())


class ConfigError(LabelwiseError):
    """A configuration or a parameter is unknown, of the wrong type or out of range."""


class DataError(LabelwiseError):
    """A data file or array cannot be used; the message names file and line where there is one."""

    def __init__(self, what: str, path: str | Path | None = None, line: int | None = None) -> None:
        self.what, self.path, self.line = what, path, line
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + what)

    def __reduce__(self) -> tuple:
        return type(self), (self.what, self.path, self.line)


class ModelFormatError(LabelwiseError):
    """A model or data folder is damaged, has another format version, or was not written by labelwise."""


class NotFittedError(LabelwiseError, ValueError, AttributeError):
    """The model must be fitted or loaded first; the base classes are those of scikit-learn's NotFittedError."""


class MissingDependencyError(LabelwiseError, ImportError):
    """An optional package is needed; the message names the extra that installs it, if there is one."""

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        first = "; on a CPU install the CPU build of torch before that" if package == "torch" else ""
        wanted = package if extra is None else f"'labelwise[{extra}]'"
        super().__init__(f"{purpose} needs the package '{package}': pip install {wanted}{first}")


MODULES = {"pillow": "PIL"}
"""Packages whose module has another name."""


def check_installed(purpose: str, extra: str, *packages: str) -> None:
    """Raise a MissingDependencyError unless all packages of an extra are installed; none of them is imported."""
    for package in packages:
        if find_spec(MODULES.get(package, package)) is None:
            raise MissingDependencyError(package, extra, purpose)


def import_required(purpose: str, extra: str, *packages: str) -> None:
    """Import packages of an extra, or raise a MissingDependencyError."""
    for package in packages:
        try:
            import_module(MODULES.get(package, package))
        except ImportError as error:
            missing = str(error.name or package)
            raise MissingDependencyError(package if missing in MODULES.values() else missing, extra, purpose) from None


def did_you_mean(given: str, accepted: Iterable[str]) -> str:
    """A hint: the most similar accepted word, else those with a word in common (tree_count, trees), else all."""
    words = [str(word) for word in accepted]
    near = difflib.get_close_matches(given, words, n=1, cutoff=0.6)
    if not near:
        parts = _word_stems(given)
        near = [word for word in words if parts & _word_stems(word)][:3]
    if near:
        return f"did you mean {' or '.join(repr(word) for word in near)}?"
    shown = ", ".join(words[:20]) + (", ..." if len(words) > 20 else "")
    return f"accepted: {shown}" if words else "nothing is accepted here"


def _word_stems(name: str) -> set[str]:
    """The words of a name like tree_count, without the s of plurals."""
    return {part.removesuffix("s") for part in name.lower().split("_") if len(part) > 2}
