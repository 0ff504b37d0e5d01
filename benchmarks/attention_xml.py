"""attention_xml compared with LibMultiLabel's AttentionXML: scores, documents per second in training, seconds, memory.

    python benchmarks/attention_xml.py --data FOLDER --peers PYTHON --vectors GLOVE.txt [--keep FOLDER]

The data folder has a train and a test split with texts; one PYTHON has LibMultiLabel (docs/benchmarks.md). Both
packages read the same files: the first `--words` words of each document, the same training, held-out and test
documents, a vector for every word of the training documents (those that the file does not have, or all of them without
a file, are drawn at random; without a file they are learned, otherwise frozen). Two levels, same sizes, epochs,
batches, rate, dropout. Runs alternate, each in a separate process with the same environment; labelwise runs twice, once
without features that LibMultiLabel lacks (`plain`). Medians are written to benchmarks/results/attention_xml.md. With
--keep the slice and each finished run are kept there, and the same command resumes with what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from peers import driving

RESULTS = Path(__file__).parent / "results" / "attention_xml.md"
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
    "HF_HUB_OFFLINE": "1",
}
"""The same for all packages: threads that wait without spinning, and memory that is not returned at every step."""
SPREAD = 0.4
"""Standard deviation of random vectors if there is no file to estimate it from."""


@dataclass(frozen=True)
class Side:
    """One of the compared packages."""

    name: str
    command: tuple[str, ...]


PEER = Side("LibMultiLabel", ("run_libmultilabel.py",))
OURS = Side("labelwise", ("run_attention_xml.py",))
PLAIN = Side("labelwise, plain", ("run_attention_xml.py", "--kind", "plain"))
SIDES = (PEER, OURS, PLAIN)


def make_slice(given: argparse.Namespace, folder: Path) -> None:
    """Write the files that all packages read."""
    import numpy as np

    import labelwise as lw
    from labelwise.nn.config import WordsConfig
    from labelwise.nn.words.vocabulary import first_words

    whole, others = lw.read(given.data, split="train"), lw.read(given.data, split="test")
    random = np.random.default_rng(given.seed)
    order, tests = random.permutation(len(whole)), random.permutation(len(others))[: given.tests]
    parts = {
        "train": whole.take(order[: given.train]),
        "valid": whole.take(order[given.train : given.train + given.valid]),
        "test": others.align(whole.label_names).take(tests),
    }
    known = parts["train"].label_counts() > 0
    config, vocabulary = WordsConfig(max_length=given.words), set()
    for name, part in parts.items():
        with (folder / f"{name}.tsv").open("w", encoding="utf-8") as file:
            for row, text in enumerate(part.texts):
                words = first_words(text, config)
                labels = part.labels.indices[part.labels.indptr[row] : part.labels.indptr[row + 1]]
                names = " ".join(f"L{label}" for label in labels if label < len(known) and known[label])
                file.write(f"{names}\t{' '.join(words)}\n")
                if name == "train":
                    vocabulary.update(words)
    found = pretrained(given.vectors, vocabulary) if given.vectors else {}
    width = len(next(iter(found.values()))) if found else given.width
    spread = float(np.std(np.array(list(found.values()), float))) if found else SPREAD
    with (folder / "vectors.txt").open("w", encoding="utf-8") as file:
        for word in sorted(vocabulary):
            numbers = found.get(word) or [f"{value:.5g}" for value in random.normal(0, spread, width)]
            file.write(f"{word} {' '.join(numbers)}\n")
    labels = int(known.sum())
    clusters = 2 ** max(0, math.ceil(math.log2(labels / given.cluster_size)))
    settings = {
        **{name: len(part) for name, part in parts.items()},
        **{name: getattr(given, name) for name in ("words", "cluster_size", "epochs", "batch_size", "rnn_dim")},
        **{name: getattr(given, name) for name in ("hidden", "word_dropout", "dropout", "rate", "seed")},
        "beam_width": min(given.beam_width, clusters),
        "frozen": given.vectors is not None,
        "labels": labels,
        "clusters": clusters,
        "vocabulary": len(vocabulary),
        "found": len(found),
        "width": width,
    }
    (folder / "settings.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def pretrained(path: str, wanted: set[str]) -> dict[str, list[str]]:
    """The lines of requested words in a text file of vectors."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            word, _, numbers = line.rstrip("\n").partition(" ")
            if word in wanted:
                found[word] = numbers.split()
    return found


