"""Embeddings next to TF-IDF in linear_tree: dense columns compared with the same numbers as CSR entries.

    python benchmarks/dense_block.py --data FOLDER [--columns 384] [--documents N] [--repeats 3] [--before SOURCES]

FOLDER holds a train and a test split with texts. The dense columns are a random projection of the TF-IDF vectors, at
unit norm, so no encoder is needed. Each variant runs in a separate process, alternating, `--repeats` times: `csr` gets
both blocks as one CSR matrix, `float32` and `float16` get `Blocks`. With `--before`, the `src` folder of an earlier
version, `csr` is that version, which builds the CSR matrix itself. Medians are written to
benchmarks/results/dense_block.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse

RESULTS = Path(__file__).parent / "results" / "dense_block.md"
SIDES = ("csr", "float32", "float16")
METRICS = ("P@1", "P@3", "P@5")
ROWS = (
    ("training (s)", "train", 1, ".1f"),
    ("training (CPU s)", "train cpu", 1, ".1f"),
    ("peak memory of training, above the start (MB)", "peak above", 1e-6, ",.0f"),
    ("batch prediction (s)", "predict", 1, ".2f"),
    ("batch prediction (CPU s)", "predict cpu", 1, ".2f"),
    ("one document (ms CPU)", "single cpu", 1e3, ".3f"),
    *((metric, metric, 100, ".2f") for metric in METRICS),
)


def prepare(data: Path, columns: int, documents: int | None, folder: Path) -> tuple[int, int]:
    """TF-IDF, its projection and the labels of both parts, as files."""
    import labelwise as lw
    from labelwise.features.tfidf import Tfidf, TfidfConfig

    train, test = (lw.read(data, split=split) for split in ("train", "test"))
    train = train.take(slice(documents))
    test = test.align(train.label_names)
    tfidf = Tfidf(TfidfConfig(sublinear=True))
    parts = {"train": tfidf.fit_transform(train.texts), "test": tfidf.transform(test.texts)}
    projection = np.random.default_rng(0).normal(size=(parts["train"].shape[1], columns)).astype(np.float32)
    for part, source in (("train", train), ("test", test)):
        dense = parts[part] @ projection
        dense /= np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-12)
        sparse.save_npz(folder / f"{part}.npz", sparse.csr_matrix(parts[part]), compressed=False)
        sparse.save_npz(folder / f"{part}_labels.npz", sparse.csr_matrix(source.labels), compressed=False)
        np.save(folder / f"{part}.npy", dense.astype(np.float32))
    return len(train), len(test)


def worker(folder: Path, side: str, joined: bool) -> None:
    """Train and predict once, with `joined` from one CSR matrix; figures to standard output."""
    import labelwise as lw
    from labelwise.data.csr import Blocks

    kind = np.float16 if side == "float16" else np.float32

    def part(name: str) -> tuple:
        left = sparse.csr_array(sparse.load_npz(folder / f"{name}.npz"))
        blocks = Blocks(left, np.load(folder / f"{name}.npy").astype(kind))
        labels = sparse.csr_array(sparse.load_npz(folder / f"{name}_labels.npz"))
        return (blocks.to_csr() if joined else blocks), labels

    features, labels = part("train")
    small = features[np.arange(300)]
    model = lw.LinearTree(trees=1)
    model.fit(small, labels[:300]).predict(small, k=10)  # compiles
    model.predict(features[np.arange(1)], k=10)
    figures: dict[str, float] = {}
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory("VmRSS")
    begin, cpu = time.perf_counter(), time.process_time()
    model.fit(features, labels)
    figures |= {"train": time.perf_counter() - begin, "train cpu": time.process_time() - cpu}
    figures["peak above"] = memory("VmHWM") - before
    features, labels = part("test")
    begin, cpu = time.perf_counter(), time.process_time()
    top = model.predict(features, k=10)
    figures |= {"predict": time.perf_counter() - begin, "predict cpu": time.process_time() - cpu}
    rows = [features[np.arange(row, row + 1)] for row in range(300)]
    cpu = time.process_time()
    for row in rows:
        model.predict(row, k=10)
    figures["single cpu"] = (time.process_time() - cpu) / len(rows)
    truth = lw.Dataset(labels, features=features)
    scores = lw.evaluate(top, truth, metrics=list(METRICS))
    figures |= {metric: scores[metric] for metric in METRICS}
    print(json.dumps({key: float(value) for key, value in figures.items()}))


def memory(field: str) -> int:
    """Bytes of this process, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def run(folder: Path, side: str, before: Path | None) -> dict[str, float]:
    """One run of a variant in a separate process."""
    environment = dict(os.environ)
    if before is not None and side == "csr":
        environment["PYTHONPATH"] = str(before)
    command = [sys.executable, __file__, "--worker", str(folder), "--side", side]
    if before is None and side == "csr":
        command.append("--joined")
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def page(runs: dict[str, list[dict]], about: str) -> str:
    """The table; in brackets the ratio of CSR to this variant."""
    medians = {side: {key: statistics.median(run[key] for run in of) for key in of[0]} for side, of in runs.items()}
    lines = ["# Dense columns next to TF-IDF", "", about, "", f"| | {' | '.join(runs)} |", f"|---|{'---|' * len(runs)}"]
    for title, key, factor, form in ROWS:
        cells = []
        for side in runs:
            cell = format(medians[side][key] * factor, form)
            if side != "csr" and key not in METRICS:
                cell += f" ({medians['csr'][key] / medians[side][key]:.2f})"
            cells.append(cell)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all variants and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--columns", type=int, default=384)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--joined", action="store_true")
    chosen = parser.parse_args()
    if chosen.worker is not None:
        worker(chosen.worker, chosen.side, chosen.joined)
        return
    with tempfile.TemporaryDirectory() as name:
        n_train, n_test = prepare(chosen.data, chosen.columns, chosen.documents, Path(name))
        runs: dict[str, list[dict]] = {side: [] for side in SIDES}
        for _ in range(chosen.repeats):
            for side in SIDES:
                runs[side].append(run(Path(name), side, chosen.before))
                print(side, runs[side][-1], flush=True)
    whose = "of the version before" if chosen.before else "of this version"
    about = (
        f"{n_train:,} training documents of {chosen.data.name}, {n_test:,} test documents; TF-IDF next to "
        f"{chosen.columns} dense columns (a random projection of it); one tree, {os.cpu_count()} threads; medians of "
        f"{chosen.repeats} alternating runs, each in a separate process with compiled kernels. `csr` is the "
        f"CSR path {whose}. In brackets: the ratio of CSR to this variant."
    )
    RESULTS.write_text(page(runs, about), encoding="utf-8")
    print(RESULTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
