"""Texts at least four times larger than the memory limit: shards, TF-IDF, a label tree, prediction, evaluation.

    python benchmarks/larger_than_memory.py --laws FOLDER [--gigabytes 2.5] [--limit-megabytes 620]

FOLDER has the laws of eurlex57k as line files. Documents are made of them: the sentences of a law and of two others
that share a label with it, in random order, with the labels of the first; a seed fixes everything. Each command runs in
a control group of its own with the memory limit: the system kills what needs more. Page cache counts there too, but is
reclaimed first, so the figure that matters is the peak of anonymous memory, sampled twenty times per second. A part of
the documents that fits in memory is trained both ways, and the models are compared byte by byte. Linux, as root.
Writes benchmarks/results/larger_than_memory.md.
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

import labelwise as lw

RESULTS = Path(__file__).parent / "results" / "larger_than_memory.md"
GROUPS = Path("/sys/fs/cgroup")
METRICS = ("P@1", "P@3", "P@5")
MODEL = {
    "method": "linear_tree", "trees": 1, "leaf_size": 20, "tfidf": {"sublinear": True, "min_df": 3},
    "solver": {"threshold": 0.2, "max_passes": 10},
}  # fmt: skip
"""Leaves are small, so that the documents of one fit in memory and are read once; weights are all in memory.
Upper nodes are read from the disk in every pass, at most ten times."""
MIN_DOCUMENTS = 30
"""Labels with fewer laws are left out."""


# --- documents -------------------------------------------------------------------------------------------------------


def write_corpus(laws: Path, target: Path, gigabytes: float) -> int:
    """Write documents as JSON lines until their texts have this size; returns their number."""
    data, random, count, written = frequent_labels(lw.read(laws, split="train")), np.random.default_rng(0), 0, 0
    by_label = data.labels.tocsc()
    sentences = [text.split(". ") for text in data.texts]
    names = list(data.label_names)
    with target.open("w", encoding="utf-8") as file:
        while written < gigabytes * 1e9:
            law = int(random.integers(len(data)))
            labels = data.labels.indices[data.labels.indptr[law] : data.labels.indptr[law + 1]]
            shared = random.choice(labels)
            others = by_label.indices[by_label.indptr[shared] : by_label.indptr[shared + 1]]
            pieces = [*sentences[law], *(one for other in random.choice(others, 2) for one in sentences[other])]
            text = ". ".join(pieces[index] for index in random.permutation(len(pieces)))
            record = {"text": text, "labels": [names[label] for label in labels]}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += len(text.encode())
            count += 1
    return count


def frequent_labels(data: lw.Dataset) -> lw.Dataset:
    """Laws that have a frequent label, with their frequent labels."""
    kept = data.labels[:, np.flatnonzero(data.label_counts() >= MIN_DOCUMENTS)]
    names = data.label_names[np.flatnonzero(data.label_counts() >= MIN_DOCUMENTS)]
    filled = np.flatnonzero(np.diff(kept.indptr))
    return lw.Dataset(kept[filled], names, texts=(data.texts or [])[filled])


def first_lines(source: Path, target: Path, count: int) -> None:
    with source.open("rb") as lines, target.open("wb") as file:
        file.writelines(line for line, _ in zip(lines, range(count), strict=False))


# --- commands under a limit ------------------------------------------------------------------------------------------


class Group:
    """A control group with a memory limit, of version 1 or 2."""

    def __init__(self, name: str, limit: int) -> None:
        first = (GROUPS / "memory").is_dir()
        self.path = (GROUPS / "memory" if first else GROUPS) / f"labelwise-{os.getpid()}-{name}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        self.names = ("total_rss",) if first else ("anon",)

    def anonymous(self) -> int:
        lines = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return sum(int(value) for name, value in lines if name in self.names)

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


def run(step: str, arguments: list[str], limit: int | None, log: Path) -> dict:
    """Run a command of labelwise; peak of its anonymous memory, seconds and CPU seconds."""
    group = Group(step.replace(" ", "-").replace(",", ""), limit or 1 << 40)
    before, begin, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    with (log / f"{step}.log").open("w") as file:
        command = [sys.executable, "-m", "labelwise", *arguments]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=group.enter)
        while process.poll() is None:
            peak = max(peak, group.anonymous())
            time.sleep(0.05)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    group.path.rmdir()
    if process.returncode:
        sys.exit(f"{step}: exit code {process.returncode}, see {log / f'{step}.log'}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"step": step, "peak": peak / 1e6, "seconds": seconds, "cpu": cpu}
    print(json.dumps(found), flush=True)
    return found


def config(target: Path, data: dict, folder: Path, memory: float | None) -> str:
    """Write the config of a run; returns its path."""
    settings = {
        "data": data,
        "model": MODEL | ({} if memory is None else {"memory": memory}),
        "evaluate": {"metrics": list(METRICS), "bootstrap": 0},
        "run": {"folder": str(folder), "report": False},
        "inspect": {"enabled": False},
    }
    target.write_text(json.dumps(settings))  # JSON is YAML
    return str(target)


def values(folder: Path) -> list[float]:
    found = json.loads((folder / "results.json").read_text())["evaluation"]["values"]
    return [found[name] for name in METRICS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("larger_than_memory"))
    parser.add_argument("--gigabytes", type=float, default=2.5)
    parser.add_argument("--limit-megabytes", type=int, default=620)
    parser.add_argument("--part", type=int, default=4_000, help="documents that are trained both ways")
    given = parser.parse_args()
    work, limit = given.folder, given.limit_megabytes * 10**6
    work.mkdir(exist_ok=True)
    corpus, part = work / "corpus_train.jsonl", work / "part_train.jsonl"
    if not corpus.exists():
        partial = corpus.with_suffix(".new")
        write_corpus(given.laws, partial, given.gigabytes)
        partial.rename(corpus)
    with corpus.open("rb") as lines:
        documents = sum(1 for _ in lines)
    size = corpus.stat().st_size
    print(f"{documents} documents, {size} bytes", flush=True)
    laws = lw.read_splits(given.laws)
    known = frequent_labels(laws["train"]).label_names
    test_laws = laws["test"]
    columns = np.flatnonzero(np.isin(list(test_laws.label_names), list(known)))
    kept = test_laws.labels[:, columns]
    filled = np.flatnonzero(np.diff(kept.indptr))
    test_laws = lw.Dataset(kept[filled], test_laws.label_names[columns], texts=(test_laws.texts or [])[filled])
    lw.write(test_laws, work / "test.jsonl", force=True)
    test, memory = str(work / "test.jsonl"), limit / 1e9
    steps = [
        run("shard", ["data", "shard", str(corpus), str(work / "shards"), "--size", "256MB", "--force"], limit, work)
    ]
    whole = {"train": str(work / "shards"), "test": test, "mapped": True}
    path = config(work / "whole.yml", whole, work / "whole", memory)
    steps.append(run("train", ["train", path], limit, work))
    output = ["-o", str(work / "predictions.tsv"), "-k", "5"]
    steps.append(run("predict", ["predict", str(work / "whole"), str(corpus), *output], limit, work))
    first_lines(corpus, part, given.part)
    pieces = {"train": str(part), "test": test}
    for name, more in (("part, in memory", {}), ("part, mapped", {"mapped": True})):
        folder = work / name.replace(", ", "-").replace(" ", "-")
        path = config(work / f"{folder.name}.yml", pieces | more, folder, memory if more else None)
        steps.append(run(name, ["train", path], limit if more else None, work))
    output = ["--set", "bootstrap=0", "-o", str(work / "evaluation.json")]
    steps.append(run("evaluate", ["evaluate", str(work / "whole"), str(corpus), *output], limit, work))
    states = [(work / name / "model" / "state.safetensors").read_bytes() for name in ("part-in-memory", "part-mapped")]
    report(given, documents, size, steps, states[0] == states[1], work)


def report(given: argparse.Namespace, documents: int, size: int, steps: list[dict], equal: bool, work: Path) -> None:
    rows = "\n".join(
        f"| {one['step']} | {one['peak']:,.0f} | {one['seconds']:,.0f} | {one['cpu']:,.0f} |" for one in steps
    )
    scores = "\n".join(
        f"| {name} | {' | '.join(f'{100 * value:.2f}' for value in values(work / folder))} |"
        for name, folder in (
            (f"{documents:,}, mapped, under the limit", "whole"),
            (f"{given.part:,}, in memory", "part-in-memory"),
            (f"{given.part:,}, mapped, under the limit", "part-mapped"),
        )
    )
    same = "the same, byte for byte" if equal else "NOT the same"
    labels = json.loads((work / "whole" / "results.json").read_text())["model"]["n_labels"]
    model = sum(path.stat().st_size for path in (work / "whole" / "model").iterdir()) / 1e6
    RESULTS.write_text(
        f"""# Texts larger than memory

{documents:,} documents made of the sentences of laws (eurlex57k), {size / 1e9:.2f} GB of JSON lines, under a memory
limit of {given.limit_megabytes} MB in a control group, {size / 1e6 / given.limit_megabytes:.1f} times less; `memory: \
{given.limit_megabytes / 1000:g}`. `linear_tree` with one tree, leaves of 20 labels, weights from 0.2 on, at most 10
passes and `tfidf.min_df: 3`, {labels:,} labels, model {model:,.0f} MB. `benchmarks/larger_than_memory.py`,
{datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores that other work shared, so that CPU
seconds say more than seconds. One run each.

| step | peak anonymous memory, MB | seconds | CPU seconds |
|---|---|---|---|
{rows}

`shard` writes native shards of 256 MB; `train` maps them, computes TF-IDF in two passes, label features, the tree and
its levels, and evaluates on the test laws; `predict` and `evaluate` read all documents of the corpus again, as JSON
lines, and write the best five labels and P@k. "Part" is a run on {given.part:,} of the documents; the one in memory
has no limit. The two models are {same}.

| training documents | {" | ".join(METRICS)} |
|---|---|---|---|
{scores}
"""
    )
    print(f"written: {RESULTS}")


if __name__ == "__main__":
    main()
