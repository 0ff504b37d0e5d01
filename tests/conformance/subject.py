"""The method that the checks are about, and one fitted model of it for all checks that only read."""

from __future__ import annotations

from collections.abc import Callable

from conformance.planted import PLANTED, planted
from labelwise.data.dataset import Dataset
from labelwise.methods.base import Method


class Subject:
    """Called, it makes a fresh, unfitted method."""

    def __init__(self, make: Callable[[], Method]) -> None:
        self.make = make
        self._fitted: dict[str, tuple[Method, Dataset]] = {}

    def __call__(self) -> Method:
        return self.make()

    def kinds(self) -> list[str]:
        """All kinds of documents the method reads: without one, and for one without planted data, nothing is checked."""
        declared = list(self.make().inputs)
        assert declared, "the method declares no kind of documents"
        assert set(declared) <= set(PLANTED), f"there is no planted data for {set(declared) - set(PLANTED)}"
        return declared

    def fitted(self, kind: str) -> tuple[Method, Dataset]:
        """The model that was fitted on planted data, and this very data. The same at each call: only to be read."""
        if kind not in self._fitted:
            data = planted(kind)
            self._fitted[kind] = self.make().fit(data), data
        return self._fitted[kind]
