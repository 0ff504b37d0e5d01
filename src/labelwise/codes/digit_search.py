"""Decode scores of digits to labels: the exact k best of all labels, for any number of digits.

The score of a label is the sum of its digits' scores. For usual k neither all sums nor all codes are computed:
documents x k x radix additions per digit suffice (`kernels/digits/digit_scan.py`). Surplus codes are never among the
best.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labelwise.codes.digits import DigitCode
from labelwise.kernels.digits.digit_scan import best_codes
from labelwise.parallel import ranges, run_all, threads

INSERTIONS_PER_LABEL = 16
"""The kernel inserts into sorted lists, k x k moves; beyond so many per label it is faster to sort all labels."""
FEW = 1 << 18
"""Additions up to which one thread is used."""


def best_labels_of_digits(scores: np.ndarray, code: DigitCode, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and scores [documents, k] of the labels with the highest sums, best first.

    Parameters
    ----------
    scores
        float32 [documents, sum of `code.sizes`]: the scores of each digit's values, digit after digit.
    code
        The digits of the labels.
    k
        Labels per document. Ties are in the order of ids; ranks without a finite score have id -1 and score -inf.
    """
    if scores.ndim != 2 or scores.shape[1] != sum(code.sizes):
        raise ValueError(f"scores have shape {scores.shape}, the code has {sum(code.sizes)} values of digits")
    scores = np.ascontiguousarray(scores, np.float32)
    found = k if code.label_at is None else k + 1  # one more shows whether other labels tie with the last
    best = np.full((len(scores), found), -np.inf, np.float32)
    codes = np.full((len(scores), found), -1, np.int64)
    kernel: Any = best_codes
    radices = np.array(code.radices, np.int64)
    parts = ranges(len(scores), threads() if len(scores) * k * scores.shape[1] > FEW else 1)
    if k * k > INSERTIONS_PER_LABEL * code.n_labels:
        run_all(lambda part: _sort_all(scores, code, best, codes, *part), parts)
    else:
        run_all(lambda part: kernel(scores, radices, code.n_labels, best, codes, *part), parts)
    ids = code.labels(codes)
    return (ids, best) if code.label_at is None else _by_label(ids, best, scores, code, k)


def _by_label(
    ids: np.ndarray, best: np.ndarray, scores: np.ndarray, code: DigitCode, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first k of k + 1 labels whose ties are in the order of codes, with ties in the order of labels."""
    for document in np.flatnonzero((best[:, k] == best[:, k - 1]) & (best[:, k] > -np.inf)):
        sums = _all_sums(scores[document], code)[code.code_of]
        above = np.flatnonzero(sums > best[document, k])
        ids[document, :k] = np.concatenate([above, np.flatnonzero(sums == best[document, k])])[:k]
        best[document, :k] = sums[ids[document, :k]]
    ids, best = ids[:, :k], best[:, :k]
    order = np.lexsort((ids, -best), axis=1)
    return np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)


def _all_sums(scores: np.ndarray, code: DigitCode) -> np.ndarray:
    """The scores of all codes for one document, with the kernel's additions."""
    sums = np.zeros(1, np.float32)
    for digit, part in enumerate(np.split(scores, np.cumsum(code.sizes)[:-1])):
        sums = (sums[:, None] + part).ravel()[: code.n_nodes(digit)]
    return sums


def _sort_all(scores: np.ndarray, code: DigitCode, best: np.ndarray, codes: np.ndarray, begin: int, end: int) -> None:
    """What the kernel does, by sorting the sums of all labels of one document after the other."""
    for document in range(begin, end):
        sums = _all_sums(scores[document], code)
        order = np.argsort(-sums, kind="stable")[: best.shape[1]]
        order = order[sums[order] > -np.inf]  # NaN is not
        best[document, : len(order)], codes[document, : len(order)] = sums[order], order
