"""Settings and schedules: what is refused, and the rate at every step."""

import subprocess
import sys

import pytest

from labelwise.config import validated
from labelwise.errors import ConfigError
from labelwise.nn.config import OptimiserConfig, ScheduleConfig, TrainingConfig, lower_is_better
from labelwise.nn.train.optim import make_schedule


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learning_rate": 1}, "no such key"),
        ({"epochs": None}, "give epochs, steps or both"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"validate_every": None, "early_stopping": {}}, "needs validation"),
        (
            {"optimiser": {"name": "sgd", "betas": [0.9, 0.99]}},
            "betas is a setting of name: adam, amsgrad, adamw; this is sgd",
        ),
        ({"optimiser": {"name": "adam", "momentum": 0.9}}, "momentum is a setting of name: sgd; this is adam"),
        ({"optimiser": {"name": "sgd", "nesterov": True}}, "nesterov needs a momentum"),
        ({"optimiser": {"head_rate": 1.0, "head_factor": 2.0}}, "not both"),
        ({"optimiser": {"name": "adamax"}}, "optimiser.name"),
        ({"schedule": {"warmup": 1.5}}, "whole number is needed"),
        ({"averaging": {"kind": "swa", "decay": 0.9}}, "decay is a setting of kind: ema"),
        ({"averaging": {"kind": "swa", "start": 2.5}}, "whole number is needed"),
        ({"averaging": {"start": 2}}, "start is a setting of kind: swa"),
        ({"accumulate": 0}, "accumulate"),
        ({"precision": "fp16"}, "precision"),
    ],
)
def test_settings_without_effect_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        validated(TrainingConfig, values)


def test_every_setting_is_described():
    pending = [TrainingConfig]
    while pending:
        kind = pending.pop()
        for name, field in kind.model_fields.items():
            assert field.description, f"{kind.__name__}.{name}"
            options = [field.annotation, *getattr(field.annotation, "__args__", ())]
            pending += [o for o in options if isinstance(o, type) and hasattr(o, "model_fields")]


def test_settings_and_what_methods_learn_do_not_load_torch():
    names = ", ".join(
        f"labelwise.nn.{name}" for name in ("config", "inputs", "model", "buckets", "levels", "featurizer")
    )
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_direction_comes_from_the_name():
    assert lower_is_better("valid_loss")
    assert lower_is_better("Error@1")
    assert not lower_is_better("P@1")


@pytest.mark.parametrize(
    ("kind", "warmup", "total", "expected"),
    [
        ("constant", 0, 4, [1, 1, 1, 1]),
        ("constant", 2, 4, [0.5, 1, 1, 1]),
        ("linear", 0, 4, [1, 0.75, 0.5, 0.25, 0.25]),
        ("linear", 2, 6, [0.5, 1, 1, 0.75, 0.5, 0.25, 0.25]),
        ("linear", 0.5, 4, [0.5, 1, 1, 0.5]),
        ("cosine", 1, 4, [1, 1, 0.75, 0.25]),
        ("linear", 10, 4, [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_rate_at_every_step(kind, warmup, total, expected):
    schedule = make_schedule(ScheduleConfig(kind=kind, warmup=warmup), total)
    assert [schedule(step) for step in range(len(expected))] == pytest.approx(expected)


def test_defaults_are_left_to_torch():
    assert OptimiserConfig().model_dump(exclude_none=True) == {
        "name": "adamw", "rate_factor": 1.0, "head_factor": 1.0, "decay_on": "matrices",
    }  # fmt: skip
