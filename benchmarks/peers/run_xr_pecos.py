"""PECOS's XR-Transformer on given texts, features and label tree: fine-tuning, ranker, prediction."""

from __future__ import annotations

import json
import logging
import sys

from measuring import Meter, keep_csr_predictions, load, side_options
from scipy import sparse

logging.basicConfig(level=logging.INFO, stream=sys.stderr)


def params(given: dict):
    """The settings of each level of fine-tuning under PECOS's names, and its own defaults for the ranker."""
    from pecos.xmc.xtransformer.matcher import TransformerMatcher
    from pecos.xmc.xtransformer.model import XTransformer

    train, predict = (one.from_dict({}, recursive=True) for one in (XTransformer.TrainParams, XTransformer.PredParams))
    train.fix_clustering = True
    common = {
        "model_shortcut": given["encoder"], "negative_sampling": "tfn+man", "loss_function": "weighted-squared-hinge",
        "bootstrap_method": "weighted-linear", "batch_size": given["batch"], "learning_rate": given["rate"],
        "batch_gen_workers": 1, "use_gpu": False, "hidden_dropout_prob": 0.1,
    }  # fmt: skip
    train.matcher_params_chain = [
        TransformerMatcher.TrainParams.from_dict(
            {**common, "max_steps": steps, "save_steps": steps, "warmup_steps": steps // 10}
        )
        for steps in given["steps"]
    ]
    reading = {"truncate_length": given["length"], "ensemble_method": "concat-only", "post_processor": "l3-hinge"}
    predict.matcher_params_chain = [
        TransformerMatcher.PredParams.from_dict({**reading, "only_topk": given["beam"]}) for _ in given["steps"]
    ]
    return train, predict


def main() -> None:
    """Train, predict, measure."""
    given = side_options()
    settings = json.loads((given.folder / "settings.json").read_text())
    meter = Meter("libpecos", "torch", "transformers")
    import torch
    from pecos.utils.cluster_util import ClusterChain
    from pecos.xmc.xtransformer.model import XTransformer
    from pecos.xmc.xtransformer.module import MLProblemWithText

    torch.set_num_threads(given.threads)
    texts, tests = (json.loads((given.folder / f"{name}.json").read_text()) for name in ("texts", "tests"))
    features, labels, test = (load(given.folder, name) for name in ("X", "Y", "Xt"))
    chain = [sparse.csc_matrix(load(given.folder, f"C{depth}")) for depth in range(len(settings["steps"]))]
    train, predict = params(settings)

    def fit():
        return XTransformer.train(
            MLProblemWithText(texts, labels, X_feat=features), clustering=ClusterChain(chain), train_params=train,
            pred_params=predict, threads=given.threads,
        )  # fmt: skip

    model = meter.clock("train", fit, memory_too=True)
    top = meter.clock(
        "predict",
        lambda: model.predict(
            tests, test, batch_size=settings["batch"], batch_gen_workers=1, use_gpu=False, threads=given.threads,
            only_topk=10, beam_size=settings["ranker_beam"],
        ),
    )  # fmt: skip
    keep_csr_predictions(given.scratch / "predictions.npz", top)
    meter.report()


if __name__ == "__main__":
    main()
