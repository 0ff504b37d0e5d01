"""Memory of the flat head with very many labels, in training and in prediction.

    python benchmarks/flat_head_memory.py --labels 500000

A tiny random encoder (width 32), 2,000 documents with 2 labels each, one epoch, then the top 5 labels of each. Every
size runs in a separate process. The peak is Linux's VmHWM minus what the process held before. That of `fit` is compared
with a bound: four times the head's weights (weights, gradients, two moments of AdamW), eight arrays of batch x block,
and 150 MB for everything that does not grow with labels. `dense` is the size of a documents x labels array. Writes
benchmarks/results/flat_head_memory.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "flat_head_memory.md"
WIDTH, DOCUMENTS, BATCH, BLOCK = 32, 2000, 32, 8192
FIXED = 150e6


def memory(field: str) -> int:
    """A figure of this process in bytes: VmRSS (now) or VmHWM (the peak since the last reset)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status).group(1)) * 1024


def forget_peak() -> None:
    """Reset VmHWM."""
    Path("/proc/self/clear_refs").write_text("5")


def made_up(n_labels: int):
    """Short texts with two labels each, drawn from all labels."""
    from scipy import sparse

    import labelwise as lw

    rng = np.random.default_rng(0)
    columns = rng.integers(0, n_labels, 2 * DOCUMENTS)
    rows = np.repeat(np.arange(DOCUMENTS), 2)
    labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(DOCUMENTS, n_labels))
    texts = [" ".join(f"word{w}" for w in rng.integers(0, 500, 12)) for _ in range(DOCUMENTS)]
    return lw.Dataset(labels, lw.Strings.numbers(n_labels), texts=texts, name="made up")


def measure(n_labels: int) -> dict[str, float]:
    """Fit and predict once."""
    import labelwise as lw

    warm, data = made_up(100), made_up(n_labels)
    settings = {
        "encoder": {"model": "tiny", "max_length": 16},
        "head": {"block": BLOCK},
        "training": {"epochs": 1, "batch_size": BATCH, "optimiser": {"rate": 1e-3}},
        "valid_fraction": 0.0,
    }
    lw.TextEncoder(**settings).fit(warm).predict(warm, k=5)  # imports and buffers of torch itself
    model = lw.TextEncoder(**settings)
    found: dict[str, float] = {}
    for name, work in (("fit", lambda: model.fit(data)), ("predict", lambda: model.predict(data, k=5))):
        before = memory("VmRSS")
        forget_peak()
        begin = time.perf_counter()
        work()
        found[f"{name} seconds"] = time.perf_counter() - begin
        found[f"{name} peak"] = memory("VmHWM") - before
    return found


def bound(n_labels: int) -> float:
    """Upper bound on the memory of training."""
    return 4 * n_labels * (WIDTH + 1) * 4 + 8 * BATCH * BLOCK * 4 + FIXED


def table(runs: dict[int, dict[str, float]]) -> str:
    """The results as a Markdown page."""
    from labelwise.runtime.threads import threads

    lines = [
        "# Memory of the flat head",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {threads()} threads, Python {platform.python_version()}, load "
        f"{os.getloadavg()[1]:.1f}. Written by `benchmarks/flat_head_memory.py`: {DOCUMENTS:,} documents, vectors of "
        f"{WIDTH}, batches of {BATCH}, blocks of {BLOCK:,} labels, AdamW, one epoch.",
        "",
        "Peaks are above what the process held before. Bound: 4 x weights + 8 x batch x block + 150 MB. "
        "Dense: documents x labels in float32, which never exists.",
        "",
        "| labels | fit: peak (MB) | bound (MB) | seconds | predict: peak (MB) | seconds | dense (MB) |",
        "|---|---|---|---|---|---|---|",
    ]
    for n_labels, found in runs.items():
        lines.append(
            f"| {n_labels:,} | {found['fit peak'] / 1e6:,.0f} | {bound(n_labels) / 1e6:,.0f} "
            f"| {found['fit seconds']:.1f} | {found['predict peak'] / 1e6:,.0f} | {found['predict seconds']:.1f} "
            f"| {DOCUMENTS * n_labels * 4 / 1e6:,.0f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure each size in a separate process, compare it with the bound, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--labels", type=int, nargs="+", default=[5_000, 50_000, 500_000])
    options.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    runs = {}
    for n_labels in given.labels:
        command = [sys.executable, __file__, "--measure", str(n_labels)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        runs[n_labels] = json.loads(output.splitlines()[-1])
        print(n_labels, runs[n_labels], flush=True)
        if runs[n_labels]["fit peak"] > bound(n_labels):
            sys.exit(f"{n_labels:,} labels took {runs[n_labels]['fit peak']:,.0f} bytes, above {bound(n_labels):,.0f}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(table(runs), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
