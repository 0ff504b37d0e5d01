"""MACH: labels hashed into buckets by several hash functions, small bucket classifiers, labels from bucket scores.

Known from Medini et al., "Extreme Classification in Log Memory using Count-Min Sketch" (NeurIPS 2019). R hash tables
assign the labels to B buckets each, and one network per table predicts the buckets of a document's labels. A label's
score is combined from the scores of its R buckets.

Cost: training is R networks of documents x (entries + B) x width, prediction the same for one pass and labels x R bytes
read per document. Memory: R x (features + B) x width weights, whatever the number of labels; beside them two
bytes per label and table, or none with universal hashing. Repetitions share nothing but the data and can be
trained by separate processes or machines. Good for millions of labels with little memory, and for training
on many machines without communication; the linear tree is usually more accurate.
What we do differently: documents are shuffled fully, biases start at the buckets' log-odds, decoding is exact for all
labels without an array of documents x labels, and metrics are the usual ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from labelwise.config import PART, Decides, deciding_json
from labelwise.config import Config as BaseConfig
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, ModelFormatError, import_required
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.io.folder import get_tensor
from labelwise.labelspace.bucket_search import BucketSearch, Score
from labelwise.labelspace.buckets import (
    BucketTables,
    Hash,
    RepartitionConfig,
    bucket_dtype,
    checked_table,
    read_lookups,
)
from labelwise.labelspace.proposals import ORDER_BYTES
from labelwise.methods.text_features import TextFeatures
from labelwise.model.inputs import Documents
from labelwise.model.old_method import OldMethod as Method
from labelwise.model.predictions import LabelFilter
from labelwise.nn.config import (
    Count,
    OptimiserConfig,
    Positive,
    ScheduleConfig,
    TrainingConfig,
)
from labelwise.nn.cost import bucket_size, network_cost
from labelwise.runtime.job import Job, limited_time
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.nn.buckets import BucketDecoder, Decoding, NetworkShape, Repetition
    from labelwise.nn.train.repetitions import RepetitionTraining

log = logging.getLogger("labelwise")

MAX_REPETITIONS = 1000


class MachTraining(TrainingConfig):
    """Training of repetitions: Adam with linear decay of the rate, to the end of the last epoch."""

    batch_size: Count = 256
    """Documents per batch."""
    clip: Positive | Literal["adaptive"] | None = None
    """Maximum gradient norm; only with `at_once: 1`, because the norm is over all weights."""
    optimiser: OptimiserConfig = OptimiserConfig(name="adam")
    """The optimiser and its settings."""
    schedule: ScheduleConfig = ScheduleConfig(kind="linear")
    """The learning rate schedule."""
    validate_every: Count | Literal["epoch"] | None = None
    """Steps between two validations, or every epoch, or null: never."""
    restore_best: bool = False
    """Keep the weights of the best validation rather than the last ones; only with `at_once: 1`."""


class CandidatesConfig(BaseConfig):
    """Score only the labels of the best buckets."""

    buckets: Annotated[int, Field(ge=1)] = 50
    """Number of best buckets per table whose labels are candidates."""
    hits: Annotated[int, Field(ge=1, le=255)] = 2
    """Minimum number of tables in which a label must be a candidate to be scored."""


class Mach(TextFeatures, Method):
    """Labels hashed into buckets: memory that does not grow with the labels, training without communication."""

    name = "mach"
    needs = ("torch",)
    good_for = "hundreds of thousands of labels and more, memory that one output per label exceeds"
    speed = "minutes to hours on a CPU"
    inputs = ("features", "texts")
    same_on_any_threads = False
    validates = True
    chooses_labels = True
    trains_in_parts = True
    trains_on_ranks = True
    trains_in_tasks = True
    plans = True
    changeable = ("score", "candidates")
    presets = {
        "cpu": {"repetitions": 4, "buckets": 300, "training": {"batch_size": 64, "optimiser": {"rate": 4e-3}}},
    }

    class Config(BaseConfig):
        """Parameters."""

        repetitions: Annotated[int, Field(ge=1, le=MAX_REPETITIONS), Decides.ASSEMBLY] = 8
        """Number of hash tables, each with its own network (R)."""
        buckets: Annotated[int, Field(ge=2, le=1 << 24)] = 1000
        """Buckets per table (B)."""
        hash: Hash = "murmur"
        """murmur: the tables of the original implementation, bit for bit; universal: computed when needed, not stored;
        balanced: a random permutation cut into equal parts."""
        lookups: str | None = None
        """Folder with tables in the original's format (bucket_order_0.npy ...), instead of hashing."""
        feature_hashing: Annotated[int, Field(ge=1)] | None = None
        """Number of rows that features are hashed into, differently in each repetition; null: one row per feature."""
        hidden: list[Annotated[int, Field(ge=1)]] = [256]
        """Widths of the hidden layers; without any, the networks are linear."""
        loss: Literal["bce", "softmax"] = "bce"
        """bce: a document may have many labels; softmax: it has one (ODP, ImageNet)."""
        score: Annotated[Score | None, Decides.ASSEMBLY] = None
        """How bucket scores are combined to a label's score: the mean of log-odds (logits), the mean, minimum (least)
        or median of probabilities, or the unbiased estimator of the label's probability, which is meant for softmax.
        null is logits with bce and unbiased with softmax."""
        candidates: Annotated[CandidatesConfig | None, Decides.ASSEMBLY] = None
        """Score only labels of the best buckets; null: all labels, exactly. Predictions restricted to some labels, or
        with label weights, score all of those."""
        repartition: RepartitionConfig | None = None
        """Learn the buckets of labels during training; null keeps the hashed ones."""
        training: MachTraining = MachTraining()
        """Settings of training, for each repetition."""
        at_once: Annotated[int, Field(ge=1, le=32), Decides.NOTHING] = 1
        """Repetitions that one process trains at the same time, in batched products; the result is the same."""
        repetitions_folder: Annotated[str | None, Decides.NOTHING] = None
        """Folder of finished repetitions, one file per repetition, which several processes may fill; null keeps them
        with the run."""
        missing: Annotated[Literal["train", "leave"], Decides.ASSEMBLY] = "train"
        """What to do with repetitions that are not finished: train them, or build a model without them."""
        tfidf: TfidfConfig = LINEAR_TFIDF
        """How texts become features."""

        @model_validator(mode="after")
        def _check(self) -> Self:
            if self.at_once > 1:
                if self.training.clip is not None:
                    raise ValueError("training.clip uses the norm of all weights, so it needs at_once: 1")
                if self.training.restore_best or self.training.early_stopping is not None:
                    raise ValueError(
                        "training.restore_best and early_stopping apply to one repetition: set at_once to 1"
                    )
            if self.training.restore_best and self.training.validate_every is None:
                raise ValueError("training.restore_best needs validation: set training.validate_every")
            if self.training.tokens_per_batch is not None:
                raise ValueError("training.tokens_per_batch has no effect: features have no tokens; set batch_size")
            if self.repartition is not None and (self.training.epochs is None or self.training.steps is not None):
                raise ValueError("repartition counts epochs: give training.epochs, and no steps")
            if self.repartition is not None:
                self.repartition.check_choices(self.buckets)
            if self.missing == "leave" and self.repetitions_folder is None:
                raise ValueError("missing: leave needs a repetitions_folder with finished ones")
            return self

        @property
        def aggregation(self) -> Score:
            """How the scores of a label's buckets are combined."""
            return self.score or ("logits" if self.loss == "bce" else "unbiased")

    repetitions_: list[Repetition]
    _decoder: BucketDecoder

    # --- fit ---

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        self.check_needs()
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            training = self._training(data, kind, valid, job)
            folder, config = self._folder(job), self.config
            numbers = range(config.repetitions)
            if config.missing == "leave":
                self.repetitions_ = training.finished(numbers, folder)
                if not self.repetitions_:
                    raise ConfigError(f"repetitions_folder: no finished repetition of this training is in {folder}")
                log.info("%d of %d repetitions are finished and used", len(self.repetitions_), config.repetitions)
            else:
                self.repetitions_ = training.run(numbers, folder, config.at_once)
        self._decoder = self._built_decoder(data.n_labels, training.data.features.shape[1])

    def check_parts(self, numbers: Sequence[int]) -> Path:
        """Raise unless these are repetitions of this model; returns the folder of finished ones."""
        folder, count = self.config.repetitions_folder, self.config.repetitions
        if folder is None:
            raise ConfigError(
                "to train single repetitions set repetitions_folder, the folder of finished ones, for example "
                "--set model.repetitions_folder=runs/mach-repetitions"
            )
        unknown = [number for number in numbers if not 0 <= number < count]
        if unknown:
            raise ConfigError(f"there are repetitions 0 to {count - 1}, not {unknown[0]}")
        return Path(folder)

    def fit_parts(
        self, data: Dataset, numbers: Sequence[int], valid: Dataset | None = None, job: Job | None = None
    ) -> Path:
        """Train some repetitions and write them to `repetitions_folder`, where `fit` reads them.

        Several processes on several machines may do so at the same time; finished ones are not trained again.
        """
        self.check_needs()
        from labelwise.runtime.device import torch_threads

        folder = self.check_parts(numbers)
        held_out = valid.align(data.label_names) if valid is not None else None
        with torch_threads(), limited_time(job or Job(), self.time_budget) as timed:
            training = self._training(data, self._kind_of(data), held_out, timed)
            training.run(list(numbers), folder, self.config.at_once)
        return folder

    def _folder(self, job: Job) -> Path | None:
        if self.config.repetitions_folder is not None:
            return Path(self.config.repetitions_folder)
        return None if job.folder is None else job.folder / "repetitions"

    def _training(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> RepetitionTraining:
        from labelwise.nn.train.repetitions import RepetitionData, RepetitionTraining

        config = self.config
        features = self.learn_features(data, kind)
        held_out = None
        if valid is not None and config.training.validate_every is not None:
            held_out = self.features_of(valid), valid.labels
        elsewhere = {"training": True, "lookups": True}  # in the fingerprint separately, lookups by content
        settings = deciding_json(config, PART, elsewhere)
        if config.loss == "softmax":
            several = int((np.diff(data.labels.indptr) > 1).sum())
            if several:
                log.warning(
                    "loss: softmax is for one label per document; %d have more, whose labels are weighted equally; "
                    "bce learns every label separately", several,
                )  # fmt: skip
        tables = self._tables(data.n_labels, range(config.repetitions))
        return RepetitionTraining(
            RepetitionData(features, data.labels, held_out), self._sizes(features.shape[1]), config.loss,
            config.training, tables, self._feature_tables(features.shape[1]), settings, job, config.repartition,
        )  # fmt: skip

    def _sizes(self, n_features: int) -> NetworkShape:
        from labelwise.nn.buckets import NetworkShape

        rows = self.config.feature_hashing or n_features
        return NetworkShape(rows, tuple(self.config.hidden), self.config.buckets)

    def _tables(self, n_labels: int, numbers: Sequence[int]) -> BucketTables:
        config = self.config
        given = None
        if config.lookups is not None:
            given = read_lookups(config.lookups, n_labels, config.buckets, numbers)
        return BucketTables(n_labels, config.buckets, tuple(numbers), config.hash, config.training.seed, given)

    def _feature_tables(self, n_features: int) -> BucketTables | None:
        config = self.config
        if config.feature_hashing is None:
            return None
        return BucketTables(n_features, config.feature_hashing, tuple(range(config.repetitions)))

    def _built_decoder(self, n_labels: int, n_features: int) -> BucketDecoder:
        """Search and networks of the repetitions, for prediction."""
        from labelwise.nn.buckets import BucketDecoder, BucketNetworks

        config = self.config
        numbers = tuple(one.number for one in self.repetitions_)
        given = {one.number: one.buckets for one in self.repetitions_ if one.buckets is not None}
        tables = BucketTables(n_labels, config.buckets, numbers, config.hash, config.training.seed, given or None)
        networks = BucketNetworks(self.repetitions_, self._sizes(n_features), self._feature_tables(n_features))
        return BucketDecoder(networks, BucketSearch(tables))

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        """Repetitions one after the other; every label is looked up in every table to be ranked."""
        config = self.config
        size = bucket_size(shape, config.feature_hashing or shape.features, list(config.hidden), config.buckets)
        one = network_cost(shape, constants, "buckets", size, config.training, ranks=self.trains_on_ranks)
        tables = config.repetitions * shape.labels * bucket_dtype(config.buckets).itemsize
        decoding = config.repetitions * shape.labels / constants.rate("decoding")
        names = one.model - 4 * (size.weights + size.rows)
        model = config.repetitions * 4 * (size.weights + size.rows) + names
        words = shape.feature_bytes if shape.words is not None else 0.0
        return replace(
            one, cpu=constants.tfidf * shape.text_bytes, network=config.repetitions * one.network,
            operations=config.repetitions * one.operations, steps=config.repetitions * one.steps,
            memory=one.memory + words + tables + ORDER_BYTES * shape.labels + model, model=model,
            disk=one.disk + 2 * model, shares=config.repetitions, step_bytes=0.0,
            latency=constants.call + config.repetitions * size.forward / constants.rate("buckets") + decoding,
            changes=("feature_hashing", "fewer hidden units", "fewer buckets", "fewer repetitions"),
        )  # fmt: skip

    # --- predict ---

    @property
    def decoding(self) -> Decoding:
        """From the current parameters, which may be changed after fitting."""
        from labelwise.nn.buckets import Decoding

        config = self.config
        candidates = None if config.candidates is None else (config.candidates.buckets, config.candidates.hits)
        return Decoding(config.aggregation, "sigmoid" if config.loss == "bce" else "softmax", candidates)

    def _predict(self, data: Documents, k: int) -> TopK:
        return self._decoder.best(self.features_of(data), k, self.decoding)

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        """Restricted to some labels the search is exact; with weights, all of their scores are computed."""
        labels = None if chosen.allowed is None else np.flatnonzero(chosen.allowed)
        k = k if labels is None else min(k, len(labels))
        if chosen.weights is not None and labels is None:
            labels = np.arange(len(chosen.weights))
        return self._decoder.best(self.features_of(data), k, self.decoding, labels, chosen.weights)

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        state = {"repetitions": np.array([one.number for one in self.repetitions_], np.int64)}
        state |= self.features_state()
        for one in self.repetitions_:
            state |= one.to_tensors(f"repetition{one.number}.")
        return state

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        import_required(self.name, "nn", "torch")
        from labelwise.nn.buckets import Repetition

        self.restore_features(tensors, path)
        n_features = self.feature_count
        numbers = get_tensor(tensors, "repetitions", path)
        if (
            numbers.ndim != 1
            or numbers.dtype != np.int64
            or not 1 <= len(numbers) <= MAX_REPETITIONS
            or len(np.unique(numbers)) != len(numbers)
            or not (numbers.min() >= 0 and numbers.max() < self.config.repetitions)
        ):
            raise ModelFormatError(f"{path}: the list of repetitions is damaged")
        sizes, n_labels = self._sizes(n_features), len(self.label_names_)
        self.repetitions_ = []
        for number in numbers.tolist():
            prefix = f"repetition{number}."
            buckets = tensors.get(f"{prefix}buckets")
            if buckets is not None:
                buckets = checked_table(buckets, n_labels, self.config.buckets, f"{path}: {prefix}buckets")
            self.repetitions_.append(Repetition(number, sizes.checked(tensors, prefix, path), buckets))
        learned = self.config.lookups is not None or self.config.repartition is not None
        if learned and any(one.buckets is None for one in self.repetitions_):
            raise ModelFormatError(f"{path}: the model was trained with given or learned buckets, which are missing")
        if len(numbers) < self.config.repetitions:
            log.info("%s: %d of %d repetitions are present and used", path, len(numbers), self.config.repetitions)
        self._decoder = self._built_decoder(n_labels, n_features)

    def subset(self, numbers: Sequence[int]) -> Self:
        """A copy of the model with only some of its repetitions."""
        from copy import copy

        self._check_fitted()
        held = {one.number: one for one in self.repetitions_}
        unknown = [number for number in numbers if number not in held]
        if unknown or not numbers:
            raise ConfigError(f"repetitions: choose some of {sorted(held)}, got {list(numbers)}")
        other = copy(self)
        other.repetitions_ = [held[number] for number in dict.fromkeys(numbers)]
        other._decoder = other._built_decoder(len(self.label_names_), self.feature_count)
        log.info("%d of %d repetitions are used", len(other.repetitions_), self.config.repetitions)
        return other
