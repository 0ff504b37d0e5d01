"""Data whose right answer is known: every label owns a few words, a document is made of its labels' words.

Labels sit in a planted two-level tree (siblings share words), frequencies fall off like 1/rank, and a share of noise
words comes from a common pool, so popularity is far from useless and far from enough.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset

WORDS_PER_LABEL = 4
SIBLINGS = 6
NOISE_WORDS = 40


def planted_texts(n_documents=600, n_labels=60, seed=0) -> Dataset:
    """Documents as texts; label j is called ``L<j>``."""
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
    labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, n_labels))
    return Dataset(labels, [f"L{j}" for j in range(n_labels)], texts=texts, name="planted")


def planted_features(n_documents=600, n_labels=60, seed=0) -> Dataset:
    """The same documents as a sparse count matrix."""
    data = planted_texts(n_documents, n_labels, seed)
    vocabulary: dict[str, int] = {}
    for j in range(n_labels):
        for w in range(WORDS_PER_LABEL):
            vocabulary[f"word{j}x{w}"] = len(vocabulary)
    for g in range(n_labels // SIBLINGS + 1):
        vocabulary[f"group{g}"] = len(vocabulary)
    for w in range(NOISE_WORDS):
        vocabulary[f"noise{w}"] = len(vocabulary)
    rows, columns = [], []
    for i, text in enumerate(data.texts):
        for word in text.split():
            rows.append(i)
            columns.append(vocabulary[word])
    counts = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, len(vocabulary)))
    return Dataset(data.labels, data.label_names, features=counts, name="planted")


def planted(kind: str, **sizes) -> Dataset:
    """Planted documents of the kind a method reads."""
    return planted_features(**sizes) if kind == "features" else planted_texts(**sizes)
