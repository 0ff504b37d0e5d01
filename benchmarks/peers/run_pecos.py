"""PECOS XR-Linear: its defaults (16 splits, leaves of 100), and its predict-only model for prediction."""

from __future__ import annotations

from measuring import BEAM, PLACES, Meter, keep_csr_predictions, load, side_options
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel


def indexed(features, labels, threads: int, seed: int = 0):
    """The tree: PIFA and hierarchical k-means."""
    described = LabelEmbeddingFactory.create(labels, features, method="pifa")
    return Indexer.gen(described, nr_splits=16, max_leaf_size=100, seed=seed, threads=threads)


def train(features, labels, threads: int, seed: int = 0):
    """Tree and ranker."""
    return XLinearModel.train(features, labels, indexed(features, labels, threads, seed), threads=threads)


def main() -> None:
    """Train, predict, measure."""
    given = side_options()
    features, labels, test = (load(given.folder, name) for name in ("X", "Y", "Xt"))
    meter = Meter("libpecos", "numpy")
    model = meter.clock("train", lambda: train(features, labels, given.threads), memory_too=True)
    meter.clock("save", lambda: model.save(str(given.scratch / "model")))
    meter.size(given.scratch / "model")
    model = meter.clock("load", lambda: XLinearModel.load(str(given.scratch / "model"), is_predict_only=True))

    def predict(rows, threads: int):
        return model.predict(rows, beam_size=BEAM, only_topk=PLACES, threads=threads)

    predict(test[:50], given.threads)
    top = meter.clock("predict", lambda: predict(test, given.threads))
    meter.singles(lambda row: predict(row, 1), [test[row] for row in range(500)])
    keep_csr_predictions(given.scratch / "predictions.npz", top)
    meter.report()


if __name__ == "__main__":
    main()
