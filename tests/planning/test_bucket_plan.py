"""The planner: published settings, sizes against real networks, and limits that hold."""

import numpy as np
import pytest
import yaml

import labelwise as lw
from cli.commands import labelwise
from labelwise.errors import ConfigError
from labelwise.labelspace.buckets import repetitions_needed
from labelwise.planning.proposals import plan_buckets

GB = 10**9


@pytest.mark.parametrize(
    ("n_labels", "buckets"), [(30_938, 2000), (205_443, 5000), (670_091, 10_000), (49_460_000, 20_000), (3, 3)]
)
def test_buckets_are_those_of_published_settings(n_labels, buckets):
    assert plan_buckets(n_labels, 10**6, 1000, 100 * GB).buckets == buckets


@pytest.mark.parametrize("memory", [GB // 2, 2 * GB, 8 * GB, 64 * GB])
@pytest.mark.parametrize("n_labels", [5, 4271, 670_091, 10_000_000])
def test_what_is_proposed_fits(n_labels, memory):
    plan = plan_buckets(n_labels, 10**6, 500_000, memory)
    assert max(plan.training_bytes, plan.serving_bytes) <= memory
    assert plan.repetitions >= repetitions_needed(n_labels, plan.buckets, 0.01)
    assert plan.rows <= 500_000


def test_weights_are_those_of_the_networks():
    pytest.importorskip("torch")
    random = np.random.default_rng(0)
    x, y = random.random((20, 30)).astype(np.float32), [[label % 7] for label in range(20)]
    plan = plan_buckets(7, 20, 30, GB, repetitions=2)
    config = {**plan.config(), "training": {"epochs": 1}}
    del config["method"]
    model = lw.Mach(**config).fit(x, y)
    assert len(model.repetitions_) == 2
    for one in model.repetitions_:
        assert sum(array.size for array in one.tensors.values()) == plan.weights


def test_less_memory_gives_smaller_plans():
    plenty, little = (plan_buckets(10_000_000, 10**6, 500_000, memory) for memory in (64 * GB, GB // 2))
    assert little.weights < plenty.weights
    assert little.config()["feature_hashing"] < 500_000
    assert little.universal
    assert not plenty.universal


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ((0, 1, 1, GB), "labels"),
        ((10, 0, 1, GB), "documents"),
        ((10, 1, 0, GB), "features"),
        ((10, 1, 1, GB, 1.0), "confusion"),
        ((10**7, 1, 10, 10**6), "not enough"),
        ((3 * 10**9, 1, 1, 10**13), "labels"),
        ((10, 1, 1, 10**15, 0.01, None, 10**9), "buckets"),
    ],
)
def test_what_cannot_be_planned_is_refused(task, message):
    with pytest.raises(ConfigError, match=message):
        plan_buckets(*task)


def test_the_command_writes_a_config():
    done = labelwise("plan", "--labels", "10000000", "--documents", "1000000", "--memory", "8")
    model = yaml.safe_load(done.out)["model"]
    assert model.pop("method") == "mach"
    lw.Mach(**model)
    assert "memory to serve all" in done.err
    assert "not enough" in labelwise("plan", "--labels", "10000000", "--documents", "9", "--memory", "0.01", code=2).err
