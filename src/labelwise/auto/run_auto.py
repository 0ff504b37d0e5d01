"""`labelwise auto`: a run whose method is chosen on held-out documents, within a time budget.

The folder becomes that of an ordinary run, with auto.json, the table of what was tried, and `auto/`, the tried models.
An interrupted search resumes: trained models are kept as long as the data is the same, and so is the decision.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labelwise import run_schema as files
from labelwise.auto.judge import Judge, checked_metric
from labelwise.auto.ladder import Facts
from labelwise.auto.search import Search, Show
from labelwise.auto.trials import remove_checkpoints
from labelwise.auto_schema import FORMAT, AutoRecord, Option
from labelwise.data.dataset import Dataset
from labelwise.data.document_hash import dataset_hash
from labelwise.data.out_of_core import scratch_at
from labelwise.device_setting import requested_device, using_device
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.file_lock import LOCK
from labelwise.finished import fingerprint
from labelwise.formatting import duration
from labelwise.methods.base import Method
from labelwise.parallel import using_threads
from labelwise.process_group import n_ranks
from labelwise.runs.config import RunConfig
from labelwise.runs.evaluate import sample
from labelwise.runs.folder import RunFolder
from labelwise.runs.load_data import RunData, load_run_data
from labelwise.runs.log_file import log_to
from labelwise.runs.run_time import TAIL, TAIL_SECONDS, RunTime
from labelwise.runs.stopwatch import stopwatch
from labelwise.runs.train import Prepared, split_for_calibration, train

log = logging.getLogger("labelwise")

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
    before = files.read_json(path, AutoRecord)
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
