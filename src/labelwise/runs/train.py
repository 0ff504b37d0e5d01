"""A run from config to report: read, fit, calibrate, evaluate, inspect, refit, report. Finished stages are kept.

`labelwise train` and the sweeps call `train`; an interrupted run resumes with the first unfinished stage.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.data.dataset import Dataset, check_known, check_labelled
from labelwise.data.describe import statistics
from labelwise.data.hashing import document_hashes
from labelwise.data.out_of_core import scratch_at
from labelwise.data.rows import concat
from labelwise.errors import ConfigError, MissingDependencyError
from labelwise.io import folder as files
from labelwise.io.atomic import LOCK, lock_folder
from labelwise.io.folder import MANIFEST, SCRATCH, TIME
from labelwise.io.json import validate
from labelwise.methods.popularity import Popularity
from labelwise.metrics.names import parse_metric
from labelwise.metrics.result import Evaluation, SavedPredictions
from labelwise.model.calibration import CalibrationReport
from labelwise.model.card import Reading, Scores, update_card
from labelwise.model.method import Method, load
from labelwise.registry import methods_that
from labelwise.report.schema import Results
from labelwise.runs.config import RunConfig
from labelwise.runs.data import CALIBRATION, RunData, hold_out, load_run_data
from labelwise.runs.evaluate import ModelEvaluation, evaluate_model, sample
from labelwise.runs.folder import RunFolder, folder_bytes
from labelwise.runs.inspect import can_be_inspected, inspect
from labelwise.runs.machine import peak_memory
from labelwise.runs.remarks import run_remarks, with_calibration
from labelwise.runs.run_time import REPORT_SECONDS, RunTime
from labelwise.runs.stopwatch import Stopwatch, stopwatch
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.device import AUTO, CPU, using_device
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import n_ranks, noticing_lost_ranks, on_rank_zero, rank, work_alone
from labelwise.runtime.tasks import Launcher
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.model.method import Method
    from labelwise.runs.config import RunConfig
    from labelwise.runs.data import RunData
    from labelwise.runs.folder import RunFolder


# --- refit ---
# The refit of a run: after the scores are known, the model is trained once more, on the held-out documents as well.
#
# The scores stay those of the judged model, which has not seen the test documents. The saved model gets the calibration
# of the judged one: this assumes that a score means the same after training on more documents of the same kind. There
# are no documents left to fit another calibration on.
#
# Until the refitted model is complete, the judged one is the model of the run; one step replaces it. Which of the two
# is in the folder follows from the number of documents that it was trained on.


def is_refitted(model: Method, data: RunData) -> bool:
    """Whether a model has seen more documents than the training part has."""
    return model.fact("refits") and model.n_documents_ > len(data.train)


def check_resumable(run: RunFolder, data: RunData, held_out: Dataset | None) -> None:
    """Refuse to judge a model on documents that it was trained on: its figures must exist already."""
    needed = {files.RESULTS: data.test is not None, files.CALIBRATION: held_out is not None}
    missing = [name for name, wanted in needed.items() if wanted and not (run / name).exists()]
    if missing:
        raise ConfigError(
            f"{run.path}: the model was trained on all documents, also the held-out ones, and {missing[0]} is missing; "
            "--force starts over"
        )


def documents_to_refit(data: RunData, held_out: Dataset | None, validates: bool, scratch: Path | None) -> Dataset:
    """All documents of a run, or all but the valid part if the method stops early on that."""
    kept_out = data.valid if validates else None
    parts = {id(part): part for part in (data.train, held_out, data.valid, data.test) if part is not None}
    return concat([part for part in parts.values() if part is not kept_out], data.train.name, scratch=scratch)


def carry_over(judged: Method, model: Method) -> None:
    """Give the refitted model the calibration of the judged one, and its scores on the card."""
    before = judged.card_
    kept = {"reading": before.reading, "scores": before.scores, "calibration": before.calibration}
    model.calibration_ = judged.calibration_
    model.card_ = model.card_.model_copy(update=kept).with_change(
        f"trained on all {model.n_documents_:,} documents; scores and calibration are those of a model trained on "
        f"{judged.n_documents_:,} of them",
        refit=True,
    )


def record_refit(run: RunFolder, model: Method, judged_documents: int) -> None:
    """Note in results.json, if there is one, that the saved model is not the one with these scores."""
    path = run / files.RESULTS
    if not path.exists():
        return
    seconds = [entry["seconds"] for entry in run.records() if entry["stage"] == files.REFIT and "done" in entry]
    results = json.loads(path.read_text("utf-8"))
    results["refit"] = {
        "n_documents": model.n_documents_,
        "n_judged": judged_documents,
        "n_labels": len(model.label_names_),
        "bytes": folder_bytes(run / files.MODEL),
        "seconds": sum(seconds),
    }
    validate(results, Results, path)
    run.write_json(files.RESULTS, results)


# --- other ranks ---
# A run under torchrun: rank 0 is the run, the other ranks only train with it and write nothing.
#
# Rank 0 announces each training to the others (a resumed run may have none left, a refit is a second one) and then that
# there is no other. They free their memory and wait until the run is finished: torchrun ends on a node five minutes
# after the processes there have, and with it the store of all nodes, if it is on that one.

Announcement = tuple[str, float, float]
"""What is trained (`fit` or `refit`), the seconds of its time budget, and those that are left of it."""


def check_ranks(method: Method) -> None:
    """Refuse several ranks for a method that they cannot train together."""
    if n_ranks() > 1 and not method.trains_on_ranks:
        raise ConfigError(
            f"{method.name} trains in one process, with threads: start it without torchrun"
            + ("; its members can be trained under torchrun, each alone" if method.name == "ensemble" else "")
        )


def announce(what: str, budget: Budget) -> None:
    """Let the other ranks train with rank 0."""
    if n_ranks() > 1:
        on_rank_zero(lambda: (what, budget.seconds, budget.remaining()))


def end_training() -> None:
    """Let the other ranks free their memory: there is no other training, and rank 0 works alone."""
    if n_ranks() > 1:
        on_rank_zero(_nothing)
        work_alone(True)


def release_ranks() -> None:
    """Let the other ranks end: rank 0 has finished the run."""
    if n_ranks() > 1:
        work_alone(False)
        on_rank_zero(_nothing)
        work_alone(True)


def train_with_rank_zero(config: RunConfig, run: RunFolder, force: bool) -> None:
    """Train what rank 0 trains, then wait for its end; evaluation, reports and all files are rank 0's."""
    logging.getLogger("labelwise").setLevel(logging.ERROR)  # rank 0 says it all
    _train_all(config, run, force)
    _free_memory()
    on_rank_zero(_nothing)


