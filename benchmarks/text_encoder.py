"""The text encoder against a plain Hugging Face loop of equal budget, and against a frozen encoder with a linear head.

    python benchmarks/text_encoder.py --encoder FOLDER --long EURLEX57K --short YSO_EN --documents 8000 --repeats 3

`--long` is a data folder whose texts fill the window of 128 tokens; `--short` one of titles, where a loop that pads to
the maximum wastes most of its time. The plain loop is what one writes by hand: AutoTokenizer with padding to
max_length, AutoModel, dropout, nn.Linear, BCEWithLogitsLoss (mean), AdamW with one rate, linear decay with warm-up.
Both sides have the same documents, batch size, epochs, threads and number of steps. The rate of the plain loop is a
choice of --plain-rates, taken by P@1 on the last tenth of the training documents after training on the rest; ours is
fixed. Each measurement runs in a process of its own, the sides in turn; medians go to
benchmarks/results/text_encoder.md. Set OMP_WAIT_POLICY=PASSIVE on a busy machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results" / "text_encoder.md"
BATCH = 32
METRICS = ["P@1", "P@3", "P@5"]
SIDES = ("plain loop", "labelwise", "frozen + linear")
OURS = {"rate": 1e-4, "head_factor": 100.0}
FROZEN = {"rate": 1e-2}
FROZEN_EPOCHS = 20


def peak_memory() -> int:
    """The most this process has held, in bytes."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024


def read_slice(folder: str, documents: int, tests: int):
    """Training and test documents in the label space of the training slice."""
    import labelwise as lw

    train = lw.read(folder, split="train").take(slice(0, documents))
    used = np.flatnonzero(train.label_counts())
    train = lw.Dataset(train.labels[:, used], train.label_names[used], texts=train.texts, name=train.name)
    return train, lw.read(folder, split="test").take(slice(0, tests)).align(train.label_names)


def plain_loop(given: argparse.Namespace, train, test) -> tuple[np.ndarray, dict[str, float]]:
    """What one writes by hand; returns the ids of the best 5 labels."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    begin = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(given.encoder)
    backbone = AutoModel.from_pretrained(given.encoder)

    def tokenised(texts):
        padded = tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=given.length, return_tensors="pt"
        )
        return padded["input_ids"], padded["attention_mask"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.dropout = backbone, nn.Dropout(0.1)
            self.linear = nn.Linear(backbone.config.hidden_size, train.n_labels)

        def forward(self, ids, mask):
            states = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).float()
            return self.linear(self.dropout((states * weights).sum(1) / weights.sum(1)))

    model = Model()
    data = TensorDataset(*tokenised(train.texts), torch.arange(len(train)))
    loader = DataLoader(data, BATCH, shuffle=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=given.plain_rates[0])
    steps = given.epochs * len(loader)
    schedule = get_linear_schedule_with_warmup(optimiser, steps // 10, steps)
    loss_function = nn.BCEWithLogitsLoss()
    model.train()
    for _ in range(given.epochs):
        for ids, mask, rows in loader:
            target = torch.from_numpy(train.labels[rows.numpy()].toarray())
            loss = loss_function(model(ids, mask), target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    fitted = time.perf_counter()
    model.eval()
    found = []
    with torch.no_grad():
        for ids, mask in DataLoader(TensorDataset(*tokenised(test.texts)), BATCH):
            found.append(model(ids, mask).topk(5).indices.numpy())
    return np.concatenate(found), {"fit": fitted - begin, "predict": time.perf_counter() - fitted}


def ours(given: argparse.Namespace, train, test, frozen: bool) -> tuple[np.ndarray, dict[str, float]]:
    """The method of this package."""
    import labelwise as lw

    lw.set_threads(given.threads)
    model = lw.TextEncoder(
        encoder={"model": given.encoder, "max_length": given.length, "pooling": "mean", "frozen": frozen},
        training={
            "epochs": FROZEN_EPOCHS if frozen else given.epochs,
            "batch_size": BATCH,
            "optimiser": FROZEN if frozen else OURS,
            "schedule": {"kind": "linear", "warmup": 0.1},
        },
        valid_fraction=0.0,
    )
    begin = time.perf_counter()
    model.fit(train)
    fitted = time.perf_counter()
    ids = model.predict(test, k=5).ids
    return ids, {"fit": fitted - begin, "predict": time.perf_counter() - fitted}


def measure(side: str, given: argparse.Namespace, folder: str) -> dict[str, float]:
    """One training and one prediction."""
    import transformers

    import labelwise as lw

    transformers.utils.logging.disable_progress_bar()
    train, test = read_slice(folder, given.documents, given.tests)
    if given.choosing:
        train, test = train.take(slice(0, len(train) * 9 // 10)), train.take(slice(len(train) * 9 // 10, None))
    if side == "plain loop":
        ids, found = plain_loop(given, train, test)
    else:
        ids, found = ours(given, train, test, frozen=side != "labelwise")
    top = lw.TopK(ids, np.tile(np.arange(ids.shape[1], 0, -1.0, np.float32), (len(ids), 1)), train.label_names)
    values = lw.evaluate(top, test, metrics=METRICS).values
    return {**found, **values, "peak": peak_memory(), "cpu": time.process_time(), "labels": train.n_labels}


def in_process(
    side: str, folder: str, given: argparse.Namespace, plain_rate: float, choosing: bool = False
) -> dict[str, float]:
    """Run one measurement in a fresh process."""
    names = ("encoder", "documents", "tests", "epochs", "threads", "length")
    options = [text for name in names for text in (f"--{name}", str(getattr(given, name)))]
    command = [sys.executable, __file__, "--measure", side, "--long", folder, *options]
    command += ["--plain-rates", str(plain_rate), *(["--choosing"] if choosing else [])]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(given.threads)}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return json.loads(output.splitlines()[-1])


def chosen_rate(folder: str, given: argparse.Namespace) -> float:
    """The plain loop's best rate on held-out training documents."""
    if len(given.plain_rates) == 1:
        return given.plain_rates[0]
    found = {rate: in_process("plain loop", folder, given, rate, choosing=True)["P@1"] for rate in given.plain_rates}
    print(Path(folder).name, "P@1 of the plain loop by rate:", found, flush=True)
    return max(found, key=found.get)


