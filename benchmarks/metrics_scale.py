"""Time and memory of all metrics for a million documents over a million labels.

    python benchmarks/metrics_scale.py
    python benchmarks/metrics_scale.py --documents 100000 --labels 3000000 --k 20

Labels are drawn with Zipf frequencies, about half of the predictions are right. Data is made by this process
and read from files by a second one, whose peak memory then is that of evaluating, data included. Writes a
table to benchmarks/results/metrics_scale.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "metrics_scale.md"
CUTS = (1, 3, 5, 10)


def make_data(folder: Path, documents: int, labels: int, k: int, each: int, seed: int = 0) -> None:
    """Predictions, truth and training counts as NumPy files."""
    random = np.random.default_rng(seed)
    chances = np.cumsum(1 / np.arange(1, labels + 1))
    names = random.permutation(labels).astype(np.int32)

    def drawn(size: tuple[int, int]) -> np.ndarray:
        places = np.searchsorted(chances, random.random(size) * chances[-1])
        return names[np.minimum(places, labels - 1)]

    truth = np.sort(drawn((documents, each)), axis=1)
    fresh = np.ones(truth.shape, bool)
    fresh[:, 1:] = truth[:, 1:] != truth[:, :-1]
    np.save(folder / "indices.npy", truth[fresh])
    np.save(folder / "indptr.npy", np.concatenate([[0], np.cumsum(fresh.sum(1))]))

    guesses = drawn((documents, k))
    right = random.random(guesses.shape) < 0.5
    guesses[right] = truth[np.nonzero(right)[0], random.integers(0, each, right.sum())]
    ids = np.sort(guesses, axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    order = np.argsort(np.where(ids == -1, 2.0, random.random(ids.shape)), axis=1)
    ids = np.take_along_axis(ids, order, axis=1)
    scores = -np.sort(-random.random(ids.shape, np.float32), axis=1)
    np.save(folder / "ids.npy", ids)
    np.save(folder / "scores.npy", np.where(ids == -1, -np.inf, scores).astype(np.float32))
    np.save(folder / "counts.npy", np.bincount(drawn((documents, each)).ravel(), minlength=labels))


def measure(folder: Path, documents: int, labels: int, k: int) -> dict[str, float]:
    """Evaluate twice (the first call loads or compiles the kernels) and write the table of labels."""
    from scipy import sparse

    from labelwise.metrics.evaluate import evaluate
    from labelwise.metrics.per_label import write_label_table
    from labelwise.parallel import threads
    from labelwise.topk import TopK

    indices, indptr = np.load(folder / "indices.npy"), np.load(folder / "indptr.npy")
    ones = np.ones(len(indices), np.float32)
    truth = sparse.csr_array((ones, indices, indptr), shape=(documents, labels))
    top = TopK(np.load(folder / "ids.npy"), np.load(folder / "scores.npy"))
    counts = np.load(folder / "counts.npy")
    kinds = ("P", "nDCG", "R", "RP", "PSP", "PSnDCG")
    metrics = [f"{kind}@{cut}" for kind in kinds for cut in CUTS if cut <= k]
    metrics += ["coverage@5", "macro-F1@5", "micro-F1@5", "example-F1@5"]
    found: dict[str, float] = {"threads": threads(), "data GB": peak()}
    for call in ("first call s", "second call s"):
        start, worked = time.perf_counter(), time.process_time()
        evaluation = evaluate(top, truth, metrics, train=counts, train_documents=documents, bootstrap=200)
        found[call] = time.perf_counter() - start
        found[f"{call[:-2]}, processor s"] = time.process_time() - worked
    found["P@1"] = evaluation["P@1"]
    found["peak GB"] = peak()
    start = time.perf_counter()
    write_label_table(folder / "labels.tsv", top, truth, train=counts)
    found["label table s"] = time.perf_counter() - start
    found["peak with label table GB"] = peak()
    return found


def peak() -> float:
    """Peak memory of this process in GB."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used * (1 if sys.platform == "darwin" else 1024) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=1_000_000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--each", type=int, default=10, help="labels a document")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        print(json.dumps(measure(Path(given.folder), given.documents, given.labels, given.k)))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder), given.documents, given.labels, given.k, given.each)
        command = [sys.executable, __file__, "--folder", folder, "--documents", str(given.documents)]
        command += ["--labels", str(given.labels), "--k", str(given.k)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    lines = [
        "# All metrics at scale",
        "",
        f"{given.documents:,} documents, {given.labels:,} labels (Zipf), top {given.k}, about {given.each} "
        "labels a document: P, nDCG, R, RP, PSP, PSnDCG at 1, 3, 5, 10, coverage@5, macro-, micro- and "
        "example-F1@5, groups, ties, 200 bootstrap repeats. Seed 0.",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {found.pop('threads')} threads, "
        f"Python {platform.python_version()}, NumPy {np.__version__}. "
        f"Other work on the machine: load {load:.1f} before the start. "
        "Made by `python benchmarks/metrics_scale.py`.",
        "",
        "| figure | value |",
        "|---|---:|",
        *(f"| {name} | {value:.3f} |" for name, value in found.items()),
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
