"""Parameters that make a method small enough for tests; a method that is tested with its defaults has none here."""

from labelwise.methods.mach import MachTraining
from labelwise.methods.mhe_image import RECIPE as IMAGE_RECIPE
from labelwise.nn.config import (
    AugmentationConfig,
    AveragingConfig,
    BackboneConfig,
    DigitHeadConfig,
    EncoderConfig,
    FaceNetworkConfig,
    FineTuningConfig,
    ImageConfig,
    MarginConfig,
    MonitorConfig,
    OptimiserConfig,
    RecurrentConfig,
    ScheduleConfig,
    TrainingConfig,
    WordsConfig,
    WordTraining,
)

WORDS, RECURRENT = WordsConfig(width=16), RecurrentConfig(width=32, dropout=0.2)
SMALL: dict[str, dict] = {
    "attention_xml": {
        "words": WORDS,
        "recurrent": RECURRENT,
        "hidden": [16],
        "cluster_size": 16,
        "beam_width": 2,
        "training": WordTraining(epochs=6, steps=150, batch_size=32, optimiser=OptimiserConfig(name="adam", rate=0.03)),
    },
    "bigru": {
        "words": WORDS,
        "recurrent": RecurrentConfig(cell="gru", width=32, dropout=0.2),
        "attention": "none",
        "training": WordTraining(epochs=4, steps=150, batch_size=16, optimiser=OptimiserConfig(name="adam", rate=0.02)),
    },
    "ensemble": {
        "members": [
            {"method": "linear_tree", "trees": 1},
            {"method": "linear_tree", "trees": 1, "post_processor": "sigmoid", "seed": 1},
        ],
    },
    "hybrid_linear": {"encoder": EncoderConfig(model="tiny", max_length=32, pooling="mean"), "trees": 2},
    "mach": {
        "repetitions": 2,
        "buckets": 64,
        "hidden": [32],
        "training": MachTraining(epochs=6, batch_size=32, optimiser=OptimiserConfig(name="adam", rate=0.05)),
    },
    "mhe_face": {
        "image": ImageConfig(
            size=20, channels=1, fit="pad", interpolation="nearest", augmentation=AugmentationConfig(flip=True)
        ),
        "network": FaceNetworkConfig(network="r10", width_factor=0.125, dimension=32),
        "head": MarginConfig(margin=0.1, scale=16.0),
        "mirror": False,
        "valid_fraction": 0.0,
        "monitor": MonitorConfig(enabled=False, attention=False),
        "training": TrainingConfig(
            epochs=5,
            batch_size=50,
            clip=5.0,
            load_ahead=2,
            optimiser=OptimiserConfig(name="adam", rate=0.005, weight_decay=5e-4),
            schedule=ScheduleConfig(kind="linear", warmup=0.1),
        ),
    },
    "mhe_image": {
        "image": ImageConfig(size=20, channels=1, fit="pad", interpolation="nearest"),
        "backbone": BackboneConfig(name="tiny", channels=8, pool="flatten"),
        "head": DigitHeadConfig(loss="bce"),
        "training": IMAGE_RECIPE.model_copy(
            update={
                "epochs": 3,
                "batch_size": 32,
                "optimiser": OptimiserConfig(name="adam", rate=0.005, weight_decay=5e-4),
            }
        ),
    },
    "mhe_text": {
        "encoder": EncoderConfig(model="tiny", max_length=32, pooling="mean", layers=2),
        "num_group": 4,
        "groups": 2,
        "beam": 3,
        "bottleneck": 24,
        "dropout": 0.1,
        "training": TrainingConfig(
            epochs=4,
            batch_size=16,
            optimiser=OptimiserConfig(rate=0.01, head_factor=2),
            schedule=ScheduleConfig(warmup=0.1),
            averaging=AveragingConfig(kind="swa", start=0.5, every=10),
            metric="P@5",
        ),
    },
    "text_encoder": {
        "encoder": EncoderConfig(model="tiny", max_length=32, pooling="mean"),
        "training": TrainingConfig(
            epochs=4, optimiser=OptimiserConfig(rate=0.01, head_factor=3), schedule=ScheduleConfig(warmup=0.1)
        ),
    },
    "xr_transformer": {
        "encoder": EncoderConfig(model="tiny", max_length=32, pooling="mean"),
        "trees": 1,
        "fine_tuning": FineTuningConfig(
            leaf_size=8,
            branching=4,
            top_nodes=4,
            beam=2,
            training=TrainingConfig(epochs=None, steps=8, optimiser=OptimiserConfig(rate=0.003), validate_every=None),
        ),
    },
}


def small_and_short(name: str, steps: int = 2) -> dict:
    """For tests that need a trained model and not what it has learned."""
    settings = dict(SMALL.get(name, {}))
    if name == "mhe_image":  # vectors of a few numbers instead of a thousand, and so weights per label
        settings["backbone"] = BackboneConfig(name="tiny", channels=4)
    if "training" in settings:
        settings["training"] = settings["training"].model_copy(update={"epochs": 1, "steps": steps})
    if "fine_tuning" in settings:
        fine = settings["fine_tuning"]
        training = fine.training.model_copy(update={"steps": min(steps, 2)})
        settings["fine_tuning"] = fine.model_copy(update={"training": training})
    return settings
