"""Tries the models of the ladder within the time for it, then ensembles of them, and decides.

Which models are tried depends on the clock; what they predict, and so the decision among the same models, does not
unless the time budget has ended a training. Test documents play no part here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from labelwise import auto_schema as schema
from labelwise.auto.ensembles import (
    FEWEST_DOCUMENTS,
    TriedEnsemble,
    cross_fitted,
    ensemble_name,
    rules_for,
    sets_of_members,
)
from labelwise.auto.failures import FAILURES, failed
from labelwise.auto.judge import Judge, Verdict, choose, is_better
from labelwise.auto.ladder import Facts, Rung, first_estimate, ladder
from labelwise.auto.trials import Trial, read_trial, run_trial, trial_folder
from labelwise.auto_schema import AutoRecord, Option
from labelwise.data.dataset import Dataset
from labelwise.errors import LabelwiseError
from labelwise.formatting import duration, percent
from labelwise.methods.combination import Combine
from labelwise.metrics.bootstrap import ResamplingSums
from labelwise.runs.run_time import RunTime
from labelwise.time_budget import TimeBudget

log = logging.getLogger("labelwise")

TRYING, TRYING_WITHOUT_REFIT = 0.6, 0.8
"""Fraction of the budget for trying; the rest is for deciding, evaluation, and training on all documents."""
NETWORK_SECONDS = 20.0
"""What a network or an encoder takes at least, the import of torch included."""
Show = Callable[[AutoRecord, float | None], None]
"""Shows what was tried so far, and the seconds that are left."""


@dataclass
class Search:
    """The state of a search.

    Parameters
    ----------
    workspace
        Folder with one folder per trial.
    record
        What auto.json begins with.
    train, judge
        Documents to train on, and those to compare on.
    facts
        What is known of the data.
    times
        The time budget of everything.
    refit
        Whether the chosen model is to be trained on all documents afterwards.
    show
        Called after every change.
    """

    workspace: Path
    record: AutoRecord
    train: Dataset
    judge: Judge
    facts: Facts
    times: RunTime
    refit: bool
    show: Show
    trials: dict[str, Trial] = field(default_factory=dict)
    ensembles: dict[str, TriedEnsemble] = field(default_factory=dict)
    sums: dict[str, ResamplingSums] = field(default_factory=dict)
    options: dict[str, Option] = field(default_factory=dict)
    traits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rungs = {rung.name: rung for rung in ladder(self.facts)}
        self.deadline: TimeBudget = self.times.for_fit(refit=False)
        self._reference = "tree"
        self._errors: list[LabelwiseError] = []

    # --- models one by one ---

    def try_models(self) -> None:
        """Try the models of the ladder, from cheap to expensive, as long as there is time."""
        for rung in self.rungs.values():
            reason = rung.obstacle(self.facts)
            status = schema.WAITING if reason is None else schema.LEFT_OUT
            self._set(rung, status=status, reason=reason or "")
        for rung in self.rungs.values():
            if self.options[rung.name].status == schema.WAITING:
                self._try(rung)
        if not any(self._learned(name) for name in self.trials) and self._errors:
            raise self._errors[0]

    def _learned(self, name: str) -> bool:
        return name != "popularity"

    def _try(self, rung: Rung) -> None:
        model, estimate = rung.model(self.traits, self.facts), self.estimate(rung)
        folder, own = trial_folder(self.workspace, rung.name, model, self.record.data)
        found = read_trial(folder, own, rung.name, model, self.judge.k)
        has_time = estimate <= self.time_for_trying() or not any(map(self._learned, self.trials))
        known = None if found is not None and has_time and found.can_continue(self.deadline) else found
        if known is None and not has_time:
            left = self.time_for_trying()
            reason = f"would take about {duration(estimate)}, {duration(left)} are left for trying"
            self._set(rung, status=schema.SKIPPED, reason=reason, estimate=estimate, parameters=model)
            log.info("%s: skipped, it %s", rung.name, reason)
            return
        self._set(rung, status=schema.RUNNING, estimate=estimate, parameters=model)
        if known is None:
            log.info("%s: %s, about %s ...", rung.name, rung.about, duration(estimate))
        try:
            trial = known or run_trial(
                self.workspace, rung.name, model, self.record.data, self.train, self.judge.valid, self.judge.k,
                self.deadline,
            )  # fmt: skip
            sums = self.judge.sums(trial.top)
        except FAILURES as error:
            failure = failed(rung.name, error)
            self._errors.append(failure)
            self._set(rung, status=schema.FAILED, reason=str(failure))
            return
        self.trials[rung.name], self.sums[rung.name] = trial, sums
        value = float(self.sums[rung.name].values()[0])
        reason = "the time budget has ended its training" if trial.cut else ""
        self._set(
            rung, status=schema.TRIED, value=value, seconds=trial.seconds, predict_seconds=trial.predict_seconds,
            bytes=trial.bytes, reason=reason,
        )  # fmt: skip
        log.info("%s: %s %s in %s", rung.name, self.record.metric, percent(value), duration(trial.seconds))
        if rung.trait is not None and self._is_better_than_reference(rung.name):
            self.traits.append(rung.trait)
            self._reference = rung.name

    def _is_better_than_reference(self, name: str) -> bool:
        """Whether a model is better than the one with the traits so far; False unless both were trained to the end."""
        pair = [self.trials.get(one) for one in (self._reference, name)]
        if any(trial is None or trial.cut for trial in pair):
            return False
        return is_better(self.sums[name], self.sums[self._reference])

    def estimate(self, rung: Rung) -> float:
        """Seconds that a model is expected to take, scaled from what was measured."""
        documents = self.facts.n_documents + len(self.judge.valid)
        own = rung.seconds_per_document * documents + (NETWORK_SECONDS if rung.seconds_per_document else 0.0)
        if rung.like is None:
            if rung.name == "popularity":
                return 0.5
            return own or first_estimate(self.facts)
        like = self.trials.get(rung.like)
        measured = 0.0 if like is None else like.seconds + like.predict_seconds
        complete = like is not None and not like.cut  # else it would have taken longer than was measured
        base = measured if complete else max(measured, self.estimate(self.rungs[rung.like]))
        return own + rung.ratio * base

    def time_for_trying(self) -> float:
        """Seconds that are left for trying."""
        rest = 1.0 - (TRYING if self.refit else TRYING_WITHOUT_REFIT)
        return max(self.times.budget.remaining() - rest * self.record.budget, 0.0)

    def seconds_left(self) -> float:
        """Seconds until the end, as far as that can be known: what is still to be tried, and what follows."""
        waiting = [self.estimate(self.rungs[name]) for name, option in self.options.items()
                   if option.status in (schema.WAITING, schema.RUNNING)]  # fmt: skip
        trying, left = 0.0, self.time_for_trying()
        for seconds in waiting:
            trying += seconds if trying + seconds <= left else 0.0
        longest = max((one.seconds for one in self.trials.values()), default=0.0)
        return min(trying + (1.3 * longest if self.refit else 0.0) + 15.0, self.times.budget.remaining())

    # --- ensembles and the decision ---

    def try_ensembles(self) -> None:
        """Try ensembles of distinct good models."""
        if len(self.judge.valid) < FEWEST_DOCUMENTS:
            return
        tried = [trial for name, trial in self.trials.items() if self._learned(name)]
        replaced = {name for one in tried for name in self.rungs[one.name].replaces}
        values = [float(self.sums[one.name].values()[0]) for one in tried]
        for members in sets_of_members(tried, values, replaced):
            for rule in rules_for(len(members), len(self.judge.valid)):
                if self.deadline.expired():
                    log.info("ensembles: no more are tried, the time budget of %s is used", self.times.budget)
                    return
                self._try_ensemble(members, rule)

    def _try_ensemble(self, members: tuple[Trial, ...], rule: Combine) -> None:
        try:
            tried = cross_fitted(members, rule, self.judge)
            sums = self.judge.sums(tried.top)
        except FAILURES as error:
            name = ensemble_name(members, rule)
            self.options[name] = Option(
                name=name, about=_about(len(members)), method="ensemble", status=schema.FAILED,
                members=tuple(one.name for one in members), reason=str(failed(name, error)),
            )  # fmt: skip
            self._shown()
            return
        self._add(tried, sums)

    def _add(self, tried: TriedEnsemble, sums: ResamplingSums) -> None:
        self.ensembles[tried.name], self.sums[tried.name] = tried, sums
        value = float(self.sums[tried.name].values()[0])
        self.options[tried.name] = Option(
            name=tried.name,
            about=_about(len(tried.members)),
            method="ensemble",
            parameters=tried.model(self.judge.metric),
            members=tuple(one.name for one in tried.members),
            status=schema.TRIED,
            value=value,
            seconds=sum(one.seconds for one in tried.members),
            predict_seconds=sum(one.predict_seconds for one in tried.members),
            bytes=sum(one.bytes for one in tried.members),
        )
        log.info("%s: %s %s", tried.name, self.record.metric, percent(value))
        self._shown()

    def decide(self) -> AutoRecord:
        """The table with the decision."""
        verdict = choose(self.sums)
        for name in self.sums:
            behind = verdict.behind[name]
            update = {
                "interval": verdict.intervals[name],
                "behind_best": (behind.value, behind.low, behind.high),
                "within_noise": verdict.within_noise(name),
            }
            self.options[name] = self.options[name].model_copy(update=update)
        spent = self.record.budget - self.times.budget.remaining() + self.times.budget.exceeded()
        self.record = self._current().model_copy(
            update={"decided": True, "chosen": verdict.chosen, "best": verdict.best,
                    "why": _reason(verdict, self.record.metric), "seconds": round(spent, 3)}
        )  # fmt: skip
        self.show(self.record, None)
        log.info("%s", self.record.why)
        return self.record

    def restore(self, record: AutoRecord, option: Option) -> bool:
        """Read the models of an option that was chosen before; False if one of them is missing."""
        for name in option.members or (option.name,):
            model = record.option(name).parameters
            folder, own = trial_folder(self.workspace, name, model, record.data)
            trial = read_trial(folder, own, name, model, self.judge.k)
            if trial is None:
                return False
            self.trials[name] = trial
        if option.members:
            members = tuple(self.trials[name] for name in option.members)
            rule = option.parameters["combine"]
            self.ensembles[option.name] = TriedEnsemble(option.name, rule, members, members[0].top)
        return True

    # --- the table ---

    def _set(self, rung: Rung, **fields: object) -> None:
        before = self.options.get(rung.name) or Option(name=rung.name, about=rung.about, method=rung.method)
        self.options[rung.name] = before.model_copy(update=fields)
        self._shown()

    def _shown(self) -> None:
        self.show(self._current(), self.seconds_left())

    def _current(self) -> AutoRecord:
        return self.record.model_copy(update={"options": tuple(self.options.values())})


def _about(members: int) -> str:
    if members == 1:
        return "its labels in the order of a logistic regression on probability and frequency"
    return f"ensemble of {members} models"


def _reason(verdict: Verdict, metric: str) -> str:
    """The decision in words."""
    if verdict.chosen == verdict.best:
        return f"chosen: {verdict.chosen}, the best {metric}; nothing cheaper is within noise of it"
    behind = verdict.behind[verdict.chosen]
    return (
        f"chosen: {verdict.chosen}, the cheapest within noise of the best, {verdict.best}: {percent(behind.value)} "
        f"{metric} less, 95 % interval of the difference {percent(behind.low)} to {percent(behind.high)}"
    )
