"""Faces: ArcFace over all people compared with sampled groups (MHS), verified by LFW's 10-fold protocol.

    python benchmarks/faces.py --data lfw-90x90.tar

The tar holds LFW's images (90 x 90 pixels, not aligned) and the official `pairs.txt`. People of the pairs are never
trained on: `--people outside` trains on the people who are in no pair, most of whom have one image, and verifies all
ten folds; `--people half` also trains on those of the pairs of folds 1 to 5 (folds share nobody) and verifies folds 6
to 10. All trainings have the same network, images and steps; baselines are the untrained network and the pixels
themselves. The middle of an image is read. Tables are written to benchmarks/results/faces_outside.md (or _half) and
.json, the ROC plot to faces_outside_roc.svg.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
EPOCHS = {"outside": 40, "half": 8}
RATES = (1e-1, 1e-2, 1e-3, 1e-4)
FRACTION, GROUP = 0.25, 4
"""Of the people, those of a step with sampling; people per group: small groups, or a batch would touch all of them."""


def extracted(archive: str, folder: str) -> Path:
    """The folder with a folder of images per person."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(path.parent for path in Path(folder).rglob("pairs.txt"))


def chosen_people(root: Path, pairs, people: str) -> list[Path]:
    """Folders of the people to train on."""
    tested = {Path(image).parent.name for image in pairs.images}
    if people == "half":
        rows = np.flatnonzero(pairs.folds < 5)
        first_half = np.concatenate([pairs.first[rows], pairs.second[rows]])
        tested -= {Path(pairs.images[image]).parent.name for image in first_half.tolist()}
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name not in tested)


def tested_pairs(pairs, people: str, limit: int | None):
    """The pairs to verify; with a limit the first pairs of either type of each fold."""
    keep = np.ones(len(pairs), bool) if people == "outside" else pairs.folds >= 5
    if limit is not None:
        rank = np.zeros(len(pairs), int)
        for fold in np.unique(pairs.folds):
            for answer in (True, False):
                rows = np.flatnonzero((pairs.folds == fold) & (pairs.same == answer))
                rank[rows] = np.arange(len(rows))
        keep &= rank < limit
    used, places = np.unique(np.concatenate([pairs.first[keep], pairs.second[keep]]), return_inverse=True)
    first, second = places[: keep.sum()], places[keep.sum() :]
    images = [pairs.images[image] for image in used.tolist()]
    return replace(pairs, images=images, first=first, second=second, same=pairs.same[keep], folds=pairs.folds[keep])


def training_data(people: list[Path], limit: int | None):
    """Images of the people as a data set."""
    from labelwise import Dataset

    people = people[:limit]
    images = [(path, person.name) for person in people for path in sorted(person.glob("*.jpg"))]
    return Dataset(paths=[str(path) for path, _ in images], labels=[[name] for _, name in images], name="lfw")


def model_of(given: argparse.Namespace, n_people: int, head: dict):
    """A model of the benchmark with one of its heads."""
    import labelwise as lw

    return lw.MheFace(
        image={
            "size": given.size, "resize": round(given.size / 0.6),
            "augmentation": {"flip": True, "crop": "padded", "padding": 4, "pad_with": "edge"},
        },
        network={"network": given.network, "width_factor": given.width, "dimension": 128},
        head={"margin": given.margin, "scale": given.scale, **head},
        valid_fraction=0.0,
        monitor={"enabled": False},
        training={
            "epochs": given.epochs, "batch_size": 64, "clip": 5.0, "load_ahead": 2,
            "optimiser": {"name": "sgd", "rate": given.rate, "momentum": 0.9, "weight_decay": 5e-4},
            "schedule": {"kind": "cosine", "warmup": 0.1},
        },
    )  # fmt: skip


