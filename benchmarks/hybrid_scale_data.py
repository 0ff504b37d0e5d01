"""Data in the shape of Amazon-670K for `hybrid_scale.py` and `linear_scale.py`: words, vectors and labels.

Structure is planted, so that something can be learned: a label has words of its own, labels of a topic share words, and
other words have no meaning and follow Zipf's law. Topics may be grouped into categories, and these again, as in a shop:
topics of a category share words too.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse


class Shape(NamedTuple):
    """Counts of a data set."""

    labels: int
    train: int
    test: int


FULL = Shape(670_091, 490_449, 153_025)
WORDS, WORDS_PER_DOCUMENT, LABELS_PER_DOCUMENT, WIDTH = 135_909, 76, 5.45, 384
TOPIC, FEWEST = 100, 30
"""Labels and fewest documents per topic."""
PER_LABEL, PER_TOPIC, TABLE, ROWS = 8, 40, 8192, 20_000
LABEL_WORDS, TOPIC_WORDS = 5, 12
"""Words of each of its labels and of its topic that a document has, before duplicates are merged."""
BRANCHING, CATEGORY_WORDS = 16, 4
"""Topics, or categories, per category; words of each category above its topic that a document has."""


def draw(
    n_labels: int,
    folder: Path,
    kind: str | None,
    fraction: float,
    every: tuple[str, ...] = ("train", "test"),
    categories: bool = False,
) -> dict[str, float]:
    """Write features and labels of both parts to the folder; returns their counts.

    Without a `kind`, no vectors. Every label occurs in the parts `every`, in others as often as it is popular.
    With `categories` there are as many layers of them above topics as it takes to get to one.
    """
    ratio = n_labels / FULL.labels
    random = np.random.default_rng(0)
    n_topics = -(-n_labels // TOPIC)
    popular = np.sort(random.lognormal(0, 1, n_topics))[::-1]
    names = random.permutation(n_labels)  # label ids do not reveal topics
    idf = None
    counts: dict[str, float] = {}
    for part, documents in (("train", int(FULL.train * ratio * fraction)), ("test", int(FULL.test * ratio))):
        topics = _topics(documents, n_topics, popular, random)
        labels = _labels(topics, n_labels, random, part in every)
        words = _words(topics, labels, random, categories)
        if idf is None:
            seen = np.bincount(words.indices, minlength=WORDS)
            idf = np.log((1 + documents) / (1 + seen)).astype(np.float32) + 1
        words.data = idf[words.indices]
        words.data /= np.repeat(np.sqrt(np.add.reduceat(words.data**2, words.indptr[:-1])), np.diff(words.indptr))
        if kind is not None:
            _write_vectors(folder / f"{part}.npy", topics, labels, kind, random)
        named = sparse.csr_matrix((labels.data, names[labels.indices], labels.indptr), shape=labels.shape)
        named.sort_indices()
        sparse.save_npz(folder / f"{part}.npz", sparse.csr_matrix(words), compressed=False)
        sparse.save_npz(folder / f"{part}_labels.npz", named, compressed=False)
        if part == "train":
            per_label = np.bincount(labels.indices, minlength=n_labels)
            size = 8 * (words.nnz + labels.nnz) + 8 * documents
            size += 0 if kind is None else (folder / "train.npy").stat().st_size
            counts |= {"documents": documents, "non-zeros": int(words.nnz), "ones": int(labels.nnz), "data bytes": size}
            counts |= {"rarest": int(per_label.min()), "most frequent": int(per_label.max())}
            counts["median"] = float(np.median(per_label))
        else:
            counts["test documents"] = documents
    return counts


def _topics(documents: int, n_topics: int, popular: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The topic of each document: each has a few, popular ones have many more."""
    fixed = np.repeat(np.arange(n_topics), min(FEWEST, documents // n_topics))
    more = random.choice(n_topics, documents - len(fixed), p=popular / popular.sum())
    return random.permutation(np.concatenate([fixed, more]))


def _labels(topics: np.ndarray, n_labels: int, random: np.random.Generator, every: bool) -> sparse.csr_array:
    """Labels of each document: `every` label of a topic once, as far as documents suffice, then popular ones."""
    counts = 1 + random.poisson(LABELS_PER_DOCUMENT * 1.06 - 1, len(topics))  # some are drawn twice
    rows = np.repeat(np.arange(len(topics)), counts)
    order = np.lexsort((random.random(len(rows)), topics[rows]))
    rows = rows[order]
    topic = topics[rows]
    rank = np.arange(len(rows)) - np.searchsorted(topic, topic)
    size = np.minimum(TOPIC, n_labels - topic * TOPIC)
    inside = np.where(every & (rank < size), rank, (size * random.random(len(rows)) ** 3).astype(np.int64))
    found = sparse.csr_array(
        (np.ones(len(rows), np.float32), (rows, topic * TOPIC + inside)), shape=(len(topics), n_labels)
    )
    found.data[:] = 1
    return found


def _hashed(number: np.ndarray, salt: int, size: int) -> np.ndarray:
    """A pseudo-random number below `size` for each number."""
    mixed = (number.astype(np.uint64) + np.uint64(salt * 0x9E3779B9)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(33)) % np.uint64(size)).astype(np.int64)


def _words(
    topics: np.ndarray, labels: sparse.csr_array, random: np.random.Generator, categories: bool
) -> sparse.csr_array:
    """Words of each document, by rank of frequency: those of labels and topics are rare, others follow Zipf's law."""
    n = len(topics)
    of_label = np.repeat(np.arange(n), np.diff(labels.indptr) * LABEL_WORDS)
    chosen = random.integers(0, PER_LABEL, len(of_label)) + PER_LABEL * np.repeat(labels.indices, LABEL_WORDS)
    of_topic = np.repeat(np.arange(n), TOPIC_WORDS)
    general = random.integers(0, PER_TOPIC, len(of_topic)) + PER_TOPIC * np.repeat(topics, TOPIC_WORDS)
    rows, columns = [of_label, of_topic], [_hashed(chosen, 1, WORDS), _hashed(general, 2, WORDS)]
    above, salt = topics // BRANCHING, 7
    while categories and above.any():
        rows.append(np.repeat(np.arange(n), CATEGORY_WORDS))
        own = random.integers(0, PER_TOPIC, len(rows[-1])) + PER_TOPIC * np.repeat(above, CATEGORY_WORDS)
        columns.append(_hashed(own, salt, WORDS))
        above, salt = above // BRANCHING, salt + 1
    typical = 40 - CATEGORY_WORDS * (len(rows) - 2)
    lengths = np.maximum(5, random.lognormal(np.log(typical), 0.7, n)).astype(np.int64)
    of_none = np.repeat(np.arange(n), lengths)
    common = np.minimum(WORDS - 1, (WORDS ** random.random(len(of_none))).astype(np.int64) - 1)
    entries = (np.concatenate([*rows, of_none]), np.concatenate([*columns, common]))
    found = sparse.csr_array((np.ones(len(entries[0]), np.float32), entries), shape=(n, WORDS))
    found.sort_indices()
    return found


def _write_vectors(path: Path, topics: np.ndarray, labels: sparse.csr_array, kind: str, random) -> None:
    """Vectors of unit norm: the direction of the topic, the mean direction of the labels, and noise."""
    table = np.random.default_rng(1).normal(size=(TABLE, WIDTH)).astype(np.float32)
    written = np.lib.format.open_memmap(path, "w+", kind, (len(topics), WIDTH))
    for first in range(0, len(topics), ROWS):
        part = labels[first : first + ROWS]
        directions = sum(table[_hashed(part.indices, salt, TABLE)] for salt in (3, 4))
        means = np.add.reduceat(directions, part.indptr[:-1]) / np.diff(part.indptr)[:, None]
        own = topics[first : first + ROWS]
        vectors = means + sum(table[_hashed(own, salt, TABLE)] for salt in (5, 6))
        vectors += random.normal(size=vectors.shape).astype(np.float32)
        written[first : first + ROWS] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    written.flush()