def _train_all(config: RunConfig, run: RunFolder, force: bool) -> None:
    """Read the data and train until rank 0 announces that there is no other training."""

    with (
        using_threads(config.run.threads),
        tempfile.TemporaryDirectory() as temporary,
        scratch_at(Path(temporary) / files.SCRATCH, config.data.mapped) as scratch,
    ):

        @cache
        def data() -> tuple[RunData, Dataset | None]:
            return split_for_calibration(config, load_run_data(config.data, scratch), scratch)

        if force or not (run.current_path() / files.MODEL).exists():
            data()  # at the same time as rank 0
        while (announced := on_rank_zero(_nothing)) is not None:
            what, seconds, left = announced
            parts, held_out = data()
            model = config.make_method()
            train, valid = parts.train, parts.valid
            if what == files.REFIT:
                train = documents_to_refit(parts, held_out, model.validates, scratch)
                valid = parts.valid if model.validates else None
            model.fit(train, valid=valid, job=Job(budget=Budget(seconds, time.monotonic() + left)))


def _free_memory() -> None:
    """Free data and models, also those that are in cycles, and what torch keeps of the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _nothing() -> Announcement | None:
    return None


# --- launched ---
# Runs with `--launcher`: what it cannot be combined with, and models and documents on their way to tasks.


def check_launcher(config: RunConfig, method: Method, launcher: Launcher) -> None:
    """Refuse tasks for a method that has none, and with what decides by the clock of one process."""
    if launcher.is_local:
        return
    option = f"--launcher {launcher.name}"
    if n_ranks() > 1:
        raise ConfigError(f"{option}: not under torchrun; use one of the two")
    if not method.fact("refits"):
        raise ConfigError(f"{option}: the members of this ensemble are trained already; leave the option out")
    if not method.trains_in_tasks:
        raise ConfigError(
            f"{option}: training {method.name} has no parts that share nothing, as {methods_that('trains_in_tasks')} "
            "have. Leave the option out; several processes train a network together under torchrun"
        )
    given = {"run.time_budget": config.run.time_budget, "model's time_budget": method.time_budget}
    for name, seconds in given.items():
        if seconds is not None:
            raise ConfigError(f"{name}: not with {option}, because one process has to measure its pace; leave out one")


def manifest_hash(folder: Path) -> str:
    """A hash that changes with any file of a model folder."""
    return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()


class OpenModel:
    """A model of a folder; tasks in other processes get the path and load it once, in the first of them."""

    def __init__(self, folder: Path, model: Method | None, expected: str | None = None) -> None:
        self.folder, self._model, self._expected = folder.absolute(), model, expected

    @property
    def model(self) -> Method:
        """The model."""
        return _loaded(self.folder, self._expected) if self._model is None else self._model

    def __reduce__(self) -> tuple:
        if self._expected is None:
            self._expected = manifest_hash(self.folder)
        return OpenModel, (self.folder, None, self._expected)


@lru_cache(1)
def _loaded(folder: Path, expected: str | None) -> Method:
    from labelwise.model.method import load

    found = None
    with suppress(OSError):
        found = manifest_hash(folder)
    if found != expected:
        raise ConfigError(
            f"{folder}: a worker does not see this model, or sees another: it must be on a file system that all nodes "
            "share, under the same path"
        )
    return load(folder)


def to_send(documents: Any) -> Any:
    """Documents without the texts of others, with which they may share a buffer."""
    if isinstance(documents, Strings):
        return documents.compact()
    if isinstance(documents, Dataset):
        texts, ids, paths = (_compact(given) for given in (documents.texts, documents.ids, documents.paths))
        return replace(documents, texts=texts, ids=ids, paths=paths)
    return documents


def _compact(given: Strings | None) -> Strings | None:
    return None if given is None else given.compact()


log = logging.getLogger("labelwise")


@dataclass(frozen=True)
class Prepared:
    """What exists before a run begins: its data, the trained model, and the time that is left (`labelwise auto`)."""

    data: RunData
    held_out: Dataset | None
    model: Callable[[], Method]
    """The model of the run, trained on the training part; called unless the run has its model already."""
    seconds: Mapping[str, float]
    """What reading and training have taken, by stage."""
    times: RunTime
    refit_seconds: float
    """What training on all documents is expected to take; it is left out if there is less time."""


def train(
    config: RunConfig,
    force: bool = False,
    begin: float | None = None,
    launcher: Launcher | None = None,
    prepared: Prepared | None = None,
) -> RunFolder:
    """Train, evaluate and report as configured; returns the run folder.

    Parameters
    ----------
    begin
        When the run's time budget began, on the monotonic clock; None: now.
    launcher
        Where independent parts of the model are trained; None: in this process.
    prepared
        With a prepared model the run begins with its calibration.
    """
    launcher = launcher or Launcher()
    begin = time.monotonic() if begin is None else begin
    run = RunFolder(str(config.run.folder))
    with using_device(config.run.device), noticing_lost_ranks():
        method = config.make_method()
        check_ranks(method)
        check_launcher(config, method, launcher)  # of a resumed run too, which may train again (refit)
        if force or not (run.current_path() / files.MODEL).exists():
            method.check_needs()
            check_device(method, config.run.device)
        if prepared is None:  # on all ranks alike: the count of restarts is another one on each node
            force, is_finished = on_rank_zero(lambda: run.begin_or_resume(force))
            if is_finished:
                return run
        if rank() > 0:
            train_with_rank_zero(config, run, force)
            return run
        return _train(config, run, force, begin, launcher, prepared)


def check_device(method: Method, given: str | None) -> None:
    """Refuse a GPU for a method that computes on the CPU, and one that is not there."""
    if "torch" in method.fact("needs"):
        from labelwise.runtime.device import computing_device

        computing_device()
    elif given not in (None, AUTO, CPU):
        raise ConfigError(f"run.device: {method.name} computes on the CPU; leave out {given}")


def _train(
    config: RunConfig, run: RunFolder, force: bool, begin: float, launcher: Launcher, prepared: Prepared | None
) -> RunFolder:
    with (
        using_threads(config.run.threads),
        run.open_for_run(config, force, searched=prepared is not None),
        launcher.opened(run / files.TASKS, config.run.threads) as tasks,
        scratch_at(run / files.SCRATCH, config.data.mapped) as scratch,
        _run_time(config, run, begin, prepared) as times,
    ):
        if prepared is not None:
            data, held_out, run.has_data = prepared.data, prepared.held_out, True
            model = _adopted(config, run, prepared)
        else:
            with _timed(run, "read"):
                data, held_out = split_for_calibration(config, load_run_data(config.data, scratch), scratch)
            run.has_data = True
            log.info("train: %r", data.train)
            job = Job(budget=times.for_fit(config.run.refit), scratch=scratch, tasks=tasks)
            model = _load_or_fit(config, run, data, job)
        if not config.run.refit:
            end_training()
        if is_refitted(model, data):
            check_resumable(run, data, held_out)
        if held_out is not None:
            _calibrate(config, run, held_out, model, times.for_calibration(has_test=data.test is not None))
        if data.test is not None:
            _evaluate(config, run, data.train, data.test, model, times.for_evaluation())
        else:
            log.info("no test part: the model is not evaluated (data.test, or data.test_fraction, gives one)")
        if (
            config.inspect.enabled
            and can_be_inspected(model)
            and times.allows("inspect", _inspection_seconds(config, run) + REPORT_SECONDS)
        ):
            with _timed(run, "inspect"):
                inspect(run, model, data, config.inspect)
        in_time = prepared is None or not config.run.refit or times.allows(files.REFIT, prepared.refit_seconds)
        if (config.run.refit and in_time) or is_refitted(model, data):
            job = Job(budget=times.for_refit(), scratch=scratch, tasks=tasks)
            _refit(config, run, data, held_out, model, job)
        if config.run.refit:
            end_training()
        run.finish_stages()
        if config.run.report and times.allows("report", REPORT_SECONDS):
            _write_report(run)
        run.finish()
    release_ranks()
    return run


@contextmanager
def _run_time(config: RunConfig, run: RunFolder, begin: float, prepared: Prepared | None) -> Iterator[RunTime]:
    """The time budget of a run, whose seconds are recorded if it is interrupted."""
    times = RunTime(config.run.time_budget, run / files.TIME, begin) if prepared is None else prepared.times
    try:
        yield times
    except BaseException:
        times.interrupted()
        raise
    times.finished()


def _inspection_seconds(config: RunConfig, run: RunFolder) -> float:
    """Seconds that an inspection is expected to take: two passes, at the speed of the last prediction."""
    path = run / files.RESULTS
    if not path.exists():
        return 0.0
    speed = json.loads(path.read_text("utf-8"))["timings"]["predict_documents_per_second"]
    return 2 * config.inspect.vectors / max(speed, 1e-9)


def _load_or_fit(config: RunConfig, run: RunFolder, data: RunData, job: Job) -> Method:
    folder = run / files.MODEL
    if folder.exists():
        log.info("the model of this run is already trained")
        return load(folder)
    model = config.make_method()
    job = replace(job, folder=run / files.CHECKPOINTS, log=partial(run.record, "fit"))
    with _timed(run, "fit"):
        announce("fit", job.budget)
        model.fit(data.train, valid=data.valid, job=job)
    return _saved(config, run, model)


def _adopted(config: RunConfig, run: RunFolder, prepared: Prepared) -> Method:
    """The model that was trained before the run."""
    if (run / files.MODEL).exists():
        return load(run / files.MODEL)
    for stage, seconds in prepared.seconds.items():
        run.record(stage, seconds=round(seconds, 3), done=True, peak_bytes=peak_memory())
    return _saved(config, run, prepared.model())


def _saved(config: RunConfig, run: RunFolder, model: Method) -> Method:
    reading = Reading.of(config.data.training_path, config.data.format, config.data.options)
    model.card_ = model.card_.model_copy(update={"reading": reading})
    model.save(run / files.MODEL)
    return model


def _refit(
    config: RunConfig,
    run: RunFolder,
    data: RunData,
    held_out: Dataset | None,
    judged: Method,
    job: Job,
) -> None:
    """Replace the judged model by one that is trained on the held-out documents as well."""
    if is_refitted(judged, data):
        log.info("the model of this run is already trained on all documents")
        record_refit(run, judged, len(data.train))
        return
    if not judged.fact("refits"):
        log.warning("run.refit: the members of this ensemble are trained already; it stays as it is")
        return
    everything = documents_to_refit(data, held_out, judged.validates, job.scratch)
    if len(everything) == len(data.train):
        log.info("no documents are held out: the model is trained on all of them already")
        return
    shutil.rmtree(run / files.CHECKPOINTS, ignore_errors=True)
    model = config.make_method()
    job = replace(job, folder=run / files.REFIT_CHECKPOINTS, log=partial(run.record, files.REFIT))
    with _timed(run, files.REFIT):
        announce(files.REFIT, job.budget)
        model.fit(everything, valid=data.valid if judged.validates else None, job=job)
    carry_over(judged, model)
    model.save(run / files.MODEL, force=True)
    record_refit(run, model, len(data.train))


def split_for_calibration(
    config: RunConfig, data: RunData, scratch: Path | None = None
) -> tuple[RunData, Dataset | None]:
    """The data without the documents held out for calibration, and those; errors are raised before training."""
    section, held_out = config.calibrate, None
    if section.enabled is not False:
        held_out = data.valid
        if section.fraction is not None:
            train, held_out = hold_out(data.train, section.fraction, config.data, CALIBRATION, scratch)
            data = replace(data, train=train)
        if held_out is None and section.enabled is True:
            raise ConfigError(
                "calibrate.enabled needs held-out documents, and the data has no valid part; "
                "calibrate.fraction=0.1 or data.valid_fraction=0.1 sets some of the training documents aside"
            )
    if data.test is not None:
        test = sample(data.test, config.evaluate.limit)
        check_labelled(test.labels, test.name)
        check_known(test, data.train.n_labels)
        config.evaluate.check_threshold(calibrated=held_out is not None)
    return data, held_out


def _calibrate(config: RunConfig, run: RunFolder, held_out: Dataset, model: Method, budget: Budget) -> None:
    if model.calibration_ is not None and (run / files.CALIBRATION).exists():
        log.info("the model of this run is already calibrated")
        return
    with _timed(run, "calibrate"):
        report = model.calibrate(held_out, k=config.calibrate.k, precision=config.calibrate.precision, budget=budget)
        write_calibration(run, report)
        model.save_calibration(run / files.MODEL)
    log.log(logging.INFO if report.reached else logging.WARNING, "%s", report)


def write_calibration(run: RunFolder, report: CalibrationReport) -> None:
    """Write calibration.json, and update results.json if it exists, so that reports show the latest calibration."""
    run.write_json(files.CALIBRATION, report.to_dict())
    results = run / files.RESULTS
    if results.exists():
        before, calibration = json.loads(results.read_text("utf-8")), report.to_dict()
        remarks = with_calibration(before.get("remarks", []), calibration, before.get("threshold"))
        run.write_json(files.RESULTS, {**before, "calibration": calibration, "remarks": remarks})


def _read_calibration(run: RunFolder) -> dict[str, Any] | None:
    path = run / files.CALIBRATION
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _evaluate(config: RunConfig, run: RunFolder, train: Dataset, test: Dataset, model: Method, budget: Budget) -> None:
    if (run / files.RESULTS).exists():
        log.info("the model of this run is already evaluated")
        return
    measured = evaluate_model(model, test, config.evaluate, run.path, budget)
    seconds = {**_stage_seconds(run), **measured.seconds}
    for stage, spent in measured.seconds.items():
        run.record(stage, seconds=round(spent, 3))
    popularity = measured.score(Popularity().fit(train)) if model.learns else None
    floor = None if popularity is None else _without_threshold(popularity)
    _keep_predictions(run, measured, popularity)
    train_statistics, calibration = statistics(train), _read_calibration(run)
    remarks = [*run_remarks(measured, floor, run.records()), *model.remarks()]
    if calibration is not None:
        remarks = with_calibration(remarks, calibration, None)
    model.card_ = update_card(run / files.MODEL, {"scores": Scores.of(measured.evaluation, measured.test)})
    results = {
        "split": "test",
        "n_documents": len(measured.test),
        "n_available": measured.available,
        "k": measured.top.k,
        "n_seen": None if measured.overlap is None else measured.overlap.seen,
        "remarks": remarks,
        "threshold": measured.threshold,
        "label_counts": measured.label_counts.model_dump(),
        "evaluation": measured.evaluation.to_dict(),
        "timings": {**seconds, "predict_documents_per_second": len(measured.test) / max(seconds["predict"], 1e-9)},
        "memory": {"peak_bytes": _peak_bytes(run)},
        "model": {"bytes": folder_bytes(run / files.MODEL), "n_labels": len(model.label_names_)},
        "data": {"train": train_statistics.to_dict(), "test": statistics(test).to_dict()},
        "frequency_curve": train_statistics.frequency_curve(),
        "baseline": None if floor is None else {"method": "popularity", "values": floor},
        "calibration": calibration,
    }
    run.record("evaluate", split="test", **measured.evaluation.values)
    run.append_to_log(*(f"WARNING {remark}" for remark in remarks))
    validate(results, Results, run / files.RESULTS)  # never write what reports cannot read
    run.write_json(files.RESULTS, results)


def _without_threshold(popularity: Evaluation) -> dict[str, float]:
    """The baseline's values, except F1 at the threshold of the judged model: its scores are on another scale."""
    return {name: value for name, value in popularity.values.items() if not parse_metric(name).needs_threshold}


