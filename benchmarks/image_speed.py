"""Images per second in training: labelwise, a plain torch loop, and the same with a DataLoader of worker processes.

    python benchmarks/image_speed.py [--images 2048] [--size 32] [--channels 16] [--rounds 3]

All three train the same network on the same images with the same optimiser, random crops and flips, in batches of 64
and on the same number of threads, alternating. `memory`: images are arrays. `files`: JPEGs of 64 x 64 pixels that are
decoded at every use, on worker threads (labelwise), in the loop itself (torch) or in two worker processes (DataLoader).
The best round counts, because the machine may have other load. Writes benchmarks/results/image_speed.md and .json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import labelwise as lw
from labelwise.nn.config import BackboneConfig
from labelwise.nn.images.networks import ImageEncoder, ResNet
from labelwise.runtime.threads import threads

RESULTS = Path(__file__).parent / "results"
LABELS, BATCH, PADDING, WORKERS = 100, 64, 4, 2


class Images(torch.utils.data.Dataset):
    """Images for a DataLoader: decoded, cropped and mirrored one by one."""

    def __init__(self, images, labels, size):
        self.images, self.labels, self.size = images, labels, size

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        image = self.images[row]
        if isinstance(image, str):
            with Image.open(image) as file:
                image = np.asarray(file.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR))
        padded = np.pad(image, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        top, left, flip = np.random.randint(2 * PADDING + 1), np.random.randint(2 * PADDING + 1), np.random.rand() < 0.5  # noqa: NPY002
        part = padded[top : top + self.size, left : left + self.size]
        return torch.from_numpy(
            np.ascontiguousarray((part[:, ::-1] if flip else part).transpose(2, 0, 1))
        ), self.labels[row]


def plain(images, labels, options, workers):
    """Seconds per step of a plain torch loop; without workers it loads its batches itself."""
    data = Images(images, labels, options.size)
    backbone = BackboneConfig(name="resnet18", channels=options.channels)
    network = ImageEncoder(ResNet(backbone, 3, options.size), np.full(3, 0.5), np.full(3, 0.25))
    model = nn.Sequential(network, nn.Linear(network.width, LABELS))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=workers, drop_last=True)
    model.train()
    begin, steps = None, 0
    for _ in range(2):  # the first epoch starts workers and is not measured
        if begin is None and steps:
            begin, steps = time.perf_counter(), 0
        for pixels, targets in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(pixels), targets).backward()
            optimiser.step()
            steps += 1
    return (time.perf_counter() - begin) / steps


def ours(kind, images, labels, options):
    """Seconds per step of `MheImage`, between the logged ends of its epochs."""
    times = []

    def log(**_):
        times.append(time.perf_counter())

    from labelwise.runtime.job import Job

    one_each = np.eye(LABELS, dtype=np.float32)[labels]
    data = lw.Dataset(one_each, **{kind: images})
    steps = len(labels) // BATCH
    model = lw.MheImage(
        image={
            "size": options.size, "fit": "stretch", "memory": 0, "mean": (0.5,) * 3, "std": (0.25,) * 3,
            "augmentation": {"crop": "padded", "padding": PADDING, "flip": True},
        },
        backbone={"name": "resnet18", "channels": options.channels},
        training={"epochs": None, "steps": 2 * steps, "batch_size": BATCH, "validate_every": None, "log_every": steps},
        valid_fraction=0,
        monitor={"enabled": False},
    )  # fmt: skip
    model.fit(data, job=Job(log=log))
    return (times[1] - times[0]) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "image_speed")
    options = parser.parse_args()
    torch.set_num_threads(threads())
    random = np.random.default_rng(0)
    labels = random.integers(0, LABELS, options.images)
    arrays = random.integers(0, 256, (options.images, options.size, options.size, 3), dtype=np.uint8)
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{row}.jpg" for row in range(options.images)]
        for path in paths:
            small = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(small).resize((64, 64), Image.Resampling.BICUBIC).save(path, quality=90)
        for _ in range(options.rounds):
            for name, kind, images in (("memory", "arrays", arrays), ("files", "paths", paths)):
                row = results.setdefault(name, {})
                row.setdefault("labelwise", []).append(ours(kind, images, labels, options))
                row.setdefault("torch loop", []).append(plain(images, labels, options, 0))
                row.setdefault(f"DataLoader, {WORKERS} processes", []).append(plain(images, labels, options, WORKERS))
                print(name, {side: round(BATCH / min(seconds)) for side, seconds in row.items()}, flush=True)
    lines = [
        "# Images per second in training",
        "",
        f"ResNet-18 with {options.channels} channels, {options.size} x {options.size} pixels, batches of {BATCH}, "
        f"{threads()} threads, best of {options.rounds} rounds, {len(os.sched_getaffinity(0))} cores, "
        f"{datetime.date.today()}. Made by `benchmarks/image_speed.py`.",
        "",
        f"| images | {' | '.join(results['memory'])} |",
        f"|---|{'---|' * len(results['memory'])}",
        *(
            f"| {name} | {' | '.join(f'{BATCH / min(s):,.0f}' for s in row.values())} |"
            for name, row in results.items()
        ),
        "",
    ]
    options.out.with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")
    options.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
