"""Our metrics compared with napkinXC's and scikit-learn's on the same random predictions.

    python benchmarks/metrics_peers.py --peers /path/to/python/with/napkinxc

The peers' interpreter gets predictions and truth as an npz file and prints its metrics. Writes a table with the
differences to benchmarks/results/metrics_peers.md and exits with 1 if a metric that should agree does not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import sparse

from labelwise.metrics.evaluate import evaluate
from labelwise.topk import TopK

RESULTS = Path(__file__).parent / "results" / "metrics_peers.md"
CUTS = (1, 3, 5)
TOLERANCE = 1e-6

# Runs in the peers' interpreter; prints a JSON object from our metric names to {peer: value}.
PEERS_SCRIPT = """
import json, sys
from importlib.metadata import version
import numpy as np
from scipy.sparse import csr_matrix
from napkinxc import metrics as napkin
from sklearn.metrics import f1_score

data, k = np.load(sys.argv[1]), 5
n_labels = int(data["n_labels"])
def matrix(part):
    indices, indptr = data[part + "indices"], data[part + "indptr"]
    return csr_matrix((np.ones(len(indices)), indices, indptr), shape=(len(indptr) - 1, n_labels))
truth = matrix("")
lists = [[int(label) for label in row if label >= 0] for row in data["ids"]]
true = [truth[row].indices.tolist() for row in range(truth.shape[0])]
weights = napkin.Jain_et_al_inverse_propensity(matrix("train_"), A=0.55, B=1.5)
found = {}
def keep(kind, values):
    for place in (1, 3, 5):
        found[f"{kind}@{place}"] = float(values[place - 1])
keep("P", napkin.precision_at_k(true, lists, k=k))
keep("nDCG", napkin.ndcg_at_k(true, lists, k=k))
keep("R", napkin.recall_at_k(true, lists, k=k))
keep("PSP", napkin.psprecision_at_k(true, lists, weights, k=k))
keep("PSnDCG", napkin.psndcg_at_k(true, lists, weights, k=k))
keep("coverage", napkin.coverage_at_k(true, lists, k=k))
keep("macro-F1", napkin.macro_f1_measure_at_k(true, lists, k=k))
first = [row[:k] for row in lists]
found["micro-F1@5"] = float(napkin.f1_measure(true, first, average="micro"))
found["example-F1@5"] = float(napkin.f1_measure(true, first, average="samples"))
chosen = np.zeros(truth.shape, np.int8)
for row, labels in enumerate(first):
    chosen[row, labels] = 1
dense = truth.toarray().astype(np.int8)
used = (dense.sum(0) + chosen.sum(0)) > 0
learn = {
    f"{ours}-F1@5": float(f1_score(dense[:, used], chosen[:, used], average=theirs, zero_division=0))
    for ours, theirs in (("micro", "micro"), ("macro", "macro"), ("example", "samples"))
}
versions = {name: version(name) for name in ("napkinxc", "scikit-learn")}
print(json.dumps({"napkinXC": found, "scikit-learn": learn, "versions": versions}))
"""

EXPLAINED = {
    "macro-F1": "napkinXC averages over all ids up to the highest one in use, we over labels that occur in "
    "the truth or are predicted; multiplied by its number of labels and divided by ours it is the same",
}


def random_rows(random: np.random.Generator, documents: int, labels: int, most: int) -> list[np.ndarray]:
    """Labels of each document with Zipf frequencies; every twentieth document has none."""
    chances = 1 / np.arange(1, labels + 1)
    chances /= chances.sum()
    sizes = random.integers(1, most + 1, documents) * (random.random(documents) > 0.05)
    return [np.sort(random.choice(labels, size, replace=False, p=chances)) for size in sizes]


def make_data(documents: int, labels: int, seed: int) -> dict[str, np.ndarray]:
    """Truth, training labels and predictions, some lists shorter than others."""
    random = np.random.default_rng(seed)
    truth, train = (random_rows(random, documents, labels, 8) for _ in range(2))
    ids = np.full((documents, 10), -1, np.int32)
    for row, labels_here in enumerate(truth):
        kept = labels_here[random.random(len(labels_here)) < 0.6]
        wrong = random.integers(0, labels, random.integers(0, 8))
        mixed = random.permutation(np.unique(np.concatenate([kept, wrong])))[:10]
        ids[row, : len(mixed)] = mixed
    return {
        "ids": ids,
        "indices": np.concatenate(truth),
        "indptr": np.cumsum([0, *map(len, truth)]),
        "train_indices": np.concatenate(train),
        "train_indptr": np.cumsum([0, *map(len, train)]),
        "n_labels": np.array(labels),
    }


def matrix(data: dict[str, np.ndarray], part: str = "") -> sparse.csr_array:
    """One of the two label matrices."""
    indices, indptr = data[f"{part}indices"], data[f"{part}indptr"]
    shape = (len(indptr) - 1, int(data["n_labels"]))
    return sparse.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", required=True, help="a Python with napkinxc and scikit-learn")
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--labels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    data = make_data(given.documents, given.labels, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **data)
        command = [given.peers, "-c", PEERS_SCRIPT, str(path)]
        peers = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    versions = peers.pop("versions")
    ids = data["ids"]
    scores = np.where(ids == -1, -np.inf, -np.arange(ids.shape[1])).astype(np.float32)
    names = list(peers["napkinXC"])
    ours = evaluate(TopK(ids, scores), matrix(data), names, train=matrix(data, "train_"))
    # The number of labels each package averages over, to rescale napkinXC's macro-F1 to ours.
    used = {k: np.union1d(data["indices"], ids[:, :k][ids[:, :k] >= 0]) for k in CUTS}

    rows, failed = [], False
    for peer, values in peers.items():
        for name, value in values.items():
            kind, _, cut = name.partition("@")
            note = ""
            if peer == "napkinXC" and kind in EXPLAINED:
                scaled = value * (used[int(cut)].max() + 1) / len(used[int(cut)])
                note = f"(1), rescaled to ours: {scaled:.8f}"
                failed |= abs(scaled - ours[name]) > TOLERANCE
            else:
                failed |= abs(value - ours[name]) > TOLERANCE
            difference = f"{abs(value - ours[name]):.1e}"
            rows.append(f"| {name} | {peer} | {ours[name]:.8f} | {value:.8f} | {difference} | {note} |")
    lines = [
        "# Our metrics compared with others",
        "",
        f"{given.documents:,} documents, {given.labels:,} labels (Zipf), a twentieth of the documents "
        f"without labels, lists of 0 to 10 predictions; seed {given.seed}, A = 0.55, B = 1.5. "
        f"napkinXC {versions['napkinxc']}, "
        f"scikit-learn {versions['scikit-learn']}, {datetime.date.today()}. "
        "Created by `python benchmarks/metrics_peers.py --peers PYTHON`.",
        "",
        "| metric | peer | ours | theirs | difference | note |",
        "|---|---|---:|---:|---:|---|",
        *rows,
        "",
        f"(1) {EXPLAINED['macro-F1']}.",
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    if failed:
        sys.exit(f"some figures differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
