"""What is special to mhe_text: groups of labels, other heads, resume of a killed run, settings that contradict."""

import json

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from conformance.planted import planted
from killing import AFTER_A_CHECKPOINT, kill_where_it_holds
from labelwise.errors import ConfigError
from labelwise.runtime.threads import using_threads

TINY = {"model": "tiny", "max_length": 32, "pooling": "mean", "layers": 2}
QUICK = {
    "epochs": 4, "batch_size": 16, "optimiser": {"rate": 0.01, "head_factor": 2}, "averaging": {"kind": "none"},
    "metric": "P@1", "validate_every": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    with using_threads(1):
        yield


@pytest.fixture(scope="module")
def data():
    return planted("texts", n_documents=240, n_labels=24)


def made(training=None, **settings):
    common = {"encoder": TINY, "valid_fraction": 0.0, "monitor": {"enabled": False}}
    return lw.MheText(**{**common, "training": {**QUICK, **(training or {})}, **settings})


def test_without_groups_it_is_a_text_encoder(data):
    short = {"steps": 6}
    mine = made(short, dropout=0.0).fit(data)
    plain = lw.TextEncoder(
        encoder=TINY, head={"dropout": 0.0}, training={**QUICK, **short}, valid_fraction=0.0, monitor={"enabled": False}
    ).fit(data)
    same_predictions(mine.predict(data, k=5), plain.predict(data, k=5))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_group": 6, "groups": 2, "bottleneck": 16, "order": "clustered"},
        {"head": {"kind": "cascade", "loss": "bce", "heads": 3, "bottleneck": 16, "groups": 4, "order": "frequency"}},
        {"head": {"kind": "product", "radices": [5, 5]}},
        {"head": {"kind": "sampling", "radices": [6, 4], "sampled_groups": 3, "order": "random"}},
    ],
    ids=["groups", "three digits", "product", "sampling"],
)
def test_every_head_learns_and_a_loaded_model_is_the_same(data, settings, tmp_path):
    model = made(dropout=0.0, **settings) if "head" not in settings else made(**settings)
    top = model.fit(data).predict(data, k=5)
    least = 0.3 if settings.get("head", {}).get("kind") == "product" else 0.6
    assert lw.evaluate(top, data, metrics=["P@1"])["P@1"] > least
    assert (np.diff(top.scores, axis=1) <= 0).all()
    assert 0 <= top.scores.min() <= top.scores.max() <= 1
    model.save(tmp_path / "model")
    again = lw.load(tmp_path / "model")
    same_predictions(again.predict(data, k=5), top)
    assert again.predict(data, k=data.n_labels).ids.min() >= 0  # the beam widens until there are enough labels


def test_similar_labels_form_a_group(data):
    model = made({"steps": 1}, num_group=4, bottleneck=8, order="clustered").fit(data)
    groups = model.network_.head.code.node_of(0)
    families = np.arange(data.n_labels) // 6  # labels of a family share words
    together = (families[:, None] == families) & (groups[:, None] == groups)
    assert together.sum() > 0.6 * (families[:, None] == families).sum()


def test_a_killed_run_resumes_to_the_same_model(tmp_path, data):
    lw.write(data, tmp_path / "train.jsonl")
    values = {
        "data": {"train": str(tmp_path / "train.jsonl"), "test_fraction": 0.1},
        "model": {
            "method": "mhe_text", "encoder": TINY, "num_group": 6, "groups": 2, "bottleneck": 8,
            "training": {**QUICK, "epochs": 1, "averaging": {"kind": "swa", "start": 0.2, "every": 2},
                         "checkpoint_every": {"steps": 4}},
        },
        "evaluate": {"bootstrap": 0, "metrics": ["P@1"]},
        "run": {"report": False},
    }  # fmt: skip
    (tmp_path / "run.yml").write_text(json.dumps(values))
    whole, resumed = ("--set", f"run.folder={tmp_path / 'whole'}"), ("--set", f"run.folder={tmp_path / 'resumed'}")
    kill_where_it_holds(AFTER_A_CHECKPOINT, "train", tmp_path / "run.yml", *resumed)
    assert not (tmp_path / "resumed" / "model").exists()
    labelwise("train", tmp_path / "run.yml", *resumed)
    labelwise("train", tmp_path / "run.yml", *whole)
    one, other = (lw.load(tmp_path / name / "model") for name in ("whole", "resumed"))
    # the first steps were another process's, whose memory is aligned otherwise: equal to rounding
    mine, its = one.predict(data, k=5), other.predict(data, k=5)
    np.testing.assert_allclose(mine.scores, its.scores, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"groups": 3}, "groups needs groups of labels; set num_group"),
        ({"num_group": 4, "head": {"kind": "product"}}, "num_group is not used with a head"),
        ({"loss": "softmax", "reduction": "mean"}, "only bce"),
        ({"head": {"kind": "product", "beam": 3}}, "beam is a setting of kind: cascade; this is product"),
        ({"head": {"kind": "cascade", "loss": "joint_softmax"}}, "joint_softmax is a loss of product heads"),
        ({"head": {"kind": "sampling", "loss": "bce"}}, "trained by softmax"),
        ({"head": {"kind": "sampling", "negatives": "V2", "sampled_groups": 3}}, "V2 fixes the number of groups"),
        ({"head": {"kind": "product", "radices": [5]}}, "at least two digits"),
        ({"head": {"kind": "product", "radices": [5, 5], "heads": 3}}, "radices or heads"),
        ({"head": {"kind": "sampling", "sampled_groups": 2, "sampled_fraction": 0.1}}, "not both"),
        ({"num_group": 4, "bottleneck": 10**30}, "bottleneck: should be less than or equal to 65536"),
        ({"head": {"kind": "cascade", "bottleneck": 10**30}}, "bottleneck: should be less than or equal to 65536"),
    ],
)
def test_settings_without_effect_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        made(**settings)


def test_too_few_codes_are_refused(data):
    with pytest.raises(ConfigError, match="4 x 5 = 20 codes are too few for 24 labels"):
        made(head={"kind": "product", "radices": [4, 5]}).fit(data)


def test_the_digits_are_planned_from_the_command_line():
    planned = labelwise("plan", "--digits", "--labels", 670091, "--groups", 75, "--width", 3840)
    assert "num_group: 2287" in planned.out
    assert "819 x 819" in planned.err
    assert "so few labels need no groups" in labelwise("plan", "--digits", "--labels", 50).err
    assert "--digits" in labelwise("plan", "--labels", 50, code=2).err
    unused = labelwise("plan", "--digits", "--labels", 50, "--memory", 8, code=2)
    assert "--memory: not used with --digits" in unused.err
    assert "--width: needs --digits" in labelwise("plan", "--labels", 50, "--documents", 9, "--width", 8, code=2).err
