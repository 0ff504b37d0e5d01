"""A training step of attention_xml's last level with 10,000 and with 1,000,000 labels and the same candidates.

    python benchmarks/attention_xml_scale.py
    python benchmarks/attention_xml_scale.py --labels 10000 1000000 3000000 --width 128

Documents are random words with random true labels; its candidates are the labels of `--beam` random clusters of 8,
including the true ones. The network is tiny, so that any cost that grows with the number of labels is visible. Each
number of labels is measured in a separate process; the loop, the optimiser and the clipping are the standard ones.
Tables of labels (weights and two moments) grow with the labels and are reported separately. Writes
benchmarks/results/attention_xml_scale.md and .svg.
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
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
WORDS, LENGTH, WORD_WIDTH, CLUSTER, DOCUMENTS, TRUE, WARM_UP = 5000, 40, 50, 8, 4000, 5, 10


def measured(labels: int, width: int, beam: int, steps: int) -> dict[str, float]:
    """Seconds per step (wall and CPU, medians) and memory in MB, in this process."""
    import torch
    from scipy import sparse

    from labelwise.labelspace.tree import training_nodes
    from labelwise.nn.config import RecurrentConfig, WordTraining
    from labelwise.nn.encode import EncoderHead
    from labelwise.nn.heads.attention import Attention, SharedOutput
    from labelwise.nn.inputs import Part
    from labelwise.nn.levels import Parents
    from labelwise.nn.train.fit import NetworkFitting
    from labelwise.nn.train.loop import train
    from labelwise.nn.words.recurrent import RecurrentEncoder
    from labelwise.nn.words.vocabulary import WordTokens
    from labelwise.runtime.job import Job

    random = np.random.default_rng(0)
    tokens = WordTokens(
        random.integers(0, WORDS, DOCUMENTS * LENGTH).astype(np.int32), np.arange(DOCUMENTS + 1) * LENGTH
    )
    true = np.sort(random.integers(0, labels, (DOCUMENTS, TRUE)), axis=1)
    rows = np.repeat(np.arange(DOCUMENTS), TRUE)
    targets = sparse.csr_array((np.ones(true.size), (rows, true.ravel())), shape=(DOCUMENTS, labels))
    targets.sum_duplicates()
    clusters = -(-labels // CLUSTER)
    above = sparse.csr_array((np.ones(true.size), (rows, true.ravel() // CLUSTER)), shape=(DOCUMENTS, clusters))
    above.sum_duplicates()
    ranked = random.permuted(
        np.tile(np.arange(0, clusters, clusters // (2 * beam))[: 2 * beam], (DOCUMENTS, 1)), axis=1
    )
    ranked = (ranked[:, :beam] + random.integers(0, clusters // (2 * beam), (DOCUMENTS, 1))).astype(np.int32)
    offsets = np.minimum(np.arange(clusters + 1) * CLUSTER, labels)
    nodes = training_nodes(above, ranked, beam)
    parents = Parents(nodes, np.empty((DOCUMENTS, 0), np.float32), offsets)
    encoder = RecurrentEncoder(torch.randn(WORDS, WORD_WIDTH), True, RecurrentConfig(width=width))
    head = Attention(width, labels, SharedOutput(width, [width])).initialise(
        np.full(labels, DOCUMENTS // 100), DOCUMENTS, 0
    )
    config = WordTraining(
        epochs=None, steps=WARM_UP + steps, validate_every=None, early_stopping=None, averaging={"kind": "none"}
    )
    fitting = NetworkFitting(
        EncoderHead(encoder, head), Part(tokens, targets, parents=parents), None, config, of_level=True
    )
    before = _memory()
    times: list[tuple[float, float]] = []

    class Clock:
        def after_step(self, step: int, loss: torch.Tensor) -> None:
            times.append((time.perf_counter(), time.process_time()))

        def clipped(self, norm: torch.Tensor) -> None:
            pass

    train(fitting, config, job=Job(), monitor=Clock())
    wall, cpu = np.diff(np.array(times[WARM_UP - 1 :]), axis=0).T
    table = labels * width * 4 / 1e6
    return {
        "labels": labels,
        "wall": float(np.median(wall)),
        "cpu": float(np.median(cpu)),
        "tables": 3 * table,
        "step": _memory() - before - 2 * table,
        "peak": _memory(),
        "candidates": int((nodes[:40] >= 0).sum() * CLUSTER / 40),
        "rows": len(np.unique(nodes[:40])) * CLUSTER,
    }


def _memory() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table_of(found: list[dict[str, float]], options: argparse.Namespace) -> str:
    """The results as Markdown."""
    first = found[0]
    lines = [
        "# attention_xml: cost of a training step by number of labels",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; batches of 40 documents of {LENGTH} words, {first['candidates']:.0f} candidates "
        f"each, width {options.width}, {options.steps} steps. `python benchmarks/attention_xml_scale.py`",
        "",
        "| labels | wall ms per step | CPU ms per step | label tables MB | other MB | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        ratios = [f"{one[key] / max(first[key], 1e-9):.2f}" for key in ("wall", "cpu", "step")]
        lines.append(
            f"| {one['labels']:,.0f} | {1e3 * one['wall']:.1f} ({ratios[0]}x) | {1e3 * one['cpu']:.1f} ({ratios[1]}x) "
            f"| {one['tables']:.0f} | {one['step']:.0f} ({ratios[2]}x) | {one['peak']:.0f} |"
        )
    lines += [
        "",
        "Times are medians. Label tables are the label vectors and their two moments. `other` is the peak "
        "of training above the memory held before it, without the moments. A batch touches at most "
        f"{first['rows']:,.0f} rows with {first['labels']:,.0f} labels and {found[-1]['rows']:,.0f} with "
        f"{found[-1]['labels']:,.0f}.",
        "",
        "![time and memory per step](attention_xml_scale.svg)",
    ]
    return "\n".join(lines) + "\n"


def draw(found: list[dict[str, float]], path: Path) -> None:
    """Time and memory against the number of labels, both as multiples of the first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    labels = [one["labels"] for one in found]
    for key, name in (
        ("cpu", "CPU time per step"),
        ("wall", "wall time per step"),
        ("step", "other memory"),
    ):
        axes.plot(labels, [one[key] / found[0][key] for one in found], marker="o", label=name)
    axes.axhline(1.5, color="grey", linestyle=":", label="1.5 times")
    axes.set(xscale="log", xlabel="labels", ylabel=f"times that of {labels[0]:,.0f} labels", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Measure each number of labels in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--beam", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        sys.stdout.write(json.dumps(measured(options.only, options.width, options.beam, options.steps)) + "\n")
        return
    found = []
    for labels in options.labels:
        command = [sys.executable, __file__, "--only", str(labels), "--width", str(options.width)]
        command += ["--beam", str(options.beam), "--steps", str(options.steps)]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(result.stdout.splitlines()[-1]))
    text = table_of(found, options)
    (RESULTS / "attention_xml_scale.md").write_text(text, encoding="utf-8")
    draw(found, RESULTS / "attention_xml_scale.svg")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
