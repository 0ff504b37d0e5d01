"""Run the compared packages, each in a separate process, and measure the load of the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")


@dataclass(frozen=True)
class Side:
    """One of the compared packages."""

    name: str
    script: str
    package: str
    trees: int = 1
    against: str = ""
    """The labelwise variant it is compared with."""


@dataclass(frozen=True)
class Ended:
    """Time, memory and output of a process that has ended."""

    seconds: float
    cpu: float
    peak: int
    output: str
    fault: str = ""


def python_with(package: str, pythons: Sequence[str]) -> str | None:
    """The first interpreter that can import a package."""
    for python in pythons:
        asked = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False)
        if asked.returncode == 0:
            return python
    return None


def run(command: Sequence[str], limit: float | None = None, threads: int = 2) -> Ended:
    """Run a command to its end or its time limit; wall and CPU seconds and peak memory are of the whole process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "LABELWISE_THREADS": str(threads)}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as faults:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=faults, env=environment, start_new_session=True)
        timer = threading.Timer(limit or 1e6, lambda: os.killpg(process.pid, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        faults.seek(0)
        fault = ""
        if limit and seconds >= limit:
            fault = f"did not finish within {limit / 60:.0f} minutes"
        elif process.returncode:
            fault = f"failed: {(faults.read().strip().splitlines() or ['no message'])[-1]}"
        text = output.read()
    return Ended(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text, fault)


def measure(side: Side, python: str, folder: Path, threads: int, minutes: float, keep: Path) -> dict[str, Any] | str:
    """One run of a package, or an error message; its predictions are kept in a file."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [python, str(HERE / side.script), str(folder), scratch]
        ended = run([*command, "--threads", str(threads), "--trees", str(side.trees)], minutes * 60, threads)
        if ended.fault:
            return ended.fault
        shutil.copy(Path(scratch) / "predictions.npz", keep)
    return json.loads(ended.output.splitlines()[-1])


def evaluate(folder: Path, predictions: Path) -> dict[str, float]:
    """Scores of kept predictions, in per cent."""
    from scipy import sparse

    import labelwise as lw

    truth, train = (sparse.csr_array(sparse.load_npz(folder / f"{name}.npz")) for name in ("Yt", "Y"))
    train.resize((train.shape[0], truth.shape[1]))  # labels that only the test split has come last
    with np.load(predictions) as kept:
        top = lw.TopK(kept["ids"], kept["scores"])
    return {name: 100 * value for name, value in lw.evaluate(top, truth, METRICS, train=train).values.items()}


def make_features(data: str, folder: Path) -> None:
    """Our TF-IDF of single words and the labels as .npz, and the training split as text for packages that read it."""
    from scipy import sparse

    import labelwise as lw
    from labelwise.features.tfidf import Tfidf

    train = lw.read(data, split="train")
    test = lw.read(data, split="test").align(train.label_names)
    tfidf = Tfidf()
    features = tfidf.fit_transform(train.texts)
    matrices = {"X": features, "Y": train.labels, "Xt": tfidf.transform(test.texts), "Yt": test.labels}
    for name, matrix in matrices.items():
        sparse.save_npz(folder / f"{name}.npz", matrix, compressed=False)
    for trees in (1, 3):  # so that no first run compiles: kernels are cached on disk
        lw.LinearTree(trees=trees).fit(features[:500], train.labels[:500]).predict(features[:50])
    lw.write(lw.Dataset(features=features, labels=train.labels), folder / "train.txt", format="xc")


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that are busy with other load."""

    def ticks() -> list[int]:
        return [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]

    before = ticks()
    time.sleep(seconds)
    spent = [now - then for now, then in zip(ticks(), before, strict=True)]
    return (os.cpu_count() or 1) * (1 - (spent[3] + spent[4]) / max(1, sum(spent)))


def machine() -> str:
    """Processor, cores, Python, date."""
    import datetime
    import platform

    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.date.today()}, {model.partition(':')[2].strip()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}"
    )
