"""labelwise: one model of `--trees` trees, through its public API."""

from __future__ import annotations

import os

from measuring import PLACES, Meter, keep_predictions, load, side_options


def main() -> None:
    """Train, predict, measure."""
    given = side_options()
    os.environ["LABELWISE_THREADS"] = str(given.threads)
    import labelwise as lw

    features, labels, test = (load(given.folder, name) for name in ("X", "Y", "Xt"))
    settings = {"trees": given.trees, "branching": 16, "leaf_size": 100, "beam": 10, "tfidf": {"ngrams": (1, 1)}}
    # Kernels are compiled, or loaded from the cache, before the timer starts.
    lw.LinearTree(**settings).fit(features[:500], labels[:500]).predict(test[:50], k=PLACES)
    meter = Meter("labelwise", "numpy", "numba")
    model = meter.clock("train", lambda: lw.LinearTree(**settings).fit(features, labels), memory_too=True)
    meter.clock("save", lambda: model.save(given.scratch / "model"))
    meter.size(given.scratch / "model")
    model = meter.clock("load", lambda: lw.load(given.scratch / "model"))
    model.predict(test[:50], k=PLACES)
    top = meter.clock("predict", lambda: model.predict(test, k=PLACES))
    meter.singles(lambda row: model.predict(row, k=PLACES), [test[row : row + 1] for row in range(500)])
    rows = [list(zip(ids, scores, strict=True)) for ids, scores in zip(top.ids, top.scores, strict=True)]
    keep_predictions(given.scratch / "predictions.npz", rows)
    meter.report()


if __name__ == "__main__":
    main()
