"""omikuji: train and save a model (`--train`), or predict with the saved one."""

from __future__ import annotations

import omikuji
from measuring import BEAM, PLACES, Meter, keep_predictions, load, saved_options
from run_omikuji import pairs, predict_all, read, train


def main() -> None:
    """Train, or predict and measure."""
    given = saved_options()
    meter = Meter("omikuji")
    if given.train:
        train(*read(given.folder / "train.txt", given.threads), given.trees).save(str(given.model))
    else:
        rows = pairs(load(given.folder, "Xt"))
        model = omikuji.Model.load(str(given.model))
        model.init_prediction_thread_pool(given.threads)
        predict_all(model, rows[:50], given.threads)
        top = meter.clock("predict", lambda: predict_all(model, rows, given.threads))
        meter.singles(lambda row: model.predict(row, BEAM, PLACES), rows)
        keep_predictions(given.scratch / "predictions.npz", top)
    meter.size(given.model)
    meter.report()


if __name__ == "__main__":
    main()
