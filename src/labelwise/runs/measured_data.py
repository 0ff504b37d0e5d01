"""Data for short measurements: sparse features, texts or images with a planted structure, in the shape of real tasks.

As in Amazon-670K, documents have about 76 of 135,909 words and five labels, of one topic of 100 labels; words belong to
labels, to topics or to nothing, and those of nothing follow Zipf's law.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.strings import Strings

TOPIC, WORDS = 100, 135_909
OF_LABEL, OF_TOPIC, OF_NOTHING = 5, 12, 45
PER_LABEL, PER_TOPIC = 8, 40


def planted_features(documents: int, labels: int, seed: int = 0) -> Dataset:
    """Documents with sparse features of unit norm."""
    random = np.random.default_rng(seed)
    topics = random.integers(0, max(1, labels // TOPIC), documents)
    counts = 1 + random.poisson(4.4, documents)
    rows = np.repeat(np.arange(documents), counts)
    inside = (min(TOPIC, labels) * random.random(len(rows)) ** 2).astype(np.int64)
    columns = np.minimum(topics[rows] * TOPIC + inside, labels - 1)
    order = random.permutation(WORDS)  # words of labels and topics are spread over all frequencies but the highest
    own = np.repeat(columns, OF_LABEL) * PER_LABEL + random.integers(0, PER_LABEL, len(rows) * OF_LABEL)
    shared = np.repeat(topics, OF_TOPIC) * PER_TOPIC + random.integers(0, PER_TOPIC, documents * OF_TOPIC)
    common = (WORDS ** random.random(documents * OF_NOTHING)).astype(np.int64) - 1
    words = np.concatenate([order[own % WORDS], order[(shared * 7) % WORDS], np.clip(common, 0, WORDS - 1)])
    holders = np.concatenate([np.repeat(rows, OF_LABEL), *(np.repeat(np.arange(documents), n) for n in COUNTS)])
    features = sparse.csr_array((np.ones(len(words), np.float32), (holders, words)), shape=(documents, WORDS))
    features.sum_duplicates()
    seen = np.bincount(features.indices, minlength=WORDS)
    features.data = (np.log((1 + documents) / (1 + seen)) + 1).astype(np.float32)[features.indices]
    norms = np.sqrt(np.add.reduceat(features.data**2, features.indptr[:-1]))
    features.data /= np.repeat(norms, np.diff(features.indptr))
    found = sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(documents, labels))
    found.sum_duplicates()
    found.data[:] = 1
    return Dataset(features=features, labels=found)


COUNTS = (OF_TOPIC, OF_NOTHING)


def planted_texts(documents: int, labels: int, seed: int = 0) -> Dataset:
    """The same documents as texts."""
    data = planted_features(documents, labels, seed)
    csr: Any = data.features
    parts = np.split(csr.indices, csr.indptr[1:-1])
    return Dataset(texts=Strings.of(" ".join(f"word{word}" for word in part) for part in parts), labels=data.labels)


def planted_images(documents: int, labels: int, size: int) -> Dataset:
    """Noise, each with one label."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (documents, size, size, 3), dtype=np.uint8)
    rows = np.arange(documents)
    found = sparse.csr_array((np.ones(documents, np.float32), (rows, rows % labels)), shape=(documents, labels))
    return Dataset(arrays=images, labels=found)
