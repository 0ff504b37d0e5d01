"""The method that the checks are about, and one fitted model of it for all checks that only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labelwise.model.method import Method
from labelwise.testing.planted import PLANTED, planted
from labelwise.testing.require import require


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