ABOUT = """\
{train:,} training, {valid:,} held-out and {test:,} test documents of {data}, drawn at random, their first
{words} words, {labels:,} labels in {clusters:,} clusters, of which {beam_width} are kept. BiLSTM of {rnn_dim} (both
directions), output layers {hidden}, batches of {batch_size}, {epochs} epochs per level, Adam at {rate:g}, dropout
{word_dropout} and {dropout}. {vectors} Both packages read the same files. The best weights of each level are selected
by nDCG@5 on the held-out documents; there is no early stopping. `plain` is labelwise without averaged weights,
validated once per epoch, and without clipping (LibMultiLabel clips each element of the gradient at 0.5); its masking,
row-wise updates and initialisation are labelwise's. Documents per second refer to the training epochs only, both levels
together, without validation; `fit` is everything from texts to a model, including clustering, validation and ranking.
LibMultiLabel's vocabulary and vectors are read before its timer starts, ours after; it writes the best weights to a
file, labelwise keeps them in memory. Our kernels are compiled before the timer starts. Peak memory is that of the
process during fit. {threads} threads, and for LibMultiLabel {workers} additional loader processes (its default is 4);
{environment} for all packages. In brackets: ratio to LibMultiLabel; above 1 means labelwise is better."""
ROWS = (
    ("documents per second in training", "rate", 1, ",.1f", True),
    ("level 0 (documents per second)", "rate 0", 1, ",.1f", True),
    ("level 1 (documents per second)", "rate 1", 1, ",.1f", True),
    ("level 0 (s)", "level 0", 1, ",.1f", False),
    ("level 1 (s)", "level 1", 1, ",.1f", False),
    ("fit (s)", "fit", 1, ",.1f", False),
    ("fit (CPU s)", "fit cpu", 1, ",.1f", False),
    ("test documents, predicted and scored (s)", "predict", 1, ",.2f", False),
    ("peak memory (MB)", "peak", 1e-6, ",.0f", False),
)
METRICS = ("P@1", "P@3", "P@5")


def figures(runs: list[dict]) -> dict[str, float]:
    """Medians of a side's runs."""
    flat = []
    for run in runs:
        levels = {f"level {n}": seconds for n, seconds in enumerate(run["levels"])}
        flat.append({**run, **levels, **{f"rate {n}": rate for n, rate in enumerate(run["rates"])}})
    return {key: statistics.median(run[key] for run in flat) for key in (*(row[1] for row in ROWS), *METRICS)}


