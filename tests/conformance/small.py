"""Parameters that make a method small enough for tests; a method that is tested with its defaults has none here."""

from labelwise.encoders.config import EncoderConfig
from labelwise.training.settings import OptimiserConfig, TrainingConfig

SMALL: dict[str, dict] = {
    "text_encoder": {
        "encoder": EncoderConfig(model="tiny", max_length=32, pooling="mean"),
        "training": TrainingConfig(epochs=4, optimiser=OptimiserConfig(rate=0.01, head_factor=3)),
    },
}
