"""xr_transformer compared with PECOS's XR-Transformer: same texts, weights, label tree, schedule and steps.

    python benchmarks/xr_transformer.py --data FOLDER --encoder FOLDER --peers PYTHON [--documents 2000] [--repeats 1]

The first documents of FOLDER's train split, in the label space of these documents, and of its test split. Both get our
TF-IDF of single words and our preliminary tree, which is also the tree of the ranker, and fine-tune the encoder for
the same number of steps per level with the published recipe (weighted squared hinge, heads from weighted linear
classifiers, true and predicted parents). `frozen` is hybrid_linear, the same ranker without fine-tuning. Each run is a
process of its own, alternating; medians are written to benchmarks/results/xr_transformer*.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import sparse

from peers import driving
from peers.driving import Side

METRICS = ("P@1", "P@3", "P@5", "nDCG@5")
SIDES = (
    Side("labelwise xr_transformer", "run_xr_labelwise.py", "labelwise"),
    Side("PECOS XR-Transformer", "run_xr_pecos.py", "pecos.xmc.xtransformer.model"),
    Side("labelwise hybrid_linear (frozen)", "run_xr_labelwise.py", "labelwise", trees=0),
)
ABOUT = """\
{given.documents:,} training documents with {labels:,} labels, {given.tests:,} test documents, {given.length} tokens,
{given.threads} threads, batches of {given.batch}, rate {given.rate:g}, levels of {sizes} nodes with {steps} steps.
Both packages have the same TF-IDF, tree and steps; labelwise pools the mean token vector, PECOS BERT's pooler. Our
first head is {given.first_head}; PECOS's is random. labelwise encodes in {given.precision}; both train in float32.
Wall and CPU seconds of the process while it trains (all texts are encoded after every level) and predicts. In brackets:
the value divided by that of labelwise."""


def make_inputs(given: argparse.Namespace, folder: Path) -> dict:
    """Write texts, features, labels, tree and settings; returns sizes."""
    import labelwise as lw
    from labelwise.features.labels import pifa
    from labelwise.features.tfidf import Tfidf
    from labelwise.labelspace.tree import LabelTree

    train = lw.read(given.data, split="train").take(slice(0, given.documents))
    used = np.flatnonzero(train.label_counts())
    train = lw.Dataset(train.labels[:, used], train.label_names[used], texts=train.texts)
    test = lw.read(given.data, split="test").take(slice(0, given.tests)).align(train.label_names)
    tfidf = Tfidf()
    features = tfidf.fit_transform(train.texts)
    tree = LabelTree.balanced(pifa(features, train.labels), leaf_size=given.leaf_size, branching=given.branching)
    matrices = {"X": features, "Y": train.labels, "Xt": tfidf.transform(test.texts), "Yt": test.labels}
    for depth, parents in enumerate(tree.parents):
        above = tree.sizes[depth - 1] if depth else 1
        own = tree.label_order if depth == tree.depth - 1 else np.arange(len(parents))
        matrices[f"C{depth}"] = sparse.csr_array(
            (np.ones(len(parents), np.float32), (own, parents)), shape=(len(parents), above)
        )
    for name, matrix in matrices.items():
        sparse.save_npz(folder / f"{name}.npz", matrix, compressed=False)
    steps = given.steps * tree.depth if len(given.steps) == 1 else given.steps
    settings = {
        "encoder": os.path.abspath(given.encoder), "length": given.length, "batch": given.batch, "rate": given.rate,
        "steps": steps, "beam": given.beam, "ranker_beam": 10, "leaf_size": given.leaf_size,
        "branching": given.branching, "first_head": given.first_head, "precision": given.precision,
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, part in (("texts", train), ("tests", test)):
        (folder / f"{name}.json").write_text(json.dumps([" ".join(text.split()) for text in part.texts]))
    return {"labels": train.n_labels, "sizes": ", ".join(f"{size:,}" for size in tree.sizes), "steps": steps}


def evaluated(folder: Path, predictions: Path) -> dict[str, float]:
    """Scores in per cent; labels that only test documents have count."""
    scores = driving.evaluate(folder, predictions)
    return {name: scores[name] for name in METRICS}


def page(given, about: dict, runs: dict[str, list[dict]], loads: list[str]) -> str:
    """The results as a Markdown page."""
    ours = runs[SIDES[0].name]
    lines = [
        "# xr_transformer compared with PECOS",
        "",
        f"{driving.machine()}. {Path(given.data).name}, median of {given.repeats}. Made by "
        f"`python benchmarks/xr_transformer.py --data {Path(given.data).name} --encoder FOLDER --peers PYTHON`.",
        "",
        ABOUT.format(given=given, **about),
        "",
        "| | training (s) | training (CPU s) | prediction (s) | peak memory (MB) | " + " | ".join(METRICS) + " |",
        "|---|" + "---|" * (4 + len(METRICS)),
    ]
    for name, measured in runs.items():
        cells = []
        for key, scale in (("train", 1), ("train cpu", 1), ("predict", 1), ("peak", 1e-6)):
            value, base = (statistics.median(run[key] for run in some) for some in (measured, ours))
            ratio = "" if measured is ours else f" ({value / base:.2f})"
            cells.append(f"{value * scale:,.1f}{ratio}")
        cells += [f"{statistics.median(run[metric] for run in measured):.2f}" for metric in METRICS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Busy cores of other load before each run: " + ", ".join(loads) + ".", ""]
    return "\n".join(lines)


def main() -> None:
    """Write the inputs, run all sides, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument("--encoder", required=True, help="folder of a BERT with its tokenizer")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons, one of which has libpecos")
    options.add_argument("--documents", type=int, default=2000)
    options.add_argument("--tests", type=int, default=1000)
    options.add_argument("--steps", type=int, nargs="+", default=[50], help="per level, or one number for all")
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--rate", type=float, default=5e-5)
    options.add_argument("--beam", type=int, default=5)
    options.add_argument("--leaf-size", type=int, default=16)
    options.add_argument("--branching", type=int, default=16)
    options.add_argument("--first-head", default="random")
    options.add_argument("--precision", default="float32", help="of labelwise when it encodes: float32 or int8")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--minutes", type=float, default=20, help="time limit of a run")
    options.add_argument("--name", default="xr_transformer", help="name of the results")
    given = options.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "LABELWISE_VECTORS": "off"}
    pythons = {side.name: driving.python_with(side.package, [sys.executable, *given.peers]) for side in SIDES}
    runs: dict[str, list[dict]] = {side.name: [] for side in SIDES if pythons[side.name]}
    loads = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        about = make_inputs(given, folder)
        for _ in range(given.repeats):
            for side in SIDES:
                if side.name not in runs:
                    continue
                loads.append(f"{driving.busy_cores():.1f}")
                kept = folder / "predictions.npz"
                found = driving.measure(side, pythons[side.name], folder, given.threads, given.minutes, kept)
                if isinstance(found, str):
                    sys.exit(f"{side.name}: {found}")
                runs[side.name].append({**found, **evaluated(folder, kept)})
                print(side.name, json.dumps(runs[side.name][-1]), flush=True)
    results = Path(__file__).parent / "results"
    (results / f"{given.name}.md").write_text(page(given, about, runs, loads), encoding="utf-8")
    (results / f"{given.name}.json").write_text(json.dumps({"settings": about, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
