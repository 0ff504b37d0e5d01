"""`check_method`: every check of a method, with one report of all that failed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelwise.errors import ConfigError, did_you_mean
from labelwise.formatting import printable
from labelwise.model.method import Method
from labelwise.registry import registered
from labelwise.testing.subject import Subject
from labelwise.testing.unfinished_work import CHECKS


class ConformanceError(AssertionError):
    """Some checks failed; `failures` has the exception of each by name."""

    def __init__(self, method: type[Method], failures: Mapping[str, Exception]) -> None:
        self.failures = dict(failures)
        lines = [f"{method.__name__} fails {len(failures)} of {len(CHECKS)} checks:"]
        for name, error in failures.items():
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            about = " ".join((CHECKS[name].__doc__ or "").split())
            lines.append(f"- {name} ({about})\n  {kind}{printable(str(error).strip())}")
        super().__init__("\n".join(lines))


def check_method(
    method: type[Method],
    params: Mapping[str, Any] | None = None,
    *,
    inputs: Sequence[str] | None = None,
    checks: Sequence[str] | None = None,
) -> list[str]:
    """Run the checks that the methods of this package pass, on small planted data.

    Parameters
    ----------
    method
        The class. It need not be installed: during the checks its `name` stands for it.
    params
        Parameters that make it fast on a few hundred documents.
    inputs
        Types of documents to check, by default all that the class declares.
    checks
        Names of single checks, by default all.

    Returns
    -------
    list of str
        The names of the checks, all of which have passed. `ConformanceError` names all that failed.
    """
    names = list(CHECKS if checks is None else checks)
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"there is no check '{name}'; {did_you_mean(name, CHECKS)}")
    subject, failures = Subject(lambda: method(**(params or {})), inputs), {}
    with registered(method):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="labelwise-check-") as folder:
                try:
                    CHECKS[name](subject, Path(folder))
                except Exception as error:  # a check may fail in any way, and the others are to run as well
                    failures[name] = error
    if failures:
        raise ConformanceError(method, failures)
    return names
