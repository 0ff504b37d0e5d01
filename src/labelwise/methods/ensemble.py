"""An ensemble: the predictions of several models, of any methods, combined into one.

Members are saved models or runs, models in Python, or methods with parameters, which are trained first. Every member
ranks its best labels of a document; labels are matched by name, and their scores, ranks or probabilities are averaged
with weights that are equal, given, or learned on held-out documents. Known from the ensembles of PECOS (Yu et al.,
2022) and Annif (Suominen et al., 2022).

Cost: that of all members. Memory: the members, and documents x ranked labels x members for a block of documents.
What we do differently: a label that a member does not rank counts as its last score and not as 0, members may have
different labels and read different kinds of documents, the logistic combination gives probabilities, and the model
folder holds its members, so that it can be moved and served like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, field_validator, model_validator

from labelwise.config import Config as BaseConfig
from labelwise.config import Decides
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import KINDS
from labelwise.ensembles.combine import Combine
from labelwise.ensembles.learn import held_out_part, is_learned, learn_combination
from labelwise.ensembles.members import (
    MODEL,
    check_members,
    checked_members,
    facts_of_members,
    is_fitted,
    kinds_of_members,
    opened,
    plain_members,
    train_members,
    with_fingerprints,
)
from labelwise.ensembles.model import EnsembleModel, MergedLabels, common_input
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.names import parse_metric
from labelwise.model.method import Method
from labelwise.runtime.job import Job

NO_MEMBERS = "members: an ensemble needs at least one model; give paths of saved models or runs"
Members = Annotated[
    list[Any],
    BeforeValidator(checked_members),
    PlainSerializer(plain_members),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}),
]


class Ensemble(Method):
    """Several models of any methods as one: scores averaged, with equal, given or learned weights."""

    name = "ensemble"
    Fitted = EnsembleModel
    inputs = KINDS
    good_for = "the best accuracy, from models that err differently"
    speed = "that of its members; learning weights takes seconds"
    needs_data = False
    validates = True
    trains_in_tasks = True
    changeable = ("candidates",)

    class Config(BaseConfig):
        """Parameters."""

        members: Members = []
        """Models: paths of model or run folders, or mappings with `method` and its parameters, which are trained."""
        combine: Combine = "average"
        """What is combined: scores, ranks, softmax or sigmoid of scores, calibrated probabilities; `logistic` learns a
        logistic regression on their log-odds."""
        weights: list[Annotated[float, Field(ge=0, le=1e6)]] | Literal["learn"] | None = None
        """Weight per member; `learn`: those with the best `metric` on held-out documents; null: equal weights."""
        metric: str = "nDCG@5"
        """What `weights: learn` maximises: P@k, RP@k or nDCG@k."""
        candidates: Annotated[int, Field(ge=1, le=1000)] = 50
        """Labels that every member ranks per document, more if more are predicted."""
        time_budget: Annotated[Annotated[float, Field(gt=0)] | None, Decides.END] = None
        """Wall-clock seconds for all of `fit`: members that are trained share them, learning uses a sample."""

        elsewhere: ClassVar[Mapping[str, Any]] = dict.fromkeys(
            ("members", "combine", "weights", "metric", "candidates", "valid"), True
        )

        def check_files(self) -> None:
            check_members(self.members)

        def resolved(self) -> dict[str, Any]:
            return {**super().resolved(), "members": with_fingerprints(self.members)}

        def facts(self) -> dict[str, Any]:
            return facts_of_members(self.members)

        def kinds_to_train_on(self, data: Dataset) -> set[str]:
            return kinds_of_members(self.members, data)

        def with_members(self, members: Sequence[Method]) -> Ensemble.Config:
            given = [
                model if isinstance(member, Mapping) and set(member) == {MODEL} else member
                for model, member in zip(members, self.members, strict=True)
            ]
            return self.model_copy(update={"members": given})

        @field_validator("metric")
        @classmethod
        def _is_a_ranking_metric(cls, given: str) -> str:
            try:
                metric = parse_metric(given)
            except ConfigError as error:
                raise ValueError(str(error)) from None
            if metric.kind not in ("P", "RP", "nDCG") or not 1 <= (metric.k or 0) <= 100:
                raise ValueError(f"weights are learned for P@k, RP@k or nDCG@k with k up to 100, got {given}")
            return metric.name

        @model_validator(mode="after")
        def _weights_go_with_the_rest(self) -> Ensemble.Config:
            if self.weights is not None and self.combine == "logistic":
                raise ValueError("weights: logistic learns its own; leave them out")
            if isinstance(self.weights, list):
                if len(self.weights) != len(self.members):
                    raise ValueError(f"weights: {len(self.weights)} for {len(self.members)} members")
                if not any(self.weights):
                    raise ValueError("weights: one of them must be above 0")
            return self

    def _fit(self, train: Dataset | None, valid: Dataset | None, job: Job) -> EnsembleModel:
        """`train` are documents to train members on or, if all of them are trained, held-out ones; None: none."""
        config = self.config
        if not config.members:
            raise ConfigError(NO_MEMBERS)
        members = [opened(member, number) for number, member in enumerate(config.members)]
        first, held_out = None, train if valid is None else valid
        if not all(map(is_fitted, members)):
            if train is None:
                raise DataError("some members are to be trained: call fit with documents and their labels")
            uncalibrated = config.combine == "probability_average" and any(one.calibration_ is None for one in members)
            first = train.label_names
            train, held_out = held_out_part(train, valid, is_learned(config) or uncalibrated)
            members = train_members(members, train, valid, job)
        common_input(members)
        labels = MergedLabels.of(members, first)
        return learn_combination(members, labels, held_out, config, job, chosen=valid is not None)
