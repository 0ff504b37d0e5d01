"""The collapse monitor on trainings that really go well, badly, too slowly and nowhere; and its measures by hand."""

import json
import math

import numpy as np
import pytest
import torch

import labelwise as lw
from common import Stop
from conformance.planted import planted
from labelwise.nn.text.transformer import attention_entropy
from labelwise.nn.train.monitor import Reading, diagnose, spread
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads

AS_IN_THE_STUDY = {"loss": {"reduction": "mean"}, "bias": "zero", "dropout": 0.5}


def trained(optimiser, head=None, epochs=3, job=None, monitor=None, **training):
    """A tiny encoder on planted texts; records of its training."""
    method = lw.TextEncoder(
        encoder={"model": "tiny", "max_length": 32},
        head=head or {},
        training={
            "epochs": epochs,
            "optimiser": {"head_factor": 1, **optimiser},
            "schedule": {"kind": "constant", "warmup": 0},
            **training,
        },
        monitor={"probe": 64, **(monitor or {})},
        valid_fraction=0,
    )
    with using_threads(1):
        method.fit(planted("texts", n_documents=400), job=job)
    return method.history_


def last(history):
    return history.records[-1]


def test_a_good_training_is_healthy():
    seen = last(trained({"rate": 5e-3, "head_factor": 3}, epochs=4))
    assert seen["verdict"] == "healthy", seen
    assert seen["probe_loss"] < 0.95 * seen["floor"]
    assert seen["cosine"] < 0.9
    assert seen["effective_rank"] > 2
    assert seen["distinct"] >= 3
    assert len(seen["attention_entropy"]) == 2
    assert seen["update_ratio"] > 1e-3


def test_the_gradient_is_told_as_it_was_before_clipping():
    """At a rate of next to nothing the weights stay, so clipping is all that could make a difference."""
    free, clipped, adaptive = (
        last(trained({"name": "sgd", "rate": 1e-12}, {"dropout": 0.0}, epochs=1, clip=clip))["gradient"]
        for clip in (None, 1e-3, "adaptive")
    )
    assert free > 0.1
    assert clipped == pytest.approx(free, rel=1e-4)
    assert adaptive == pytest.approx(free, rel=1e-4)


def test_a_huge_rate_collapses():
    seen = last(trained({"rate": 0.3}, AS_IN_THE_STUDY))
    assert seen["verdict"] == "collapsed", seen
    assert "rate ten times lower" in seen["remedy"]
    assert seen["cosine"] == pytest.approx(1, abs=1e-4)
    assert seen["effective_rank"] == pytest.approx(1, abs=1e-2)
    assert (seen["distinct"], seen["commonest"]) == (1, 1.0)


def test_adam_with_l2_and_the_mean_over_labels_is_dominated_by_l2():
    seen = last(trained({"name": "adam", "rate": 5e-3, "weight_decay": 0.1}, AS_IN_THE_STUDY))
    assert seen["verdict"] == "collapsed", seen
    assert "dominated by L2" in seen["reason"]
    assert "adamw" in seen["remedy"]
    assert seen["pull_over_gradient"] > 1
    assert min(seen["attention_entropy"]) > 0.999


def test_a_tiny_rate_is_under_trained():
    for head, at_the_floor in ((AS_IN_THE_STUDY, False), ({}, True)):
        seen = last(trained({"rate": 1e-6}, head, epochs=2))
        assert seen["verdict"] == "under-trained", seen
        assert "higher" in seen["remedy"]
        assert (seen["probe_loss"] < 1.1 * seen["floor"]) is at_the_floor
        assert seen["update_ratio"] < 5e-5


def test_adadelta_on_the_mean_over_labels_is_limited_by_eps():
    seen = last(trained({"name": "adadelta"}, AS_IN_THE_STUDY, epochs=2))
    assert seen["verdict"] == "under-trained", seen
    assert "eps-limited" in seen["reason"]
    assert seen["gradient_over_eps"] < 1


def test_a_training_that_blows_up_has_diverged():
    history = trained({"name": "sgd", "rate": 300.0}, clip=None, epochs=2)
    assert last(history)["verdict"] == "diverged", last(history)


def test_a_good_training_stands_on_the_plateau_first():
    verdicts = [
        record["verdict"] for record in trained({"rate": 5e-3}, epochs=5, validate_every=6, metric="loss").records
    ]
    assert "on the plateau" in verdicts, verdicts
    assert verdicts[-1] == "healthy", verdicts


def test_a_verdict_can_stop_the_training():
    history = trained({"rate": 0.3}, AS_IN_THE_STUDY, epochs=9, monitor={"stop_on": ["collapsed"], "patience": 2})
    assert history.stopped.startswith("collapsed: the vectors of all documents are one point")
    assert len(history.records) < 9
    assert [record["verdict"] for record in history.records[-2:]] == ["collapsed", "collapsed"]


def test_a_training_shorter_than_an_epoch_is_judged_too():
    (seen,) = trained({"rate": 5e-3}, epochs=None, steps=5).records
    assert seen["step"] == 5
    assert seen["verdict"]


def test_what_is_seen_is_logged():
    lines = []
    trained({"rate": 5e-3}, epochs=1, job=Job(log=lambda **numbers: lines.append(numbers)))
    (line,) = [line for line in lines if "verdict" in line]
    assert {"probe_loss", "floor", "cosine", "effective_rank", "reason", "remedy"} <= set(line)
    json.dumps(line, allow_nan=False)


