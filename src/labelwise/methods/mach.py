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

import copy
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config as BaseConfig
from labelwise.config import Decides
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError
from labelwise.features.featurizers import Featurizer, featurizer_of
from labelwise.features.tfidf import LINEAR_TFIDF, TfidfConfig
from labelwise.labelspace.bucket_search import Score
from labelwise.labelspace.buckets import Hash, RepartitionConfig
from labelwise.model.method import Method
from labelwise.nn.buckets import MAX_REPETITIONS, BucketModel
from labelwise.nn.config import (
    Count,
    OptimiserConfig,
    Positive,
    ScheduleConfig,
    TrainingConfig,
)
from labelwise.runtime.job import Job

if TYPE_CHECKING:
    from labelwise.nn.buckets import Repetition

log = logging.getLogger("labelwise")


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


class Mach(Method):
    """Labels hashed into buckets: memory that does not grow with the labels, training without communication."""

    name = "mach"
    Fitted = BucketModel
    needs = ("torch",)
    good_for = "hundreds of thousands of labels and more, memory that one output per label exceeds"
    speed = "minutes to hours on a CPU"
    inputs = ("features", "texts")
    same_on_any_threads = False
    validates = True
    trains_on_ranks = True
    trains_in_tasks = True
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
        """Folder of finished repetitions, a folder per repetition, which several processes may fill; null keeps them
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

        elsewhere: ClassVar[Mapping[str, Any]] = {"lookups": True}

        @property
        def parts_folder(self) -> Path | None:
            return None if self.repetitions_folder is None else Path(self.repetitions_folder)

        @property
        def aggregation(self) -> Score:
            """How the scores of a label's buckets are combined."""
            return self.score or ("logits" if self.loss == "bce" else "unbiased")

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> BucketModel:
        features, found = self._repetitions(train, valid, job, range(self.config.repetitions))
        if not found and self.config.missing == "leave":
            raise ConfigError(
                f"repetitions_folder: no finished repetition of this training is in {self.config.parts_folder}"
            )
        if not found:
            raise DataError("all repetitions have diverged; a smaller training.optimiser.rate may help")
        return BucketModel(features, found, self.config, train.n_labels)

    def _repetitions(
        self, train: Dataset, valid: Dataset | None, job: Job, numbers: Sequence[int]
    ) -> tuple[Featurizer, list[Repetition]]:
        from labelwise.nn.train.repetitions import BucketData, all_repetitions

        features, rows = featurizer_of(self.config, train).learn(self.config, train, job)
        return features, all_repetitions(BucketData.of(features, rows, train, valid, self.config), numbers, job)

    def check_parts(self, numbers: Sequence[int]) -> Path:
        """Raise unless these are repetitions of this model; returns the folder of finished ones."""
        folder, count = self.config.parts_folder, self.config.repetitions
        if folder is None:
            raise ConfigError(
                "to train single repetitions set repetitions_folder, the folder of finished ones, for example "
                "--set model.repetitions_folder=runs/mach-repetitions"
            )
        unknown = [number for number in numbers if not 0 <= number < count]
        if unknown:
            raise ConfigError(f"there are repetitions 0 to {count - 1}, not {unknown[0]}")
        return folder

    def fit_parts(
        self, data: Dataset, numbers: Sequence[int], valid: Dataset | None = None, job: Job | None = None
    ) -> Path:
        """Train some repetitions and write them to `repetitions_folder`, where `fit` reads them.

        Several processes on several machines may do so at the same time; finished ones are not trained again.
        """
        folder = self.check_parts(numbers)
        with self.prepared(data, None, valid, job) as (given, own):
            self._repetitions(given.train, given.valid, own, list(numbers))
        return folder

    def subset(self, numbers: Sequence[int]) -> Self:
        """A copy of the model with only some of its repetitions."""
        self._check_fitted()
        held = sorted(one.number for one in self.fitted_.repetitions)
        if not numbers or not set(numbers) <= set(held):
            raise ConfigError(f"repetitions: choose some of {held}, got {list(numbers)}")
        other = copy.copy(self)
        other.fitted_ = self.fitted_.with_repetitions(list(dict.fromkeys(numbers)))
        log.info("%d of %d repetitions are used", len(other.fitted_.repetitions), self.config.repetitions)
        return other
