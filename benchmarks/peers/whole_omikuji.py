"""omikuji from a file of our features to predictions, with its default forest."""

from __future__ import annotations

from measuring import Meter, keep_predictions, load, side_options
from run_omikuji import pairs, predict_all, read, train


def main() -> None:
    """Read, train, predict."""
    given = side_options()
    meter = Meter("omikuji")
    data, pool = meter.clock("read", lambda: read(given.folder / "train.txt", given.threads))
    model = meter.clock("train", lambda: train(data, pool, given.trees))
    model.save(str(given.scratch / "model"))
    meter.size(given.scratch)
    model.init_prediction_thread_pool(given.threads)
    rows = pairs(load(given.folder, "Xt"))
    top = meter.clock("predict", lambda: predict_all(model, rows, given.threads))
    keep_predictions(given.scratch / "predictions.npz", top)
    meter.report()


if __name__ == "__main__":
    main()
