"""The method that the checks are about, and one fitted model of it for all checks that only read."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.model.method import Method
from labelwise.testing.planted import PLANTED, planted
from labelwise.topk import TopK

# --- require ---
# Assertions with a sentence, which also hold under ``python -O`` and need no test runner.


def require(condition: bool, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def refused(error: type[Exception], contains: str = "") -> Iterator[None]:
    """What runs inside must raise this error, with a message that matches the pattern `contains`."""
    try:
        yield
    except error as raised:
        message = f"the message of the {error.__name__} must match {contains!r}, it is: {raised}"
        require(re.search(contains, str(raised)) is not None, message)
    else:
        raise AssertionError(f"a {error.__name__} must be raised, and none was")


def same_predictions(one: TopK, other: TopK) -> None:
    """Require that two `TopK` have the same labels and scores, to the last bit."""
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.scores, other.scores)


class Subject:
    """Called, it makes a fresh, unfitted method.

    Parameters
    ----------
    make
        Makes the method.
    inputs
        Types of documents to check; None: all.
    n_documents
        Documents of the planted data that most checks use: fewer are faster, but the model learns less.
    vectors
        Whether it reads vectors next to texts, for the checks that change them.
    """

    def __init__(
        self,
        make: Callable[[], Method],
        inputs: Sequence[str] | None = None,
        n_documents: int = 600,
        vectors: bool = False,
    ) -> None:
        self.make = make
        self.inputs = inputs
        self.n_documents = n_documents
        self.vectors = vectors
        self._fitted: dict[str, tuple[Method, Any]] = {}

    def __call__(self) -> Method:
        return self.make()

    def kinds(self) -> list[str]:
        """The types of documents to check; a method without one, or one without planted data, is never checked."""
        declared = list(self.make().fact("inputs"))
        require(bool(declared), "the method declares no kind of documents")
        kinds = declared if self.inputs is None else list(self.inputs)
        require(set(kinds) <= set(declared), f"the method reads {declared}, not {kinds}")
        require(set(kinds) <= set(PLANTED), f"there is no planted data for {set(kinds) - set(PLANTED)}")
        return kinds

    def fitted(self, kind: str) -> tuple[Method, Any]:
        """The model fitted on planted data, and this data; the same at each call, so only to be read."""
        if kind not in self._fitted:
            data = self.planted(kind)
            self._fitted[kind] = self.make().fit(data), data
        return self._fitted[kind]

    def planted(self, kind: str, **sizes: int) -> Any:
        """Planted data with as many documents as are wished for."""
        return planted(kind, n_documents=self.n_documents, **sizes)


# --- memory ---
# The memory of the whole process while something runs: what torch and kernels hold is no object of Python's.


@contextmanager
def resident_memory() -> Iterator[list[int]]:
    """How much larger the process is while something runs, looked at every other millisecond."""
    grown, ended = [0], threading.Event()

    def own() -> int:
        try:
            status = Path("/proc/self/status").read_text(encoding="ascii")
        except OSError:
            return 0  # not on this system
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    def watch() -> None:
        while not ended.wait(0.002):
            grown.append(own() - before)

    before = own()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        ended.set()
        watcher.join()
