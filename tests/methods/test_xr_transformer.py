"""What is special to XR-Transformer: resume in each stage, settings per level, which documents and trees are used."""

import json

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import Stop, same_predictions
from conformance.planted import planted
from labelwise.errors import ConfigError
from labelwise.features.tfidf import Tfidf
from labelwise.labelspace.tree import LabelTree
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads

TINY = {"model": "tiny", "max_length": 32, "pooling": "mean"}
LEVELS = {
    "leaf_size": 4,
    "branching": 4,
    "top_nodes": 4,
    "beam": 2,
    "level_steps": [2, 2, 2],
    "training": {"batch_size": 16, "optimiser": {"rate": 0.003}, "checkpoint_every": {"steps": 1}},
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("LABELWISE_VECTORS", "off")
    with using_threads(1):
        yield


@pytest.fixture(scope="module")
def data():
    return planted("texts", n_documents=90, n_labels=30)


def made(fine_tuning=None, **settings):
    fine = {**LEVELS, **(fine_tuning or {})}
    fine["training"] = {**LEVELS["training"], **fine["training"]}
    return lw.XRTransformer(**{"encoder": TINY, "trees": 1, "fine_tuning": fine, **settings})


# --- a stopped run is resumed where it was ---

STAGES = {
    "the preliminary tree is kept": ("labelwise.nn.fine_tuning.fine_tune", 0),
    "in the second level": ("labelwise.nn.train.loop._Loop._step", 3),
    "before the third level": ("labelwise.nn.fine_tuning.linear_head", 2),
    "while encoding": ("labelwise.nn.featurizer.WordsAndVectors.learn", 0),
    "in the ranker": ("labelwise.linear.train.train_tree", 0),
}


@pytest.fixture(scope="module")
def run_files(tmp_path_factory, data):
    """A config with its data, and the predictions of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("runs")
    lw.write(data, folder / "data.jsonl")
    config = {
        "data": {"train": str(folder / "data.jsonl"), "test": str(folder / "data.jsonl")},
        "model": {"method": "xr_transformer", "encoder": TINY, "trees": 1, "fine_tuning": LEVELS},
        "run": {"folder": str(folder / "whole"), "report": False, "threads": 1},
    }
    (folder / "run.yml").write_text(json.dumps(config))
    labelwise("train", folder / "run.yml")
    return folder, lw.load(folder / "whole").predict(data, k=5)


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_is_resumed_in_each_stage(stage, run_files, data, monkeypatch):
    folder, whole = run_files
    target, calls_before = STAGES[stage]
    command = ("train", folder / "run.yml", "--set", f"run.folder={folder / stage.replace(' ', '-')}")
    with monkeypatch.context() as patch, pytest.raises(Stop):
        _watch(patch, target, stop_after=calls_before)
        labelwise(*command)
    steps = _watch(monkeypatch, "labelwise.nn.train.loop._Loop._step")
    labelwise(*command)
    done = {"in the second level": 3, "before the third level": 4, "while encoding": 6, "in the ranker": 6}
    assert len(steps) == 6 - done.get(stage, 0)
    same_predictions(lw.load(folder / stage.replace(" ", "-")).predict(data, k=5), whole)
    assert "not used" not in (folder / stage.replace(" ", "-") / "log.txt").read_text()


def test_encode_writes_the_vectors_of_the_model(run_files, data):
    folder, _ = run_files
    labelwise("encode", folder / "whole", folder / "data.jsonl", "-o", folder / "x.npy")
    np.testing.assert_allclose(np.load(folder / "x.npy"), lw.load(folder / "whole").encode(data), rtol=1e-4, atol=1e-5)


def _resolve(path):
    """The module or class that a dotted path names."""
    from importlib import import_module

    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def _watch(monkeypatch, path, stop_after=None):
    """Calls of a function from now on; it raises after so many."""
    owner, _, attribute = path.rpartition(".")
    original, calls = getattr(_resolve(owner), attribute), []

    def watched(*given, **named):
        calls.append(None)
        if stop_after is not None and len(calls) > stop_after:
            raise Stop
        return original(*given, **named)

    monkeypatch.setattr(_resolve(owner), attribute, watched)
    return calls


def test_a_ranking_of_another_vector_scale_is_not_used_again(data, tmp_path, monkeypatch):
    made().fit(data, job=Job(folder=tmp_path))
    calls = _watch(monkeypatch, "labelwise.nn.fine_tuning.matched_nodes")
    made().fit(data, job=Job(folder=tmp_path))
    assert len(calls) == 0
    made(vector_scale=0.25).fit(data, job=Job(folder=tmp_path))
    assert len(calls) == 2


# --- what is trained ---


def test_settings_of_each_level_reach_the_loop(data):
    rates = []

    def log(**numbers):
        rates.append((numbers["step"], numbers["rate"]))

    fine = {"level_steps": [2, 3, 4], "level_rates": [1e-3, 2e-3, 3e-3], "level_warmup": [0, 0, 2]}
    fine["training"] = {"log_every": 1, "schedule": {"kind": "constant"}}
    model = made(fine).fit(data, job=Job(log=log))
    assert [history.steps for history in model.histories_] == [2, 3, 4]
    assert [rate for _, rate in rates] == pytest.approx([1e-3] * 2 + [2e-3] * 3 + [1.5e-3, 3e-3, 3e-3, 3e-3])


@pytest.mark.parametrize(
    ("field", "values"), [("level_steps", [4, 4]), ("level_rates", [1e-3] * 4), ("level_warmup", [1])]
)
def test_lists_must_have_an_entry_per_level(field, values, data, tmp_path):
    count = len(values)
    with pytest.raises(ConfigError, match=rf"fine_tuning\.{field} has {count} entries, but 3 levels .*2, 8, 30 nodes"):
        made({field: values}).fit(data, job=Job(folder=tmp_path))
    assert not any(tmp_path.iterdir()), "nothing is kept, so a run may be started again with other settings"


def test_levels_with_many_nodes_are_left_out(data):
    model = made({"max_nodes": 20, "level_steps": [2, 2]}).fit(data)
    assert len(model.histories_) == 2
    with pytest.raises(ConfigError, match=r"max_nodes: the top level of the tree has 8 nodes, more than 3"):
        made({"max_nodes": 3, "top_nodes": 8}).fit(data)


def test_the_preliminary_tree_may_be_kept(data):
    fine = {"keep_tree": True, "level_steps": [1, 1, 1]}
    kept = made(fine).fit(data).trees_[0][0]
    assert kept.sizes == (2, 8, 30)
    again = made({"level_steps": [1, 1, 1]}, leaf_size=30).fit(data).trees_[0][0]
    assert again.sizes == (30,)
    with pytest.raises(ConfigError, match="label_text_weight is for clustering"):
        made({"keep_tree": True}, label_text_weight=0.5)
    with pytest.raises(ConfigError, match="keep_tree"):
        made(fine, trees=2)


def test_tfidf_is_fitted_once_for_fine_tuning_and_ranking(data, monkeypatch):
    fitted, plain = [], Tfidf.fit_transform
    monkeypatch.setattr(
        Tfidf, "fit_transform", lambda tfidf, texts: (fitted.append(len(texts)), plain(tfidf, texts))[1]
    )
    one_step = {"level_steps": [1, 1, 1]}
    made(one_step).fit(data)
    assert fitted == [90]
    fitted.clear()
    made(one_step, label_documents="texts").fit(data)  # the ranker reads more texts
    assert fitted == [90, 120]


def test_fine_tuning_changes_the_encoder_and_frozen_is_refused(data):
    from labelwise.nn.config import EncoderConfig
    from labelwise.nn.encode import encode_corpus
    from labelwise.nn.text.transformer import open_encoder

    model = made({"training": {"optimiser": {"rate": 0.01}}}).fit(data)
    before = encode_corpus(open_encoder(EncoderConfig(**TINY), data.texts, 0), data.texts)
    after = model.encode(data)
    assert after.shape == before.shape
    assert np.abs(after - before).max() > 1e-3
    with pytest.raises(ConfigError, match=r"encoder\.frozen"):
        made(encoder={**TINY, "frozen": True})


@pytest.mark.parametrize(
    ("bootstrap", "negatives"), [("linear", "teacher"), ("inherit", "network"), ("none", "linear")]
)
def test_other_initial_weights_and_negatives(bootstrap, negatives, data):
    fine = {"bootstrap": bootstrap, "negatives": negatives, "first_head": "random", "weighted": False}
    model = made({**fine, "loss": {"name": "bce"}, "documents": 60}).fit(data)
    assert lw.evaluate(model.predict(data, k=3), data, metrics=["P@1"])["P@1"] > 0.8


def test_weights_are_chosen_on_held_out_documents(data):
    train, valid = data.split(0.3, seed=1)
    validated = {"validate_every": 1, "metric": "P@1"}
    for model in (
        made({"training": validated}).fit(train, valid=valid),
        made({"training": validated, "valid_fraction": 0.2}).fit(train),
    ):
        for history in model.histories_:
            values = [record["P@1"] for record in history.records]
            assert history.best["value"] == max(values)
    with pytest.raises(ConfigError, match="valid_fraction"):
        made({"valid_fraction": 0.2})


def test_a_time_budget_ends_it_with_a_usable_model(data):
    fine = {"level_steps": [10_000] * 3, "training": {"checkpoint_every": {"steps": None}}}
    model = made(fine, time_budget=2.0).fit(data)
    assert all(history.stopped == "time budget" for history in model.histories_)
    assert lw.evaluate(model.predict(data, k=3), data, metrics=["P@1"])["P@1"] > 0.8
    with pytest.raises(ConfigError, match="time_budget"):
        made({"training": {"time_budget": 3.0}})


def test_memory_is_estimated_before_it_begins(data):
    from labelwise.nn.config import EncoderConfig, TrainingConfig
    from labelwise.nn.fine_tuning import check_fine_tuning_memory, fine_tuning_bytes
    from labelwise.nn.text.transformer import open_encoder

    encoder = open_encoder(EncoderConfig(**TINY), data.texts, 0)
    small, large = (sum(fine_tuning_bytes(encoder, [10], 100, TrainingConfig(batch_size=n))) for n in (8, 800))
    assert large > 10 * small > 0
    with pytest.raises(ConfigError, match=r"fine-tuning needs about .* of memory, .*batch_size"):
        check_fine_tuning_memory(encoder, [10], 100, TrainingConfig(batch_size=800), memory=small / 1e9)
    check_fine_tuning_memory(encoder, [10], 100, TrainingConfig(batch_size=800), memory="ignore")


def test_a_smaller_top_level_of_the_tree():
    features = np.random.default_rng(0).normal(size=(512, 8)).astype(np.float32)
    assert LabelTree.balanced(features, leaf_size=8, branching=4).sizes == (4, 16, 64, 512)
    assert LabelTree.balanced(features, leaf_size=8, branching=4, top_nodes=20).sizes == (16, 64, 512)


def test_the_encoder_is_on_its_device_before_it_encodes_for_the_first_level(data, monkeypatch):
    """With a GPU, the linear classifiers of the first level would else encode all documents on the CPU."""
    from torch import nn

    from labelwise.nn.text.transformer import TransformerEncoder

    moved, before, plain, forward = [], [], nn.Module.to, TransformerEncoder.forward

    def to(self, *given, **named):
        moved.extend([self] if isinstance(self, TransformerEncoder) else [])
        return plain(self, *given, **named)

    def recorded(self, *given):
        before.append(any(self is one for one in moved))
        return forward(self, *given)

    monkeypatch.setattr(nn.Module, "to", to)
    monkeypatch.setattr(TransformerEncoder, "forward", recorded)
    made({"level_steps": [1, 1, 1]}).fit(data)
    assert before[0]
