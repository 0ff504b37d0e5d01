"""From bucket scores to the top labels: the search of `mach` compared with a plain gather over all labels.

    python benchmarks/mach_decoding.py
    python benchmarks/mach_decoding.py --labels 1000000 10000000 --repeats 5

The baseline does what the original's C++ does, in Numba and on the same number of threads: for each document a dense
row of scores, to which the score of each label's bucket is added, table by table, by 64-bit lookups, and then the top
labels are selected. R = 16 tables of B = 10,000 buckets, 100 documents, top 5. Scores are drawn in two ways: `peaked`,
as trained networks give them (logits about -8, eight labels per document with all their buckets about +1), and `flat`,
standard normal numbers, the worst case for skipping labels. Searches alternate; medians of wall and CPU time per
document. Results of all searches are compared. Writes benchmarks/results/mach_decoding.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labelwise.kernels.jit import jit
from labelwise.labelspace.bucket_search import BucketSearch
from labelwise.labelspace.buckets import BucketTables
from labelwise.runtime.threads import ranges, run_all, set_threads, threads
from labelwise.topk import TopK

RESULTS = Path(__file__).parent / "results" / "mach_decoding.md"
TABLES, BUCKETS, DOCUMENTS, K = 16, 10_000, 100, 5


@jit
def gather(lookup, scores, begin, end, row, best, ids):
    """The baseline: dense rows and a running list of the top labels."""
    tables, labels = lookup.shape
    for document in range(begin, end):
        row[:] = 0
        for table in range(tables):
            for label in range(labels):
                row[label] += scores[document, table, lookup[table, label]]
        for label in range(labels):
            score = row[label]
            if score > best[document, -1]:
                place = best.shape[1] - 1
                while place > 0 and score > best[document, place - 1]:
                    best[document, place], ids[document, place] = best[document, place - 1], ids[document, place - 1]
                    place -= 1
                best[document, place], ids[document, place] = score, label


def plain(lookup: np.ndarray, scores: np.ndarray) -> TopK:
    """The top labels by the baseline; `scores` [documents, tables, buckets]."""
    best = np.full((len(scores), K), -np.inf, np.float32)
    ids = np.full((len(scores), K), -1, np.int64)

    def work(part: tuple[int, int]) -> None:
        gather(lookup, scores, *part, np.empty(lookup.shape[1], np.float32), best, ids)

    run_all(work, ranges(len(scores), threads()))
    return TopK(ids, best)


def drawn(kind: str, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Scores [tables, buckets, documents]."""
    scores = random.normal(size=(TABLES, BUCKETS, DOCUMENTS)).astype(np.float32)
    if kind == "flat":
        return scores
    scores -= 8
    for document in range(DOCUMENTS):
        for label in random.integers(0, len(rows), 8):
            scores[np.arange(TABLES), rows[label], document] = random.normal(size=TABLES) + 1
    return scores


def timed(sides: dict[str, Callable[[], TopK]], repeats: int) -> dict[str, tuple[float, float, TopK]]:
    """Median milliseconds per document, wall and CPU, of alternating searches after one warm-up round."""
    walls: dict[str, list[float]] = {name: [] for name in sides}
    cpus: dict[str, list[float]] = {name: [] for name in sides}
    results = {name: side() for name, side in sides.items()}
    for _ in range(repeats):
        for name, side in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            side()
            walls[name].append((time.perf_counter() - wall) * 1000 / DOCUMENTS)
            cpus[name].append((time.process_time() - cpu) * 1000 / DOCUMENTS)
    return {n: (statistics.median(walls[n]), statistics.median(cpus[n]), results[n]) for n in sides}


def recall(found: TopK, exact: TopK) -> float:
    """Fraction of the exact top labels that another search returns."""
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.ids, exact.ids, strict=True)]))


def measured(n_labels: int, repeats: int, lines: list[str]) -> None:
    """Rows of the table for one number of labels."""
    random = np.random.default_rng(0)
    begin = time.perf_counter()
    tables = BucketTables(n_labels, BUCKETS, tuple(range(TABLES)))
    rows = tables.side_by_side()
    hashing = time.perf_counter() - begin
    search = BucketSearch(tables)
    universal = BucketSearch(BucketTables(n_labels, BUCKETS, tuple(range(TABLES)), "universal"))
    lookup = np.ascontiguousarray(rows.T).astype(np.int64)
    held = f"{rows.nbytes / 1e6:.0f} MB ({lookup.nbytes / 1e6:.0f} in 64 bits)"
    print(f"{n_labels:,} labels: tables in {hashing:.1f} s, {held}")
    for kind in ("peaked", "flat"):
        scores = drawn(kind, rows, random)
        dense = np.ascontiguousarray(scores.transpose(2, 0, 1))
        found = timed(
            {
                "plain gather": lambda d=dense: plain(lookup, d),
                "exact": lambda s=scores: search.best(s, K),
                "exact, hashed when needed": lambda s=scores: universal.best(s, K),
                "candidates": lambda s=scores: search.best_candidates(s, K, 50, 2),
            },
            repeats,
        )
        base_wall, base_cpu, base = found["plain gather"]
        exact = found["exact"][2]
        np.testing.assert_allclose(exact.scores, base.scores / TABLES, rtol=1e-4, atol=1e-5)
        for name, (wall, cpu, top) in found.items():
            hit = "" if "hashed" in name else f"{100 * recall(top, exact):.1f}"
            lines.append(
                f"| {n_labels:,} | {kind} | {name} | {wall:.2f} | {cpu:.2f} | {base_wall / wall:.1f} "
                f"| {base_cpu / cpu:.1f} | {hit} |"
            )
            print(lines[-1], flush=True)
        one = np.ascontiguousarray(scores[:, :, :1])
        search.best(one, K)
        spent = []
        for _ in range(9):
            begin = time.perf_counter()
            search.best(one, K)
            spent.append((time.perf_counter() - begin) * 1000)
        lines.append(f"| {n_labels:,} | {kind} | exact, one document alone | {statistics.median(spent):.2f} | | | | |")
        print(lines[-1], flush=True)


def main() -> None:
    """Measure and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--labels", type=int, nargs="+", default=[1_000_000, 10_000_000])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--results", type=Path, default=RESULTS)
    given = options.parse_args()
    set_threads(given.threads)
    load = os.getloadavg()[0]
    lines = [
        "| labels | scores | search | ms per document | CPU ms | speed-up | in CPU time | recall@5, % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n_labels in given.labels:
        measured(n_labels, given.repeats, lines)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    head = f"""# From buckets to labels

{TABLES} tables of {BUCKETS:,} buckets, {DOCUMENTS} documents, the top {K}; {given.threads} threads, medians of
{given.repeats} rounds. `benchmarks/mach_decoding.py`, {datetime.date.today()}, {platform.machine()}, Python
{platform.python_version()}; system load at the start {load:.1f}, at the end {os.getloadavg()[0]:.1f}. Peak memory of
the whole run, including the 64-bit tables of the plain gather: {peak:,.0f} MB. `exact` needs the tables (2 bytes per
label and table; none if hashed when needed), the scores and one byte per score.

"""
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
