"""`labelwise train` of texts and images as two ranks of torchrun: the weights of one process with the same global batch."""

import json
import os
import time
import weakref

import numpy as np
import pytest
import torch
from forked_ranks import run_ranks

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted_texts
from data.record_files import image_bytes
from labelwise.cli.main import main
from labelwise.errors import ConfigError
from labelwise.registry import method_class
from labelwise.runs import train
from labelwise.runs import train as other_ranks
from labelwise.runs.train import check_ranks
from labelwise.runtime.ranks import Ranks
from labelwise.runtime.threads import using_threads

RANKS = 2
TEXTS = {
    "method": "mhe_text",
    "encoder": {"model": "tiny", "max_length": 16, "pooling": "mean", "layers": 2},
    "num_group": 4, "groups": 2, "bottleneck": 8, "dropout": 0.0, "order": "random", "valid_fraction": 0.2,
    "training": {
        "epochs": 2, "batch_size": 8, "optimiser": {"rate": 0.003, "eps": 1e-3},
        "averaging": {"kind": "swa", "start": 0.5, "every": 2}, "restore_best": False,
    },
}  # fmt: skip
PICTURES = {
    "method": "mhe_image",
    "image": {"size": 8, "augmentation": {"crop": "padded", "padding": 1, "flip": True}},
    "backbone": {"name": "tiny", "channels": 4},
    "head": {"kind": "product", "radices": (3, 2), "order": "random"},
    "valid_fraction": 0.25,
    "training": {"epochs": 4, "batch_size": 11, "optimiser": {"rate": 0.05}, "restore_best": False},
}
SETTINGS = {"texts": TEXTS, "images": PICTURES}


@pytest.fixture(scope="module", params=SETTINGS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def config(tmp_path_factory, kind):
    folder = tmp_path_factory.mktemp("ranks")
    if kind == "texts":
        train = folder / "train.jsonl"
        lw.write(planted_texts(100, 12), train)
    else:
        train = folder / "train"  # of its 40 images a fifth and then a quarter are held out
        pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
        for number, picture in enumerate(pixels):
            (train / f"class{number % 5}").mkdir(parents=True, exist_ok=True)
            (train / f"class{number % 5}" / f"{number}.png").write_bytes(image_bytes(picture))
    values = {
        "data": {"train": str(train), "test_fraction": 0.2},
        "model": SETTINGS[kind],
        "evaluate": {"bootstrap": 0, "metrics": ["P@1"]}, "inspect": {"enabled": False},
        "calibrate": {"enabled": False},
        "run": {"report": False, "refit": kind == "texts", "time_budget": 3600},
    }  # fmt: skip
    (folder / "run.yml").write_text(json.dumps(values))
    return folder / "run.yml"


@pytest.fixture(scope="module")
def runs(config):
    """The folders of a run of two ranks and of one process."""
    together, alone = config.parent / "together", config.parent / "alone"

    def rank(number):
        _print_broadcasts()
        main(["train", str(config), "--set", f"run.folder={together}"])

    codes, text = run_ranks(rank)
    assert codes == [0] * RANKS, text[-3000:]
    with using_threads(1):
        labelwise("train", config, "--set", f"run.folder={alone}")
    return together, alone, text


def _print_broadcasts():
    """Print how many tensors were broadcast before each step's gradients were averaged, since those of the last step."""
    broadcast, average, sent = torch.distributed.broadcast, Ranks.average_gradients, []

    def counted(tensor, *arguments, **options):
        sent.append(tensor.numel())
        return broadcast(tensor, *arguments, **options)

    def averaged(self):
        print("broadcast before a step:", len(sent))
        sent.clear()
        average(self)

    torch.distributed.broadcast, Ranks.average_gradients = counted, averaged


def test_two_ranks_give_the_weights_and_figures_of_one_process(runs):
    together, alone, _ = runs
    one, other = (lw.load(run / "model").fitted_.tensors() for run in (together, alone))
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-3, atol=1e-5, err_msg=name)
    figures = [json.loads((run / "results.json").read_text())["evaluation"]["values"] for run in (together, alone)]
    assert figures[0] == pytest.approx(figures[1])
    records = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (together, alone)
    ]
    valid = [[entry for entry in one if entry.get("split") == "valid"] for one in records]
    assert len(valid[0]) == len(valid[1]) > 0
    for mine, its in zip(*valid, strict=True):
        assert mine["P@1"] == pytest.approx(its["P@1"])
        assert mine["valid_loss"] == pytest.approx(its["valid_loss"], rel=1e-3)


def test_only_rank_zero_reports(runs):
    assert runs[2].count("train: Dataset") == 1
    assert "Traceback" not in runs[2]


def test_weights_and_codes_of_labels_are_not_sent_in_every_step(runs, kind):
    sent = [int(line.split()[-1]) for line in runs[2].splitlines() if line.startswith("broadcast before a step:")]
    trainings = 2 if kind == "texts" else 1  # texts are trained on twice, in a refit
    assert len(sent) > 4 * RANKS * trainings
    assert sum(count > 0 for count in sent) == RANKS * trainings


def test_methods_of_one_process_refuse_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="linear_flat trains in one process"):
        check_ranks(method_class("linear_flat")())
    with pytest.raises(ConfigError, match="members can be trained under torchrun"):
        check_ranks(method_class("ensemble")())
    for name in ("text_encoder", "mhe_text", "mhe_face", "xr_transformer", "attention_xml", "bigru", "mach"):
        check_ranks(method_class(name)())


def test_heads_that_cannot_be_divided_are_refused(config, kind):
    head = "model.num_group=4" if kind == "texts" else "model.head.kind=product"
    got = labelwise("train", config, "--set", f"run.folder={config.parent / 'refused'}", "--set", head,
                    "--set", "model.training.shard_head=true", code=2)  # fmt: skip
    assert "training.shard_head" in got.err


ENDED_EARLY = 1.0
"""Seconds in which a rank that did not wait for rank 0 would have ended; one that does is never later than the test."""


def test_ranks_of_nodes_that_count_restarts_differently_train_and_wait_for_rank_zero(config, tmp_path):
    """A node whose process has died counts its restarts, the others count theirs: only one of two may be above 0."""
    freed, ended = [], tmp_path / "ended"

    def evaluate(*arguments):
        time.sleep(ENDED_EARLY)
        print("rank 1 has ended" if ended.exists() else "rank 1 waits")
        return plain(*arguments)

    def rank(number):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        train.evaluate_model = evaluate
        if number == 1:
            _note_freed_data(freed)
        try:
            main(["train", str(config), "--set", f"run.folder={tmp_path / 'run'}", "--set", "run.refit=false"])
        finally:
            if number == 1:
                print("freed:", freed)
                ended.touch()

    plain = train.evaluate_model
    codes, text = run_ranks(rank)
    assert codes == [0] * RANKS, text[-3000:]
    assert "rank 1 waits" in text
    assert "freed: [False, False, True]" in text  # until the training, until its end, until that of the run


def _note_freed_data(freed):
    """Note whether the training data still exists whenever this rank waits for rank 0, once it has read the data."""
    read, wait, data = other_ranks.load_run_data, other_ranks.on_rank_zero, []

    def reading(*arguments):
        found = read(*arguments)
        data.append(weakref.ref(found.train))
        return found

    def waiting(make):
        if data:
            freed.append(data[-1]() is None)
        return wait(make)

    other_ranks.load_run_data, other_ranks.on_rank_zero = reading, waiting
