"""Time and memory of TF-IDF, compared with scikit-learn's TfidfVectorizer.

    python benchmarks/tfidf.py --data FOLDER --repeats 3

FOLDER holds a train and a test split with texts, in any format that `labelwise.read` supports. Each measurement runs in
a separate process, alternating; medians are written to benchmarks/results/tfidf.md. Memory is the peak during
`fit_transform` minus what the process held before (Linux only). Each package gets texts in its own representation: one
buffer for labelwise, a list of str for scikit-learn. Our kernels are compiled (or loaded) before the timer starts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "tfidf.md"
NGRAMS = ((1, 1), (1, 2))
SINGLES = 500
"""Test documents that are transformed one by one."""


def ours(ngrams: tuple[int, int]):
    """Our vectoriser, compiled before the timer starts."""
    from labelwise.features.tfidf import Tfidf, TfidfConfig

    config = TfidfConfig(ngrams=ngrams)
    warm = Tfidf(config)
    warm.fit_transform(["some words", "more words"])
    warm.transform(["words"])
    return Tfidf(config)


def theirs(ngrams: tuple[int, int]):
    """scikit-learn's, in float32 like ours."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=ngrams, dtype=np.float32)


def memory(field: str) -> int:
    """A figure of this process in bytes: VmRSS (now) or VmHWM (the peak since the last reset)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status).group(1)) * 1024


def forget_peak() -> None:
    """Reset VmHWM."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(side: str, folder: str, ngrams: tuple[int, int]) -> dict[str, float]:
    """One fit_transform, one transform and many single transforms."""
    import labelwise as lw

    train, test = (lw.read(folder, split=split).texts for split in ("train", "test"))
    singles = [test[row] for row in range(min(SINGLES, len(test)))]
    if side == "scikit-learn":
        train, test = list(train), list(test)
    model = (ours if side == "labelwise" else theirs)(ngrams)
    found: dict[str, float] = {}

    def clock(name, work, *arguments):
        begin, busy = time.perf_counter(), time.process_time()
        result = work(*arguments)
        found[name], found[f"{name} CPU"] = time.perf_counter() - begin, time.process_time() - busy
        return result

    forget_peak()
    before = memory("VmRSS")
    matrix = clock("fit_transform", model.fit_transform, train)
    found["peak"] = memory("VmHWM") - before
    found["held"] = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    found["rows"], found["columns"] = matrix.shape
    found["entries"], found["sum"] = matrix.nnz, float(matrix.data.sum(dtype=np.float64))
    if hasattr(model, "_known_terms"):
        clock("table", model._known_terms)
    clock("transform", model.transform, test)
    latencies = []
    for text in singles:
        begin = time.perf_counter()
        model.transform([text])
        latencies.append(time.perf_counter() - begin)
    found["single"] = statistics.median(latencies)
    begin = time.perf_counter()
    for _ in range(200):
        model.transform(["fishing quotas in the North Sea"])
    found["short"] = (time.perf_counter() - begin) / 200
    return found


def in_process(side: str, folder: str, ngrams: tuple[int, int]) -> dict[str, float]:
    """Run one measurement in a fresh process."""
    command = [sys.executable, __file__, "--data", folder, "--measure", side, "--ngrams", str(ngrams[1])]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def table(runs: dict[tuple[str, int], list[dict[str, float]]], folder: str, repeats: int) -> str:
    """The results as a Markdown page."""
    from labelwise.runtime.threads import threads

    lines = [
        "# TF-IDF",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {threads()} threads, Python {platform.python_version()}, load "
        f"{os.getloadavg()[1]:.1f}, median of {repeats}. Written by `benchmarks/tfidf.py` on {Path(folder).name}.",
        "",
        "Seconds of wall time (of CPU time). `fit_transform` is of the training texts, `transform` of the test texts, "
        "`one` of one test text at a time, `short` of one of 31 letters.",
        "",
        "| terms | | fit_transform | transform | one (µs) | short (µs) | peak memory (MB) | matrix (MB) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (side, most), measured in runs.items():
        median = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        lines.append(
            f"| 1 to {most} words | {side} | {median['fit_transform']:.2f} ({median['fit_transform CPU']:.2f}) "
            f"| {median['transform']:.2f} ({median['transform CPU']:.2f}) | {median['single'] * 1e6:,.0f} "
            f"| {median['short'] * 1e6:,.0f} | {median['peak'] / 1e6:,.0f} | {median['held'] / 1e6:,.0f} |"
        )
    lines.append("")
    for _, most in NGRAMS:
        mine, other = runs["labelwise", most], runs["scikit-learn", most]
        wall, busy = (
            statistics.median(run[key] for run in other) / statistics.median(run[key] for run in mine)
            for key in ("fit_transform", "fit_transform CPU")
        )
        lines.append(
            f"1 to {most} words: {mine[0]['rows']:,.0f} documents, {mine[0]['columns']:,.0f} terms, "
            f"{mine[0]['entries']:,.0f} entries on both; fit_transform is {wall:.0f} times as fast "
            f"({busy:.0f} times less CPU time). Building the lookup table of transform takes "
            f"{statistics.median(run['table'] for run in mine):.2f} s at its first use."
        )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run the measurements, check that both agree, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--measure", help=argparse.SUPPRESS)
    options.add_argument("--ngrams", type=int, default=1, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.data, (1, given.ngrams))))
        return
    runs: dict[tuple[str, int], list[dict[str, float]]] = {}
    for ngrams in NGRAMS:
        for _ in range(given.repeats):
            for side in ("labelwise", "scikit-learn"):
                found = in_process(side, given.data, ngrams)
                runs.setdefault((side, ngrams[1]), []).append(found)
                print(side, ngrams, {key: round(value, 4) for key, value in found.items()}, flush=True)
            mine, other = (runs[side, ngrams[1]][-1] for side in ("labelwise", "scikit-learn"))
            for key in ("rows", "columns", "entries", "sum"):
                if not np.isclose(mine[key], other[key], rtol=1e-6):
                    sys.exit(f"the matrices differ: {key} is {mine[key]} and {other[key]}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(table(runs, given.data, given.repeats), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
