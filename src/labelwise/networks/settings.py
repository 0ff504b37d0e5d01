"""The settings of neural training: one config for every method that uses the loop. Does not import torch.

What is left out (null) is taken from torch itself, so that a default here can never differ from torch's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config
from labelwise.errors import ConfigError
from labelwise.result_fields import PART, Decides, deciding_fields

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]

VerdictName = Literal["healthy", "on the plateau", "collapsed", "diverged", "under-trained"]

ADAM_FAMILY = ("adam", "amsgrad", "adamw")
# Fields that only some optimisers have. Setting one for an optimiser that lacks it is an error.
ONLY_FOR = {
    "betas": ADAM_FAMILY,
    "eps": (*ADAM_FAMILY, "adagrad", "adadelta"),
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "rho": ("adadelta",),
    "rate_decay": ("adagrad",),
    "initial_sum": ("adagrad",),
}


class OptimiserConfig(Config):
    """How weights follow gradients."""

    name: Literal["adagrad", "adadelta", "adam", "amsgrad", "adamw", "sgd"] = "adamw"
    """The rule of the updates; amsgrad is Adam that never forgets its largest second moment."""
    rate: Positive | None = None
    """Learning rate; null is torch's default for this optimiser."""
    rate_factor: Positive = 1.0
    """Multiplies every rate, the head's too; for studies of rates."""
    head_rate: Positive | None = None
    """Learning rate of the output layer; null is `rate` times `head_factor`."""
    head_factor: Positive = 1.0
    """The output layer's rate as a multiple of `rate`."""
    weight_decay: NotNegative | None = None
    """Pull towards zero; null is torch's default. In adamw and plain sgd it does not touch the gradients' scale."""
    decay_on: Literal["all", "matrices", "matrices_but_embeddings"] = "matrices"
    """What is pulled: everything, all but biases and norms, or neither these nor embeddings."""
    betas: tuple[Share, Share] | None = None
    """Memory of the first and second moment (adam, amsgrad, adamw)."""
    eps: Positive | None = None
    """Added to the denominator (all but sgd)."""
    momentum: Share | None = None
    """Memory of past steps (sgd)."""
    nesterov: bool | None = None
    """Look ahead along the momentum (sgd)."""
    rho: Share | None = None
    """Memory of squares (adadelta)."""
    rate_decay: NotNegative | None = None
    """How fast the rate falls by itself (adagrad)."""
    initial_sum: NotNegative | None = None
    """What the sum of squares starts at (adagrad)."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Rates and moments are those of one optimiser: another one begins with its own."""
        found = super().completed(given)
        other = given.get("name", self.name) != self.name
        of_the_name = ("rate", "head_rate", *ONLY_FOR) if other else ()
        instead = {"head_rate": "head_factor", "head_factor": "head_rate"}
        for field in (*of_the_name, *(instead[field] for field in instead if given.get(field) is not None)):
            if field not in given:
                found.pop(field, None)
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, names in ONLY_FOR.items():
            if getattr(self, field) is not None and self.name not in names:
                raise ValueError(f"{field} means nothing to {self.name}; it is a setting of {', '.join(names)}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.head_rate is not None and self.head_factor != 1.0:
            raise ValueError("give head_rate or head_factor, not both")
        return self


class ScheduleConfig(Config):
    """How the learning rate changes from step to step."""

    kind: Literal["constant", "linear", "cosine"] = "linear"
    """After the warm-up: stay, fall in a line to nothing, or fall along half a cosine."""
    warmup: NotNegative = 0.0
    """Steps in which the rate rises to its full height; below 1 it is a share of all steps."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup is a share below 1 or a whole number of steps, got {self.warmup}")
        return self


class AveragingConfig(Config):
    """Averages of the weights along the way, which are validated and kept in their place."""

    kind: Literal["none", "ema", "swa"] = "none"
    """ema: a moving average over steps; swa: the plain mean of the weights from some epoch on."""
    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Memory of the moving average (ema; null is 0.999). The first steps count more, so that it forgets the start."""
    start: NotNegative | None = None
    """Where the mean begins (swa; null is 0.5): below 1 a share of all steps, or of the time budget if that is reached
    first, otherwise a number of epochs done."""
    every: Count | None = None
    """Steps from one averaged state to the next (swa); null is once per epoch."""
    window: Count | None = None
    """States after which the mean begins to forget (swa): a new one then counts 1/window. null forgets nothing."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Another kind begins with its own settings."""
        if given.get("kind", self.kind) != self.kind:
            return dict(given)
        return super().completed(given)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, kind in (("decay", "ema"), ("start", "swa"), ("every", "swa"), ("window", "swa")):
            if getattr(self, field) is not None and self.kind != kind:
                raise ValueError(f"{field} is a setting of {kind}, the kind is {self.kind}")
        if self.start is not None and self.start >= 1 and self.start != int(self.start):
            raise ValueError(f"start is a share below 1 or a whole number of epochs, got {self.start}")
        return self


class EarlyStoppingConfig(Config):
    """End when validation has stopped getting better."""

    patience: Count = 3
    """Validations without a new best before the end."""


class CheckpointConfig(Config):
    """When unfinished work is written. The first of the two that is due counts; with neither, only the end is kept."""

    seconds: Positive | None = 600.0
    """Seconds since the last one."""
    steps: Count | None = None
    """Steps since the last one."""


class TrainingConfig(Config):
    """How a neural model is trained."""

    epochs: Count | None = 10
    """Passes over the training documents; null leaves it to `steps`."""
    steps: Count | None = None
    """End after so many steps if the epochs have not ended before."""
    batch_size: Count = 32
    """Documents in a batch, at most."""
    tokens_per_batch: Count | None = None
    """Tokens in a batch, padding counted, at most: batches of short texts then have up to `batch_size` documents."""
    accumulate: Count = 1
    """Batches whose gradients are averaged into one step."""
    clip: Positive | Literal["adaptive"] | None = 1.0
    """Maximum gradient norm over all parameters; larger ones are scaled down. `adaptive` allows five times the largest
    of the last five, null leaves all as they are."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """How weights follow gradients."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How the learning rate changes."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Arithmetic of the forward pass; auto is bf16 on GPUs that have it and float32 elsewhere."""
    validate_every: Count | Literal["epoch"] | None = "epoch"
    """Steps between two validations, or every epoch, or null: never."""
    metric: str = "P@1"
    """The number that tells which weights are best: one of the validation's, or `loss`, the training loss."""
    early_stopping: EarlyStoppingConfig | None = None
    """End when validation has stopped getting better; null trains to the end."""
    restore_best: bool = True
    """Keep the weights of the best validation rather than the last ones."""
    averaging: AveragingConfig = AveragingConfig()
    """Averages of the weights along the way."""
    time_budget: Annotated[Positive | None, Decides.END] = None
    """Seconds after which training ends with what it has, those before an interruption counted."""
    checkpoint_every: Annotated[CheckpointConfig, Decides.NOTHING] = CheckpointConfig()
    """When unfinished work is written, so that a killed run can resume."""
    log_every: Count = 50
    """Steps between two lines of the training loss in metrics.jsonl."""
    load_ahead: Annotated[int, Field(ge=0), Decides.NOTHING] = 0
    """Batches made ready on other threads while the model computes."""
    tensorboard: Annotated[str | None, Decides.NOTHING] = None
    """Folder for TensorBoard's event files; null writes none."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything random: order of documents, dropout."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.epochs is None and self.steps is None:
            raise ValueError("give epochs, steps or both; training needs an end")
        if self.early_stopping is not None and self.validate_every is None:
            raise ValueError("early_stopping needs validation: set validate_every")
        return self

    def part_of_the_result(self) -> dict[str, Any]:
        """The settings that decide what is learned, as plain values."""
        return deciding_fields(self, PART)


def without_held_out(training: TrainingConfig, default: TrainingConfig) -> TrainingConfig:
    """The settings when no documents are held out: nothing is validated, and the last weights are kept.

    Early stopping is an error unless it is the method's own default, or looks at the training loss.
    """
    if training.metric == "loss":
        return training
    if training.early_stopping not in (None, default.early_stopping):
        raise ConfigError(
            "training.early_stopping: there are no held-out documents to stop by; give a valid part, set "
            "valid_fraction, or set training.metric to loss"
        )
    return training.model_copy(update={"validate_every": None, "early_stopping": None})


class MonitorConfig(Config):
    """Watches for collapse while a model trains."""

    enabled: bool = True
    """Look at every validation, or every epoch without one; costs one pass over the probe."""
    probe: Annotated[int, Field(ge=2)] = 128
    """Training documents that are looked at, always the same."""
    attention: bool = True
    """Look at attention too."""
    stop_on: tuple[VerdictName, ...] = ()
    """Verdicts that end the training."""
    patience: Annotated[int, Field(ge=1)] = 2
    """Times in a row a verdict must fall before it ends the training."""


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is the better one, by its name."""
    return any(word in metric.lower() for word in ("loss", "error", "perplexity"))
