"""Whether the loss was still falling at the end of a training: yes where more steps help, no where it has settled."""

import json

import numpy as np
import pytest

from cli.commands import labelwise
from conformance.planted import planted_texts
from labelwise.data.write import write
from labelwise.runs.evaluate import still_falling

STEPS = np.arange(1, 41) / 40


def lines(losses, valid=(), part="train"):
    fit = {"stage": "fit", "part": part}
    every = max(1, len(losses) // max(1, len(valid)))
    logged = [{**fit, "step": 50 * (i + 1), "loss": float(loss)} for i, loss in enumerate(losses)]
    return logged + [
        {**fit, "split": "valid", "step": 50 * every * (i + 1), "nDCG@5": value} for i, value in enumerate(valid)
    ]


@pytest.mark.parametrize(
    ("losses", "falling"),
    [
        (20 - 5 * STEPS, True),
        (5 + 15 * np.exp(-2 * STEPS), True),
        (5 + 15 * np.exp(-8 * STEPS), False),
        (np.exp(-12 * STEPS), False),  # close to zero, and still halving: it has learned its documents
        (7 + 0.2 * np.random.default_rng(0).random(40), False),
        (5 + STEPS, False),
        (20 - 5 * STEPS[:3], False),  # too few lines to know
    ],
)
def test_shapes_of_curves(losses, falling):
    assert bool(still_falling(lines(losses))) is falling


def test_held_out_documents_decide_whether_more_would_help():
    falling = 20 - 5 * STEPS
    assert still_falling(lines(falling, [0.1, 0.2, 0.3, 0.4]))
    assert not still_falling(lines(falling, [0.1, 0.4, 0.35, 0.3]))


def test_interrupted_and_several_trainings():
    whole = lines(20 - 5 * STEPS)
    resumed = [*lines(20 + 5 * STEPS)[:30], *whole[20:]]
    said = still_falling([*lines(5 + np.exp(-9 * STEPS), part="level0"), *resumed])
    assert said[0].startswith("the training loss of train was still falling")
    assert still_falling([{"stage": "fit", "seconds": 3.0, "done": True}]) == []


def test_a_network_that_is_trained_too_short(tmp_path):
    pytest.importorskip("torch")
    data = planted_texts(n_documents=200, n_labels=20, seed=0)
    for name, part in (("train", data.take(slice(0, 150))), ("test", data.take(slice(150, 200)))):
        write(part, tmp_path / f"{name}.jsonl")
    model = {
        "method": "mach", "buckets": 16, "repetitions": 1, "hidden": [16],
        "training": {"batch_size": 150, "log_every": 1, "epochs": 12, "optimiser": {"rate": 0.05}},
    }  # fmt: skip
    (tmp_path / "run.yml").write_text(
        json.dumps({"data": {"train": "train.jsonl", "test": "test.jsonl"}, "model": model})
    )
    short = labelwise("train", "run.yml", cwd=tmp_path)
    assert "was still falling when training ended" in short.err
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "was still falling when training ended" in page
    long = labelwise("train", "run.yml", "--set", "model.training.epochs=100", "--force", cwd=tmp_path)
    assert "still falling" not in long.err
