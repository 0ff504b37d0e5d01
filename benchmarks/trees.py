"""Label trees and post-processors: our balanced trees, with one or four starts per split, and PECOS's.

    python benchmarks/trees.py --data FOLDER [FOLDER ...] --peers PYTHON [--limit 15000] [--seeds 5]
    python benchmarks/trees.py                          # writes the page again from the stored figures

Corpora: each folder; `words`, made of the first folder, which should have long texts (a document is the first 60 words
of a text, its labels are the words 61 to 100 that at least 5 and at most half of the documents have); `pydocs`, built
on the spot. All sides have the same solver. At most `--limit` training documents (six times as many of short texts) and
5,000 documents for evaluation, of the valid or else the test split. Three trees are those of three consecutive seeds.
CPU seconds of clustering include the features of labels. Figures are kept in benchmarks/results/trees.json; those in it
are not measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from peers import driving

RESULTS = Path(__file__).parent / "results" / "trees"
STARTS = {"one start": 1, "four starts": 4}
"""Our sides, by how many starts a split has; one is the default."""
SIDES = {
    "one start": "labelwise, one start per split",
    "four starts": "labelwise, four starts",
    "PECOS": "PECOS's trees",
}
POST_PROCESSORS = ("l3_hinge", "smooth_l3_hinge", "sigmoid")
METRICS = ("P@1", "P@3", "P@5")
EVALUATED, SHORT = 5_000, 300


class Corpus:
    """Features and labels of the documents for training and for evaluation."""

    def __init__(self, name: str, train: Any, test: Any) -> None:
        from labelwise.features.rows import FeatureOrder
        from labelwise.features.tfidf import LINEAR_TFIDF, Tfidf

        self.name, tfidf = name, Tfidf(LINEAR_TFIDF)
        seen = np.flatnonzero(np.bincount(train.labels.indices, minlength=train.labels.shape[1]))
        self.labels, self.truth = (sparse.csr_array(data.labels[:, seen]) for data in (train, test))
        self.features, self.test = tfidf.fit_transform(train.texts), tfidf.transform(test.texts)
        self.ordered = FeatureOrder.learn(self.features)

    def describe(self) -> str:
        """Documents, labels, labels per document."""
        documents, labels = self.labels.shape
        return (
            f"{self.name}: {documents:,} documents, {labels:,} labels, {self.labels.nnz / documents:.1f} per document"
        )

    def trained(self, tree: Any) -> Any:
        """The linear classifiers of one tree."""
        from labelwise.linear.settings import SearchSettings, TrainingSettings
        from labelwise.linear.trees import LinearTrees

        settings = TrainingSettings(search=SearchSettings(beam=10))
        return LinearTrees.train(self.ordered, self.labels, [tree], settings)

    def scores(self, model: Any, side: str) -> dict[str, list[float]]:
        """P@1, P@3 and P@5 in per cent, per post-processor: all of them for our trees, l3_hinge for the others."""
        import labelwise as lw
        from labelwise.linear.settings import SearchSettings

        found = {}
        for name in POST_PROCESSORS if side in STARTS else POST_PROCESSORS[:1]:
            top = model.best(self.test, 5, SearchSettings(name, 10))
            values = lw.evaluate(top, self.truth, METRICS).values
            found[name] = [100 * values[metric] for metric in METRICS]
        return found

    def groups_per_label(self, tree: Any) -> list[float]:
        """Per level, the number of nodes above a document's labels divided by the number of its labels."""
        rows = np.repeat(np.arange(self.truth.shape[0]), np.diff(self.truth.indptr)).astype(np.int64)
        nodes = [rows * size + tree.ancestors(level)[self.truth.indices] for level, size in enumerate(tree.sizes[:-1])]
        return [len(np.unique(level)) / max(1, len(rows)) for level in nodes]


