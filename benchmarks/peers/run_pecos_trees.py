"""PECOS's label trees (PIFA and hierarchical k-means with its defaults), without training anything on them.

    python run_pecos_trees.py FOLDER SEED ...

FOLDER has X.npz and Y.npz; the leaf of each label is written to it as pecos_SEED.npy. Prints CPU seconds per tree.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from measuring import load
from pecos.xmc import Indexer, LabelEmbeddingFactory


def main() -> None:
    """One tree per seed."""
    folder, seeds = Path(sys.argv[1]), sys.argv[2:]
    features, labels = load(folder, "X"), load(folder, "Y")
    begin = time.process_time()
    described = LabelEmbeddingFactory.create(labels, features, method="pifa")
    seconds = {"features": time.process_time() - begin}
    for seed in seeds:
        begin = time.process_time()
        chain = Indexer.gen(described, nr_splits=16, max_leaf_size=100, seed=int(seed), threads=2)
        seconds[seed] = time.process_time() - begin
        np.save(folder / f"pecos_{seed}.npy", chain[-1].tocsr().indices)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
