"""`labelwise auto`: a run whose method is chosen on held-out documents, within a time budget.

The folder becomes that of an ordinary run, with auto.json, the table of what was tried, and `auto/`, the tried models.
An interrupted search resumes: trained models are kept as long as the data is the same, and so is the decision.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.data.dataset import Dataset
from labelwise.data.hashing import dataset_hash
from labelwise.data.out_of_core import scratch_at
from labelwise.ensembles.combine import Combine
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.formatting import duration, percent
from labelwise.io import folder as files
from labelwise.io.atomic import LOCK
from labelwise.io.json import read_json
from labelwise.metrics.result import ResamplingSums
from labelwise.model.method import Method
from labelwise.report import schema
from labelwise.report.schema import FORMAT, AutoRecord, Option
from labelwise.runs.config import RunConfig
from labelwise.runs.data import RunData, load_run_data
from labelwise.runs.evaluate import sample
from labelwise.runs.folder import RunFolder, log_to
from labelwise.runs.run_time import TAIL, TAIL_SECONDS, RunTime
from labelwise.runs.stopwatch import stopwatch
from labelwise.runs.train import Prepared, split_for_calibration, train
from labelwise.runtime.budget import Budget
from labelwise.runtime.device import requested_device, using_device
from labelwise.runtime.job import fingerprint
from labelwise.runtime.ranks import n_ranks
from labelwise.runtime.threads import using_threads
from labelwise.tuning.ladder import (
    FEWEST_DOCUMENTS,
    Facts,
    Judge,
    Rung,
    Trial,
    TriedEnsemble,
    Verdict,
    checked_metric,
    choose,
    cross_fitted,
    ensemble_name,
    first_estimate,
    is_better,
    ladder,
    read_trial,
    remove_checkpoints,
    rules_for,
    run_trial,
    sets_of_members,
    trial_folder,
)

# --- failures ---
# Failures that end a trial and not the search, such as a model that needs more memory than there is.

log = logging.getLogger("labelwise")

FAILURES = (LabelwiseError, MemoryError, OSError, RuntimeError)
"""RuntimeError is what torch raises when there is no memory left, on a GPU or for the CPU."""
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""What torch's errors say then."""


def failed(name: str, error: BaseException) -> LabelwiseError:
    """Log why a trial has failed, and free what it has computed; returns an error that says the same.

    The frames of the traceback hold the arrays of the trial as long as somebody has the error.
    """
    failure = error if isinstance(error, LabelwiseError) else LabelwiseError(_failures_reason(error))
    expected = isinstance(error, (LabelwiseError, OSError)) or _is_out_of_memory(error)
    log.warning("%s: failed: %s", name, failure, exc_info=None if expected else error)
    _free_memory(error)
    return failure.with_traceback(None)


def _free_memory(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY)


def _failures_reason(error: BaseException) -> str:
    """One line: after its first line an error of torch has hints that do not help here."""
    if _is_out_of_memory(error):
        return "not enough memory"
    if isinstance(error, OSError):
        return f"{error.filename or 'input or output'}: {error.strerror or error}"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# --- search ---
# Tries the models of the ladder within the time for it, then ensembles of them, and decides.
#
# Which models are tried depends on the clock; what they predict, and so the decision among the same models, does not
# unless the time budget has ended a training. Test documents play no part here.

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
        self.deadline: Budget = self.times.for_fit(refit=False)
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


SMALL_BUDGET = 20.0
"""With less time hardly more than one model is tried."""
MOST_DOCUMENTS = 10_000
"""Validation documents that models are compared on."""
SLOWER = 1.2
"""Training on all documents takes longer than their number suggests: more labels, larger vocabulary."""


@dataclass(frozen=True)
class AutoRequest:
    """What `labelwise auto` is asked for."""

    config: RunConfig
    """Data, evaluation and folder; its section `model` is replaced by what is chosen."""
    budget: float
    metric: str = "P@5"
    encoder: str | None = None
    """Folder of a pretrained text encoder; models that need one are left out without it."""


def run_auto(
    request: AutoRequest, force: bool = False, begin: float | None = None, show: Show = lambda record, left: None
) -> RunFolder:
    """Try models, choose one, evaluate it and write the run; returns the run folder.

    `begin` is when the time budget began, on the monotonic clock; None: now. `show` is called with the table of what
    was tried whenever it changes.
    """
    metric, config = checked_metric(request.metric), request.config
    if n_ranks() > 1:
        raise ConfigError("labelwise auto runs in one process, not under torchrun")
    if request.encoder is not None and not Path(request.encoder).is_dir():
        raise ConfigError(f"--encoder: there is no folder {request.encoder}; nothing is downloaded")
    run = RunFolder(str(config.run.folder))
    created = [path for path in (run.path, *run.path.parents) if not path.exists()]
    run.create_or_check()
    with run.locked():  # to the end: `train` and other searches are refused meanwhile
        run.choose_path(force)
        _claim(run, force)
        workspace = run / files.AUTO_FOLDER
        workspace.mkdir(exist_ok=True)
        try:
            with (
                using_threads(config.run.threads),
                using_device(config.run.device),
                log_to(workspace / files.LOG),
                _time(request, workspace, begin) as times,
                scratch_at(workspace / files.SCRATCH, config.data.mapped) as scratch,
            ):
                with stopwatch() as reading:
                    data, held_out = split_for_calibration(config, load_run_data(config.data, scratch), scratch)
                log.info("train: %r", data.train)
                valid = _validation_documents(data)
                judge = Judge(valid, data.train.label_counts(), len(data.train), metric, config.evaluate.propensity)
                gpu = requested_device().startswith("cuda")
                facts = Facts.of(data.train, config.data.features is not None, request.encoder, gpu)
                record = _record(request, run, data.train, judge, facts)
                search = Search(workspace, record, data.train, judge, facts, times, config.run.refit, _kept(run, show))
                choice = _decided(search)
                prepared = _prepared(search, choice, data, held_out, reading.seconds)
                train(config.model_copy(update={"model": dict(choice.parameters)}), prepared=prepared)
                remove_checkpoints(workspace)
        except LabelwiseError:
            if not (run / files.AUTO).exists():
                run.drop_replacement() if run.replaces else _remove(run, created)
            raise
        run.finish_replacement()
    return run


