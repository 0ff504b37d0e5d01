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

import copy
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, field_validator, model_validator

from labelwise.config import Config as BaseConfig
from labelwise.config import Decides
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import KINDS
from labelwise.ensembles.combine import Combination, Combine
from labelwise.ensembles.members import (
    MODEL,
    check_saved,
    checked_members,
    common_input,
    inputs_of,
    is_fresh,
    member_top,
    opened,
    plain_members,
    saved_input,
    saved_path,
    with_fingerprints,
)
from labelwise.errors import ConfigError, DataError, LabelwiseError, ModelFormatError
from labelwise.io import folder as store
from labelwise.linear.trees import side_by_side
from labelwise.methods.ensemble_explanation import EnsembleExplanations, explained, names_in_members, top_contributions
from labelwise.methods.ensemble_fit import (
    MergedLabels,
    card_of_members,
    combination_of,
    held_out_part,
    merged_hashes,
    trained_members,
)
from labelwise.metrics.names import parse_metric
from labelwise.model.folder import SavedModel, member_folders
from labelwise.model.inputs import Documents, Overlap, as_dataset
from labelwise.model.method import Method, load_folder
from labelwise.model.old_method import OldMethod
from labelwise.model.predictions import LabelFilter
from labelwise.runtime.job import Job, limited_time
from labelwise.strings import Strings
from labelwise.topk import TopK

log = logging.getLogger("labelwise")

BLOCK = 2048
"""Documents whose candidates are combined at once."""
SEEN = "members know their labels, so the learned weights favour members that remember their training documents"
Members = Annotated[
    list[Any],
    BeforeValidator(checked_members),
    PlainSerializer(plain_members),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}),
]


class OfMembers:
    """A capability that an ensemble has if all, or any, of its members have it; of the class itself it is True."""

    def __init__(self, capability: str, among: Any = all) -> None:
        self.capability, self.among = capability, among

    def __get__(self, ensemble: Ensemble | None, owner: type) -> bool:
        if ensemble is None:
            return True
        return bool(self.among(getattr(member, self.capability) for member in ensemble._known_members()))


class CommonInputs:
    """What all members can read; of the class itself all kinds of documents."""

    def __get__(self, ensemble: Ensemble | None, owner: type) -> tuple[str, ...]:
        return KINDS if ensemble is None else inputs_of(ensemble._known_members())


class NeedsOfMembers:
    """The packages that members need; the class itself needs none."""

    def __get__(self, ensemble: Ensemble | None, owner: type) -> tuple[str, ...]:
        members = () if ensemble is None else ensemble._known_members()
        return tuple(dict.fromkeys(need for member in members for need in member.needs))


