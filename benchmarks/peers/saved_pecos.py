"""PECOS XR-Linear: train and save a model (`--train`), or predict with the saved one, loaded for prediction only."""

from __future__ import annotations

from measuring import BEAM, PLACES, Meter, keep_csr_predictions, load, saved_options
from pecos.xmc.xlinear.model import XLinearModel
from run_pecos import indexed


def main() -> None:
    """Train, or predict and measure."""
    given = saved_options()
    meter = Meter("libpecos")
    if given.train:
        features, labels = (load(given.folder, name) for name in ("X", "Y"))
        search = {"beam_size": BEAM, "only_topk": PLACES}
        tree = indexed(features, labels, given.threads)
        XLinearModel.train(features, labels, tree, threads=given.threads, pred_kwargs=search).save(str(given.model))
    else:
        test = load(given.folder, "Xt")
        model = XLinearModel.load(str(given.model), is_predict_only=True)

        def predict(rows, threads: int):
            return model.predict(rows, threads=threads)

        predict(test[:50], given.threads)
        top = meter.clock("predict", lambda: predict(test, given.threads))
        meter.singles(lambda row: predict(row, 1), [test[row] for row in range(500)])
        keep_csr_predictions(given.scratch / "predictions.npz", top)
    meter.size(given.model)
    meter.report()


if __name__ == "__main__":
    main()
