"""Accuracy, CPU time and model size of the methods that need no GPU, in one table per data set.

    python benchmarks/hybrid.py --data FOLDER [--encoder FOLDER] [--rows NAME ...] [--limit N] [--test N] [--trees 3]
    python benchmarks/hybrid.py                          # writes the page again from the stored figures

Rows are names of `ROWS`. A model is fitted on the training documents, calibrated on the valid part (or on 5,000 further
training documents where there is none), and evaluated on the test part. Micro-F1 is at the calibrated threshold; PSP
has the propensities of the training documents. CPU seconds are those of all threads. Those of `hybrid_linear` include
encoding, unless vectors came from the cache folder (say so with `--cached`) or from `--vectors`.

`--vectors PATTERN` names .npy files of vectors that were encoded before, one row per document of a part, with {part}
for train, valid and test. Figures are kept in results/hybrid.json, one entry per data set, number of training documents
and row; a row that is measured again replaces its entry.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "hybrid"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "RP@5", "PSP@1", "PSP@3", "PSP@5", "micro-F1")
HELD_OUT = 5000
PUBLISHED = {
    "eurlex57k": "BERT-base, fine-tuned on 45,000 (Chalkidis et al. 2019) | | | 68.7 | 82.3 | 79.6 | | | | 73.2 | | | |"
}
"""Rows that other authors have published."""


def linear_tree(bench: Bench) -> Any:
    """TF-IDF only."""
    import labelwise as lw

    return lw.LinearTree(trees=bench.given.trees)


def hybrid_linear(bench: Bench) -> Any:
    """TF-IDF and vectors of the frozen encoder."""
    import labelwise as lw

    method = lw.HybridLinear if bench.known is None else with_known_vectors(bench.known)
    return method(encoder={"model": str(bench.given.encoder)}, trees=bench.given.trees)


ROWS: dict[str, Callable[[Bench], Any]] = {"linear_tree": linear_tree, "hybrid_linear": hybrid_linear}


def with_known_vectors(known: dict[int, np.ndarray]) -> Any:
    """`HybridLinear` with the vectors of texts looked up by hash instead of encoded."""
    import labelwise as lw
    from labelwise.data.document_hash import text_hashes
    from labelwise.features.vector_scaling import VectorScaling

    class Known(lw.HybridLinear):
        def _training_vectors(self, texts: Any, context: Any) -> np.ndarray:
            vectors = looked_up(texts)
            self.scaling_ = VectorScaling.learn(vectors, self.config.vector_scale, self.config.whitening)
            return self.scaling_.apply(vectors)

        def _encode(self, data: Any) -> np.ndarray:
            return looked_up(data.texts)

    def looked_up(texts: Any) -> np.ndarray:
        return np.stack([known[one] for one in text_hashes(texts).tolist()]).astype(np.float32)

    return Known


class Bench:
    """One data set: training, held-out and test documents."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        import labelwise as lw
        from labelwise.data.document_hash import text_hashes
        from labelwise.data.read import find_parts

        self.name, self.given = folder.name, given
        train, test = lw.read(folder, split="train"), lw.read(folder, split="test")
        parts = {"train": train, "test": test}
        order = np.random.default_rng(0).permutation(len(train))
        if "valid" in find_parts(folder)[1]:
            parts["valid"] = self.valid = lw.read(folder, split="valid")
        else:
            self.valid, order = train.take(np.sort(order[:HELD_OUT])), order[HELD_OUT:]
        self.train = train.take(np.sort(order[: given.limit]))
        self.test = test.take(np.sort(np.random.default_rng(0).permutation(len(test))[: given.test]))
        self.known: dict[int, np.ndarray] | None = None
        if given.vectors:
            self.known = {}
            for part, data in parts.items():
                vectors = np.load(given.vectors.format(part=part), mmap_mode="r")
                self.known |= zip(text_hashes(data.texts).tolist(), vectors, strict=True)

    def measure(self, name: str) -> dict[str, Any]:
        """Fit, calibrate, predict and evaluate one row."""
        import labelwise as lw

        model, seconds = ROWS[name](self), {}
        begin = time.process_time()
        model.fit(self.train)
        seconds["fit"] = time.process_time() - begin
        model.calibrate(self.valid)
        begin = time.process_time()
        top = model.predict(self.test, k=20)
        seconds["predict"] = time.process_time() - begin
        scores = lw.evaluate(top, self.test, METRICS[:-1], train=self.train).values
        above = model.predict(self.test, threshold="auto")
        scores |= lw.evaluate(above, self.test, METRICS[-1:], threshold=0.0).values
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            size = sum(file.stat().st_size for file in (Path(folder) / "model").iterdir())
        return {
            **{metric: round(100 * scores[metric], 2) for metric in METRICS},
            **{f"{stage}_seconds": round(amount, 1) for stage, amount in seconds.items()},
            "megabytes": round(size / 1e6, 1),
            "trees": self.given.trees,
            "encoder": None if name == "linear_tree" else self.given.encoder_name,
            "encoded_before": name != "linear_tree" and (self.known is not None or self.given.cached),
        }