def corpora(folders: list[Path], limit: int) -> list[tuple[str, Any]]:
    """Names and functions that make the corpus."""
    import labelwise as lw
    from labelwise.data.builders.pydocs import build_pydocs
    from labelwise.data.read import find_parts

    def read(folder: Path) -> tuple[Any, Any]:
        train = lw.read(folder, split="train")
        held_out = "valid" if "valid" in find_parts(folder)[1] else "test"
        test = lw.read(folder, split=held_out).align(train.label_names)
        is_short = sum(len(text) for text in train.texts[:1000]) < SHORT * 1000
        random = np.random.default_rng(0)
        rows = np.sort(random.permutation(len(train))[: limit * (6 if is_short else 1)])
        return train.take(rows), test.take(np.sort(random.permutation(len(test))[:EVALUATED]))

    def built() -> tuple[Any, Any]:
        with tempfile.TemporaryDirectory() as folder:
            build_pydocs(folder, force=True)
            return read(Path(folder))

    found: list[tuple[str, Any]] = [(folder.name, lambda folder=folder: read(folder)) for folder in folders]
    found.insert(1, ("words", lambda: words_as_labels(*read(folders[0]))))
    return [*found, ("pydocs", built)]


def words_as_labels(train: Any, test: Any) -> tuple[Any, Any]:
    """A corpus with many labels per document: the words that follow the beginning of a text."""
    import labelwise as lw
    from labelwise.data.csr import labels_from_lists

    def parts(data: Any) -> tuple[list[str], list[set[str]]]:
        words = [text.split(" ") for text in data.texts]
        found = [set(re.findall(r"[^\W\d_]{3,}", " ".join(one[60:100]).lower())) for one in words]
        return [" ".join(one[:60]) for one in words], found

    (texts, lists), (test_texts, test_lists) = parts(train), parts(test)
    counts = Counter(word for words in lists for word in words)
    kept = {word for word, count in counts.items() if 5 <= count <= len(texts) / 2}
    matrix, names = labels_from_lists([sorted(words & kept) for words in lists])
    new = lw.Dataset(matrix, names, texts=texts)
    test_matrix, test_names = labels_from_lists([sorted(words & kept) for words in test_lists])
    return new, lw.Dataset(test_matrix, test_names, texts=test_texts).align(names)


def pecos_trees(corpus: Corpus, python: str, seeds: list[int]) -> dict[int, tuple[Any, float]]:
    """PECOS's trees and their CPU seconds, by seed."""
    from labelwise.labelspace.tree import LabelTree

    with tempfile.TemporaryDirectory() as folder:
        for name, matrix in (("X", corpus.features), ("Y", corpus.labels)):
            sparse.save_npz(Path(folder) / f"{name}.npz", matrix, compressed=False)
        command = [python, str(driving.HERE / "run_pecos_trees.py"), folder, *map(str, seeds)]
        seconds = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
        leaves = {seed: np.load(Path(folder) / f"pecos_{seed}.npy") for seed in seeds}
    found = {}
    for seed, leaf in leaves.items():
        edges = np.append(0, np.cumsum(np.bincount(leaf)))
        levels = [edges]
        while len(levels[0]) - 1 > 16:
            levels.insert(0, np.append(levels[0][:-1:16], len(leaf)))
        tree = LabelTree.from_bounds(np.argsort(leaf, kind="stable"), levels)
        found[seed] = (tree, seconds["features"] + seconds[str(seed)])
    return found


def our_tree(corpus: Corpus, seed: int, starts: int) -> tuple[Any, float]:
    """Our tree and its CPU seconds."""
    from labelwise.features.labels import pifa
    from labelwise.labelspace import clustering
    from labelwise.labelspace.tree import LabelTree

    clustering.STARTS, clustering.FEW_LABELS = starts, corpus.labels.shape[1]
    begin = time.process_time()
    tree = LabelTree.balanced(pifa(corpus.features, corpus.labels, keep=500), seed=seed)
    return tree, time.process_time() - begin