def _claim(run: RunFolder, force: bool) -> None:
    """Refuse the folder of a run that is finished, or of one that has trained a given method; with `force` empty it."""
    begun = (run / files.STATE).exists()
    if force:
        run.remove_run() if begun else run.remove_trials()
    elif begun and run.finished:
        raise run.finished_error()
    elif begun and not (run / files.AUTO).exists():
        if run.has_trained():
            raise ConfigError(f"{run.path}: an unfinished run with a given method exists; --force starts over")
        if run.replaces:  # what was to replace the run of this folder was not asked for by `auto`
            run.drop_replacement()
            _claim(run, force=False)
        else:
            run.remove_run()  # nothing has been trained yet, so nothing is lost


def _remove(run: RunFolder, created: list[Path]) -> None:
    """Remove what a search that failed before its first model has left, and the `created` folders."""
    run.remove_trials()
    if created and not (run / files.STATE).exists():
        (run / LOCK).unlink(missing_ok=True)
        for folder in created:
            folder.rmdir()


@contextmanager
def _time(request: AutoRequest, workspace: Path, begin: float | None) -> Iterator[RunTime]:
    """The time budget, whose seconds are recorded if the search is interrupted; the run itself removes the record."""
    times = RunTime(request.budget, workspace / files.TIME, begin)
    try:
        yield times
    except BaseException:
        times.interrupted()
        raise


def _validation_documents(data: RunData) -> Dataset:
    if data.valid is None:
        raise DataError(
            f"{data.train.name}: models are compared on held-out documents, and {len(data.train):,} documents are too "
            "few to hold out any; labelwise train trains one method on them"
        )
    return sample(data.valid, MOST_DOCUMENTS)


def _record(request: AutoRequest, run: RunFolder, train: Dataset, judge: Judge, facts: Facts) -> AutoRecord:
    """The table to begin with: a new one, or that of an interrupted search on the same data."""
    data, path = fingerprint(dataset_hash(train), dataset_hash(judge.valid)), run / files.AUTO
    notes = []
    if request.budget < SMALL_BUDGET:
        notes.append(f"a budget of {duration(request.budget)} is small: hardly more than one model can be trained")
        log.warning("%s", notes[0])
    if facts.language is not None:
        notes.append(f"language of the texts, from their function words: {facts.language}")
    new = AutoRecord(
        data=data, budget=request.budget, metric=judge.metric.name, n_train=len(train), n_valid=len(judge.valid),
        notes=tuple(notes),
    )  # fmt: skip
    if not path.exists():
        return new
    before = read_json(path, AutoRecord)
    if before.format != FORMAT or before.data != data:
        raise ConfigError(f"{run.path}: holds a search on other data; --force starts over, -o names another folder")
    if before.metric != new.metric and (run / files.STATE).exists():
        raise ConfigError(f"{run.path}: the model was chosen by {before.metric}; --force starts over")
    log.info("resuming the search in %s", run.path)
    if before.budget != new.budget:
        log.info("the budget was %s before and is %s now", duration(before.budget), duration(new.budget))
    return before if before.decided and before.metric == new.metric else new


def _kept(run: RunFolder, show: Show) -> Show:
    """Write auto.json whenever the table changes, and show it."""

    def keep(record: AutoRecord, left: float | None) -> None:
        run.write_json(files.AUTO, record.model_dump(mode="json"))
        show(record, left)

    return keep


def _decided(search: Search) -> Option:
    """The chosen option: that of an interrupted attempt if its models are still there."""
    record = search.record
    if record.decided and record.chosen is not None:
        option = record.option(record.chosen)
        if search.restore(record, option):
            log.info("%s", record.why)
            return option
    search.try_models()
    search.try_ensembles()
    record = search.decide()
    return record.option(str(record.chosen))


def _prepared(search: Search, choice: Option, data: RunData, held_out: Dataset | None, read_seconds: float) -> Prepared:
    """The chosen model as the beginning of a run."""
    ensemble = search.ensembles.get(choice.name)
    members = (search.trials[choice.name],) if ensemble is None else ensemble.members

    def model() -> Method:
        return members[0].load() if ensemble is None else ensemble.fitted(search.judge)

    parts = {id(part): part for part in (data.train, held_out, data.valid, data.test) if part is not None}
    growth = sum(map(len, parts.values())) / len(data.train)
    fit = sum(one.seconds for one in members)
    again = SLOWER * growth * fit + (0.0 if ensemble is None else sum(one.predict_seconds for one in members))
    tail = TAIL * search.record.budget + TAIL_SECONDS
    return Prepared(data, held_out, model, {"read": read_seconds, "fit": fit}, search.times, again + tail)