def heads_of(n_people: int, partial_fc: bool) -> dict[str, dict]:
    """The heads that are compared."""
    groups = {"radices": (-(-n_people // GROUP), GROUP), "sampled_fraction": FRACTION}
    heads = {"ArcFace, all people": {}, f"MHS, groups of {GROUP}, {FRACTION:.0%}": {"sampling": "groups", **groups}}
    if partial_fc:
        heads[f"Partial FC, {FRACTION:.0%}"] = {"sampling": "classes", "sample_rate": FRACTION}
    return heads


def pixel_result(pairs, size: int):
    """Verification by the cosine of centred pixels."""
    from PIL.Image import Resampling

    from labelwise.data.images import open_image, square
    from labelwise.metrics.verification import verify

    middle = [
        square(open_image(path, 1), size, "crop", round(size / 0.6), Resampling.BILINEAR) for path in pairs.images
    ]
    vectors = np.stack([np.asarray(image, np.float32).ravel() for image in middle])
    vectors -= vectors.mean(1, keepdims=True)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    scores = np.einsum("ij,ij->i", vectors[pairs.first], vectors[pairs.second])
    return verify(scores, pairs.same, pairs.folds, RATES)


def measured(model, data, pairs) -> dict:
    """Train and verify one model."""
    from labelwise.commands.small import verify_pairs

    wall, cpu = time.monotonic(), time.process_time()
    model.fit(data)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    found = verify_pairs(model, pairs, RATES).to_dict()
    steps = model.history_.steps
    return {**found, "training_seconds": wall, "training_cpu_seconds": cpu, "steps": steps}


def untrained(model, data, pairs) -> dict:
    """The same network with its initial weights: one step with a vanishing rate."""
    training = model.config.training
    optimiser = training.optimiser.model_copy(update={"rate": 1e-12})
    model.set_params(training=training.model_copy(update={"steps": 1, "optimiser": optimiser}))
    return measured(model, data, pairs)


def row(name: str, found: dict) -> str:
    """A line of the table."""
    accuracy = found["accuracy"]
    rates = [f"{100 * rate['tar']:.2f}" if rate["tar"] is not None else "-" for rate in found["rates"]]
    trained = "-" if "steps" not in found else f"{found['training_seconds']:.0f} ({found['training_cpu_seconds']:.0f})"
    mean, error = 100 * accuracy["mean"], 100 * accuracy["standard_error"]
    cells = [name, f"{mean:.2f} ± {error:.2f}", f"{100 * found['auc']:.2f}", f"{100 * found['equal_error_rate']:.2f}"]
    return "| " + " | ".join([*cells, *rates, trained]) + " |"


def page(given: argparse.Namespace, results: dict[str, dict], about: dict) -> str:
    """The page of results."""
    head = [
        "",
        "accuracy by folds, %",
        "AUC, %",
        "EER, %",
        *(f"TAR at FAR {rate:g}" for rate in RATES),
        "training, s (CPU)",
    ]
    unmeasured = [rate["reason"] for rate in next(iter(results.values()))["rates"] if rate["reason"]]
    lines = [
        "# Faces", "",
        f"LFW at 90 x 90 pixels, not aligned, the middle 60 % scaled to {given.size} x {given.size}. Trained on "
        f"{about['people']:,} people with {about['images']:,} images ({about['several']:,} people have at least two), "
        f"none of whom is in a verified pair; verified on {about['pairs']:,} pairs, {about['folds']} folds of the "
        "official `pairs.txt`, threshold of each fold from the other folds. "
        f"{given.network} with {given.width:g} times the channels, vectors of 128, {given.epochs} epochs in batches of "
        f"64, margin {given.margin:g}, scale {given.scale:g}; mirror images are added to vectors.", "",
        "| " + " | ".join(head) + " |", "|" + "---|" * len(head),
        *(row(name, found) for name, found in results.items()), "",
        *([f"TAR at the lowest FAR: {unmeasured[0]}.", ""] if unmeasured else []),
        f"Training on {about['machine']}, {about['date']}. `python benchmarks/faces.py --data lfw-90x90.tar "
        f"--people {given.people} --epochs {given.epochs}`", "", f"![ROC]({given.output.stem}_roc.svg)", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Train, verify, write the tables and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the tar with LFW's images and pairs.txt")
    parser.add_argument("--people", choices=["outside", "half"], default="outside")
    parser.add_argument("--network", default="r18")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--epochs", type=int, help="not given: 40 for outside, 8 for half")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--margin", type=float, default=0.3)
    parser.add_argument("--scale", type=float, default=32.0)
    parser.add_argument("--partial-fc", action="store_true", help="also train against random people")
    parser.add_argument("--limit-people", type=int)
    parser.add_argument("--limit-pairs", type=int, help="pairs of either type per fold")
    parser.add_argument("--output", type=Path, help="the page to write")
    given = parser.parse_args()
    given.output = given.output or RESULTS / f"faces_{given.people}.md"
    given.epochs = given.epochs or EPOCHS[given.people]
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from labelwise.commands.small import VerificationRun
    from labelwise.data.faces import read_pairs
    from labelwise.report.verification import roc_chart

    with tempfile.TemporaryDirectory() as folder:
        root = extracted(given.data, folder)
        all_pairs = read_pairs(root / "pairs.txt", root)
        data = training_data(chosen_people(root, all_pairs, given.people), given.limit_people)
        pairs = tested_pairs(all_pairs, given.people, given.limit_pairs)
        counts = data.label_counts()
        pixels = VerificationRun(pixel_result(pairs, given.size), "pairs.txt", len(pairs.images), None, 0.0)
        results = {"pixels": pixels.to_dict()}
        print(row("pixels", results["pixels"]), flush=True)
        results["untrained network"] = untrained(model_of(given, len(counts), {}), data, pairs)
        print(row("untrained network", results["untrained network"]), flush=True)
        for name, head in heads_of(len(counts), given.partial_fc).items():
            results[name] = measured(model_of(given, len(counts), head), data, pairs)
            print(row(name, results[name]), flush=True)
        about = {
            "people": len(counts), "images": len(data), "several": int((counts > 1).sum()), "pairs": len(pairs),
            "folds": len(np.unique(pairs.folds)), "machine": f"{os.cpu_count()} cores of {platform.machine()}",
            "date": datetime.date.today().isoformat(),
        }  # fmt: skip
    given.output.write_text(page(given, results, about), encoding="utf-8")
    plain = {key: value if not isinstance(value, Path) else str(value) for key, value in vars(given).items()}
    plain = {key: value for key, value in plain.items() if key not in ("data", "output")}
    curves = {name: found["roc"] for name, found in results.items()}
    slim = {name: {key: value for key, value in found.items() if key != "roc"} for name, found in results.items()}
    content = json.dumps({"settings": plain, "about": about, "results": slim}, indent=1) + "\n"
    given.output.with_suffix(".json").write_text(content, encoding="utf-8")
    lowest = 1 / max(1, results["pixels"]["n_different"])
    plot = roc_chart(curves, lowest).file("svg")
    given.output.with_name(given.output.stem + "_roc.svg").write_bytes(plot)


if __name__ == "__main__":
    main()