def page(given: argparse.Namespace, settings: dict, runs: dict[str, list[dict]], missing: list[str]) -> str:
    """The results as a Markdown page."""
    found = {name: figures(own) for name, own in runs.items() if own}
    versions = {name: text for own in runs.values() for run in own for name, text in run["versions"].items()}
    counts = ", ".join(f"{name} {len(own)}" for name, own in runs.items())
    vectors = (
        f"Vectors of {Path(given.vectors).name} for {settings['found']:,} of {settings['vocabulary']:,} words, random "
        f"ones for the others, width {settings['width']}, frozen."
        if given.vectors
        else f"Random word vectors (none pretrained), width {settings['width']}, the same for both sides, learned."
    )
    environment = ", ".join(f"`{name}={value}`" for name, value in ENVIRONMENT.items() if name != "HF_HUB_OFFLINE")
    about = {**settings, "data": Path(given.data).name, "vectors": vectors}
    about |= {"threads": given.threads, "workers": given.workers}
    lines = [
        "# AttentionXML",
        "",
        f"{driving.machine()}; {', '.join(f'{name} {text}' for name, text in sorted(versions.items()))}. "
        f"Medians of alternating runs ({counts}), created by `benchmarks/attention_xml.py`.",
        "",
        ABOUT.format(**about, environment=environment),
        "",
        "| | " + " | ".join(found) + " |",
        "|---|" + "---|" * len(found),
    ]
    theirs = found.get(PEER.name)
    for title, key, unit, shape, more_is_better in ROWS:
        cells = []
        for name, own in found.items():
            ratio = ""
            if theirs and name != PEER.name:
                ratio = f" ({own[key] / theirs[key] if more_is_better else theirs[key] / own[key]:.2f})"
            cells.append(f"{own[key] * unit:{shape}}{ratio}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for metric in METRICS:
        lines.append(f"| {metric} | " + " | ".join(f"{100 * own[metric]:.2f}" for own in found.values()) + " |")
    lines.append("")
    for name, own in runs.items():
        scores = "; ".join(" / ".join(f"{100 * run[metric]:.2f}" for metric in METRICS) for run in own)
        rates = ", ".join(f"{run['rate']:.1f}" for run in own)
        loads = ", ".join(f"{run['busy']:.2f}" for run in own)
        lines.append(f"- {name}: {'/'.join(METRICS)} of each run {scores}; documents per second {rates}; ")
        lines[-1] += f"cores busy with other load before each run {loads}."
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def measured(side: Side, python: str, folder: Path, given: argparse.Namespace) -> dict | str:
    """One run, or an error message."""
    busy = driving.busy_cores()
    script, *more = side.command
    more += ["--workers", str(given.workers)] if side is PEER else []
    command = [python, str(driving.HERE / script), str(folder), "--threads", str(given.threads), *more]
    ended = driving.run(command, given.minutes * 60, given.threads)
    if ended.fault:
        return ended.fault
    return {**json.loads(ended.output.splitlines()[-1]), "busy": busy, "side": side.name}


def main() -> None:
    """Build the slice, run the measurements, write the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder with train and test texts")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons, of which one has LibMultiLabel")
    options.add_argument("--vectors", help="text file of word vectors, such as glove.6B.50d.txt")
    options.add_argument("--width", type=int, default=50, help="width of random vectors, without a file")
    for name, value in (("train", 3000), ("valid", 200), ("tests", 1000), ("words", 150), ("epochs", 6)):
        options.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("cluster-size", 8), ("beam-width", 64), ("batch-size", 40), ("rnn-dim", 512), ("seed", 0)):
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--hidden", type=int, nargs="+", default=[256])
    for name, value in (("word-dropout", 0.2), ("dropout", 0.5), ("rate", 1e-3)):
        options.add_argument(f"--{name}", type=float, default=value)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--workers", type=int, default=0, help="LibMultiLabel's loader processes")
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--minutes", type=float, default=180, help="time limit of a side's run")
    options.add_argument("--only", nargs="*", help=f"sides to run, of: {'; '.join(side.name for side in SIDES)}")
    options.add_argument("--keep", type=Path, help="folder that keeps the slice and finished runs")
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.make:
        make_slice(given, given.make)
        return
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "settings.json").exists():  # in a separate process: a child starts with its parent's peak
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--make", str(folder)], check=True)
        settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        log, runs = folder / "runs.jsonl", {side.name: [] for side in SIDES}
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
            runs[json.loads(line)["side"]].append(json.loads(line))
        peer = driving.python_with("lightning, libmultilabel", given.peers)
        missing = [] if peer else [f"{PEER.name} (no interpreter given has it)"]
        wanted = [side for side in SIDES if (peer or side is not PEER) and side.name in (given.only or runs)]
        for repeat in range(given.repeats):
            for side in list(wanted):
                if len(runs[side.name]) > repeat:
                    continue
                found = measured(side, peer if side is PEER else sys.executable, folder, given)
                print(side.name, found, flush=True)
                if isinstance(found, str):
                    missing.append(f"{side.name} ({found})")
                    wanted.remove(side)
                    continue
                runs[side.name].append(found)
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
    text = page(given, settings, runs, missing)
    given.results.parent.mkdir(exist_ok=True)
    given.results.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
