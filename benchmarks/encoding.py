"""Speed of text encoders: documents per second in float32 and with 8-bit layers, before and now, and a peer.

    python benchmarks/encoding.py --encoder FOLDER --data EURLEX57K YSO_EN [--peers PYTHON] [--repeats 3]
    python benchmarks/encoding.py --encoder FOLDER --data EURLEX57K --ranker     # P@k with the vectors of both
    python benchmarks/encoding.py                        # writes the page again from the stored figures

Sides: `one batch` encodes batches of 8,192 tokens one after another, all threads sharing each layer (as labelwise did
before), `float32` and `int8` are `encode_corpus` with both values of `encoder.precision`, `sentence-transformers` is
`SentenceTransformer.encode` on the same folder with its default batches of 32. Every repetition of a side is a process
of its own, sides alternate, medians count. Tokenising is part of the time, loading is not, and some texts are encoded
before the clock starts. CPU seconds hardly depend on what else the machine does. `--ranker` trains `linear_tree` on
TF-IDF, and next to float32 vectors; the latter then predicts with vectors of both precisions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "encoding"
OURS = ("one batch", "float32", "int8")
PEER = "sentence-transformers"
WARM_UP = 16
SHORT = 500
"""Bytes per text on average, below which texts count as short."""
METRICS = ("P@1", "P@3", "P@5", "nDCG@5")


def encoder_of(folder: str, length: int, precision: str = "float32") -> Any:
    """The encoder with mean pooling."""
    from labelwise.nn.config import EncoderConfig
    from labelwise.nn.text.transformer import open_encoder
    from labelwise.strings import Strings

    config = EncoderConfig(model=folder, pooling="mean", max_length=length, precision=precision)
    return open_encoder(config, Strings.of(()), 0).eval()


def one_batch_at_a_time(encoder: Any, texts: Any) -> np.ndarray:
    """The loop that labelwise had before."""
    import torch

    from labelwise.nn.inputs import batches_by_length, tensors_of

    tokens = encoder.tokenizer.encode(texts, encoder.config)
    vectors = np.empty((len(texts), encoder.width), np.float32)
    with torch.inference_mode():
        for documents in batches_by_length(tokens.lengths, 8192):
            vectors[documents] = encoder(*tensors_of(tokens.batch(documents))).numpy()
    return vectors


def opened(side: str, folder: str, length: int) -> Callable[[list[str]], np.ndarray]:
    """A function that encodes texts in the way of this side."""
    if side == PEER:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(folder, device="cpu")
        model.max_seq_length = length
        return lambda texts: model.encode(texts, show_progress_bar=False)
    from labelwise.nn.encode import encode_corpus
    from labelwise.runtime.device import torch_threads
    from labelwise.strings import Strings

    encoder = encoder_of(folder, length, "int8" if side == "int8" else "float32")

    def encode(texts: list[str]) -> np.ndarray:
        with torch_threads():
            given = Strings.of(texts)
            return one_batch_at_a_time(encoder, given) if side == "one batch" else encode_corpus(encoder, given)

    return encode


def measure(side: str, encoder: str, folder: Path) -> None:
    """Encode all corpora of a folder in this process; prints their seconds."""
    found = {}
    for source in sorted(folder.glob("*.json")):
        corpus = json.loads(source.read_text())
        encode = opened(side, encoder, corpus["length"])
        encode(corpus["texts"][:WARM_UP])
        wall, cpu = time.perf_counter(), time.process_time()
        encode(corpus["texts"])
        found[source.stem] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps(found))


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The cosine of each row with the same row of the other."""
    return (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


def speeds(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Documents per second of all sides, on long and on short texts."""
    sides = (*OURS, PEER) if given.peers else OURS
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpora = write_corpora(given, folder)
        runs: list[dict[str, Any]] = []
        for _ in range(given.repeats):
            for side in sides:
                python = given.peers if side == PEER else sys.executable
                load = os.getloadavg()[0]
                command = [python, __file__, "--measure", side, "--encoder", given.encoder, "--folder", name]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
                for corpus, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                    runs.append({"side": side, "corpus": corpus, **seconds, "load": load})
                    print(runs[-1], flush=True)
        rows = []
        for corpus, about in corpora.items():
            for side in sides:
                own = [run for run in runs if (run["side"], run["corpus"]) == (side, corpus)]
                middle = {key: statistics.median(run[key] for run in own) for key in ("wall", "cpu", "load")}
                rows.append({**about, "side": side, **middle})
    return rows


def write_corpora(given: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Texts as JSON files: long ones at 256 and 128 tokens, short ones at 128."""
    import labelwise as lw

    corpora = {}
    for number, source in enumerate(given.data):
        data = lw.read(source, split="test")
        short = float(np.mean(data.texts.ends - data.texts.starts)) < SHORT
        for length in (128,) if short else (256, 128):
            texts = list(data.texts[: given.titles if short else given.documents * 256 // length])
            about = {"data": Path(source).name, "length": length, "documents": len(texts)}
            corpora[f"{number} {length}"] = about
            (folder / f"{number} {length}.json").write_text(json.dumps({**about, "texts": texts}))
    return corpora


def ranker(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Metrics of linear_tree with TF-IDF alone, and with vectors of both precisions for a model of float32 ones."""
    from dataclasses import replace

    import labelwise as lw
    from labelwise.nn.encode import cache_folder, encode_corpus
    from labelwise.runtime.device import torch_threads

    train = lw.read(given.data[0], split="train")
    train = train.take(np.random.default_rng(7).permutation(len(train))[: given.train])
    test = lw.read(given.data[0], split="test").take(slice(0, given.tests)).align(train.label_names)
    known = {precision: encoder_of(given.encoder, 128, precision) for precision in ("float32", "int8")}

    def with_vectors(part: Any, precision: str) -> Any:
        with torch_threads():
            vectors = encode_corpus(known[precision], part.texts, folder=cache_folder())
        return replace(part, features=vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    plain = lw.LinearTree(trees=given.trees).fit(train)
    both = lw.LinearTree(trees=given.trees, vector_scale=1.0).fit(with_vectors(train, "float32"))
    sides = {
        "none": lambda: plain.predict(test, k=5),
        "float32": lambda: both.predict(with_vectors(test, "float32"), k=5),
        "int8": lambda: both.predict(with_vectors(test, "int8"), k=5),
    }
    rows = []
    for side, predict in sides.items():
        values = lw.evaluate(predict(), test, metrics=list(METRICS)).values
        rows.append({"data": Path(given.data[0]).name, "train": len(train), "tests": len(test),
                     "trees": given.trees, "vectors": side, **values})  # fmt: skip
        print(rows[-1], flush=True)
    close = cosines(*(with_vectors(test, precision).features for precision in ("float32", "int8")))
    rows[-1] |= {"cosine": float(close.mean()), "lowest": float(close.min())}
    return rows


def page(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Encoding", "",
        f"{figures['encoder']}, {figures['threads']} threads, {figures['processor']}. Medians of "
        f"{figures.get('repeats', 0)} processes per side, alternating; load is that of the machine when a process "
        "started. In brackets: times as fast as `one batch`. Made by `benchmarks/encoding.py`."
        + figures.get("note", ""), "",
        "| texts | tokens | documents | side | documents/s | documents per CPU second | load |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in figures.get("speeds", []):
        same = [r for r in figures["speeds"] if (r["data"], r["length"]) == (row["data"], row["length"])]
        before = next(r for r in same if r["side"] == OURS[0])
        wall, cpu = (
            f"{row['documents'] / row[clock]:.1f} ({before[clock] / row[clock]:.2f})" for clock in ("wall", "cpu")
        )
        lines.append(
            f"| {row['data']} | {row['length']} | {row['documents']:,} | {row['side']} | {wall} | {cpu} "
            f"| {row['load']:.1f} |"
        )
    if figures.get("ranker"):
        first = figures["ranker"][0]
        lines += [
            "", "## What 8-bit vectors cost a ranker", "",
            f"`linear_tree` on {first['train']:,} training and {first['tests']:,} test documents of {first['data']}, "
            f"trees: {first['trees']}, TF-IDF alone and next to float32 vectors of 128 tokens, both blocks of norm 1. "
            "`int8` is the harder case: the model was trained on float32 vectors and reads 8-bit ones. Cosine: "
            f"{figures['ranker'][-1]['cosine']:.4f} on average, {figures['ranker'][-1]['lowest']:.4f} at least.", "",
            f"| vectors | {' | '.join(METRICS)} |", "|---" * (1 + len(METRICS)) + "|",
        ]  # fmt: skip
        for row in figures["ranker"]:
            lines.append(f"| {row['vectors']} | " + " | ".join(f"{100 * row[metric]:.2f}" for metric in METRICS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="", help="folder of pretrained weights")
    parser.add_argument("--data", nargs="+", default=[])
    parser.add_argument("--peers", default="", help="a Python that has sentence-transformers")
    parser.add_argument("--documents", type=int, default=96, help="long texts, at 256 tokens")
    parser.add_argument("--titles", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranker", action="store_true")
    parser.add_argument("--train", type=int, default=8000)
    parser.add_argument("--tests", type=int, default=2000)
    parser.add_argument("--trees", type=int, default=1)
    for option in ("--measure", "--folder"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.encoder, Path(given.folder))
        return
    stored = RESULTS.with_suffix(".json")
    figures = json.loads(stored.read_text()) if stored.exists() else {}
    if given.data:
        from labelwise.runs.machine import describe_machine
        from labelwise.runtime.threads import threads

        figures |= {"encoder": "all-MiniLM-L6-v2", "threads": threads(), "processor": describe_machine()["cpu"]}
        if given.ranker:
            figures["ranker"] = ranker(given)
        else:
            figures |= {"repeats": given.repeats, "speeds": speeds(given)}
        stored.write_text(json.dumps(figures, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(figures))


if __name__ == "__main__":
    main()