def test_the_monitor_does_not_change_the_training():
    data = planted("texts", n_documents=200)

    def fitted(**monitor):
        method = lw.TextEncoder(
            encoder={"model": "tiny"}, head={"dropout": 0.3}, training={"epochs": 2}, monitor=monitor
        )
        with using_threads(1):
            return method.fit(data).predict(data, k=3)

    watched, alone = fitted(), fitted(enabled=False)
    np.testing.assert_array_equal(watched.scores, alone.scores)


@pytest.mark.parametrize("at", [9, 11])  # between the two halves of a measurement, and after one
def test_a_training_that_was_stopped_is_seen_as_one_that_was_not(tmp_path, at):
    settings = {"rate": 5e-3}, None, 2
    kept = {"checkpoint_every": {"steps": at}, "log_every": 1}
    whole = trained(*settings, **kept).records

    def log(**numbers):
        if numbers["step"] == at + 2:
            raise Stop

    with pytest.raises(Stop):
        trained(*settings, job=Job(tmp_path, log), **kept)
    assert trained(*settings, job=Job(tmp_path), **kept).records == whole


# --- measures and judgement, by hand ---


def test_spread_of_known_vectors():
    cosine, rank = spread(torch.eye(4))
    assert (cosine, rank) == (pytest.approx(0), pytest.approx(4))
    cosine, rank = spread(torch.ones(5, 3) * torch.arange(1, 6)[:, None])
    assert (cosine, rank) == (pytest.approx(1), pytest.approx(1))
    vectors = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    pairs = [
        float(torch.nn.functional.cosine_similarity(vectors[i], vectors[j], dim=0))
        for i in range(30)
        for j in range(30)
        if i != j
    ]
    assert spread(vectors)[0] == pytest.approx(np.mean(pairs), abs=1e-6)


def test_attention_entropy_is_one_when_uniform_and_zero_when_sharp():
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    uniform = mask[:, None, None, :].double().expand(2, 3, 4, 4) / mask.sum(1)[:, None, None, None]
    sharp = torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4)
    assert attention_entropy(torch.stack([uniform, sharp]), mask) == (pytest.approx(1), pytest.approx(0))


def reading(**values):
    plain = {"loss": 1.0, "floor": 1.0, "cosine": 0.5, "effective_rank": 5.0, "distinct": 3, "commonest": 0.5}
    return Reading(**{**plain, "update_ratio": 1e-3, **values})


@pytest.mark.parametrize(
    ("readings", "name", "words"),
    [
        ([reading(), reading(loss=0.5)], "healthy", "50%"),
        ([reading(), reading(loss=0.99)], "on the plateau", "Continue"),
        ([reading(), reading(loss=math.nan)], "diverged", "nan"),
        ([reading(loss=0.5), reading(loss=0.9)], "diverged", "it was 50%"),
        ([reading(loss=0.5), reading(loss=0.6)], "healthy", "60%"),
        ([reading(), reading(loss=4.0)], "diverged", "lower"),
        ([reading(loss=70.0), reading(loss=5.0)], "under-trained", "and falling"),
        ([reading(loss=70.0), reading(loss=5.0), reading(loss=4.99)], "under-trained", "hardly falling"),
        ([reading(loss=70.0), reading(loss=5.0), reading(loss=6.0)], "under-trained", "lower"),
        ([reading(), reading(cosine=0.999995)], "collapsed", "one point"),
        ([reading(), reading(cosine=0.999)], "on the plateau", "0.999"),
        ([reading(cosine=0.99999), reading(cosine=0.99998)], "under-trained", "as at the start"),
        ([reading(cosine=0.99999), reading(cosine=0.99998, commonest=1.0)], "under-trained", "Continue"),
        ([reading(cosine=0.99999), reading(cosine=0.9999999)], "collapsed", "one point"),
        ([reading(cosine=0.99999), reading(), reading(cosine=0.99998)], "collapsed", "one point"),
        ([reading(), reading(update_ratio=1e-6)], "on the plateau", ""),
        ([reading(update_ratio=math.nan), reading(update_ratio=1e-6)], "under-trained", "higher"),
        ([reading(), reading(gradient_over_eps=0.1)], "under-trained", "eps-limited"),
        ([reading(loss=70), reading(loss=9, pull_over_gradient=3, commonest=1)], "collapsed", "dominated by L2"),
    ],
)
def test_judgement(readings, name, words):
    verdict = diagnose(readings)
    assert verdict.name == name
    assert words in str(verdict)


def test_readings_go_through_json_and_back():
    seen = reading(loss=math.inf, attention_entropy=(0.5, 0.25))
    again = Reading.from_dict(json.loads(json.dumps(seen.to_dict(), allow_nan=False)))
    assert math.isnan(again.loss)
    assert again.attention_entropy == (0.5, 0.25)
    assert again.cosine == 0.5


def test_one_point_with_one_label_for_all_is_collapsed_even_below_the_floor():
    start = Reading(loss=40, floor=29.6, cosine=0.5, effective_rank=20, distinct=30, commonest=0.2)
    end = Reading(loss=25.7, floor=29.6, cosine=1.0, effective_rank=1.0, distinct=1, commonest=1.0)
    assert diagnose([start, end]).name == "collapsed"
