"""Runs a study: several trials in parallel, each in a separate process, so that a crash does not affect the others.

The state of a trial is in its files. Finished trials of a killed sweep stay finished; its running trials exit by
themselves (see trial.py), and the next sweep resumes them.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import IO

from labelwise.errors import ConfigError
from labelwise.formatting import duration
from labelwise.io.atomic import LOCK, lock_folder, replacing
from labelwise.io.folder import METRICS, TASKS
from labelwise.report.schema import read_metrics
from labelwise.report.wording import short_names
from labelwise.runtime.tasks import (
    RAY,
    Child,
    CommandOnCluster,
    Launcher,
    Tasks,
)
from labelwise.tuning import outcome as outcomes
from labelwise.tuning.outcome import Outcome, curve, hopeless_reason, read_outcome
from labelwise.tuning.preflight import check_study
from labelwise.tuning.study import (
    Setting,
    StopSection,
    Study,
    Trial,
    check_folder,
    claim,
)
from labelwise.tuning.sweep_search import ListSearch, Search, make_search

# --- trial names ---
# How trials are named for people: position, total and setting; their folders are named by hashes.


class Trials:
    """The trials of a sweep in the order in which the search gives them."""

    def __init__(self, study: Study, search: Search) -> None:
        if isinstance(search, ListSearch):
            self.total = len({trial.name for setting in search.settings for trial in study.trials(setting)})
        else:
            self.total = (study.config.search.trials or 0) * len(study.groups) * len(study.config.seeds or [None])
        self._settings: dict[str, tuple[int, Setting]] = {}

    def add(self, trial: Trial, setting: Setting) -> None:
        """Give a trial its position."""
        self._settings[trial.name] = len(self._settings) + 1, setting

    def describe(self, trial: Trial) -> str:
        """As in `trial 2 of 4 (leaf_size 4, seed 1; f31a1729be65)`."""
        position, setting = self._settings[trial.name]
        names = short_names(list(setting.values))
        values = [f"{name} {value}" for name, value in zip(names, setting.values.values(), strict=True)]
        group = [setting.group.name] if setting.group.name else []
        seed = [] if trial.seed is None else [f"seed {trial.seed}"]
        return f"trial {position} of {self.total} ({', '.join(group + values + seed)}; {trial.name})"


log = logging.getLogger("labelwise")
POLL_SECONDS = 0.1
LOCK_WAIT = 15.0
SAME_ERRORS = 3
"""Stop when this many first trials have all failed with the same input error."""
INPUT_ERROR = 2
"""Exit code of a trial that failed with a LabelwiseError."""


@dataclass
class SettingResult:
    """A setting with its trials and their outcomes."""

    setting: Setting
    trials: list[Trial]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every seed has ended, successfully or not."""
        return all(trial.name in self.outcomes for trial in self.trials)

    @property
    def values(self) -> list[float]:
        """The metric of every seed that has one."""
        return [outcome.value for outcome in self.outcomes.values() if outcome.value is not None]


@dataclass
class Running:
    """A running trial."""

    trial: Trial
    command: Child | CommandOnCluster
    slot: int
    checked_at: float = 0.0


def run_sweep(study: Study, force: bool = False, launcher: Launcher | None = None) -> list[SettingResult]:
    """Run all unfinished trials of a study; returns all outcomes. With `force`, an existing study is replaced.

    Trials are processes of this machine, or of the cluster of the `launcher`.
    """
    launcher = launcher or Launcher()
    _check_launcher(study, launcher)
    check_folder(study, force)
    check_study(study)
    study.folder.mkdir(parents=True, exist_ok=True)
    busy = ConfigError(f"{study.folder}: another sweep is working in this folder")
    with lock_folder(study.folder, busy, LOCK_WAIT) as lock:  # trials of a killed sweep exit within seconds
        _wait_for_trials(study)
        claim(study, force)
        (study.folder / "trials").mkdir(exist_ok=True)
        with launcher.opened(study.folder / TASKS, study.threads_per_trial) as tasks:
            return _Sweep(study, lock, tasks).run()


def _wait_for_trials(study: Study) -> None:
    """Wait for trials of a killed sweep on other machines: they hold the lock of their run, not that of the study."""
    until = time.monotonic() + LOCK_WAIT
    for lock in sorted(study.folder.glob(f"trials/*/{LOCK}")):
        busy = ConfigError(f"{lock.parent}: a trial of an earlier sweep still runs; end it, or wait for its end")
        with lock_folder(lock.parent, busy, max(0.0, until - time.monotonic())):
            pass


def _check_launcher(study: Study, launcher: Launcher) -> None:
    """Refuse options that the study decides, or that Ray does."""
    if launcher.workers or launcher.task_cpus:
        raise ConfigError("--workers, --task-cpus: `parallel` and `threads` of the study set these, for all trials")
    if launcher.name == RAY and study.config.gpus is not None:
        raise ConfigError("gpus: Ray chooses the GPUs of its tasks; leave it out, and give --task-gpus 1")


def trial_command(trial: Trial, metric: str) -> list[str]:
    """The command of a trial's process, after `python`."""
    return ["-m", "labelwise.tuning.trial", str(trial.beside(outcomes.CONFIG).absolute()), metric]


