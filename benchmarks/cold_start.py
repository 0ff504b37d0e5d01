"""The first fit and the first prediction on a machine: the time to compile kernels.

    python benchmarks/cold_start.py
    python benchmarks/cold_start.py --other ../older/src --repeats 3

Every measurement is a new process: it imports the package, then either reads the corpus of `labelwise demo`, fits
`linear_tree` with its defaults and predicts the test documents, or loads that model and predicts one text. `cold`
starts with an empty kernel cache, `warm` with the cache that the previous run has filled. `this, alone` are these
sources without the second process that compiles ahead. With `--other` runs alternate with the sources of another copy
of the package, and the predictions of all are compared. Figures are medians, in seconds from the start of Python to its
end; CPU seconds are those of both processes and depend less on other load. Writes
benchmarks/results/cold_start.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "cold_start.md"
SOURCES = Path(__file__).resolve().parent.parent / "src"
FIT = """
import hashlib, sys
import labelwise as lw
model = lw.LinearTree().fit(lw.read(sys.argv[1], split="train"))
top = model.predict(lw.read(sys.argv[1], split="test").texts, k=5)
if sys.argv[2]:
    model.save(sys.argv[2])
print(hashlib.sha256(top.ids.tobytes() + top.scores.tobytes()).hexdigest())
"""
PREDICT = """
import hashlib, sys
import labelwise as lw
top = lw.load(sys.argv[1]).predict(["Return the sum of array elements over a given axis."], k=5)
print(hashlib.sha256(top.ids.tobytes() + top.scores.tobytes()).hexdigest())
"""
BUILD = "import sys; from labelwise.data.builders.pydocs import build_pydocs; build_pydocs(sys.argv[1])"


def run(sources: Path, kernels: Path, code: str, *arguments: str, ahead: str = "1") -> tuple[float, float, str]:
    """Wall and CPU seconds of a new process, and what it printed."""
    environment = {
        **os.environ, "PYTHONPATH": str(sources), "NUMBA_CACHE_DIR": str(kernels), "LABELWISE_COMPILE_AHEAD": ahead,
    }  # fmt: skip
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="the src folder of another copy of the package to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sides = {"this": (SOURCES, "1"), "this, alone": (SOURCES, "0")}
    if options.other:
        sides["other"] = options.other.resolve(), "0"
    times: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    printed: dict[str, set[str]] = defaultdict(set)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        corpus, model = str(place / "pydocs"), str(place / "model")
        run(SOURCES, place / "first", BUILD, corpus)
        run(SOURCES, place / "first", FIT, corpus, model)
        for turn in range(options.repeats):
            for side, (sources, ahead) in sides.items():
                for what, code, arguments in (("fit", FIT, (corpus, "")), ("predict", PREDICT, (model,))):
                    kernels = place / f"{side}-{what}-{turn}"
                    kernels.mkdir()
                    for state in ("cold", "warm"):
                        wall, cpu, result = run(sources, kernels, code, *arguments, ahead=ahead)
                        times[what, state, side].append((wall, cpu))
                        printed[what].add(result)
                        print(f"{what} {state} {side}: {wall:.1f} s, {cpu:.1f} s CPU", flush=True)
    assert all(len(results) == 1 for results in printed.values()), "the sides predict differently"
    names = {"fit": "fit and predict", "predict": "first prediction of a saved model"}
    rows = [
        f"| {names[what]} | {state} | {side} | {statistics.median(w for w, _ in values):.1f} "
        f"| {statistics.median(c for _, c in values):.1f} |"
        for (what, state, side), values in sorted(times.items())
    ]
    RESULTS.write_text(
        f"""# The first fit and the first prediction

New processes with an empty kernel cache (`cold`) and a filled one (`warm`): `linear_tree` on the corpus
of `labelwise demo`. Medians of {options.repeats} turns, seconds including the start of Python and imports.
`other`: an earlier version of the package; `this, alone`: without the second process that compiles ahead.
`benchmarks/cold_start.py`, {datetime.date.today()}, {platform.machine()}, {os.cpu_count()} processors, Python \
{platform.python_version()}; system load at the start {load:.1f}, at the end {os.getloadavg()[0]:.1f}.

| task | kernels | sources | s | CPU s |
|---|---|---|---|---|
"""
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    main()
