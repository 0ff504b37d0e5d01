"""What MACH has learned: networks that score buckets, one per repetition, and the search for labels by these scores.

Nothing here imports torch before a model predicts; the networks are in `labelwise.nn.buckets`, their training in
`labelwise.nn.train.repetitions`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labelwise.data.csr import pick_rows
from labelwise.data.dataset import Documents
from labelwise.errors import ModelFormatError, import_required
from labelwise.features.featurizers import Featurizer, csr_rows, saved_featurizer
from labelwise.io.folder import get_tensor
from labelwise.kernels.networks import by_column, weighted_rows
from labelwise.labelspace.bucket_search import Aggregation, BucketSearch, Score
from labelwise.labelspace.buckets import BucketTables, checked_table
from labelwise.nn.inputs import as_tensor
from labelwise.runtime.progress import progress
from labelwise.runtime.ranks import add_row_gradient
from labelwise.runtime.threads import ranges, run_all, threads
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


def feature_tables(config: Any, n_features: int) -> BucketTables | None:
    """Hash tables of the features; None if each feature has its own row."""
    if config.feature_hashing is None:
        return None
    return BucketTables(n_features, config.feature_hashing, tuple(range(config.repetitions)))


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

    def _best(
        self,
        documents: Documents,
        k: int,
        config: Any,
        labels: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> TopK:
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

        from labelwise.runtime.device import torch_threads

        form = score_form(config)
        out = np.empty((len(self.repetitions), self.config.buckets, features.shape[0]), np.float32)
        with torch_threads(), torch.inference_mode():
            for index, (network, hashed) in enumerate(zip(self._networks, self._rows_of_features, strict=True)):
                scores = network.scores_by_output(sparse_rows(features, 1, hashed).to(network.table.device))[0]
                if form != "logits":
                    scores = torch.sigmoid(scores) if form == "sigmoid" else torch.softmax(scores, 0)
                out[index] = scores.cpu().numpy()
        return out

    @cached_property
    def _networks(self) -> list[Any]:
        """The networks on their device."""
        from labelwise.runtime.device import computing_device

        shape = network_shape(self.config, self.features.n_features)
        return [stacked_networks([one], shape).to(computing_device()) for one in self.repetitions]

    @cached_property
    def _rows_of_features(self) -> list[list[np.ndarray] | None]:
        """The row of every feature in each network's table, or None where they are the features' numbers."""
        tables = feature_tables(self.config, self.features.n_features)
        return [None if tables is None else [tables.table(one.number)] for one in self.repetitions]

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


# --- sparse mlp ---
# Stacked networks over sparse rows: a table of feature vectors, hidden layers, one output per bucket.
#
# All weights of `count` networks are stacked, so that a layer of all of them is one batched product. They share only
# the documents: each may have its own feature ids (feature hashing), and no sum runs over two networks, so that each
# learns what it would learn alone. The input is never a dense matrix.

INITIAL_STD = 0.05
"""Standard deviation of the initial weights of the table."""


@dataclass(frozen=True)
class SparseRows:
    """Rows of a batch for several networks: CSR with columns [networks, entries], in each network's own feature ids."""

    indptr: Tensor
    columns: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def to(self, device: torch.device) -> SparseRows:
        """The same on another device."""
        return SparseRows(self.indptr.to(device), self.columns.to(device), self.values.to(device))


