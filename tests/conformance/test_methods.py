"""Every registered method through every check."""

import pytest

from conformance.checks import CHECKS
from labelwise.encoders.config import EncoderConfig
from labelwise.registry import METHODS, method_class
from labelwise.training.settings import OptimiserConfig, TrainingConfig

# Parameters that make a method small enough for the suite; a new method that needs some adds a line.
SMALL: dict[str, dict] = {
    "text_encoder": {
        "encoder": EncoderConfig(model="tiny", max_length=32, pooling="mean"),
        "training": TrainingConfig(epochs=4, optimiser=OptimiserConfig(rate=0.01, head_factor=3)),
    },
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CHECKS)
def test_method_conforms(name, check, tmp_path):
    CHECKS[check](lambda: method_class(name)(**SMALL.get(name, {})), tmp_path)