def table(runs: dict[tuple[str, str], list[dict[str, float]]], rates: dict[str, float], given) -> str:
    """The results as a Markdown page."""
    lines = [
        "# Text encoder",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {given.threads} threads, Python {platform.python_version()}, "
        f"load {os.getloadavg()[1]:.1f}, median of {given.repeats}. Written by `benchmarks/text_encoder.py` with the "
        f"encoder {Path(given.encoder).parent.name}/{Path(given.encoder).name}.",
        "",
        f"{given.documents:,} training and {given.tests:,} test documents, {given.length} tokens at most, batches of "
        f"{BATCH}, {given.epochs} epochs ({FROZEN_EPOCHS} for the head on the frozen encoder). Seconds of wall time, "
        "with tokenising and loading; CPU seconds of the whole process. Peak memory of the process.",
        "",
        "| data | | P@1 | P@3 | P@5 | fit (s) | predict (s) | CPU (s) | peak (MB) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    medians = {
        key: {name: statistics.median(run[name] for run in measured) for name in measured[0]}
        for key, measured in runs.items()
    }
    for (data, side), median in medians.items():
        precisions = " | ".join(f"{100 * median[name]:.2f}" for name in METRICS)
        lines.append(
            f"| {data} | {side} | {precisions} | {median['fit']:,.0f} | {median['predict']:,.1f} "
            f"| {median['cpu']:,.0f} | {median['peak'] / 1e6:,.0f} |"
        )
    lines.append("")
    for data in dict.fromkeys(data for data, _ in runs):
        theirs, mine = medians[data, "plain loop"], medians[data, "labelwise"]
        lines += [
            f"{data}: {mine['labels']:,.0f} labels; fit is {theirs['fit'] / mine['fit']:.2f} times as fast as the "
            f"plain loop, predict {theirs['predict'] / mine['predict']:.2f} times. "
            f"The plain loop's rate is {rates[data]:g}.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure in turn, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--encoder", required=True, help="folder of a pretrained encoder")
    options.add_argument("--long", help="data folder whose texts fill the window")
    options.add_argument("--short", help="data folder of short texts")
    options.add_argument("--documents", type=int, default=8000)
    options.add_argument("--tests", type=int, default=2000)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--plain-rates", type=float, nargs="+", default=[1e-4, 3e-4, 1e-3])
    options.add_argument("--choosing", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--output", type=Path, default=RESULTS)
    options.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given, given.long)))
        return
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    folders = list(filter(None, (given.long, given.short)))
    rates = {Path(folder).name: chosen_rate(folder, given) for folder in folders}
    for _ in range(given.repeats):
        for folder in folders:
            name = Path(folder).name
            for side in SIDES:
                found = in_process(side, folder, given, rates[name])
                runs.setdefault((name, side), []).append(found)
                print(name, side, {key: round(value, 4) for key, value in found.items()}, flush=True)
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text(table(runs, rates, given), encoding="utf-8")
    print(given.output.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
