"""Word vectors from the labels that words occur with: a start for networks where no pretrained vectors are at hand.

A word is described by the labels of its documents, tf-idf weighted, and the table of words x labels is reduced to the
dimension of the vectors by a randomised SVD (Halko, Martinsson and Tropp, 2011). The table is never built: products
with it go through documents x words and documents x labels.

Cost: a few passes over the distinct words of each document, times the dimension; seconds for 10,000 documents.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from labelwise.encoders.words import UNKNOWN, WordTokens

OVERSAMPLING, POWER_ITERATIONS = 16, 3


def label_vectors(
    tokens: WordTokens, labels: sparse.csr_array, n_words: int, width: int, std: float, seed: int
) -> np.ndarray:
    """Vectors of all words, float32 [words, width], with this standard deviation; the unknown word has the mean."""
    words = _weighted_words(tokens, n_words)
    counts = np.bincount(labels.indices, minlength=labels.shape[1])
    # frequent labels would fill all dimensions otherwise
    targets = (labels @ sparse.diags_array(1 / np.sqrt(np.maximum(counts, 1)))).tocsr().astype(np.float32)
    words_transposed, targets_transposed = words.T.tocsr(), targets.T.tocsr()
    random = np.random.default_rng(seed)
    rank = min(width + OVERSAMPLING, n_words, labels.shape[1])
    basis = words_transposed @ (targets @ random.standard_normal((labels.shape[1], rank), np.float32))
    for _ in range(POWER_ITERATIONS):
        basis = np.linalg.qr(basis)[0]
        basis = words_transposed @ (targets @ (targets_transposed @ (words @ basis)))
    basis = np.linalg.qr(basis)[0]
    left, sizes, _ = np.linalg.svd((targets_transposed @ (words @ basis)).T, full_matrices=False)
    found = (basis @ left)[:, :width] * np.sqrt(sizes[:width])
    vectors = np.zeros((n_words, width), np.float32)
    vectors[:, : found.shape[1]] = found / max(float(np.abs(found).max()), 1e-12)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(norms, 1e-12)  # a word's norm would be its frequency
    vectors *= std * np.sqrt(width)
    vectors[UNKNOWN] = vectors[UNKNOWN + 1 :].mean(0) if n_words > 1 else 0
    return vectors


def _weighted_words(tokens: WordTokens, n_words: int) -> sparse.csr_array:
    """Tf-idf of documents x words, and each word scaled so that frequent ones do not dominate."""
    ones = np.ones(len(tokens.ids), np.float32)
    # copied, because SciPy sorts and merges in place
    counts = sparse.csr_array((ones, tokens.ids, tokens.starts), shape=(len(tokens), n_words), copy=True)
    counts.sum_duplicates()
    counts.data = 1 + np.log(counts.data)
    frequency = np.bincount(counts.indices, minlength=n_words)
    idf = 1 + np.log((1 + len(tokens)) / (1 + frequency))
    norms = np.sqrt(np.add.reduceat((counts.data * idf[counts.indices]) ** 2, counts.indptr[:-1]))
    scaled = counts.data * idf[counts.indices] / np.repeat(norms, np.diff(counts.indptr))
    counts.data = (scaled / np.sqrt(np.maximum(frequency, 1))[counts.indices]).astype(np.float32)
    return counts
