"""xr_transformer, or hybrid_linear with `--trees 0`, on the texts and settings that PECOS's XR-Transformer gets."""

from __future__ import annotations

import json

import numpy as np
from measuring import Meter, load, side_options

import labelwise as lw


def model_of(given: dict, fine_tuned: bool):
    """The method with the settings of the comparison."""
    common = {
        "encoder": {
            "model": given["encoder"],
            "max_length": given["length"],
            "pooling": "mean",
            "precision": given["precision"],
        },
        "tfidf": {"sublinear": False},
        "trees": 1,
        "beam": given["ranker_beam"],
        "leaf_size": given["leaf_size"],
        "branching": given["branching"],
        "label_features": None,
    }
    if not fine_tuned:
        return lw.HybridLinear(**common)
    training = {"batch_size": given["batch"], "optimiser": {"rate": given["rate"]}, "schedule": {"warmup": 0.1}}
    fine_tuning = {
        "leaf_size": given["leaf_size"], "branching": given["branching"], "top_nodes": given["branching"],
        "keep_tree": True, "beam": given["beam"],
        "first_head": given["first_head"], "level_steps": given["steps"], "training": training,
    }  # fmt: skip
    return lw.XRTransformer(**common, fine_tuning=fine_tuning)


def main() -> None:
    """Train, predict, measure."""
    given = side_options()
    settings = json.loads((given.folder / "settings.json").read_text())
    texts, tests = (json.loads((given.folder / f"{name}.json").read_text()) for name in ("texts", "tests"))
    labels = load(given.folder, "Y")
    meter = Meter("labelwise", "torch", "transformers")
    lw.set_threads(given.threads)
    model = model_of(settings, fine_tuned=given.trees > 0)
    meter.clock("train", lambda: model.fit(texts, labels), memory_too=True)
    top = meter.clock("predict", lambda: model.predict(tests, k=10))
    np.savez(given.scratch / "predictions.npz", ids=top.ids, scores=top.scores)
    meter.report()


if __name__ == "__main__":
    main()
