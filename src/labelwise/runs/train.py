"""A run from config to report: read, fit, evaluate, report. Each stage is kept once it is done.

`labelwise train` and the sweeps call `train`; a run that was stopped goes on with the first stage that is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.data.dataset import Dataset
from labelwise.data.stats import statistics
from labelwise.errors import MissingDependencyError
from labelwise.methods.base import FitContext, Method, load
from labelwise.methods.popularity import Popularity
from labelwise.parallel import using_threads
from labelwise.runs import folder as files
from labelwise.runs.config import RunConfig
from labelwise.runs.folder import RunFolder
from labelwise.runs.judge import judge
from labelwise.runs.load_data import RunData, load_run_data
from labelwise.runs.machine import peak_memory

log = logging.getLogger("labelwise")


def train(config: RunConfig, force: bool = False) -> RunFolder:
    """Carry out a run; returns its folder."""
    run = RunFolder(str(config.run.folder))
    with using_threads(config.run.threads), run.opened(config, force):
        with _timed(run, "read"):
            data = load_run_data(config.data)
        log.info("train: %r", data.train)
        model = _fitted(config, run, data)
        if data.test is not None:
            _evaluated(config, run, data.train, data.test, model)
        else:
            log.info("no test part: the model is not evaluated (data.test, or data.test_fraction, gives one)")
        run.learned()
        if config.run.report:
            _reported(run)
        run.finish()
    return run


def _fitted(config: RunConfig, run: RunFolder, data: RunData) -> Method:
    folder = run / files.MODEL
    if folder.exists():
        log.info("the model of this run is trained already")
        return load(folder)
    model = config.make_method()
    context = FitContext(run / files.CHECKPOINTS, lambda **numbers: run.record("fit", **numbers))
    with _timed(run, "fit"):
        model.fit(data.train, valid=data.valid, context=context)
    model.save(folder)
    return model


def _evaluated(config: RunConfig, run: RunFolder, train: Dataset, test: Dataset, model: Method) -> None:
    if (run / files.RESULTS).exists():
        log.info("the model of this run is evaluated already")
        return
    judgement = judge(model, test, config.evaluate, run.path)
    seconds = {**_seconds(run), **judgement.seconds}
    for stage, spent in judgement.seconds.items():
        run.record(stage, seconds=round(spent, 3))
    baseline = None
    if model.learns:
        floor = Popularity().fit(train).predict(test, config.evaluate.k)
        values = judgement.score(floor).values
        baseline = {"method": "popularity", "values": values}
    train_statistics = statistics(train)
    results = {
        "split": "test",
        "n_documents": len(test),
        "evaluation": judgement.evaluation.to_dict(),
        "timings": {**seconds, "predict_documents_per_second": len(test) / max(seconds["predict"], 1e-9)},
        "memory": {"peak_bytes": _peak(run)},
        "model": {"bytes": folder_bytes(run / files.MODEL), "n_labels": len(model.label_names_)},
        "data": {"train": train_statistics.to_dict(), "test": statistics(test).to_dict()},
        "frequency_curve": train_statistics.frequency_curve(),
        "baseline": baseline,
    }
    run.record("evaluate", split="test", **judgement.evaluation.values)
    run.write_json(files.RESULTS, results)


def _reported(run: RunFolder) -> None:
    from labelwise.report.html import write_report

    try:
        with _timed(run, "report"):
            write_report(run.path)
    except MissingDependencyError as error:
        log.warning("report.html was not written: %s", error)


@contextmanager
def _timed(run: RunFolder, stage: str) -> Iterator[None]:
    log.info("%s ...", stage)
    begin = time.perf_counter()
    done = False
    try:
        yield
        done = True
    finally:
        spent = time.perf_counter() - begin
        run.record(stage, seconds=round(spent, 3), done=done, peak_bytes=peak_memory())
    log.info("%s done in %.1f s", stage, spent)


def _seconds(run: RunFolder) -> dict[str, float]:
    """Seconds of the last reading, and of all tries at fitting: what a stopped run did is not done again."""
    spent = {stage: [e["seconds"] for e in run.records() if e.get("stage") == stage] for stage in ("read", "fit")}
    return {"read": sum(spent["read"][-1:]), "fit": sum(spent["fit"])}


def _peak(run: RunFolder) -> int | None:
    """The most memory any process of this run has held."""
    peaks = [entry.get("peak_bytes") for entry in run.records()] + [peak_memory()]
    return max((peak for peak in peaks if peak), default=None)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
