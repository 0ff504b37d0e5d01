"""Measurements inside the process of a compared package, in any Python: needs only NumPy and SciPy.

Each package has a script in this folder. It gets a folder with features and labels as .npz, trains, predicts, and
prints one JSON object as its last line; the predictions are written to a file, so that all are evaluated with the same
metrics.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

SINGLES = 500
"""Test documents that are predicted one by one."""
WARM_UPS = 20
PLACES = 10
BEAM = 10


def side_options():
    """The command line of a package's script."""
    return _options().parse_args()


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path, help="X.npz, Y.npz, Xt.npz, and train.txt for those that read text")
    options.add_argument("scratch", type=Path, help="an empty folder for models and predictions")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--trees", type=int, default=1)
    return options


def saved_options():
    """The command line of a script that trains and saves a model, or predicts with a saved one."""
    options = _options()
    options.add_argument("--model", type=Path, required=True, help="the folder of the model")
    options.add_argument("--train", action="store_true", help="make the model instead of predicting")
    return options.parse_args()


def load(folder: Path, name: str):
    """A CSR matrix in float32 with sorted columns, of the older type that all packages support."""
    matrix = sparse.csr_matrix(sparse.load_npz(folder / f"{name}.npz"), dtype=np.float32)
    matrix.sort_indices()
    return matrix


def memory(field: str) -> int:
    """A figure of this process in bytes: VmRSS (now) or VmHWM (the peak since the last reset)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status).group(1)) * 1024


class Meter:
    """Collects figures by name."""

    def __init__(self, *packages: str) -> None:
        self.found: dict[str, Any] = {"versions": {name: _version(name) for name in packages}}

    def clock(self, name: str, work, memory_too: bool = False):
        """Run `work`; add up wall and CPU seconds, and optionally record the peak memory."""
        if memory_too:
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = memory("VmRSS")
        begin, busy = time.perf_counter(), time.process_time()
        result = work()
        for key, spent in ((name, time.perf_counter() - begin), (f"{name} cpu", time.process_time() - busy)):
            self.found[key] = self.found.get(key, 0.0) + spent
        if memory_too:
            self.found["peak"] = memory("VmHWM")
            self.found["peak above"] = memory("VmHWM") - before
        return result

    def singles(self, predict, documents: list) -> None:
        """Latency of one document at a time, after a warm-up."""
        for document in documents[:WARM_UPS]:
            predict(document)
        spent = []
        for document in documents[:SINGLES]:
            begin = time.perf_counter()
            predict(document)
            spent.append(time.perf_counter() - begin)
        self.found["single"] = statistics.median(spent)
        self.found["single p95"] = statistics.quantiles(spent, n=20)[-1]

    def size(self, folder: Path) -> None:
        """Bytes of a model folder."""
        self.found["bytes"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def report(self) -> None:
        """Print all figures as the last line."""
        print(json.dumps(self.found), flush=True)


def keep_predictions(path: Path, rows: list) -> None:
    """Write lists of (label, score), best first, as ids and scores with -1 and -inf in empty slots."""
    ids = np.full((len(rows), PLACES), -1, np.int32)
    scores = np.full((len(rows), PLACES), -np.inf, np.float32)
    for place, row in enumerate(rows):
        for rank, (label, score) in enumerate(row[:PLACES]):
            ids[place, rank], scores[place, rank] = label, score
    np.savez(path, ids=ids, scores=scores)


def keep_csr_predictions(path: Path, matrix) -> None:
    """The same from a sparse score matrix."""
    matrix = sparse.csr_matrix(matrix)
    rows = []
    for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        order = np.argsort(-matrix.data[begin:end], kind="stable")
        rows.append(list(zip(matrix.indices[begin:end][order], matrix.data[begin:end][order], strict=True)))
    keep_predictions(path, rows)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of the checkout"
