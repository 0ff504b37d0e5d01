"""What MACH has learned: networks that score buckets, one per repetition, and the search for labels by these scores.

Nothing here imports torch before a model predicts; the networks are in `labelwise.nn.sparse_mlp`, their training in
`labelwise.nn.train.repetitions`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.data.csr import pick_rows
from labelwise.data.dataset import Documents
from labelwise.errors import ModelFormatError, import_required
from labelwise.features.featurizers import Featurizer, csr_rows, saved_featurizer
from labelwise.io.folder import get_tensor
from labelwise.labelspace.bucket_search import Aggregation, BucketSearch, Score
from labelwise.labelspace.buckets import BucketTables, checked_table
from labelwise.runtime.device import computing_device, torch_threads
from labelwise.runtime.progress import progress
from labelwise.topk import TopK, sorted_by_score

log = logging.getLogger("labelwise")

AGGREGATIONS: dict[Score, Aggregation] = {"least": "least", "median": "median"}
"""How bucket scores are combined, if not by their mean."""
SCORES_AT_ONCE = 1 << 24
"""Maximum number of bucket scores in memory during prediction: 64 MB."""
MAX_REPETITIONS = 1000

ScoreForm = Literal["logits", "sigmoid", "softmax"]


@dataclass(frozen=True)
class Repetition:
    """The weights of one repetition's network.

    Parameters
    ----------
    number
        Number of the repetition, which decides its hash tables.
    tensors
        `table` [features, width], `weight0` [width, before] ..., `bias0` ..., all float32.
    buckets
        The bucket of each label, if buckets were given or learned instead of hashed.
    """

    number: int
    tensors: Mapping[str, np.ndarray]
    buckets: np.ndarray | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(np.isfinite(array).all()) for array in self.tensors.values())

    def to_tensors(self, prefix: str) -> dict[str, np.ndarray]:
        """All arrays by name."""
        tensors = {f"{prefix}{name}": array for name, array in self.tensors.items()}
        return tensors if self.buckets is None else {**tensors, f"{prefix}buckets": self.buckets}

    @classmethod
    def from_tensors(
        cls, number: int, tensors: Mapping[str, np.ndarray], prefix: str, shape: NetworkShape, n_labels: int, path: Path
    ) -> Repetition:
        """Rebuild from `to_tensors`, checked."""
        buckets = tensors.get(f"{prefix}buckets")
        if buckets is not None:
            buckets = checked_table(buckets, n_labels, shape.n_buckets, f"{path}: {prefix}buckets")
        return cls(number, shape.checked(tensors, prefix, path), buckets)


@dataclass(frozen=True)
class NetworkShape:
    """The shape of a repetition's network."""

    n_features: int
    hidden: tuple[int, ...]
    n_buckets: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all arrays of one network."""
        widths = [*self.hidden, self.n_buckets]
        shapes: dict[str, tuple[int, ...]] = {"table": (self.n_features, widths[0])}
        shapes |= {f"bias{layer}": (width,) for layer, width in enumerate(widths)}
        return shapes | {f"weight{layer}": (widths[layer + 1], widths[layer]) for layer in range(len(self.hidden))}

    def checked(self, tensors: Mapping[str, np.ndarray], prefix: str, path: Path) -> dict[str, np.ndarray]:
        """The arrays of one network from a file, checked against the shape."""
        arrays = {}
        for name, shape in self.shapes().items():
            array = get_tensor(tensors, f"{prefix}{name}", path)
            if array.shape != shape or array.dtype != np.float32:
                raise ModelFormatError(f"{path}: {prefix}{name} is {array.dtype} {array.shape}, not {shape}")
            arrays[name] = array
        return arrays


def network_shape(config: Any, n_features: int) -> NetworkShape:
    """The shape of the networks with these parameters."""
    return NetworkShape(config.feature_hashing or n_features, tuple(config.hidden), config.buckets)


def label_tables(
    config: Any, n_labels: int, numbers: Sequence[int], given: Mapping[int, np.ndarray] | None = None
) -> BucketTables:
    """The buckets of labels in some repetitions."""
    return BucketTables(n_labels, config.buckets, tuple(numbers), config.hash, config.training.seed, given or None)


def feature_rows(config: Any, n_features: int, numbers: Sequence[int]) -> list[np.ndarray] | None:
    """The row of every feature in the networks' tables; None where these are the features' numbers."""
    if config.feature_hashing is None:
        return None
    tables = BucketTables(n_features, config.feature_hashing, tuple(range(config.repetitions)))
    return [tables.table(number) for number in numbers]


class BucketModel:
    """Networks of some repetitions, and the search over their tables.

    Parameters
    ----------
    features
        What turns documents into features.
    repetitions
        The networks' weights.
    config
        The parameters that they were trained with.
    n_labels
        Number of labels.
    """

    def __init__(self, features: Featurizer, repetitions: Sequence[Repetition], config: Any, n_labels: int) -> None:
        self.features, self.repetitions, self.config, self.n_labels = features, list(repetitions), config, n_labels
        given = {one.number: one.buckets for one in repetitions if one.buckets is not None}
        self.search = BucketSearch(label_tables(config, n_labels, [one.number for one in repetitions], given))

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketModel, (self.features, self.repetitions, self.config, self.n_labels)  # weights once

    def with_repetitions(self, numbers: Sequence[int]) -> BucketModel:
        """A model of some of its repetitions."""
        held = {one.number: one for one in self.repetitions}
        return BucketModel(self.features, [held[number] for number in numbers], self.config, self.n_labels)

    @property
    def tfidf(self) -> Any:
        """The TF-IDF of the texts; None if features are given."""
        return getattr(self.features, "tfidf", None)

    # --- predict ---

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        return self._best(documents, k, config)

    def top_of(self, documents: Documents, k: int, config: Any, chosen: Any) -> TopK:
        """Restricted to some labels the search is exact; with weights, all of their scores are computed."""
        labels = None if chosen.allowed is None else np.flatnonzero(chosen.allowed)
        k = k if labels is None else min(k, len(labels))
        if chosen.weights is not None and labels is None:
            labels = np.arange(len(chosen.weights))
        return self._best(documents, k, config, labels, chosen.weights)

    def _best(self, documents: Documents, k: int, config: Any, labels: Any = None, weights: Any = None) -> TopK:
        """The k best labels of each document, or of some labels; `weights`, one per label, multiply the scores."""
        features = csr_rows(self.features, documents)
        n_buckets, aggregation, quick = self.config.buckets, config.aggregation, config.candidates
        combined = AGGREGATIONS.get(aggregation, "mean")
        at_once = max(32, SCORES_AT_ONCE // (len(self.repetitions) * n_buckets) // 32 * 32)

        def converted(scores: np.ndarray) -> np.ndarray:
            return label_scores(scores, aggregation, n_buckets)

        parts = []
        with progress("predicting", features.shape[0]) as step:
            for begin in range(0, features.shape[0], at_once):
                scores = self.bucket_scores(pick_rows(features, slice(begin, begin + at_once)), config)
                if weights is not None and labels is not None:
                    top = self.search.best_weighted(scores, k, labels, weights, converted, combined)
                elif quick is not None and labels is None:
                    top = self.search.best_candidates(scores, k, quick.buckets, quick.hits, combined)
                else:
                    top = self.search.best(scores, k, labels, combined)
                parts.append(top)
                step(len(top))
        if not parts:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        top = TopK.concatenate(parts)
        return top if weights is not None else sorted_by_score(top.ids, converted(top.scores))

    def bucket_scores(self, features: Any, config: Any) -> np.ndarray:
        """Scores of buckets [repetitions, buckets, documents] for rows of features, in the form to be combined."""
        import torch

        from labelwise.nn.sparse_mlp import SparseRows

        form = score_form(config)
        out = np.empty((len(self.repetitions), self.config.buckets, features.shape[0]), np.float32)
        with torch_threads(), torch.inference_mode():
            for index, (network, hashed) in enumerate(zip(self._networks, self._feature_rows, strict=True)):
                scores = network.scores_by_output(SparseRows.of(features, 1, hashed).to(network.table.device))[0]
                if form != "logits":
                    scores = torch.sigmoid(scores) if form == "sigmoid" else torch.softmax(scores, 0)
                out[index] = scores.cpu().numpy()
        return out

    @cached_property
    def _networks(self) -> list[Any]:
        """The networks on their device."""
        from labelwise.nn.sparse_mlp import SparseMLP

        shape = network_shape(self.config, self.features.n_features)
        return [SparseMLP.of_repetition(one, shape).to(computing_device()) for one in self.repetitions]

    @cached_property
    def _feature_rows(self) -> list[list[np.ndarray] | None]:
        """`feature_rows` of each network alone."""
        rows = feature_rows(self.config, self.features.n_features, [one.number for one in self.repetitions])
        return [None] * len(self.repetitions) if rows is None else [[one] for one in rows]

    # --- files ---

    def tensors(self) -> dict[str, np.ndarray]:
        tensors = {"repetitions": np.array([one.number for one in self.repetitions], np.int64)}
        tensors |= self.features.tensors()
        for one in self.repetitions:
            tensors |= one.to_tensors(f"repetition{one.number}.")
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> BucketModel:
        import_required("mach", "nn", "torch")
        features, config, path = saved_featurizer(tensors, about), about.config, about.path
        numbers = get_tensor(tensors, "repetitions", path)
        if (
            numbers.ndim != 1
            or numbers.dtype != np.int64
            or not 1 <= len(numbers) <= MAX_REPETITIONS
            or len(np.unique(numbers)) != len(numbers)
            or not (numbers.min() >= 0 and numbers.max() < config.repetitions)
        ):
            raise ModelFormatError(f"{path}: the list of repetitions is damaged")
        shape = network_shape(config, features.n_features)
        repetitions = [
            Repetition.from_tensors(number, tensors, f"repetition{number}.", shape, about.n_labels, path)
            for number in numbers.tolist()
        ]
        if stores_tables(config) and any(one.buckets is None for one in repetitions):
            raise ModelFormatError(f"{path}: the model was trained with given or learned buckets, which are missing")
        if len(numbers) < config.repetitions:
            log.info("%s: %d of %d repetitions are present and used", path, len(numbers), config.repetitions)
        return cls(features, repetitions, config, about.n_labels)


def stores_tables(config: Any) -> bool:
    """Whether buckets are given or learned, so that each repetition stores its own."""
    return config.lookups is not None or config.repartition is not None


def score_form(config: Any) -> ScoreForm:
    """The form in which bucket scores are combined."""
    if config.aggregation == "logits":
        return "logits"
    return "sigmoid" if config.loss == "bce" else "softmax"


def label_scores(scores: np.ndarray, aggregation: Score, n_buckets: int) -> np.ndarray:
    """Convert combined bucket scores to the scores that are predicted; -inf stays -inf."""
    if aggregation == "logits":
        converted = 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
    elif aggregation == "unbiased":
        converted = n_buckets / (n_buckets - 1) * (scores - 1 / n_buckets)
    else:
        return scores
    return np.where(np.isneginf(scores), -np.inf, converted).astype(np.float32)