class SparseMLP(nn.Module):
    """`count` networks from sparse rows to `outputs` scores.

    Parameters
    ----------
    count
        Number of stacked networks.
    n_features
        Columns of each network's rows.
    hidden
        Widths of the hidden layers; without any, the networks are linear.
    outputs
        Scores per network.
    """

    def __init__(self, count: int, n_features: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        widths = [*hidden, outputs]
        self.count, self.n_features = count, n_features
        self.table = nn.Parameter(torch.empty(count * n_features, widths[0]))
        # one-dimensional: weight decay distinguishes biases from matrices by their number of dimensions
        self.biases = nn.ParameterList(torch.zeros(count * width) for width in widths)
        self.weights = nn.ParameterList(torch.empty(count, width, before) for before, width in pairwise(widths))
        self.embedding_tables = ("table",) if hidden else ()
        self._slots: np.ndarray | None = None

    @torch.no_grad()
    def initialise(self, seeds: Sequence[Sequence[int]], output_biases: Tensor) -> SparseMLP:
        """Draw the initial weights of each network from its own seed, and set its output biases."""
        for index, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(int(np.random.SeedSequence(list(seed)).generate_state(1)[0]))
            self.of(index, self.table).normal_(0, INITIAL_STD, generator=generator)
            for weight in self.weights:
                weight[index].normal_(0, math.sqrt(2 / weight.shape[2]), generator=generator)
        if len(self.weights):
            self.weights[-1].mul_(INITIAL_STD)  # initial outputs are close to their biases
        for bias in self.biases[:-1]:
            bias.zero_()
        self.biases[-1].copy_(output_biases.reshape(-1))
        return self

    def of(self, index: int, table: Tensor) -> Tensor:
        """The rows of the table that belong to one network."""
        return table[index * self.n_features : (index + 1) * self.n_features]

    def bias(self, layer: int) -> Tensor:
        """The biases of a layer, [networks, width]."""
        return self.biases[layer].view(self.count, -1)

    def forward(self, rows: SparseRows) -> Tensor:
        """Scores [networks, documents, outputs]."""
        layer = self._first(rows) + self.bias(0)[:, None]
        for depth, weight in enumerate(self.weights, 1):
            layer = torch.baddbmm(self.bias(depth)[:, None], functional.relu(layer), weight.mT)
        return layer

    def scores_by_output(self, rows: SparseRows) -> Tensor:
        """Scores [networks, outputs, documents], the order that decoding reads."""
        layer = self._first(rows) + self.bias(0)[:, None]
        if not len(self.weights):
            return layer.mT.contiguous()
        for depth, weight in enumerate(self.weights[:-1], 1):
            layer = torch.baddbmm(self.bias(depth)[:, None], functional.relu(layer), weight.mT)
        return torch.baddbmm(self.bias(-1)[:, :, None], self.weights[-1], functional.relu(layer).mT)

    def _first(self, rows: SparseRows) -> Tensor:
        """The first layer [networks, documents, width]: weighted sums of table rows."""
        width = self.table.shape[1]
        offsets = torch.arange(self.count, device=rows.columns.device)[:, None] * self.n_features
        columns = (rows.columns + offsets).reshape(-1)
        entries = rows.columns.shape[1]
        begins = torch.arange(self.count, device=rows.indptr.device)[:, None] * entries + rows.indptr[None, :-1]
        values = rows.values.expand(self.count, -1).reshape(-1)
        if self.table.device.type == "cpu":
            indptr = torch.cat([begins.reshape(-1), torch.tensor([self.count * entries])])
            sums: Any = _FirstLayer.apply(self.table, indptr, columns, values, self)
        else:
            sums = functional.embedding_bag(
                columns, self.table, begins.reshape(-1), mode="sum", sparse=True, per_sample_weights=values
            )
        return sums.reshape(self.count, len(rows), width)

    def slots(self) -> np.ndarray:
        """Working memory of one integer per table row, for sorting entries by column."""
        if self._slots is None or len(self._slots) != len(self.table):
            self._slots = np.full(len(self.table), -1, np.int32)
        return self._slots


class _FirstLayer(torch.autograd.Function):
    """Weighted sums of table rows; the gradient has only the rows that were read."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, indptr: Tensor, columns: Tensor, values: Tensor, owner: SparseMLP) -> Tensor:
        ctx.entries = indptr, columns, values
        ctx.table, ctx.owner = table, owner
        out = table.new_empty(len(indptr) - 1, table.shape[1])
        arrays = [part.detach().numpy() for part in (indptr, columns, values, table)]
        target = out.numpy()
        run_all(lambda part: weighted_rows(*arrays, *part, target), ranges(len(target), 4 * threads()))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        (gradients,) = grad_outputs
        indptr, columns, values = (part.numpy() for part in ctx.entries)
        used, begins, rows, weights = by_column(indptr, columns, values, ctx.owner.slots())
        out = np.empty((len(used), gradients.shape[1]), np.float32)
        source = gradients.contiguous().numpy()
        run_all(lambda part: weighted_rows(begins, rows, weights, source, *part, out), ranges(len(used), 4 * threads()))
        add_row_gradient(ctx.table, torch.from_numpy(used.astype(np.int64)), torch.from_numpy(out))
        return None, None, None, None, None


# --- bucket loss ---
# Losses of bucket scores for several stacked networks: cross-entropy per bucket, or one softmax over all buckets.
#
# Value and gradients are computed together, so that autograd keeps one array of scores and not four.

Loss = Literal["bce", "softmax"]


@dataclass(frozen=True)
class BucketTargets:
    """The buckets of each document's labels as (network, document, bucket, fraction) without duplicates.

    The fractions of a document add up to 1 in each network, for softmax. Cross-entropy per bucket ignores them.
    """

    indices: Tensor
    """[3, entries]: network, document, bucket."""
    fractions: Tensor

    @classmethod
    def of_rows(cls, labels: Any, rows: np.ndarray, tables: list[np.ndarray], n_buckets: int) -> BucketTargets:
        """The buckets of some rows of a label matrix, by the bucket tables of some repetitions."""
        picked = pick_rows(labels, rows)
        counts = np.diff(picked.indptr)
        documents = np.repeat(np.arange(len(rows)), counts)
        weights = np.repeat(1 / np.maximum(counts, 1), counts)
        networks, where, fractions = [], [], []
        for network, table in enumerate(tables):
            keys, inverse = np.unique(documents * n_buckets + table[picked.indices], return_inverse=True)
            networks.append(np.full(len(keys), network))
            where.append(keys)
            fractions.append(np.bincount(inverse, weights, len(keys)))
        every = np.concatenate(where)
        indices = np.stack([np.concatenate(networks), every // n_buckets, every % n_buckets])
        return cls(torch.from_numpy(indices), torch.from_numpy(np.concatenate(fractions).astype(np.float32)))


def bucket_loss(scores: Tensor, targets: BucketTargets, name: Loss) -> Tensor:
    """The mean loss over documents, summed over buckets and networks; networks do not affect each other's gradients."""
    loss: Any = _BucketLoss.apply(scores, targets.indices, targets.fractions, name)
    return loss


class _BucketLoss(torch.autograd.Function):
    """Value and gradients in one pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, indices: Tensor, fractions: Tensor, name: Loss) -> Tensor:
        at = tuple(indices)
        if name == "bce":
            value = functional.softplus(scores).sum(dtype=torch.float64) - scores[at].sum(dtype=torch.float64)
            gradients = torch.sigmoid(scores)
            gradients[at] -= 1
        else:
            normal = torch.logsumexp(scores, 2)
            has_labels = torch.zeros_like(normal)
            has_labels[at[0], at[1]] = 1  # documents without labels have no loss
            value = (normal * has_labels).sum(dtype=torch.float64) - (fractions * scores[at]).sum(dtype=torch.float64)
            gradients = torch.exp(scores - normal[:, :, None]).mul_(has_labels[:, :, None])
            gradients[at] -= fractions
        count = max(scores.shape[1], 1)
        ctx.gradients = gradients.mul_(1 / count)
        return (value / count).to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override]
        gradients, ctx.gradients = ctx.gradients, None
        (outer,) = grad_outputs
        return (gradients if float(outer) == 1.0 else gradients.mul_(outer)), None, None, None


# --- networks of repetitions ---


def stacked_networks(repetitions: Sequence[Repetition], sizes: NetworkShape) -> SparseMLP:
    """The networks of some repetitions, stacked; a single one shares its arrays."""
    with torch.device("meta"):
        network = SparseMLP(len(repetitions), sizes.n_features, sizes.hidden, sizes.n_buckets)
    held = [repetition.tensors for repetition in repetitions]
    one = len(held) == 1

    def joined(name: str) -> Tensor:
        arrays = [as_tensor(tensors[name]) for tensors in held]
        return arrays[0][None] if one else torch.stack(arrays)

    values = {"table": joined("table").flatten(0, 1)}
    values |= {f"biases.{layer}": joined(f"bias{layer}").flatten() for layer in range(len(network.biases))}
    values |= {f"weights.{layer}": joined(f"weight{layer}") for layer in range(len(network.weights))}
    network.load_state_dict(values, assign=True)
    return network.requires_grad_(False).eval()


def repetition_of(network: SparseMLP, index: int, number: int, buckets: np.ndarray | None) -> Repetition:
    """One network of the stack as a `Repetition`; its arrays are copied."""
    tensors = {"table": network.of(index, network.table.detach())}
    tensors |= {f"bias{layer}": network.bias(layer).detach()[index] for layer in range(len(network.biases))}
    tensors |= {f"weight{layer}": weight.detach()[index] for layer, weight in enumerate(network.weights)}
    return Repetition(number, {name: part.cpu().numpy().copy() for name, part in tensors.items()}, buckets)


def sparse_rows(features: Any, count: int, hashed: Sequence[np.ndarray] | None) -> SparseRows:
    """Rows of a feature matrix for `count` networks, with each network's own feature ids."""
    columns = features.indices.astype(np.int64)
    every = np.stack([table[columns].astype(np.int64) for table in hashed]) if hashed else columns[None]
    if not hashed and count > 1:
        every = np.broadcast_to(every, (count, len(columns)))
    return SparseRows(
        torch.from_numpy(features.indptr.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(every)),
        torch.from_numpy(np.ascontiguousarray(features.data, np.float32)),
    )