class Ensemble(OldMethod):
    """Several models of any methods as one: scores averaged, with equal, given or learned weights."""

    name = "ensemble"
    inputs = CommonInputs()  # type: ignore[bad-override]
    good_for = "the best accuracy, from models that err differently"
    speed = "that of its members; learning weights takes seconds"
    chooses_labels = OfMembers("chooses_labels")  # type: ignore[bad-override]
    explains = OfMembers("explains", any)  # type: ignore[bad-override]
    shrinks = OfMembers("shrinks", any)  # type: ignore[bad-override]
    same_on_any_threads = OfMembers("same_on_any_threads")  # type: ignore[bad-override]
    needs = NeedsOfMembers()  # type: ignore[bad-override]
    validates = True
    trains_in_tasks = True
    plans = True
    changeable = ("candidates",)

    class Config(BaseConfig):
        """Parameters."""

        members: Members = []
        """Models: paths of model or run folders, or mappings with `method` and its parameters, which are trained."""
        combine: Combine = "average"
        """What is combined: scores, ranks, softmax or sigmoid of scores, calibrated probabilities; `logistic` learns a
        logistic regression on their log-odds; `round_robin` takes the best label of each member in turn."""
        weights: list[Annotated[float, Field(ge=0, le=1e6)]] | Literal["learn"] | None = None
        """Weight per member; `learn`: those with the best `metric` on held-out documents; null: equal weights."""
        metric: str = "nDCG@5"
        """What `weights: learn` maximises: P@k, RP@k or nDCG@k."""
        candidates: Annotated[int, Field(ge=1, le=1000)] = 50
        """Labels that every member ranks per document, more if more are predicted."""
        time_budget: Annotated[Annotated[float, Field(gt=0)] | None, Decides.END] = None
        """Wall-clock seconds for all of `fit`: members that are trained share them, learning uses a sample."""

        def resolved(self) -> dict[str, Any]:
            """All parameters as plain data, with the fingerprints of saved members."""
            return {**super().resolved(), "members": with_fingerprints(self.members)}

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
            if self.weights is not None and self.combine in ("logistic", "round_robin"):
                why = "learns its own" if self.combine == "logistic" else "takes members in their order"
                raise ValueError(f"weights: {self.combine} {why}; leave them out")
            if isinstance(self.weights, list):
                if len(self.weights) != len(self.members):
                    raise ValueError(f"weights: {len(self.weights)} for {len(self.members)} members")
                if not any(self.weights):
                    raise ValueError("weights: one of them must be above 0")
            return self

    members_: list[Method]
    """The models, in the order of `members`."""
    combination_: Combination
    """The rule, the weights, and what else was learned."""
    learned_on_: tuple[int, int]
    """Documents that the combination was learned on, and how many of them a member was trained on."""
    _columns: list[np.ndarray | None]
    """Per member the ids of its labels in the ensemble; None if they are the same."""

    @property
    def refits(self) -> bool:  # type: ignore[bad-override]
        """Whether training on more documents would change it: not if all members are trained already."""
        return any(map(is_fresh, self.config.members))

    @property
    def weights_(self) -> np.ndarray:
        """The weight of each member."""
        self._check_fitted()
        return self.combination_.weights

    def _known_members(self) -> Sequence[Method]:
        """The models; of an unfitted ensemble those that are given, and those that are to be trained."""
        if "label_names_" in self.__dict__:
            return self.members_
        given = enumerate(self.config.members)
        return [opened(member, number) for number, member in given if saved_path(member) is None]

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        """Members that are trained, one after the other; those that are saved cost their place on disk only."""
        saved = [path for member in self.config.members if (path := saved_path(member)) is not None]
        if saved:
            raise ConfigError(f"members: {saved[0]} is trained already; plan the configs of the members instead")
        members = [member._cost(shape, constants) for member in self._known_members()]
        if not members:
            raise ConfigError("members: an ensemble needs at least one model; give paths of saved models or runs")
        return reduce(add, members)

    def check_needs(self) -> None:
        for number, member in enumerate(self.config.members):
            check_saved(member, number)
        for member in self._known_members():
            member.check_needs()

    def _remarks(self) -> list[str]:
        """That weights were learned on documents that members were trained on."""
        documents, seen = self.learned_on_
        return [Overlap(documents, seen).remark(SEEN)] if seen else []

    # --- fit ---

    def fit(
        self, data: Any = None, labels: Any = None, *, valid: Dataset | None = None, job: Job | None = None
    ) -> Self:
        """Train the members that are not trained yet, and learn how to combine them.

        Parameters
        ----------
        data, labels
            Documents to train members on, as for other methods. If all members are trained already: held-out documents
            to learn weights on, or nothing if there is nothing to learn.
        valid
            Held-out documents: the combination is learned on them, and members use them to stop early. If they are
            needed and not given, a tenth of the documents is held out from the training of members.
        job
            Where to keep checkpoints and log metrics; a run sets it.
        """
        if not self.config.members:
            raise ConfigError("members: an ensemble needs at least one model; give paths of saved models or runs")
        self.check_needs()
        if self.refits and data is None:
            raise DataError("some members are to be trained: call fit with documents and their labels")
        self.__dict__.pop("label_names_", None)
        if self.refits:
            super().fit(data, labels, valid=valid, job=job)
            self._describe()
            return self
        begin, members = time.monotonic(), self._open_members()
        given = None if data is None else as_dataset(data, labels, inputs_of(members) or KINDS)
        with limited_time(job or Job(), self.time_budget, begin) as timed:
            self._combine(members, None, given if valid is None else valid, timed, chosen=valid is not None)
        self.calibration_, self._loaded_from, self.fitted_config_ = None, None, self.config
        self.label_texts_, self.label_counts_ = None, np.zeros(0, np.int64)
        self.n_documents_, self.trained_on_ = 0, None
        self._describe()
        self.card_ = card_of_members(self)
        return self

    def _fit(  # type: ignore[bad-override]
        self, data: Dataset, kind: str, valid: Dataset | None, job: Job
    ) -> None:
        members = self._open_members()
        learns = self.config.combine == "logistic" or self.config.weights == "learn"
        train, held_out = held_out_part(data, valid, learns or self._lacks_calibration(members))
        members = trained_members(members, train, valid, job)
        self._combine(members, data.label_names, held_out, job, chosen=valid is not None)

    def _lacks_calibration(self, members: Sequence[Method]) -> bool:
        return self.config.combine == "probability_average" and any(one.calibration_ is None for one in members)

    def _open_members(self) -> list[Method]:
        return [opened(member, number) for number, member in enumerate(self.config.members)]

    def _combine(
        self, members: list[Method], first: Strings | None, held_out: Dataset | None, job: Job, chosen: bool
    ) -> None:
        """Learn the combination of trained members; `chosen`: the user has given the documents as held-out ones."""
        common_input(members)
        merged = MergedLabels.of(members, first)
        self.members_, self._columns = members, merged.columns
        self._names, self._counts = merged.names, merged.counts
        self.combination_, self.learned_on_ = combination_of(self, held_out, job, chosen)

    def _describe(self) -> None:
        """Set what is known of all members together: labels, what documents are given as, training documents."""
        merged = MergedLabels.of(self.members_, self._names)
        counts = merged.counts
        own = slice(0, len(self.label_counts_))
        counts[own] = np.maximum(counts[own], self.label_counts_)
        self.label_names_, self.label_counts_ = self._names, counts
        if self.label_texts_ is None or len(self.label_texts_) < len(counts):
            self.label_texts_ = merged.texts
        self.input_, self.feature_width_ = common_input(self.members_)
        self.n_documents_ = max(self.n_documents_, *(member.n_documents_ for member in self.members_))
        self.trained_on_ = merged_hashes(self.trained_on_, self.members_)

    def _kind_of(self, dataset: Dataset) -> str:
        kinds = {saved_input(path) for path in map(saved_path, self.config.members) if path is not None}
        for member in self._known_members():
            kinds.add(member.input_ if hasattr(member, "label_names_") else member._kind_of(dataset))
        return "texts" if "texts" in kinds else min(kinds)

    # --- predict ---

    def _tops(self, data: Documents, k: int, chosen: LabelFilter | None = None) -> list[TopK]:
        """What each member predicts, in the label space of the ensemble."""
        count = max(k, self.config.candidates)
        pairs = zip(self.members_, self._columns, strict=True)
        return [member_top(member, columns, data, count, chosen) for member, columns in pairs]

    def _predict(self, data: Documents, k: int) -> TopK:
        return self._combined(self._tops(data, k), k, None)

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        if not self.chooses_labels:
            unable = next(number for number, one in enumerate(self.members_) if not one.chooses_labels)
            raise ConfigError(f"member {unable} ({self.members_[unable].name}) cannot leave out or weight labels")
        return self._combined(self._tops(data, k, chosen), k, chosen.weights)

    def _combined(self, tops: list[TopK], k: int, factors: np.ndarray | None) -> TopK:
        parts = [
            self.combination_.best(side_by_side([top[begin : begin + BLOCK] for top in tops]), k, factors)
            for begin in range(0, max(len(tops[0]), 1), BLOCK)
        ]
        return TopK.concatenate(parts)

    def explain(  # type: ignore[bad-override]
        self, document: Any, labels: Sequence[str] | None = None, k: int = 5, terms: Any = "auto"
    ) -> EnsembleExplanations:
        """Why one document gets its labels: what each member says, and how much that counts.

        Parameters are those of other methods; `terms` words of each member that can explain itself are listed.
        """
        return explained(self, document, labels, k, 10 if terms == "auto" else terms)

    def _top_contributions(self, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return top_contributions(self, data, labels, count)

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        return names_in_members(self, columns)

    def _shrink(self, precision: str | None, threshold: float | None) -> Self:
        smaller, members, refusals = copy.copy(self), [], []
        for number, member in enumerate(self.members_):
            try:
                members.append(member.shrink(precision=precision, threshold=threshold))
            except LabelwiseError as error:
                members.append(member)
                refusals.append(f"member {number}: {error}")
        if len(refusals) == len(members):
            raise ConfigError("; ".join(refusals))
        for refusal in refusals:
            log.warning("kept as it is: %s", refusal)
        smaller.members_ = members
        return smaller

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        return {**self.combination_.to_tensors(), "learned_on": np.array(self.learned_on_, np.int64)}

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        counts = store.get_tensor(tensors, "learned_on", path)
        if counts.shape != (2,) or counts.dtype != np.int64 or not 0 <= counts[1] <= counts[0]:
            raise ModelFormatError(f"{path}: the numbers of held-out documents are damaged")
        self.learned_on_ = (int(counts[0]), int(counts[1]))
        self.combination_ = Combination.from_tensors(self.config.combine, tensors, len(self.label_names_), path)

    def _saved(self) -> SavedModel:
        saved = super()._saved()
        return replace(saved, members=tuple((member.name, member._saved()) for member in self.members_))

    @classmethod
    def _from_folder(cls, folder: store.Folder) -> Self:
        model = super()._from_folder(folder)
        members = [load_folder(inner) for inner in member_folders(folder)]
        path = folder.file(store.MANIFEST)
        if len(members) != len(model.combination_.weights) or len(members) != len(model.config.members):
            raise ModelFormatError(f"{path}: the number of members does not match their weights and parameters")
        try:
            model._names = model.label_names_
            merged = MergedLabels.of(members, model.label_names_)
            fits = merged.names == model.label_names_ and common_input(members) == (model.input_, model.feature_width_)
        except LabelwiseError as error:
            raise ModelFormatError(f"{path}: {error}") from None
        if not fits:
            raise ModelFormatError(f"{path}: the members have other labels, or read other documents, than the ensemble")
        model.members_, model._columns = members, merged.columns
        given = [
            members[number] if isinstance(member, Mapping) and set(member) == {MODEL} else member
            for number, member in enumerate(model.config.members)
        ]
        model.config = model.fitted_config_ = model.config.model_copy(update={"members": given})
        model._params["members"] = given
        return model
