"""The text encoder compared with a plain Hugging Face loop of equal budget, and with a frozen encoder and linear head.

    python benchmarks/text_encoder.py --encoder FOLDER --long EURLEX57K --short YSO_EN --documents 8000 --repeats 3

`--long` is a data folder whose texts fill the window of 128 tokens; `--short` one of titles, where a loop that pads to
the maximum wastes most of its time. The plain loop is a simple hand-written one: AutoTokenizer with padding to
max_length, AutoModel, dropout, nn.Linear, BCEWithLogitsLoss (mean), AdamW with a higher rate for the head (with one
rate for all it does not leave the plateau in so few steps), linear decay with warm-up. Both have the same documents,
batch size, threads and environment (freed memory kept by the C library, OpenMP threads that do not spin). labelwise
trains the head first, and then both for one epoch less than the plain loop, so that its budget is not larger. The
learning rate of each is chosen from a list by P@1 on the last fifth of the first --choosing-documents long texts after
training on the rest, and used for the short texts as well. Each measurement runs in a separate process, alternating;
medians are written to benchmarks/results/text_encoder.md.
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
HEAD_RATE = 1e-2
HEAD_EPOCHS = {"labelwise": 10, "frozen + linear": 20}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
ABOUT = """\
{given.documents:,} training documents ({given.short_documents:,} of the short texts), {given.tests:,} test documents,
{given.length} tokens maximum, batches of {batch}. Plain loop: {given.epochs} epochs. labelwise: {alone} epochs of the
head on the vectors of the frozen encoder, then {ours} epochs of both. Frozen encoder: {frozen} epochs of the
head. The head's learning rate is {head_rate:g} for all; the encoder's was chosen on held-out documents out of
the first {given.choosing_documents:,}: plain loop {plain_rates}, labelwise {our_rates}. Seconds of wall time, including
tokenising and loading; CPU seconds and peak memory of the whole process."""


def peak_memory() -> int:
    """Peak memory of this process in bytes."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024


def read_slice(folder: str, documents: int, tests: int):
    """Training and test documents in the label space of the training slice."""
    import labelwise as lw

    train = lw.read(folder, split="train").take(slice(0, documents))
    used = np.flatnonzero(train.label_counts())
    train = lw.Dataset(train.labels[:, used], train.label_names[used], texts=train.texts, name=train.name)
    return train, lw.read(folder, split="test").take(slice(0, tests)).align(train.label_names)


def plain_loop(given: argparse.Namespace, train, test) -> tuple[np.ndarray, dict[str, float]]:
    """The hand-written loop; returns the ids of the top 5 labels."""
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
    head = {"params": model.linear.parameters(), "lr": HEAD_RATE}
    optimiser = torch.optim.AdamW([{"params": backbone.parameters()}, head], lr=given.rate)
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
            "epochs": HEAD_EPOCHS["frozen + linear"] if frozen else given.epochs - 1,
            "batch_size": BATCH,
            "optimiser": {"rate": given.rate, "head_rate": HEAD_RATE},
            "schedule": {"kind": "linear", "warmup": 0.1},
        },
        head_epochs=0 if frozen else HEAD_EPOCHS["labelwise"],
        valid_fraction=0.0,
    )
    begin = time.perf_counter()
    model.fit(train)
    fitted = time.perf_counter()
    ids = model.predict(test, k=5).ids
    return ids, {"fit": fitted - begin, "predict": time.perf_counter() - fitted}


