"""Whoever sets one field of a section keeps the method's own defaults in the others."""

import pytest

import labelwise as lw
from labelwise.config import ConfigSource
from labelwise.nn.config import AveragingConfig, OptimiserConfig, RecurrentConfig, TrainingConfig
from labelwise.runs.config import run_config


def resolved(**training):
    return lw.TextEncoder(training=training).config.training


def test_one_field_leaves_the_others():
    plain = lw.TextEncoder().config.training
    assert (plain.epochs, plain.optimiser.rate, plain.optimiser.head_factor, plain.schedule.warmup) == (
        5,
        5e-5,
        100,
        0.1,
    )
    for changed in (
        {"epochs": 5},
        {"optimiser": {}},
        {"optimiser": {"rate": 5e-5}},
        {"schedule": {"kind": "linear"}},
        {"optimiser": {"name": "adamw"}, "schedule": {}},
    ):
        assert resolved(**changed) == plain
    assert resolved(epochs=2) == plain.model_copy(update={"epochs": 2})
    assert resolved(optimiser={"rate": 1e-4}).optimiser == plain.optimiser.model_copy(update={"rate": 1e-4})


def test_the_same_through_a_config_file_and_the_command_line():
    source = ConfigSource.from_yaml("{data: {path: x}, model: {method: text_encoder, training: {epochs: 2}}}", "c.yml")
    training = run_config(source.override(["model.training.schedule.kind=cosine"])).make_method().config.training
    assert (training.epochs, training.optimiser.rate, training.optimiser.head_factor) == (2, 5e-5, 100)
    assert (training.schedule.kind, training.schedule.warmup) == ("cosine", 0.1)


def test_a_config_leaves_the_others_as_a_mapping_does():
    assert lw.BiGRU(recurrent=RecurrentConfig(width=64)).config == lw.BiGRU(recurrent={"width": 64}).config
    assert lw.BiGRU(recurrent=RecurrentConfig(width=64)).config.recurrent.cell == "gru"
    assert lw.BiGRU(recurrent=RecurrentConfig(cell="lstm")).config.recurrent.cell == "lstm"
    given = TrainingConfig(epochs=2, optimiser=OptimiserConfig(rate=1e-4))
    expected = resolved(epochs=2, optimiser={"rate": 1e-4})
    assert (expected.optimiser.rate, expected.optimiser.head_factor) == (1e-4, 100)
    assert lw.TextEncoder(training=given).config.training == expected
    assert lw.TextEncoder(training=expected).config.training == expected


def test_null_is_a_wish_too():
    assert resolved(optimiser={"rate": None}).optimiser.rate is None
    assert resolved(epochs=None, steps=7).epochs is None


@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam"])
def test_another_optimiser_has_rates_of_its_own(name):
    found = resolved(optimiser={"name": name}).optimiser
    assert found.rate is None
    assert found.head_factor == 100, "this is not a matter of the optimiser"


def test_settings_of_one_optimiser_do_not_reach_another():
    default = OptimiserConfig(name="adam", rate=0.1, betas=(0.5, 0.9), eps=1e-3)
    assert default.completed({"name": "sgd", "momentum": 0.5}) == {"name": "sgd", "momentum": 0.5}
    assert default.completed({"eps": 1e-4})["betas"] == (0.5, 0.9)


def test_a_rate_of_the_head_replaces_its_factor():
    found = resolved(optimiser={"head_rate": 1e-3}).optimiser
    assert (found.head_rate, found.head_factor, found.rate) == (1e-3, 1.0, 5e-5)


def test_recurrent_methods_keep_their_schedule_and_averages():
    config = lw.AttentionXML(training={"schedule": {"warmup": 0.1}, "averaging": {"every": 5}}).config.training
    assert (config.schedule.kind, config.schedule.warmup) == ("constant", 0.1)
    assert config.averaging == AveragingConfig(kind="swa", start=0.3, window=5, every=5)
    assert lw.AttentionXML(training={"averaging": {"kind": "none"}}).config.training.averaging == AveragingConfig()
