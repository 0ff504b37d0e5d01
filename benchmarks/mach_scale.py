"""Ten million labels on a small machine: plan, hash, train for some steps, save, load, decode; time and peak memory.

    python benchmarks/mach_scale.py
    python benchmarks/mach_scale.py --labels 50000000 --hash universal

Documents are random: 60 of 100,000 features, five of all labels. It shows that only tables and names grow with the
number of labels; nothing useful is learned in so few steps. Every step is reported with the peak memory of the process
so far. Writes benchmarks/results/mach_scale.md.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import sparse

import labelwise as lw
from labelwise.planning.proposals import plan_buckets

RESULTS = Path(__file__).parent / "results" / "mach_scale.md"
FEATURES, ENTRIES, TRUE = 100_000, 60, 5


def peak() -> float:
    """Peak memory of the process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def drawn(documents: int, labels: int, random: np.random.Generator) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Random features and labels."""

    def rows(width: int, count: int) -> sparse.csr_array:
        columns = np.sort(random.integers(0, width, (documents, count)), axis=1)
        data = np.full(columns.size, count**-0.5, np.float32)
        found = sparse.csr_array((data, columns.ravel(), np.arange(documents + 1) * count), shape=(documents, width))
        found.sum_duplicates()
        return found

    features, true = rows(FEATURES, ENTRIES), rows(labels, TRUE)
    true.data[:] = 1
    return features, true


def main() -> None:
    """Run all steps and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--labels", type=int, default=10_000_000)
    options.add_argument("--documents", type=int, default=20_000)
    options.add_argument("--memory", type=float, default=4.0, help="GB to plan for")
    options.add_argument("--repetitions", type=int, default=8)
    options.add_argument("--steps", type=int, default=20, help="training steps per repetition")
    options.add_argument("--hash", default="murmur")
    options.add_argument("--results", type=Path, default=RESULTS)
    given = options.parse_args()
    lines = ["| step | seconds | peak so far, MB |", "|---|---|---|", f"| imports | | {peak():,.0f} |"]

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        lines.append(f"| {what} | {time.perf_counter() - begin:.1f} | {peak():,.0f} |")
        print(lines[-1], flush=True)

    plan = plan_buckets(given.labels, given.documents, FEATURES, int(given.memory * 1e9), repetitions=given.repetitions)
    print(plan)
    with timed("data drawn"):
        features, true = drawn(given.documents, given.labels, np.random.default_rng(0))
        data = lw.Dataset(true, features=features)
    model = lw.Mach(
        repetitions=plan.repetitions,
        buckets=plan.buckets,
        hidden=[plan.hidden],
        hash=given.hash,
        training={"epochs": None, "steps": given.steps},
    )
    with timed(f"{plan.repetitions} repetitions trained for {given.steps} steps of 256 documents each"):
        model.fit(data)
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept) / "model"
        with timed("saved"):
            model.save(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        del model
        with timed(f"loaded ({size / 1e6:,.0f} MB on disk)"):
            model = lw.load(folder)
        with timed("100 documents predicted, tables built"):
            model.predict(features[:100], k=5)
        with timed("100 documents predicted again"):
            model.predict(features[100:200], k=5)
        with timed("1 document predicted"):
            model.predict(features[:1], k=5)
    head = f"""# {given.labels:,} labels

{plan.repetitions} tables of {plan.buckets:,} buckets ({given.hash}), a hidden layer of {plan.hidden}: {plan.weights:,}
weights per repetition, as `labelwise plan --repetitions {given.repetitions}` proposes them for {given.memory:g} GB. It
estimates {plan.training_bytes / 1e6:,.0f} MB to train one repetition and {plan.serving_bytes / 1e6:,.0f} MB to serve
all. {given.documents:,} random documents. `benchmarks/mach_scale.py`, {datetime.date.today()},
Python {platform.python_version()}, one run. Peaks are of a single process that runs all steps.

"""
    given.results.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