def measure(given: argparse.Namespace, folder: str) -> dict[str, float]:
    """One training and one prediction."""
    import transformers

    import labelwise as lw

    transformers.utils.logging.disable_progress_bar()
    train, test = read_slice(folder, given.documents, given.tests)
    if given.choosing:
        train, test = train.take(slice(0, len(train) * 4 // 5)), train.take(slice(len(train) * 4 // 5, None))
    if given.measure == "plain loop":
        ids, found = plain_loop(given, train, test)
    else:
        ids, found = ours(given, train, test, frozen=given.measure != "labelwise")
    top = lw.TopK(ids, np.tile(np.arange(ids.shape[1], 0, -1.0, np.float32), (len(ids), 1)), train.label_names)
    values = lw.evaluate(top, test, metrics=METRICS).values
    return {**found, **values, "peak": peak_memory(), "cpu": time.process_time(), "labels": train.n_labels}


def in_process(
    side: str, folder: str, given: argparse.Namespace, rate: float, choosing: bool = False
) -> dict[str, float]:
    """Run one measurement in a fresh process."""
    sizes = {name: getattr(given, name) for name in ("encoder", "documents", "tests", "epochs", "threads", "length")}
    if choosing:
        sizes["documents"] = given.choosing_documents
    elif folder == given.short:
        sizes["documents"] = given.short_documents
    options = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--measure", side, "--long", folder, "--rate", str(rate), *options]
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": str(given.threads)}
    command += ["--choosing"] if choosing else []
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found = json.loads(output.splitlines()[-1])
    shown = {key: round(value, 4) for key, value in found.items()}
    print(Path(folder).name, side, f"rate {rate:g}", "choosing" if choosing else "", shown, flush=True)
    return found


def chosen_rate(side: str, folder: str, given: argparse.Namespace) -> float:
    """The best learning rate of a method on held-out training documents."""
    rates = {"plain loop": given.plain_rates, "labelwise": given.our_rates}.get(side, [HEAD_RATE])
    if len(rates) == 1:
        return rates[0]
    return max(rates, key=lambda rate: in_process(side, folder, given, rate, choosing=True)["P@1"])


def table(runs: dict[tuple[str, str], list[dict[str, float]]], rates: dict[str, float], given) -> str:
    """The results as a Markdown page."""
    lines = [
        "# Text encoder",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {given.threads} threads, Python {platform.python_version()}, "
        f"load {os.getloadavg()[1]:.1f}, median of {given.repeats}. Written by `benchmarks/text_encoder.py` with the "
        f"encoder {given.encoder_name or Path(given.encoder).name}.",
        "",
        ABOUT.format(
            given=given,
            batch=BATCH,
            ours=given.epochs - 1,
            alone=HEAD_EPOCHS["labelwise"],
            frozen=HEAD_EPOCHS["frozen + linear"],
            head_rate=HEAD_RATE,
            plain_rates=_listed(given.plain_rates),
            our_rates=_listed(given.our_rates),
        ),
        "",
        "| data | | rate | P@1 | P@3 | P@5 | fit (s) | predict (s) | CPU (s) | peak (MB) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    medians = {
        key: {name: statistics.median(run[name] for run in measured) for name in measured[0]}
        for key, measured in runs.items()
    }
    for (data, side), median in medians.items():
        precisions = " | ".join(f"{100 * median[name]:.2f}" for name in METRICS)
        lines.append(
            f"| {data} | {side} | {rates[side]:g} | {precisions} | {median['fit']:,.0f} "
            f"| {median['predict']:,.1f} | {median['cpu']:,.0f} | {median['peak'] / 1e6:,.0f} |"
        )
    lines.append("")
    for data in dict.fromkeys(data for data, _ in runs):
        theirs, mine = medians[data, "plain loop"], medians[data, "labelwise"]
        lines += [
            f"{data}: {mine['labels']:,.0f} labels; fit is {theirs['fit'] / mine['fit']:.2f} times as fast as the "
            f"plain loop, predict {theirs['predict'] / mine['predict']:.2f} times.",
            "",
        ]
    return "\n".join(lines)


def _listed(rates: list[float]) -> str:
    return " or ".join(f"{rate:g}" for rate in rates)


def main() -> None:
    """Run the measurements, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--encoder", required=True, help="folder of a pretrained encoder")
    options.add_argument("--encoder-name", help="what the page calls the encoder; default: the name of its folder")
    options.add_argument("--long", help="data folder whose texts fill the window")
    options.add_argument("--short", help="data folder of short texts")
    options.add_argument("--documents", type=int, default=8000)
    options.add_argument("--short-documents", type=int, default=2000, help="training documents of the short texts")
    options.add_argument("--tests", type=int, default=2000)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--plain-rates", type=float, nargs="+", default=[1e-4, 3e-4])
    options.add_argument("--our-rates", type=float, nargs="+", default=[1e-4, 3e-4])
    options.add_argument("--choosing-documents", type=int, default=500)
    options.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    options.add_argument("--choosing", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--output", type=Path, default=RESULTS)
    options.add_argument("--measure", choices=SIDES, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given, given.long)))
        return
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    folders = list(filter(None, (given.long, given.short)))
    rates = {side: chosen_rate(side, folders[0], given) for side in SIDES}
    for _ in range(given.repeats):
        for folder in folders:
            name = Path(folder).name
            for side in SIDES:
                runs.setdefault((name, side), []).append(in_process(side, folder, given, rates[side]))
    given.output.parent.mkdir(exist_ok=True)
    given.output.write_text(table(runs, rates, given), encoding="utf-8")
    print(given.output.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
