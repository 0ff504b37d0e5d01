"""Omniglot, 1,623 handwritten characters: one output per label against product, cascade and sampling heads.

    python benchmarks/omniglot.py --data omniglot.tar.xz [--epochs 8] [--seeds 0] [--classes 1623] [--heads NAME ...]

Drawings 1 to 15 of each character are for training, 16 and 17 for validation (progress only), 18 to 20 for testing:
other people drew them. All heads get the same network (a narrow ResNet-10 on 28 x 28 grey pixels), recipe and seed,
each in a process of its own. Product and cascade are also trained for as long as one output per label took (`equal
time`). With `--heads` only these are trained, the others keep their figures. Writes benchmarks/results/omniglot.md,
.json and .svg.
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

RESULTS = Path(__file__).parent / "results"
SIZE = 28
TRAIN, VALID = 15, 17
"""Drawings of a character: the first 15 train, two more to validate, the rest to test."""
ALL = 1623
EQUAL_TIME, EQUAL = ("product", "cascade"), ", equal time"
ADDED = (
    "`product, clustered` and the rows of sampling with log-q and of the batch were added after the others had been "
    "seen, on the same test images: read them as an exploration, not as a choice."
)
CLAIMS = """
| heads, top-1 accuracy in the original | one output per label | product | cascade | sampling |
|---|---|---|---|---|
| CIFAR-100, 10 x 10, ResNet-18, 200 epochs | 77.5 | 75.46 | 75.96 | 77.01 |
| CIFAR-100, 5 x 20, ResNet-18, 200 epochs | 77.5 | 74.29 | 76.75 | 77.45 |
| ImageNet, 40 x 25, ResNet-50, 100 epochs | 73.51 | 71.54 | 72.02 | 73.53 |
"""


def heads(classes: int) -> dict[str, dict]:
    """The heads by name: 40 x 41 codes for all characters, near equal digits for a slice."""
    digits = {"radices": [40, 41]} if classes == ALL else {}
    sampling = {"kind": "sampling", **digits, "negatives": "document", "sampled_groups": 10 if classes == ALL else 2}
    return {
        "one_hot": {"kind": "one_hot"},
        "product": {"kind": "product", **digits},
        "cascade": {"kind": "cascade", **digits, "groups": 4},
        "product, clustered": {"kind": "product", **digits, "order": "clustered"},
        "sampling": sampling,
        "sampling, log-q": {**sampling, "log_q": True},
        "sampling, batch": {**sampling, "negatives": "batch"},
    }


# --- data -------------------------------------------------------------------------------------------------


def prepare(archive: Path, folder: Path, classes: int) -> None:
    """Unpack, read through `labelwise.read`, decode once, and write the three parts as native data."""
    import labelwise as lw
    from labelwise.data.archives import unpack
    from labelwise.nn.config import ImageConfig
    from labelwise.nn.images.inputs import ImageInputs

    unpack(archive, folder / "files")
    data = lw.read(folder / "files", "image_folder")
    chosen = np.flatnonzero(data.labels.indices < classes)
    data = data.take(chosen)
    drawing = np.array([int(Path(path).stem.rpartition("_")[2]) for path in data.paths])
    inputs = ImageInputs(ImageConfig(size=SIZE, channels=1, fit="stretch"), paths=data.paths)
    blocks = [inputs.batch(np.arange(begin, min(begin + 512, len(data)))) for begin in range(0, len(data), 512)]
    arrays = np.concatenate([block.pixels[:, 0] for block in blocks])
    labels = data.labels[:, :classes]
    whole = lw.Dataset(labels, data.label_names[: labels.shape[1]], arrays=arrays, name="omniglot")
    parts = {
        "train": whole.take(drawing <= TRAIN),
        "valid": whole.take((drawing > TRAIN) & (drawing <= VALID)),
        "test": whole.take(drawing > VALID),
    }
    lw.write_splits(parts, folder / "data", "native")


# --- one training, in a process of its own ----------------------------------------------------------------


def side(folder: Path, head: dict, epochs: float, seed: int, batch: int) -> dict:
    import labelwise as lw

    parts = lw.read_splits(folder / "data")
    steps = max(1, round(epochs * -(-len(parts["train"]) // batch)))
    model = lw.MheImage(
        image={"size": SIZE, "channels": 1, "augmentation": {"crop": "padded", "padding": 3, "pad_with": "white"}},
        backbone={"name": "resnet10", "channels": 16},
        head=head,
        training={
            "epochs": None, "steps": steps, "batch_size": batch, "seed": seed, "validate_every": None,
            "optimiser": {"name": "sgd", "rate": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
            "schedule": {"kind": "cosine", "warmup": 0.1},
        },
        valid_fraction=0,
        monitor={"enabled": False},
    )  # fmt: skip
    model.check_needs()
    import labelwise.nn.train.loop
    import labelwise.nn.train.monitor  # imports count neither as time nor as memory of training

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    model.fit(parts["train"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    top = model.predict(parts["test"], k=5)
    predicting = time.process_time() - begin
    found = lw.evaluate(top, parts["test"], metrics=["P@1", "R@5"])
    state = model.fitted_.tensors()
    return {
        "top1": found["P@1"], "top5": found["R@5"], "steps": steps, "wall": wall, "cpu": cpu,
        "head": sum(v.size for k, v in state.items() if k.startswith("head.") and v.dtype == np.float32),
        "all": sum(v.size for v in state.values() if v.dtype == np.float32),
        "memory": (peak - before) * 1024, "predict": predicting / len(parts["test"]), "documents": len(parts["train"]),
    }  # fmt: skip


def measured(folder: Path, head: dict, epochs: float, seed: int, batch: int) -> dict:
    """`side` in another process, so that memory is its own."""
    arguments = json.dumps({"head": head, "epochs": epochs, "seed": seed, "batch": batch})
    command = [sys.executable, __file__, "--side", arguments, "--data", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# --- the page ---------------------------------------------------------------------------------------------


def mean(rows: list[dict], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def page(results: dict[str, list[dict]], options: argparse.Namespace) -> str:
    lines = [
        "# Omniglot: heads of multi-head encoding",
        "",
        f"{options.classes:,} characters, {results['one_hot'][0]['documents']:,} training images of {SIZE} x {SIZE} "
        f"pixels, 3 test images per character; ResNet-10 with 16 channels, batches of {options.batch}, SGD 0.1 with "
        f"momentum 0.9, cosine; {options.epochs:g} epochs, seeds {options.seeds}. Digits 40 x 41 in the order of the "
        f"index if not said otherwise; sampling: 10 of 40 groups per image, with `batch` those of the labels of "
        "the batch, about 32; cascade: 4 groups per image. "
        f"{platform.processor() or 'x86-64'}, {len(os.sched_getaffinity(0))} cores, "
        f"{datetime.date.today()}. Made by `benchmarks/omniglot.py`.",
        "",
        "| head | top-1 | top-5 | parameters of the head | of all | ms per step (CPU) | wall s | memory, MB | "
        "ms per prediction (CPU) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in results.items():
        spread = f" ± {100 * np.std([row['top1'] for row in rows]):.1f}" if len(rows) > 1 else ""
        lines.append(
            f"| {name} | {100 * mean(rows, 'top1'):.1f}{spread} | {100 * mean(rows, 'top5'):.1f} | "
            f"{mean(rows, 'head'):,.0f} | {mean(rows, 'all'):,.0f} | "
            f"{1000 * mean(rows, 'cpu') / mean(rows, 'steps'):.1f} | {mean(rows, 'wall'):.0f} | "
            f"{mean(rows, 'memory') / 1e6:.0f} | {1000 * mean(rows, 'predict'):.2f} |"
        )
    base = mean(results["one_hot"], "top1")
    differences = [f"{name}: {100 * (mean(rows, 'top1') - base):+.1f}" for name, rows in results.items()][1:]
    lines += ["", f"Difference in top-1 from one output per label: {'; '.join(differences)}.", ""]
    tests = 3 * options.classes
    lines += [
        f"With {tests:,} test images the standard error of an accuracy is {100 * 0.5 / tests**0.5:.1f} points.",
        "",
    ]
    lines += [ADDED, "", "The original's own figures, for comparison:", CLAIMS]
    return "\n".join(lines)


def draw(results: dict[str, list[dict]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    names = list(results)
    for axis, key, title in ((axes[0], "head", "parameters of the head"), (axes[1], "cpu", "CPU seconds of training")):
        for name in names:
            x, y = mean(results[name], key), 100 * mean(results[name], "top1")
            axis.scatter([x], [y], s=28)
            axis.annotate(name, (x, y), fontsize=7, xytext=(4, 4), textcoords="offset points")
        axis.set_xlabel(title)
        axis.set_ylabel("top-1, %")
        axis.set_xlim(left=0)
        axis.margins(0.25, 0.2)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--classes", type=int, default=ALL)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--heads", nargs="+", help="train only these, for example `sampling` or `product, equal time`")
    parser.add_argument("--out", type=Path, default=RESULTS / "omniglot")
    parser.add_argument("--side")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(side(options.data, **json.loads(options.side))))
        return
    kept = options.out.with_suffix(".json")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(options.data, folder, options.classes)
        rows = [*heads(options.classes), *(f"{name}{EQUAL}" for name in EQUAL_TIME)]
        results: dict[str, list[dict]] = json.loads(kept.read_text()) if options.heads else {}
        for seed in options.seeds:
            for name in options.heads or rows:
                head, epochs = heads(options.classes)[name.removesuffix(EQUAL)], options.epochs
                if name.endswith(EQUAL):
                    base, own = results["one_hot"][-1], results[name.removesuffix(EQUAL)][-1]
                    epochs *= (base["cpu"] / base["steps"]) / (own["cpu"] / own["steps"])
                found = measured(folder, head, epochs, seed, options.batch)
                results[name] = [*(results.get(name, []) if seed != options.seeds[0] else []), found]
                print(name, seed, json.dumps(found), flush=True)
        results = {name: results[name] for name in rows if name in results}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".md").write_text(page(results, options), encoding="utf-8")
    kept.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, options.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