def measure(corpus: Corpus, seeds: list[int], python: str | None, stored: Path, rows: list[dict[str, Any]]) -> None:
    """Append the figures of all seeds and sides, and store them after each."""
    our_tree(corpus, 0, 1)  # compiles
    theirs = pecos_trees(corpus, python, seeds) if python else {}
    models: dict[str, list[Any]] = {}

    def store(row: dict[str, Any]) -> None:
        rows.append(row)
        stored.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", "utf-8")
        print(json.dumps(row), flush=True)

    for seed in seeds:
        for side in SIDES if python else STARTS:
            tree, seconds = our_tree(corpus, seed, STARTS[side]) if side in STARTS else theirs[seed]
            model = corpus.trained(tree)
            models.setdefault(side, []).append(model)
            row = {"corpus": corpus.name, "about": corpus.describe(), "side": side, "seed": seed, "trees": 1}
            row |= {"seconds": seconds, "groups": corpus.groups_per_label(tree), "scores": corpus.scores(model, side)}
            store(row)
    for side, trained in models.items():
        for seed in range(len(trained) if len(trained) >= 3 else 0):
            joint = type(trained[0])(trained[0].order)
            joint.trees = [trained[(seed + step) % len(trained)].trees[0] for step in range(3)]
            row = {"corpus": corpus.name, "side": side, "seed": seeds[seed], "trees": 3}
            store(row | {"scores": corpus.scores(joint, side)})


def page(rows: list[dict[str, Any]]) -> str:
    """The figures as a Markdown page: means over seeds."""
    lines = [
        "# Label trees and post-processors",
        "",
        "Created by `python benchmarks/trees.py`, which describes the method. Means over seeds, in per cent; +- is the "
        "standard deviation of P@5 over seeds. `nodes per label`: nodes of each level above a document's labels, "
        "divided by its labels (fewer: labels of a document are closer in the tree). Clustering: CPU seconds per tree.",
        "",
    ]
    for name in dict.fromkeys(row["corpus"] for row in rows):
        own = [row for row in rows if row["corpus"] == name]
        seeds = len({row["seed"] for row in own})
        lines += [f"## {name}", "", f"{own[0]['about']}; {seeds} seeds.", ""]
        lines += [
            "| trees | post-processor | one tree | three trees | nodes per label | clustering (s) |",
            "|" + "---|" * 6,
        ]
        for side, title in SIDES.items():
            one, three = ([row for row in own if row["side"] == side and row["trees"] == n] for n in (1, 3))
            if not one:
                continue
            groups = " / ".join(f"{value:.3f}" for value in np.mean([row["groups"] for row in one], axis=0))
            seconds = f"{np.mean([row['seconds'] for row in one]):.2f}"
            for index, post in enumerate(one[0]["scores"]):
                cells = [title if index == 0 else "", post, score_cell(one, post), score_cell(three, post)]
                lines.append(f"| {' | '.join([*cells, *((groups, seconds) if index == 0 else ('', ''))])} |")
        lines.append("")
    return "\n".join(lines)


def score_cell(rows: list[dict[str, Any]], post: str) -> str:
    """Mean P@1 / P@3 / P@5, and the deviation of P@5."""
    if not rows:
        return ""
    values = np.array([row["scores"][post] for row in rows])
    return " / ".join(f"{value:.2f}" for value in values.mean(0)) + f" +- {values[:, 2].std():.2f}"


def main() -> None:
    """Measure what is missing, write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="*", type=Path, default=[], help="folders with texts")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons; one of them should have libpecos")
    options.add_argument("--limit", type=int, default=15_000, help="training documents of long texts")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--results", type=Path, default=RESULTS, help="where .json and .md are written")
    options.add_argument("--only", nargs="*", help="names of corpora")
    given = options.parse_args()
    stored = given.results.with_suffix(".json")
    rows = json.loads(stored.read_text("utf-8")) if stored.exists() else []
    python = driving.python_with("pecos.xmc", given.peers)
    for name, make in corpora(given.data, given.limit) if given.data else []:
        if (given.only is None or name in given.only) and not any(row["corpus"] == name for row in rows):
            measure(Corpus(name, *make()), list(range(given.seeds)), python, stored, rows)
    text = page(rows)
    given.results.with_suffix(".md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
