"""labelwise: import a model of another toolkit (`--train`: from the folder MODEL-theirs), or predict with it."""

from __future__ import annotations

import os

from measuring import PLACES, Meter, keep_predictions, load, saved_options


def main() -> None:
    """Import, or predict and measure."""
    given = saved_options()
    os.environ["LABELWISE_THREADS"] = str(given.threads)
    import labelwise as lw
    from labelwise.interop.models import import_model, read_foreign_model

    meter = Meter("labelwise", "numpy", "numba")
    if given.train:
        source = given.model.with_name(f"{given.model.name}-theirs")
        meter.clock("import", lambda: import_model(read_foreign_model(source)).save(given.model))
    else:
        test = load(given.folder, "Xt")
        model = lw.load(given.model)
        model.predict(test[:50], k=PLACES)
        top = meter.clock("predict", lambda: model.predict(test, k=PLACES))
        meter.singles(lambda row: model.predict(row, k=PLACES), [test[row : row + 1] for row in range(500)])
        rows = [list(zip(ids, scores, strict=True)) for ids, scores in zip(top.ids, top.scores, strict=True)]
        keep_predictions(given.scratch / "predictions.npz", rows)
    meter.size(given.model)
    meter.report()


if __name__ == "__main__":
    main()