class _Sweep:
    def __init__(self, study: Study, lock: IO[bytes], tasks: Tasks) -> None:
        self.study, self.lock, self.tasks, self.metric = study, lock, tasks, study.config.metric
        self.search: Search = make_search(study)
        self.results: list[SettingResult] = []
        self.reported: set[int] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.seen: dict[str, Trial] = {}
        self.queue: deque[Trial] = deque()
        self.running: list[Running] = []
        self.input_errors: list[str] = []
        self.trials = Trials(study, self.search)
        self.begin = time.monotonic()

    def run(self) -> list[SettingResult]:
        try:
            while True:
                while len(self.running) < self.study.config.parallel and (trial := self._next()) is not None:
                    self._start(trial)
                if not self.running:
                    if self._all_failed_alike():
                        log.warning(
                            "the first %d trials failed with the same error, so no other was started",
                            len(self.input_errors),
                        )
                    elif self._out_of_time() and len(self.outcomes) < self.trials.total:
                        log.warning(
                            "time_budget: %s are over; %d of %d trials have ended, and the same command continues "
                            "with the others",
                            duration(self.study.config.time_budget),
                            len(self.outcomes),
                            self.trials.total,
                        )
                    self._warn_if_rule_unused()
                    return self.results
                time.sleep(POLL_SECONDS)
                for work in list(self.running):
                    self._poll(work)
        finally:
            for work in self.running:
                work.command.stop()

    def _next(self) -> Trial | None:
        """The next trial to run, taking settings from the search as needed."""
        if self._all_failed_alike() or self._out_of_time():
            return None
        while not self.queue:
            setting = self.search.next()
            if setting is None:
                return None
            result = SettingResult(setting, self.study.trials(setting))
            self.results.append(result)
            for trial in result.trials:
                if trial.name not in self.seen:
                    self.seen[trial.name] = trial
                    self.trials.add(trial, setting)
                    before = read_outcome(trial, self.metric)
                    if before.settled:
                        self.outcomes[trial.name] = before
                    else:
                        self.queue.append(trial)
            self._report_outcomes()
        return self.queue.popleft()

    def _start(self, trial: Trial) -> None:
        config = self.study.config
        slot = min(set(range(config.parallel)) - {work.slot for work in self.running})
        with replacing(trial.beside(outcomes.CONFIG)) as file:
            file.write(trial.config.to_yaml())
        trial.beside(outcomes.NOTE).unlink(missing_ok=True)
        environment = {"OMP_NUM_THREADS": str(self.study.threads_per_trial)}
        environment["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
        if config.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(config.gpus[slot % len(config.gpus)])
        # the study stays locked until the last trial of a killed sweep has exited
        command = self.tasks.start(
            trial_command(trial, self.metric), trial.beside(outcomes.OUTPUT), environment, (self.lock.fileno(),)
        )
        self.running.append(Running(trial, command, slot))
        log.info("%s started", self.trials.describe(trial))

    def _poll(self, work: Running) -> None:
        code = work.command.poll()
        trial = work.trial
        if code is None:
            reason = self._hopeless_reason(work)
            if reason is None:
                return
            work.command.stop()
            outcomes.write_note(trial, outcomes.HOPELESS, reason)
        elif code != 0:
            message = outcomes.failure_message(trial.beside(outcomes.OUTPUT), code)
            outcomes.write_note(trial, outcomes.FAILED, message)
            if code == INPUT_ERROR:
                self.input_errors.append(message.replace(trial.name, "TRIAL"))
        self.running.remove(work)
        outcome = self.outcomes[trial.name] = read_outcome(trial, self.metric)
        value = "" if outcome.value is None else f", {self.metric} {100 * outcome.value:.2f} %"
        reason = f": {outcome.message}" if outcome.message else ""
        log.info("%s %s%s%s", self.trials.describe(trial), outcome.status, value, reason)
        self._report_outcomes()

    def _hopeless_reason(self, work: Running) -> str | None:
        rule = self.study.config.stop_hopeless
        if rule is None or time.monotonic() - work.checked_at < 1:
            return None
        work.checked_at = time.monotonic()
        own = self._curve(work.trial, rule)
        if not own or own[-1][0] < rule.after:
            return None
        return hopeless_reason(
            own, [self._curve(t, rule) for name, t in self.seen.items() if name != work.trial.name], rule
        )

    def _curve(self, trial: Trial, rule: StopSection) -> outcomes.Curve:
        records = read_metrics(trial.folder / METRICS, damaged="skip")
        return curve(records, self.metric, outcomes.COUNTED_IN[rule.unit])

    def _out_of_time(self) -> bool:
        budget = self.study.config.time_budget
        return budget is not None and time.monotonic() - self.begin >= budget

    def _all_failed_alike(self) -> bool:
        """Whether every trial so far has failed with the same input error, as the others would."""
        same = len(self.input_errors) >= SAME_ERRORS and len(set(self.input_errors)) == 1
        return same and len(self.input_errors) == len(self.outcomes)

    def _warn_if_rule_unused(self) -> None:
        rule = self.study.config.stop_hopeless
        if rule is not None and not any(self._curve(trial, rule) for trial in self.seen.values()):
            log.warning(
                "stop_hopeless: no trial logged %s during training, so none could be stopped; the metric must be "
                "one that is validated, such as P@1 or model.training.metric",
                self.metric,
            )

    def _report_outcomes(self) -> None:
        """Copy outcomes to their settings, and report complete settings to the search."""
        for number, result in enumerate(self.results):
            for trial in result.trials:
                if trial.name in self.outcomes:
                    result.outcomes[trial.name] = self.outcomes[trial.name]
            if number not in self.reported and result.complete:
                self.reported.add(number)
                values = result.values
                self.search.tell(result.setting, sum(values) / len(values) if values else None)