def _keep_predictions(run: RunFolder, measured: ModelEvaluation, popularity: Evaluation | None) -> None:
    """Keep the test predictions, for paired comparisons with other runs."""
    sums = measured.evaluation.sums
    if sums is not None:
        hashes = document_hashes(measured.test)
        baseline = None if popularity is None else popularity.sums
        SavedPredictions(measured.top, hashes, sums, baseline).write(run / files.PREDICTIONS)


def _write_report(run: RunFolder) -> None:
    from labelwise.report.run import write_report

    try:
        with _timed(run, "report"):
            write_report(run.path)
    except MissingDependencyError as error:
        log.warning("report.html was not written: %s", error)


@contextmanager
def _timed(run: RunFolder, stage: str) -> Iterator[None]:
    log.info("%s ...", stage)
    done, watch = False, Stopwatch()
    try:
        with stopwatch() as watch:
            yield
        done = True
    finally:
        compiling = {"compiling": round(watch.compiling, 3)} if watch.compiling else {}
        run.record(stage, seconds=round(watch.seconds, 3), **compiling, done=done, peak_bytes=peak_memory())
    log.info("%s done in %s", stage, watch)


def _stage_seconds(run: RunFolder) -> dict[str, float]:
    """Seconds of the last read and calibration, and of all attempts at fitting, because a resumed fit continues."""
    stages = ("read", "fit", "calibrate")
    ended = [entry for entry in run.records() if "done" in entry]  # methods log other records in between
    spent = {stage: [entry["seconds"] for entry in ended if entry["stage"] == stage] for stage in stages}
    calibrate = {"calibrate": spent["calibrate"][-1]} if spent["calibrate"] else {}
    return {"read": sum(spent["read"][-1:]), "fit": sum(spent["fit"]), **calibrate}