def stored() -> dict[str, Any]:
    """The figures so far."""
    path = RESULTS.with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_page(figures: dict[str, Any]) -> None:
    """One table per data set."""
    lines = [
        "# Methods without a GPU",
        "",
        "`python benchmarks/hybrid.py`. Calibrated on held-out documents, evaluated on the test part; micro-F1 at the",
        "calibrated threshold. CPU seconds of all threads on 2 cores (AMD Zen 3) that were shared with other work;",
        "sizes are of the model folder, with the encoder inside.",
    ]
    for title, rows in figures.items():
        name = title.split(",")[0]
        lines += ["", f"## {title}", ""]
        lines += ["| | " + " | ".join(METRICS) + " | fit, CPU s | predict, CPU s | MB |", "|---" + "|--:" * 12 + "|"]
        for row, found in rows.items():
            mark = "*" if found["encoded_before"] else ""
            amounts = [f"{found['fit_seconds']:.0f}{mark}", f"{found['predict_seconds']:.0f}{mark}"]
            shown = [f"{found[metric]:.2f}" for metric in METRICS] + amounts + [f"{found['megabytes']:.0f}"]
            lines.append(f"| {row}, {found['trees']} trees | " + " | ".join(shown) + " |")
        lines += [f"| {PUBLISHED[name]}"] if name in PUBLISHED else []
        encoders = {found["encoder"] for found in rows.values()} - {None}
        lines += ["", f"Encoder: {', '.join(sorted(encoders))}, not trained."] if encoders else []
        if any(found["encoded_before"] for found in rows.values()):
            lines += ["", "\\* without encoding the texts, whose vectors were at hand."]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure the rows, then write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, help="a folder with texts")
    options.add_argument("--encoder", type=Path, help="a folder of pretrained weights, for rows that need one")
    options.add_argument("--encoder-name", default="all-MiniLM-L6-v2, 128 tokens", help="its name, for the page")
    options.add_argument("--vectors", help="vectors that were encoded before, such as vectors-{part}.npy")
    options.add_argument("--cached", action="store_true", help="say that the vectors are in the cache folder")
    options.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), help="rows to measure")
    options.add_argument("--limit", type=int, help="maximum number of training documents")
    options.add_argument("--test", type=int, help="maximum number of test documents")
    options.add_argument("--trees", type=int, default=3)
    given = options.parse_args()
    if given.data is not None:
        bench = Bench(given.data, given)
        title = f"{bench.name}, {len(bench.train):,} training and {len(bench.test):,} test documents"
        for row in given.rows:
            found = bench.measure(row)
            print(row, found, flush=True)
            figures = stored()
            figures.setdefault(title, {})[row] = found
            RESULTS.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if figures := stored():
        write_page(figures)


if __name__ == "__main__":
    main()
