"""Decode scores of digits to labels: the exact k best of all labels, for any number of digits.

The score of a label is the sum of its digits' scores. Neither all sums nor all codes are ever computed: documents x k x
radix additions per digit suffice (`kernels/digits/digit_scan.py`), and surplus codes are never among the best.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labelwise.codes.digits import DigitCode
from labelwise.kernels.digits.digit_scan import best_codes
from labelwise.parallel import ranges, run_all, threads

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
        Labels per document. Ties are in the order of codes; ranks without a finite score have id -1 and score -inf.
    """
    if scores.ndim != 2 or scores.shape[1] != sum(code.sizes):
        raise ValueError(f"scores have shape {scores.shape}, the code has {sum(code.sizes)} values of digits")
    scores = np.ascontiguousarray(scores, np.float32)
    best = np.full((len(scores), k), -np.inf, np.float32)
    codes = np.full((len(scores), k), -1, np.int64)
    kernel: Any = best_codes
    radices = np.array(code.radices, np.int64)
    parts = ranges(len(scores), threads() if len(scores) * k * scores.shape[1] > FEW else 1)
    run_all(lambda part: kernel(scores, radices, code.n_labels, best, codes, *part), parts)
    return code.labels(codes), best
