"""Heads of multi-head encoding on texts: quality, parameters and step time; and a step with millions of labels.

    python benchmarks/mhe_text.py --data FOLDER --encoder FOLDER [--documents 10000] [--tests 3000] [--fine-tune 2000]
    python benchmarks/mhe_text.py --synthetic 3000000

With data: the first documents of FOLDER's train split in their label space, and of its test split. Every text is
encoded once by the frozen encoder (mean token vector); then each head is trained on the vectors with the same steps:
one output per label, groups of labels of two sizes in the order of the index, by frequency and clustered, a cascade of
three digits, product and sampling. `--fine-tune N` then also fine-tunes the encoder on N documents, flat and in
groups. Step time is that of the head alone: loss, gradients and update of a batch. With `--synthetic N`: steps of a
cascade and of a sampling head with N labels, each in a process of its own; the peak is Linux's VmHWM minus what the
process held before, compared with weights and moments. Writes benchmarks/results/mhe_text.md and mhe_text_labels.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from flat_head_memory import forget_peak, memory

RESULTS = Path(__file__).parent / "results"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5")
BATCH, WIDTH, BOTTLENECK = 32, 128, 64
"""Of the synthetic steps: documents per batch, width of vectors and of label embeddings."""


def groups_of(n_labels: int) -> tuple[int, int]:
    """Two numbers of groups: the square root of the labels, and three times as many."""
    root = round(n_labels**0.5)
    return root, 3 * root


def variants(n_labels: int, width: int) -> dict[str, dict]:
    """Settings of mhe_text by the name of the row."""
    few, many = groups_of(n_labels)
    narrow = min(200, width)
    rows: dict[str, dict] = {"one output per label (bce)": {}}
    for count, order in ((few, "index"), (few, "clustered"), (many, "index"), (many, "frequency"), (many, "clustered")):
        rows[f"cascade, {count} groups, {order}"] = {
            "num_group": count, "order": order, "groups": 10, "beam": 20, "bottleneck": narrow,
        }  # fmt: skip
    common = {"dropout": 0.1}
    rows["cascade, three digits, clustered"] = {
        "head": {"kind": "cascade", "loss": "bce", "heads": 3, "order": "clustered", "bottleneck": narrow,
                 "groups": 10, "beam": 20, **common}
    }  # fmt: skip
    rows["one output per label (softmax)"] = {"head": {"kind": "one_hot", "loss": "softmax", **common}}
    rows["product (softmax), two digits"] = {"head": {"kind": "product", **common}}
    rows["sampling (softmax), 10 groups"] = {
        "head": {"kind": "sampling", "sampled_groups": 10, "log_q": True, **common}
    }
    return rows


def read_data(given: argparse.Namespace):
    """Training and test documents in the label space of the training documents."""
    import labelwise as lw

    train = lw.read(given.data, split="train").take(slice(0, given.documents))
    used = np.flatnonzero(train.label_counts())
    train = lw.Dataset(train.labels[:, used], train.label_names[used], texts=train.texts)
    return train, lw.read(given.data, split="test").take(slice(0, given.tests)).align(train.label_names)


def model_of(given: argparse.Namespace, settings: dict, frozen: bool):
    """A model with the settings that all rows share."""
    import labelwise as lw

    training = {
        "epochs": given.epochs, "batch_size": given.batch, "averaging": {"kind": "none"}, "validate_every": None,
        "optimiser": {"name": "adamw", "rate": 2e-3 if frozen else 1e-4, "head_factor": 1 if frozen else 20},
    }  # fmt: skip
    encoder = {"model": given.encoder, "max_length": given.length, "pooling": "mean", "layers": 1, "frozen": frozen,
               "precision": "int8"}  # fmt: skip
    if not frozen:
        training |= {"epochs": given.tuning_epochs, "batch_size": 16}
    dropout = {} if "head" in settings else {"dropout": 0.1}
    return lw.MheText(
        encoder=encoder, training=training, valid_fraction=0.0, monitor={"enabled": False}, **dropout, **settings
    )


def measure_head(given: argparse.Namespace, train, test, settings: dict, frozen: bool) -> dict[str, float]:
    """Train one variant and evaluate it."""
    import labelwise as lw

    begin, cpu = time.monotonic(), time.process_time()
    model = model_of(given, settings, frozen).fit(train)
    seconds, history = time.monotonic() - begin, model.history_
    head = model.network_.head
    begin = time.monotonic()
    top = model.predict(test, k=5)
    scores = lw.evaluate(top, test, metrics=list(METRICS))
    return {
        "labels": train.n_labels,
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
        "step": step_seconds(head, train, given.batch),
        "steps": history.steps,
        "fit": seconds,
        "cpu": time.process_time() - cpu,
        "predict": time.monotonic() - begin,
        **{name: 100 * scores[name] for name in METRICS},
    }


def step_seconds(head, train, batch: int) -> float:
    """Median seconds of loss, gradients and update of the head on random vectors, after the training."""
    import torch

    from labelwise.nn.config import OptimiserConfig
    from labelwise.nn.heads.base import Targets
    from labelwise.nn.train.optim import make_optimisers

    head.requires_grad_(True).train()
    optimisers = make_optimisers(head, OptimiserConfig(name="adamw", rate=1e-6), (), head.row_tables())
    width = next(p.shape[1] for p in head.parameters() if p.ndim == 2)
    seconds = []
    for step in range(12):
        rows = np.arange(step * batch, (step + 1) * batch) % len(train)
        vectors, targets = torch.randn(batch, width), Targets.of_rows(train.labels, rows)
        begin = time.perf_counter()
        optimisers.clear_gradients()
        head.loss(vectors, targets).backward()
        optimisers.step()
        seconds.append(time.perf_counter() - begin)
    head.eval()
    return float(np.median(seconds[2:]))


def compare_heads(given: argparse.Namespace) -> None:
    """All heads on the vectors of the frozen encoder, and some with fine-tuning; writes the page."""
    train, test = read_data(given)
    rows = {}
    for name, settings in variants(train.n_labels, given.width).items():
        rows[name] = measure_head(given, train, test, settings, frozen=True)
        print(name, json.dumps(rows[name]), flush=True)
    tuned = {}
    if given.fine_tune:
        some = train.take(slice(0, given.fine_tune))
        chosen = [
            "one output per label (bce)",
            *(name for name in rows if "groups," in name and "frequency" not in name),
        ]
        for name in chosen:
            settings = variants(train.n_labels, given.width)[name]
            tuned[name] = measure_head(given, some, test, settings, frozen=False)
            print("fine-tuned:", name, json.dumps(tuned[name]), flush=True)
    given.output.mkdir(exist_ok=True)
    (given.output / "mhe_text.json").write_text(json.dumps({"frozen": rows, "fine-tuned": tuned}, indent=1))
    (given.output / "mhe_text.md").write_text(page(given, train, len(test), rows, tuned))


def page(given: argparse.Namespace, train, tests: int, rows: dict, tuned: dict) -> str:
    """The results as a Markdown page."""
    lines = [
        "# Heads of multi-head encoding on texts",
        "",
        f"{about_machine()} {Path(given.data).name}: the first {len(train):,} training documents with "
        f"{train.n_labels:,} labels, {tests:,} test documents, {given.length} tokens, "
        f"{Path(given.encoder).parent.name} with mean pooling. Made by `python benchmarks/mhe_text.py --data "
        f"{Path(given.data).name} --encoder FOLDER`.",
        "",
        f"Frozen encoder: every head has {given.epochs} epochs in batches of {given.batch} on the same vectors, AdamW "
        "at 2e-3. Step: loss, gradients and update of the head alone. Softmax heads divide a document's target among "
        "its labels. The CPU time of the first row contains the encoding of training texts, which the others reuse.",
        "",
        *table(rows),
    ]
    if tuned:
        lines += [
            "",
            f"Fine-tuned on the first {given.fine_tune:,} documents: head alone first, then {given.tuning_epochs} "
            "epochs of both.",
            "",
            *table(tuned),
        ]
    return "\n".join([*lines, ""])


def table(rows: dict) -> list[str]:
    """One row per head."""
    lines = [
        "| head | parameters | step (ms) | fit (CPU s) | " + " | ".join(METRICS) + " |",
        "|---|" + "---|" * (3 + len(METRICS)),
    ]
    for name, row in rows.items():
        scores = " | ".join(f"{row[metric]:.2f}" for metric in METRICS)
        lines.append(f"| {name} | {row['parameters']:,} | {1000 * row['step']:.1f} | {row['cpu']:.0f} | {scores} |")
    return lines


def about_machine() -> str:
    """Where and when."""
    return f"{platform.machine()}, Python {platform.python_version()}, {datetime.date.today()}."


# --- millions of labels ---


def synthetic_step(kind: str, n_labels: int, steps: int) -> dict[str, float]:
    """Steps of one head on random vectors with five random labels each; run in a process of its own."""
    import torch

    from labelwise.nn.config import DigitHeadConfig, OptimiserConfig
    from labelwise.nn.heads.base import Targets
    from labelwise.nn.heads.make_head import make_head
    from labelwise.nn.train.optim import make_optimisers

    settings: dict = {"kind": kind, "heads": 2}
    if kind == "cascade":
        settings |= {"loss": "bce", "groups": 10, "beam": 10, "bottleneck": BOTTLENECK}
    else:
        settings |= {"sampled_groups": 10}
    rng = np.random.default_rng(0)
    forget_peak()
    before = memory("VmRSS")
    counts = np.ones(n_labels, np.int64)
    head = make_head(WIDTH, n_labels, DigitHeadConfig.model_validate(settings), counts, 0)
    head.initialise(counts, n_labels, 0).train()
    optimisers = make_optimisers(head, OptimiserConfig(name="adamw", rate=1e-3), (), head.row_tables())
    seconds = []
    for _ in range(steps):
        labels = np.sort(rng.integers(0, n_labels, BATCH * 5))
        targets = Targets(torch.from_numpy(rng.integers(0, BATCH, BATCH * 5)), torch.from_numpy(labels))
        begin = time.perf_counter()
        optimisers.clear_gradients()
        head.loss(torch.randn(BATCH, WIDTH), targets).backward()
        optimisers.step()
        seconds.append(time.perf_counter() - begin)
    head.eval()
    begin = time.perf_counter()
    head.best(torch.randn(BATCH, WIDTH), 5)
    predict = time.perf_counter() - begin
    weights = 4 * sum(parameter.numel() for parameter in head.parameters())
    return {
        "weights": weights,
        "with moments": 3 * weights,
        "peak": memory("VmHWM") - before,
        "step": float(np.median(seconds[1:])),
        "predict": predict,
        "radices": " x ".join(map(str, head.code.radices)),
    }


def synthetic(given: argparse.Namespace) -> None:
    """Both heads, each in a process of its own; writes the page."""
    lines = [
        "# A step with millions of labels",
        "",
        f"{about_machine()} {given.synthetic:,} labels, batches of {BATCH} vectors of {WIDTH} with 5 random labels "
        f"each, AdamW with row-sparse updates; cascade with embeddings of {BOTTLENECK} and 10 groups per document, "
        "sampling with the groups of the batch's labels. An array of documents x labels never exists. Made by "
        f"`python benchmarks/mhe_text.py --synthetic {given.synthetic}`.",
        "",
        "| head | radices | weights (MB) | with moments (MB) | peak (MB) | step (s) | prediction of a batch (s) |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in ("cascade", "sampling"):
        command = [
            sys.executable,
            __file__,
            "--one",
            kind,
            "--synthetic",
            str(given.synthetic),
            "--steps",
            str(given.steps),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(ended.stdout.splitlines()[-1])
        print(kind, json.dumps(row), flush=True)
        sizes = " | ".join(f"{row[key] / 1e6:,.0f}" for key in ("weights", "with moments", "peak"))
        lines.append(f"| {kind} | {row['radices']} | {sizes} | {row['step']:.2f} | {row['predict']:.2f} |")
    given.output.mkdir(exist_ok=True)
    (given.output / "mhe_text_labels.md").write_text("\n".join([*lines, ""]))


def main() -> None:
    """Read the options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder with train and test texts")
    options.add_argument("--encoder", help="folder of an encoder")
    options.add_argument("--width", type=int, default=384, help="dimension of the encoder's vectors")
    options.add_argument("--documents", type=int, default=10_000)
    options.add_argument("--tests", type=int, default=3000)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--fine-tune", type=int, default=0, help="documents to fine-tune the encoder on; 0: none")
    options.add_argument("--tuning-epochs", type=int, default=3)
    options.add_argument("--synthetic", type=int, help="labels of a synthetic step")
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--one", choices=["cascade", "sampling"], help=argparse.SUPPRESS)
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(synthetic_step(given.one, given.synthetic, given.steps)))
    elif given.synthetic:
        synthetic(given)
    elif given.data and given.encoder:
        compare_heads(given)
    else:
        options.error("give --data and --encoder, or --synthetic")


if __name__ == "__main__":
    main()
