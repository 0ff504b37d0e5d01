"""The method that the checks are about, and one fitted model of it for all checks that only read."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.model.method import Method
from labelwise.strings import Strings
from labelwise.topk import TopK

# --- planted ---
# Data whose right answer is known: every label owns a few words, a document is made of its labels' words.
#
# Labels sit in a planted two-level tree (siblings share words), frequencies fall off like 1/rank, and a share of noise
# words comes from a common pool, so popularity is far from useless and far from enough.

WORDS_PER_LABEL = 4
SIBLINGS = 6
NOISE_WORDS = 40


@cache
def _pictures() -> tempfile.TemporaryDirectory[str]:
    """The folder of all pictures, removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="planted-pictures-")


@lru_cache(maxsize=64)
def _draw(n_documents: int, n_labels: int, seed: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Texts, and rows and columns of their labels; kept, because checks ask for the same documents again and again."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, n_labels + 1)
    texts, rows, columns = [], [], []
    for document in range(n_documents):
        chosen = rng.choice(n_labels, size=rng.integers(1, 4), replace=False, p=weights / weights.sum())
        words = []
        for label in chosen:
            words += [f"word{label}x{w}" for w in rng.integers(0, WORDS_PER_LABEL, 3)]
            words.append(f"group{label // SIBLINGS}")
            rows.append(document)
            columns.append(label)
        words += [f"noise{w}" for w in rng.integers(0, NOISE_WORDS, 4)]
        rng.shuffle(words)
        texts.append(" ".join(words))
    return tuple(texts), np.array(rows), np.array(columns)


@lru_cache(maxsize=64)
def _count(n_documents: int, n_labels: int, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and columns of the words of the same documents, and the number of words."""
    vocabulary: dict[str, int] = {}
    for j in range(n_labels):
        for w in range(WORDS_PER_LABEL):
            vocabulary[f"word{j}x{w}"] = len(vocabulary)
    for g in range(n_labels // SIBLINGS + 1):
        vocabulary[f"group{g}"] = len(vocabulary)
    for w in range(NOISE_WORDS):
        vocabulary[f"noise{w}"] = len(vocabulary)
    rows, columns = [], []
    for i, text in enumerate(_draw(n_documents, n_labels, seed)[0]):
        for word in text.split():
            rows.append(i)
            columns.append(vocabulary[word])
    return np.array(rows), np.array(columns), len(vocabulary)


def planted_texts(n_documents: int = 600, n_labels: int = 60, seed: int = 0) -> Dataset:
    """Documents as texts; label j is called ``L<j>``."""
    texts, rows, columns = _draw(n_documents, n_labels, seed)
    labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, n_labels))
    names = Strings.of(f"L{j}" for j in range(n_labels))
    return Dataset(labels, names, texts=Strings.of(texts), name="planted")


def planted_features(n_documents: int = 600, n_labels: int = 60, seed: int = 0) -> Dataset:
    """The same documents as a sparse count matrix."""
    data = planted_texts(n_documents, n_labels, seed)
    rows, columns, n_words = _count(n_documents, n_labels, seed)
    counts = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, n_words))
    return Dataset(data.labels, data.label_names, features=counts, name="planted")


def planted_arrays(n_documents: int = 600, n_labels: int = 60, seed: int = 0) -> Dataset:
    """The same counts as pixels of square grey pictures, uint8 [documents, side, side]."""
    data: Any = planted_features(n_documents, n_labels, seed)
    side = int(np.ceil(np.sqrt(data.features.shape[1])))
    pixels = np.zeros((n_documents, side * side), np.uint8)
    pixels[:, : data.features.shape[1]] = np.minimum(data.features.toarray() * 50, 255)
    return Dataset(data.labels, data.label_names, arrays=pixels.reshape(-1, side, side), name="planted")


def planted_paths(n_documents: int = 600, n_labels: int = 60, seed: int = 0) -> Dataset:
    """The same pictures as files."""
    data: Any = planted_arrays(n_documents, n_labels, seed)
    folder = Path(_pictures().name) / f"{n_documents}-{n_labels}-{seed}"
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"{row}.pgm") for row in range(n_documents)]
    for path, picture in zip(paths, data.arrays, strict=True):
        write_picture(Path(path), picture)
    return Dataset(data.labels, data.label_names, paths=Strings.of(paths), name="planted")


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """A grey picture as a PGM file."""
    path.write_bytes(b"P5 %d %d 255\n" % pixels.shape[::-1] + pixels.tobytes())


def read_picture(path: str) -> np.ndarray:
    """What `write_picture` has written."""
    header, pixels = Path(path).read_bytes().split(b"\n", 1)
    width, height = map(int, header.split()[1:3])
    return np.frombuffer(pixels, np.uint8).reshape(height, width)


PLANTED = {
    "texts": planted_texts,
    "features": planted_features,
    "paths": planted_paths,
    "arrays": planted_arrays,
}
"""Documents of every kind a method can read."""


def planted(kind: str, **sizes: int) -> Any:
    """A Dataset of planted documents of the kind a method reads; Any, because that kind of them is there."""
    return PLANTED[kind](**sizes)


def empty_documents(data: Any, kind: str) -> Dataset:
    """Two documents in which there is nothing."""
    if kind == "texts":
        return Dataset(data.labels[:2], data.label_names, texts=Strings.of(["", " \t"]))
    if kind == "paths":
        path = Path(_pictures().name) / "black.pgm"
        write_picture(path, np.zeros_like(read_picture(data.paths[0])))
        return Dataset(data.labels[:2], data.label_names, paths=Strings.of([str(path)] * 2))
    nothing = getattr(data, kind)[:2] * 0
    return Dataset(data.labels[:2], data.label_names, **{kind: nothing})


def as_given(data: Dataset, kind: str) -> Any:
    """Documents without a data set around them, as a user holds them."""
    value = getattr(data, kind)
    return list(value) if kind in ("texts", "paths") else value


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
