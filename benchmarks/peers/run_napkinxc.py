"""napkinXC: a probabilistic label tree with its defaults (2-means tree, logistic loss, exact search)."""

from __future__ import annotations

from measuring import PLACES, Meter, keep_predictions, load, side_options
from napkinxc.models import PLT


def main() -> None:
    """Train, predict, measure."""
    given = side_options()
    features, labels, test = (load(given.folder, name) for name in ("X", "Y", "Xt"))
    meter = Meter("napkinxc")
    model = PLT(str(given.scratch / "model"), ensemble=given.trees, seed=0, threads=given.threads)
    meter.clock("train", lambda: model.fit(features, labels), memory_too=True)
    meter.size(given.scratch / "model")
    model = PLT(str(given.scratch / "model"), threads=given.threads)
    model.load()
    model.predict(test[:50], top_k=PLACES)
    top = meter.clock("predict", lambda: model.predict_proba(test, top_k=PLACES))
    meter.singles(lambda row: model.predict_proba(row, top_k=PLACES), [test[row] for row in range(500)])
    keep_predictions(given.scratch / "predictions.npz", top)
    meter.report()


if __name__ == "__main__":
    main()
