"""Random predictions and truth, and every metric written down from its definition with Python sets.

Nothing here shares code with the package: documents are lists, sums are loops, ranks are places in a list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from labelwise.topk import TopK


@dataclass
class Case:
    """Predictions as (label, score) lists and truth as sets, over labels 0 to n_labels - 1."""

    predicted: list[list[tuple[int, float]]]
    truth: list[set[int]]
    n_labels: int
    k: int
    train: list[int]
    n_train: int

    @cached_property
    def top(self) -> TopK:
        ids = np.full((len(self.predicted), self.k), -1, np.int32)
        scores = np.full((len(self.predicted), self.k), -np.inf, np.float32)
        for row, pairs in enumerate(self.predicted):
            for place, (label, score) in enumerate(pairs):
                ids[row, place], scores[row, place] = label, score
        return TopK(ids, scores)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        return matrix(self.truth, self.n_labels)

    def lists(self, k: int | None = None, threshold: float | None = None) -> list[list[int]]:
        kept = [[(label, s) for label, s in row if threshold is None or s >= threshold] for row in self.predicted]
        return [[label for label, _ in row][:k] for row in kept]


def matrix(truth: list[set[int]], n_labels: int) -> sparse.csr_array:
    dense = np.zeros((len(truth), n_labels), np.float32)
    for row, labels in enumerate(truth):
        dense[row, sorted(labels)] = 1
    return sparse.csr_array(dense)


@st.composite
def cases(draw: st.DrawFn, min_documents: int = 1, max_documents: int = 12) -> Case:
    """Small cases with everything odd in them: empty rows on both sides, short lists, equal scores."""
    n_labels = draw(st.integers(1, 12))
    k = draw(st.integers(1, 6))
    n_documents = draw(st.integers(min_documents, max_documents))
    labels = st.integers(0, n_labels - 1)
    predicted = []
    for _ in range(n_documents):
        row = draw(st.lists(labels, max_size=min(k, n_labels), unique=True))
        scores = draw(st.lists(st.integers(0, 4), min_size=len(row), max_size=len(row)))
        pairs = sorted(zip(row, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))
        predicted.append([(label, score / 4) for label, score in pairs])
    truth = [draw(st.sets(labels, max_size=8)) for _ in range(n_documents)]
    truth[0] = truth[0] if any(truth) else {0}  # without any label there is nothing to evaluate
    n_train = draw(st.integers(3, 500))
    train = draw(st.lists(st.integers(0, n_train), min_size=n_labels, max_size=n_labels))
    return Case(predicted, truth, n_labels, k, train, n_train)


@cache
def big_case(seed: int, n_documents: int, n_labels: int = 50, k: int = 6) -> Case:
    """A larger case drawn by seed: rare and frequent labels, a tenth of the documents without labels."""
    random = np.random.default_rng(seed)
    chance = np.log(1 / np.arange(1, n_labels + 1))
    # The largest of log probability + Gumbel noise are labels drawn without replacement.
    drawn, guessed = (np.argsort(-chance - random.gumbel(size=(n_documents, n_labels)), axis=1) for _ in range(2))
    sizes = np.where(random.random(n_documents) < 0.1, 0, random.integers(1, 9, n_documents))
    lengths = random.integers(0, k + 1, n_documents)
    scores = random.random((n_documents, k)).astype(np.float32)
    predicted, truth = [], []
    for row in range(n_documents):
        truth.append(set(drawn[row, : sizes[row]].tolist()))
        length = lengths[row]
        predicted.append(
            list(zip(guessed[row, :length].tolist(), sorted(scores[row, :length].tolist())[::-1], strict=True))
        )
    train = random.integers(0, 200, n_labels).tolist()
    return Case(predicted, truth, n_labels, k, train, 1000)


# --- definitions -----------------------------------------------------------------------------------------------------


def mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def by(above: float, below: float) -> float:
    return above / below if below else 0.0


def precision(case: Case, k: int) -> float:
    return mean([len(set(row) & true) / k for row, true in zip(case.lists(k), case.truth, strict=True)])


def recall(case: Case, k: int) -> float:
    return mean([by(len(set(row) & true), len(true)) for row, true in zip(case.lists(k), case.truth, strict=True)])


def r_precision(case: Case, k: int) -> float:
    pairs = zip(case.lists(k), case.truth, strict=True)
    return mean([by(len(set(row) & true), min(k, len(true))) for row, true in pairs])


def dcg(gains: list[float]) -> float:
    return math.fsum(gain / math.log2(place + 1) for place, gain in enumerate(gains, start=1))


def ndcg(case: Case, k: int) -> float:
    pairs = zip(case.lists(k), case.truth, strict=True)
    return mean([by(dcg([label in true for label in row]), dcg([1] * min(k, len(true)))) for row, true in pairs])


def inverse_propensity(count: int, n: int, a: float, b: float) -> float:
    c = (math.log(n) - 1) * (b + 1) ** a
    return 1 + c * math.exp(-a * math.log(count + b))


def ps_precision(case: Case, k: int, a: float = 0.55, b: float = 1.5) -> float:
    weight = [inverse_propensity(count, case.n_train, a, b) for count in case.train]
    got = best = 0.0
    for row, true in zip(case.lists(k), case.truth, strict=True):
        got += sum(weight[label] for label in row if label in true)
        best += sum(sorted((weight[label] for label in true), reverse=True)[:k])
    return by(got, best)


def ps_ndcg(case: Case, k: int, a: float = 0.55, b: float = 1.5) -> float:
    weight = [inverse_propensity(count, case.n_train, a, b) for count in case.train]
    got = best = 0.0
    for row, true in zip(case.lists(k), case.truth, strict=True):
        ideal = dcg([1] * min(k, len(true)))
        got += by(dcg([weight[label] * (label in true) for label in row]), ideal)
        best += by(dcg(sorted((weight[label] for label in true), reverse=True)[:k]), ideal)
    return by(got, best)


def coverage(case: Case, k: int) -> float:
    present = set().union(*case.truth)
    result = set().union(*(set(row) & true for row, true in zip(case.lists(k), case.truth, strict=True)))
    return by(len(result), len(present))


def micro_f1(case: Case, lists: list[list[int]]) -> float:
    hits = sum(len(set(row) & true) for row, true in zip(lists, case.truth, strict=True))
    return by(2 * hits, sum(map(len, lists)) + sum(map(len, case.truth)))


def example_f1(case: Case, lists: list[list[int]]) -> float:
    pairs = zip(lists, case.truth, strict=True)
    return mean([by(2 * len(set(row) & true), len(row) + len(true)) for row, true in pairs])


def macro_f1(case: Case, lists: list[list[int]]) -> float:
    scores = []
    for label in range(case.n_labels):
        predicted = {row for row, labels in enumerate(lists) if label in labels}
        true = {row for row, labels in enumerate(case.truth) if label in labels}
        if predicted or true:
            scores.append(2 * len(predicted & true) / (len(predicted) + len(true)))
    return mean(scores) if scores else 0.0


AT_K = {
    "P": precision,
    "R": recall,
    "RP": r_precision,
    "nDCG": ndcg,
    "PSP": ps_precision,
    "PSnDCG": ps_ndcg,
    "coverage": coverage,
    "micro-F1": lambda case, k: micro_f1(case, case.lists(k)),
    "macro-F1": lambda case, k: macro_f1(case, case.lists(k)),
    "example-F1": lambda case, k: example_f1(case, case.lists(k)),
}
AT_THRESHOLD = {"micro-F1": micro_f1, "macro-F1": macro_f1, "example-F1": example_f1}
