"""Carries a study out: several trials at a time, each in a process of its own, so that one that dies harms no other.

All that is known about a trial is in its files. A sweep that was killed leaves its finished trials finished; its
running ones end by themselves (see trial.py), and the next sweep goes on with them.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from labelwise.atomic import replacing
from labelwise.errors import ConfigError
from labelwise.file_lock import locked
from labelwise.run_schema import METRICS, read_metrics
from labelwise.sweep import outcome as outcomes
from labelwise.sweep.claim import check_folder, claim
from labelwise.sweep.outcome import Outcome, curve, hopeless, read_outcome
from labelwise.sweep.preflight import check_study
from labelwise.sweep.search import Search, make_search
from labelwise.sweep.study import Setting, StopSection, Study, Trial

log = logging.getLogger("labelwise")
LOOK_EVERY = 0.1
LOCK_WAIT = 15.0
ALIKE = 3
"""First trials that all end with the same mistake before the others are not tried any more."""
MISTAKE = 2
"""Exit code of a trial that was told what is wrong with its input."""


@dataclass
class Finding:
    """A setting with its trials and what came out of each."""

    setting: Setting
    trials: list[Trial]
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every seed has ended, well or not."""
        return all(trial.name in self.outcomes for trial in self.trials)

    @property
    def values(self) -> list[float]:
        """The metric of every seed that has one."""
        return [found.value for found in self.outcomes.values() if found.value is not None]


@dataclass
class Running:
    """A trial at work."""

    trial: Trial
    process: subprocess.Popen
    slot: int
    looked_at: float = 0.0


def run_sweep(study: Study, force: bool = False) -> list[Finding]:
    """All trials of a study that are not done yet; what came out of all. With `force`, what is there is replaced."""
    check_folder(study, force)
    check_study(study)
    study.folder.mkdir(parents=True, exist_ok=True)
    busy = ConfigError(f"{study.folder}: another sweep is working in this folder")
    with locked(study.folder, busy, LOCK_WAIT) as lock:  # trials of a killed sweep end within moments
        claim(study, force)
        (study.folder / "trials").mkdir(exist_ok=True)
        return _Sweep(study, lock).run()


def trial_command(trial: Trial, metric: str) -> list[str]:
    """What a trial's process runs."""
    return [sys.executable, "-m", "labelwise.sweep.trial", str(trial.beside(outcomes.CONFIG)), metric]


class _Sweep:
    def __init__(self, study: Study, lock: IO[bytes]) -> None:
        self.study, self.lock, self.metric = study, lock, study.config.metric
        self.search: Search = make_search(study)
        self.findings: list[Finding] = []
        self.told: set[int] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.seen: dict[str, Trial] = {}
        self.queue: deque[Trial] = deque()
        self.running: list[Running] = []
        self.mistakes: list[str] = []

    def run(self) -> list[Finding]:
        try:
            while True:
                while len(self.running) < self.study.config.parallel and (trial := self._next()) is not None:
                    self._start(trial)
                if not self.running:
                    if self._all_alike():
                        log.warning("the first %d trials failed alike, so no other was tried", len(self.mistakes))
                    self._tell_of_idle_rule()
                    return self.findings
                time.sleep(LOOK_EVERY)
                for work in list(self.running):
                    self._look_at(work)
        finally:
            for work in self.running:
                _end(work.process)

    def _next(self) -> Trial | None:
        """A trial that has to be run, from the settings in turn."""
        if self._all_alike():
            return None
        while not self.queue:
            setting = self.search.next()
            if setting is None:
                return None
            finding = Finding(setting, self.study.trials(setting))
            self.findings.append(finding)
            for trial in finding.trials:
                if trial.name not in self.seen:
                    self.seen[trial.name] = trial
                    before = read_outcome(trial, self.metric)
                    if before.settled:
                        self.outcomes[trial.name] = before
                    else:
                        self.queue.append(trial)
            self._tell()
        return self.queue.popleft()

    def _start(self, trial: Trial) -> None:
        config = self.study.config
        slot = min(set(range(config.parallel)) - {work.slot for work in self.running})
        with replacing(trial.beside(outcomes.CONFIG)) as file:
            file.write(trial.config.to_yaml())
        trial.beside(outcomes.NOTE).unlink(missing_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.study.threads_a_trial)}
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if config.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(config.gpus[slot % len(config.gpus)])
        with trial.beside(outcomes.OUTPUT).open("wb") as output:
            process = subprocess.Popen(
                trial_command(trial, self.metric),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                # The study stays locked until the last trial of a killed sweep is gone.
                pass_fds=(self.lock.fileno(),) if os.name == "posix" else (),
            )
        self.running.append(Running(trial, process, slot))
        log.info("trial %s started", trial.name)

    def _look_at(self, work: Running) -> None:
        code = work.process.poll()
        trial = work.trial
        if code is None:
            why = self._hopeless(work)
            if why is None:
                return
            _end(work.process)
            outcomes.note(trial, outcomes.HOPELESS, why)
        elif code != 0:
            message = outcomes.failure_message(trial.beside(outcomes.OUTPUT), code)
            outcomes.note(trial, outcomes.FAILED, message)
            if code == MISTAKE:
                self.mistakes.append(message.replace(trial.name, "TRIAL"))
        if work.process.stdin is not None:
            with suppress(OSError):
                work.process.stdin.close()
        self.running.remove(work)
        found = self.outcomes[trial.name] = read_outcome(trial, self.metric)
        shown = "" if found.value is None else f", {self.metric} {100 * found.value:.2f} %"
        log.info("trial %s %s%s%s", trial.name, found.status, shown, f": {found.message}" if found.message else "")
        self._tell()

    def _hopeless(self, work: Running) -> str | None:
        rule = self.study.config.stop_hopeless
        if rule is None or time.monotonic() - work.looked_at < 1:
            return None
        work.looked_at = time.monotonic()
        own = self._curve(work.trial, rule)
        if not own or own[-1][0] < rule.after:
            return None
        return hopeless(own, [self._curve(t, rule) for name, t in self.seen.items() if name != work.trial.name], rule)

    def _curve(self, trial: Trial, rule: StopSection) -> outcomes.Curve:
        records = read_metrics(trial.folder / METRICS, damaged="skip")
        return curve(records, self.metric, outcomes.COUNTED_IN[rule.unit])

    def _all_alike(self) -> bool:
        """Whether every trial so far has made the same mistake: the others would."""
        alike = len(self.mistakes) >= ALIKE and len(set(self.mistakes)) == 1
        return alike and len(self.mistakes) == len(self.outcomes)

    def _tell_of_idle_rule(self) -> None:
        rule = self.study.config.stop_hopeless
        if rule is not None and not any(self._curve(trial, rule) for trial in self.seen.values()):
            log.warning(
                "stop_hopeless: no trial told its %s while it trained, so none could be stopped; the metric must be "
                "one that is validated, such as P@1 or model.training.metric",
                self.metric,
            )

    def _tell(self) -> None:
        """Hand results to the settings that wait for them, and those of whole settings to the search."""
        for number, finding in enumerate(self.findings):
            for trial in finding.trials:
                if trial.name in self.outcomes:
                    finding.outcomes[trial.name] = self.outcomes[trial.name]
            if number not in self.told and finding.complete:
                self.told.add(number)
                values = finding.values
                self.search.tell(finding.setting, sum(values) / len(values) if values else None)


def _end(process: subprocess.Popen) -> None:
    """End a trial: closing its standard input is enough, unless it is stuck."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