def _peak_bytes(run: RunFolder) -> int | None:
    """Peak memory over all processes of this run."""
    peaks = [entry.get("peak_bytes") for entry in run.records()] + [peak_memory()]
    return max((peak for peak in peaks if peak), default=None)


# --- repetitions ---
# Trains single repetitions of a model that consists of independent parts, each in a separate process.


def train_repetitions(config: RunConfig, numbers: Sequence[int], begin: float | None = None) -> Path:
    """Train the given repetitions on the data of a run; returns the folder of finished repetitions.

    `begin` is when the time budget of the run began, on the monotonic clock; None: now.
    """
    begin = time.monotonic() if begin is None else begin
    model = config.make_method()
    numbers = sorted(set(numbers))
    try:
        if not hasattr(model, "fit_parts"):
            raise ConfigError(f"{model.name} is not made of repetitions; mach is")
        parts = model.check_parts(numbers)
    except ConfigError as error:
        raise ConfigError(f"--repetition: {error}") from None
    model.check_needs()
    with using_threads(config.run.threads):
        work = parts / ("work-" + "-".join(f"{number:03d}" for number in numbers))
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--repetition: {work} cannot be created: {error.strerror}") from None
        with lock_folder(work, ConfigError(f"{work}: another process is working on the same repetition")):
            try:
                with scratch_at(work / SCRATCH, config.data.mapped) as scratch:
                    data, _ = split_for_calibration(config, load_run_data(config.data, scratch), scratch)
                    budget = NO_LIMIT.limited(config.run.time_budget, work / f"run-{TIME}", begin)
                    folder = model.fit_parts(data.train, numbers, data.valid, Job(work, budget=budget))
            except BaseException:
                _remove_empty(work)
                raise
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _remove_empty(work: Path) -> None:
    """Remove the work folder if nothing has been trained yet."""
    with suppress(OSError):
        if [path.name for path in work.iterdir()] == [LOCK]:
            shutil.rmtree(work)
