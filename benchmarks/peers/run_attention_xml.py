"""Our attention_xml from the files of a slice, with the same figures as run_libmultilabel.py.

    python run_attention_xml.py SLICE [--threads 2] [--kind default|plain]

`plain` leaves out what LibMultiLabel lacks: averaged weights, validation within an epoch, adaptive clipping.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measuring import Meter

import labelwise as lw
from labelwise.nn.train.fit import NetworkFitting

METRICS = ("P@1", "P@3", "P@5")
WARM_UP = 80
"""Documents for a warm-up before the timer starts, so that everything is compiled."""


class Validation:
    """Sums the seconds of validations, per level."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        inner = NetworkFitting.validate

        def timed(fitting, budget):
            begin = time.perf_counter()
            found = inner(fitting, budget)
            number = fitting.train.labels.shape[1]
            self.seconds[number] = self.seconds.get(number, 0.0) + time.perf_counter() - begin
            return found

        NetworkFitting.validate = timed


def model(settings: dict, folder: Path, kind: str, epochs: int, beam_width: int) -> lw.AttentionXML:
    """The method with the settings of the slice."""
    training = {
        "epochs": epochs,
        "batch_size": settings["batch_size"],
        "optimiser": {"name": "adam", "rate": settings["rate"]},
        "early_stopping": None,
        "seed": settings["seed"],
    }
    if kind == "plain":
        training |= {"averaging": {"kind": "none"}, "validate_every": "epoch", "clip": None}
    return lw.AttentionXML(
        words={
            "max_length": settings["words"],
            "vectors": str(folder / "vectors.txt"),
            "frozen": settings["frozen"],
        },
        recurrent={
            "width": settings["rnn_dim"],
            "word_dropout": settings["word_dropout"],
            "dropout": settings["dropout"],
        },
        hidden=settings["hidden"],
        cluster_size=settings["cluster_size"],
        beam_width=beam_width,
        training=training,
    )


def main() -> None:
    """Train, predict, measure."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("slice", type=Path)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--kind", choices=("default", "plain"), default="default")
    given = options.parse_args()
    lw.set_threads(given.threads)
    settings = json.loads((given.slice / "settings.json").read_text(encoding="utf-8"))
    train, valid, test = (lw.read(given.slice / f"{part}.tsv") for part in ("train", "valid", "test"))
    valid, test = valid.align(train.label_names), test.align(train.label_names)
    few = train.take(slice(0, WARM_UP))
    model(settings, given.slice, given.kind, 1, 2).fit(few, valid=valid.take(slice(0, 4))).predict(few, k=5)
    meter, validation = Meter("labelwise", "torch"), Validation()
    method = model(settings, given.slice, given.kind, settings["epochs"], settings["beam_width"])
    meter.clock("fit", lambda: method.fit(train, valid=valid), memory_too=True)
    scores = meter.clock("predict", lambda: lw.evaluate(method.predict(test, k=5), test, metrics=list(METRICS)).values)
    histories = method.histories_[0]
    spent = [
        history.seconds - validation.seconds[size]
        for history, size in zip(histories, method.trees_[0].tree.sizes, strict=True)
    ]
    epochs = [history.epochs for history in histories]
    meter.found |= {
        "levels": [history.seconds for history in histories],
        "training": spent,
        "rates": [len(train) * count / seconds for count, seconds in zip(epochs, spent, strict=True)],
        "rate": len(train) * sum(epochs) / sum(spent),
        "epochs": epochs,
        "labels": train.n_labels,
        "vocabulary": len(method.vocabulary_) - 1,
        **scores,
    }
    meter.report()


if __name__ == "__main__":
    main()
