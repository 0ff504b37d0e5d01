"""Time and memory to read sparse text in the format of the extreme classification repository.

    python benchmarks/read_sparse.py --mb 1000 --peers /path/to/python/with/omikuji

A file of the requested size is written (about 75 features of 6 digits and 5 labels per document). Each reader runs in a
separate process, alternating, `--repeats` times; the medians are written to benchmarks/results/read_sparse.md. Memory
is the peak of the process minus what it held after imports. scikit-learn reads a smaller slice, because it is much
slower.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "read_sparse.md"
BYTES_A_DOCUMENT = 1150
OMIKUJI = """
import json, resource, sys, time
import omikuji
from omikuji._libomikuji import ffi, lib
pool = omikuji._ThreadPoolHandle(int(sys.argv[2])).ptr
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, begin, busy = peak(), time.perf_counter(), time.process_time()
loaded = lib.load_omikuji_data_set(ffi.new("char[]", sys.argv[1].encode()), pool)
assert loaded != ffi.NULL
seconds, busy = time.perf_counter() - begin, time.process_time() - busy
print(json.dumps({"seconds": seconds, "busy": busy, "peak": peak() - before, "held": float("nan")}))
"""


def make_file(path: Path, megabytes: float, seed: int = 0) -> None:
    """Write random documents until the file has about the requested size."""
    from scipy import sparse

    from labelwise.data.dataset import Dataset
    from labelwise.data.formats import sparse_text as xc

    rng = np.random.default_rng(seed)
    n_documents = int(megabytes * 1e6 / BYTES_A_DOCUMENT)
    n_features, n_labels = 1_000_000, 500_000

    def rows(mean: int, n_columns: int) -> sparse.csr_array:
        counts = np.maximum(1, rng.poisson(mean, n_documents))
        indptr = np.concatenate([[0], np.cumsum(counts)])
        columns = (n_columns * rng.random(indptr[-1], np.float32) ** 3).astype(np.int32)
        values = np.round(rng.random(indptr[-1], np.float32), 6)
        return sparse.csr_array((values, columns, indptr), shape=(n_documents, n_columns))

    labels = rows(5, n_labels)
    labels.sum_duplicates()
    labels.data[:] = 1
    xc.write(Dataset(features=rows(75, n_features), labels=labels, name="random"), path)


def head_of(path: Path, part: Path, megabytes: float) -> None:
    """The first lines of a file without its header, up to about this many megabytes."""
    with path.open("rb") as source, part.open("wb") as target:
        source.readline()
        target.write(source.read(int(megabytes * 1e6)))
        target.write(source.readline())


def measure_labelwise(path: Path) -> dict[str, float]:
    """One read by labelwise: seconds, peak and final bytes."""
    from labelwise.data.formats import sparse_text as xc
    from labelwise.data.options import ReadOptions

    with tempfile.TemporaryDirectory() as folder:  # compiled code is loaded before the clock starts
        warm = Path(folder) / "warm.txt"
        warm.write_text("1 5 5\n2,1 3:0.5 1:2\n")
        xc.read(warm, ReadOptions())
    before, begin, busy = peak_bytes(), time.perf_counter(), time.process_time()
    data = xc.read(path, ReadOptions())
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    matrices = (data.features, data.labels)
    held = sum(array.nbytes for m in matrices for array in (m.data, m.indices, m.indptr))
    return {"seconds": seconds, "busy": busy, "peak": peak_bytes() - before, "held": held}


def measure_sklearn(path: Path) -> dict[str, float]:
    """One read by scikit-learn."""
    from sklearn.datasets import load_svmlight_file

    before, begin, busy = peak_bytes(), time.perf_counter(), time.process_time()
    features, labels = load_svmlight_file(str(path), multilabel=True, zero_based=True, dtype=np.float32)
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    held = features.data.nbytes + features.indices.nbytes + features.indptr.nbytes
    held += 4 * sum(map(len, labels)) * 2
    return {"seconds": seconds, "busy": busy, "peak": peak_bytes() - before, "held": held}


def measure_omikuji(python: str, path: Path) -> dict[str, float]:
    """One read by omikuji, through the function that its training calls first."""
    from labelwise.runtime.threads import threads

    command = [python, "-c", OMIKUJI, str(path), str(threads())]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])  # its log comes before


def peak_bytes() -> int:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_process(reader: str, path: Path) -> dict[str, float]:
    """Run one measurement in a fresh process."""
    command = [sys.executable, __file__, "--measure", reader, str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(rows: dict[str, list[dict[str, float]]], sizes: dict[str, int], repeats: int) -> str:
    """The results as a Markdown page."""
    from labelwise.runtime.threads import threads

    lines = [
        "# Reading sparse text (XC repository format)",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {threads()} threads, Python {platform.python_version()}, "
        f"median of {repeats}. Written by `benchmarks/read_sparse.py`.",
        "",
        "| reader | file (MB) | seconds | MB/s | CPU seconds | peak memory (MB) | arrays (MB) | peak / arrays |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        megabytes = sizes[name] / 1e6
        lines.append(
            f"| {name} | {megabytes:,.0f} | {median['seconds']:.2f} | {megabytes / median['seconds']:,.0f} "
            f"| {median['busy']:.2f} "
            f"| {median['peak'] / 1e6:,.0f} | {median['held'] / 1e6:,.0f} "
            f"| {median['peak'] / median['held']:.2f} |".replace("nan", "not known")
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files, run the measurements, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mb", type=float, default=1000, help="size of the file in megabytes")
    options.add_argument("--slice-mb", type=float, default=60, help="size of the slice for scikit-learn")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--peers", help="a Python that has omikuji")
    options.add_argument("--folder", help="where to put the files (default: a temporary folder)")
    options.add_argument("--measure", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    options.add_argument("--make", metavar="FILE", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        make_file(Path(given.make), given.mb)
        return
    if given.measure:
        reader, path = given.measure
        measure = {"labelwise": measure_labelwise, "sklearn": measure_sklearn}[reader]
        print(json.dumps(measure(Path(path))))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        whole, part = Path(folder) / "train.txt", Path(folder) / "slice.txt"
        # In a separate process, because a process starts with the peak memory of its parent.
        subprocess.run([sys.executable, __file__, "--mb", str(given.mb), "--make", str(whole)], check=True)
        head_of(whole, part, min(given.slice_mb, given.mb))
        rows: dict[str, list[dict[str, float]]] = {}
        for _ in range(given.repeats):
            rows.setdefault("labelwise", []).append(in_process("labelwise", whole))
            rows.setdefault("scikit-learn", []).append(in_process("sklearn", part))
            if given.peers:
                rows.setdefault("omikuji", []).append(measure_omikuji(given.peers, whole))
        big = whole.stat().st_size
        text = table(rows, {"labelwise": big, "scikit-learn": part.stat().st_size, "omikuji": big}, given.repeats)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
