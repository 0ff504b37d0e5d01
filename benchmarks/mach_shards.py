"""Training from TFRecord shards with rows in memory and with rows in files: peak memory and time.

    python benchmarks/mach_shards.py
    python benchmarks/mach_shards.py --documents 6000000 --shards 24

Documents are random, so nothing useful is learned, but both models must be bit-identical. While `labelwise train` runs,
its memory is sampled fifty times per second: anonymous memory (RssAnon) is what it needs; pages of mapped files also
count towards the resident size, but the system reclaims them when it needs memory. Linux only. Writes
benchmarks/results/mach_shards.md.
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
from scipy import sparse

import labelwise as lw

RESULTS = Path(__file__).parent / "results" / "mach_shards.md"
FEATURES, LABELS, ENTRIES, TRUE = 100_000, 50_000, 40, 3
WAYS = {
    "in memory": {},
    "in files": {"mapped": True},
    "in memory, 1 % held out": {"test_fraction": 0.01},
    "in files, 1 % held out": {"mapped": True, "test_fraction": 0.01},
}


def drawn(documents: int, seed: int) -> lw.Dataset:
    """Random features and labels, rare ones among them."""
    random = np.random.default_rng(seed)

    def rows(width: int, count: int) -> sparse.csr_array:
        columns = np.sort((width * random.random((documents, count)) ** 3).astype(np.int32), axis=1)
        values = random.random(columns.size, np.float32) + np.float32(0.1)
        found = sparse.csr_array((values, columns.ravel(), np.arange(documents + 1) * count), shape=(documents, width))
        found.sum_duplicates()
        return found

    labels = rows(LABELS, TRUE)
    labels.data[:] = 1
    return lw.Dataset(labels, features=rows(FEATURES, ENTRIES))


def memory(process: int) -> dict[str, float]:
    """Memory of a process in MB."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS") if name in found}


def trained(config: dict, folder: Path) -> dict[str, float]:
    """Run the command; seconds and peaks of its memory."""
    path = folder / "run.yml"
    path.write_text(json.dumps(config))
    begin, computed, peaks = time.perf_counter(), processor_seconds(), {"RssAnon": 0.0, "VmRSS": 0.0}
    command = [sys.executable, "-m", "labelwise.cli.main", "train", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for name, now in memory(process.pid).items():
                peaks[name] = max(peaks[name], now)
            time.sleep(0.02)
    if process.returncode:
        sys.exit(f"labelwise train ended with {process.returncode}")
    spent = time.perf_counter() - begin
    lines = (Path(config["run"]["folder"]) / "metrics.jsonl").read_text().splitlines()
    stages = {entry["stage"]: entry["seconds"] for entry in map(json.loads, lines) if "done" in entry}
    computed = processor_seconds() - computed
    return {**peaks, "seconds": spent, "computed": computed, "read": stages["read"], "fit": stages["fit"]}


def processor_seconds() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Write the shards, train all variants, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--documents", type=int, default=1_500_000)
    options.add_argument("--shards", type=int, default=6)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--folder", type=Path, help="folder for the temporary shards and runs")
    options.add_argument("--results", type=Path, default=RESULTS)
    given = options.parse_args()
    threads = int(os.environ.get("LABELWISE_THREADS", "2"))
    lines = [
        "| rows | peak anonymous, MB | peak resident, MB | reading, s | training, s | whole command, s | CPU, s |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(dir=given.folder) as kept:
        place = Path(kept)
        for number in range(given.shards):
            data = drawn(given.documents // given.shards, number)
            lw.write(data, place / "shards" / f"part{number:02d}_train.tfrecords")
        size = sum(path.stat().st_size for path in (place / "shards").iterdir()) / 1e6
        held = given.documents * (ENTRIES + TRUE) * 8 / 1e6
        states = {}
        for number, (name, section) in enumerate(WAYS.items()):
            training = {"epochs": None, "steps": given.steps}
            config = {
                "data": {"path": str(place / "shards"), **section},
                "model": {
                    "method": "mach", "repetitions": 1, "buckets": 1000, "hidden": [32], "training": training
                },
                "evaluate": {"bootstrap": 0, "metrics": ["P@1"]},
                "run": {"folder": str(place / f"run{number}"), "report": False, "threads": threads},
            }  # fmt: skip
            found = trained(config, place)
            states[name] = (place / f"run{number}" / "model" / "state.safetensors").read_bytes()
            lines.append(
                f"| {name} | {found['RssAnon']:,.0f} | {found['VmRSS']:,.0f} | {found['read']:.1f} | "
                f"{found['fit']:.1f} | {found['seconds']:.1f} | {found['computed']:.1f} |"
            )
            print(lines[-1], flush=True)
    pairs = [(states[f"in memory{more}"], states[f"in files{more}"]) for more in ("", ", 1 % held out")]
    same = "the same, bit for bit" if all(one == two for one, two in pairs) else "**different**"
    head = f"""# Training from shards larger than memory

{given.documents:,} random documents of {ENTRIES} of {FEATURES:,} features and {TRUE} of {LABELS:,} labels in
{given.shards} TFRecord files, {size:,.0f} MB in all; their rows are {held:,.0f} MB in memory. mach with one repetition
of 1,000 buckets and a hidden layer of 32, {given.steps} steps of 256 documents, threads: {threads}. The models of rows
in memory and in files are {same}. `benchmarks/mach_shards.py`, {datetime.date.today()},
Python {platform.python_version()}, one run each.

"""
    given.results.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
