"""Settings of neural training: one config for every method that uses the training loop. Does not import torch.

Settings that are null have torch's defaults, read from torch itself.
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
Fraction = Annotated[float, Field(ge=0, lt=1)]
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
    """The optimiser and its settings."""

    name: Literal["adagrad", "adadelta", "adam", "amsgrad", "adamw", "sgd"] = "adamw"
    """The optimiser; amsgrad is Adam with the maximum of all second moments."""
    rate: Positive | None = None
    """Learning rate; null is torch's default for this optimiser."""
    rate_factor: Positive = 1.0
    """Multiplies all learning rates, including the head's; for studies of rates."""
    head_rate: Positive | None = None
    """Learning rate of the output layer; null is `rate` times `head_factor`."""
    head_factor: Positive = 1.0
    """Learning rate of the output layer as a multiple of `rate`."""
    weight_decay: NotNegative | None = None
    """Weight decay; null is torch's default. Decoupled from the gradient in adamw, an L2 term in the others."""
    decay_on: Literal["all", "matrices", "matrices_but_embeddings"] = "matrices"
    """Parameters with weight decay: all, all except biases and norms, or also without embeddings."""
    betas: tuple[Fraction, Fraction] | None = None
    """Decay rates of the first and second moment (adam, amsgrad, adamw)."""
    eps: Positive | None = None
    """Added to the denominator (all except sgd)."""
    momentum: Fraction | None = None
    """Momentum factor (sgd)."""
    nesterov: bool | None = None
    """Nesterov momentum (sgd)."""
    rho: Fraction | None = None
    """Decay rate of the average of squared gradients (adadelta)."""
    rate_decay: NotNegative | None = None
    """Learning rate decay (adagrad)."""
    initial_sum: NotNegative | None = None
    """Initial value of the sum of squares (adagrad)."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Merge with given settings; rates and moments are not carried over to another optimiser."""
        merged = super().completed(given)
        other = given.get("name", self.name) != self.name
        own_fields = ("rate", "head_rate", *ONLY_FOR) if other else ()
        instead = {"head_rate": "head_factor", "head_factor": "head_rate"}
        for field in (*own_fields, *(instead[field] for field in instead if given.get(field) is not None)):
            if field not in given:
                merged.pop(field, None)
        return merged

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, names in ONLY_FOR.items():
            if getattr(self, field) is not None and self.name not in names:
                raise ValueError(f"{field} is not a setting of {self.name}; it belongs to {', '.join(names)}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.head_rate is not None and self.head_factor != 1.0:
            raise ValueError("give head_rate or head_factor, not both")
        return self


class ScheduleConfig(Config):
    """The learning rate schedule."""

    kind: Literal["constant", "linear", "cosine", "poly"] = "linear"
    """After the warm-up: constant, linear decay, half a cosine, or a power of the linear decay."""
    warmup: NotNegative = 0.0
    """Steps of linear warm-up; below 1 a fraction of all steps."""
    final: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Rate after the last step as a fraction of the highest (linear, cosine, poly)."""
    power: Positive = 2.0
    """The power of the linear decay (poly)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.final and self.kind == "constant":
            raise ValueError("final is a setting of decreasing schedules, this is constant")
        if self.power != type(self).model_fields["power"].default and self.kind != "poly":
            raise ValueError(f"power is a setting of poly, this is {self.kind}")
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise ValueError(f"warmup is a fraction below 1 or a whole number of steps, got {self.warmup}")
        return self


class AveragingConfig(Config):
    """Weight averaging; the averages are validated and kept instead of the weights."""

    kind: Literal["none", "ema", "swa"] = "none"
    """ema: exponential moving average over steps; swa: mean of the weights from some epoch on."""
    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of the moving average (ema; null is 0.999); lower in the first steps, so that initial weights fade."""
    start: NotNegative | None = None
    """Start of averaging (swa; null is 0.5): below 1 a fraction of all steps, or of the time budget if that is reached
    first, otherwise a number of epochs."""
    every: Count | None = None
    """Steps between two averaged states (swa); null is once per epoch."""
    window: Count | None = None
    """After this many states a new one has the weight 1/window (swa); null weighs all equally."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Merge with given settings; none are carried over to another kind of averaging."""
        if given.get("kind", self.kind) != self.kind:
            return dict(given)
        return super().completed(given)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, kind in (("decay", "ema"), ("start", "swa"), ("every", "swa"), ("window", "swa")):
            if getattr(self, field) is not None and self.kind != kind:
                raise ValueError(f"{field} is a setting of {kind}, the kind is {self.kind}")
        if self.start is not None and self.start >= 1 and self.start != int(self.start):
            raise ValueError(f"start is a fraction below 1 or a whole number of epochs, got {self.start}")
        return self


class EarlyStoppingConfig(Config):
    """Stop when the metric has stopped improving."""

    patience: Count = 3
    """Validations without improvement before training stops."""


class CheckpointConfig(Config):
    """When checkpoints are written: whichever is due first; with neither, only the end of training is written."""

    seconds: Positive | None = 600.0
    """Seconds since the last checkpoint."""
    steps: Count | None = None
    """Steps since the last checkpoint."""


class TrainingConfig(Config):
    """How a neural model is trained."""

    epochs: Count | None = 10
    """Passes over the training documents; null: `steps` decides."""
    steps: Count | None = None
    """Maximum number of steps."""
    batch_size: Count = 32
    """Maximum number of documents per batch."""
    tokens_per_batch: Count | None = None
    """Maximum number of tokens per batch, padding included; a batch still has at most `batch_size` documents."""
    accumulate: Count = 1
    """Gradient accumulation: batches per step."""
    clip: Positive | Literal["adaptive"] | None = 1.0
    """Maximum gradient norm over all parameters; larger gradients are scaled down. `adaptive` allows five times the
    largest of the last five norms, null does not clip."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """The optimiser and its settings."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate schedule."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Precision of the forward pass; auto is bf16 on GPUs that support it and float32 elsewhere."""
    validate_every: Count | Literal["epoch"] | None = "epoch"
    """Steps between two validations, or every epoch, or null: never."""
    metric: str = "P@1"
    """The metric that decides which weights are best: a validation metric, or `loss`, the training loss."""
    early_stopping: EarlyStoppingConfig | None = None
    """Stop when the metric has stopped improving; null: never."""
    restore_best: bool = True
    """Keep the weights of the best validation rather than the last ones."""
    averaging: AveragingConfig = AveragingConfig()
    """Weight averaging."""
    time_budget: Annotated[Positive | None, Decides.END] = None
    """Wall-clock seconds for all of `fit`, from reading its texts to the last step, including time before an
    interruption. Stages have their parts of it, and the model is usable whenever it ends."""
    checkpoint_every: Annotated[CheckpointConfig, Decides.NOTHING] = CheckpointConfig()
    """When checkpoints are written, from which a killed run resumes."""
    shard_head: Annotated[bool, Decides.NOTHING] = False
    """Under torchrun, divide the output layer over ranks: for weights, gradients and moments that exceed one GPU. For
    heads with one output per label; the result is the same."""
    log_every: Annotated[Count, Decides.NOTHING] = 50
    """Steps between two lines of the training loss in metrics.jsonl."""
    load_ahead: Annotated[int, Field(ge=0), Decides.NOTHING] = 0
    """Batches prepared on other threads while the model computes."""
    tensorboard: Annotated[str | None, Decides.NOTHING] = None
    """Folder for TensorBoard's event files; null writes none."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Random seed: order of documents, dropout."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.epochs is None and self.steps is None:
            raise ValueError("give epochs, steps or both")
        if self.early_stopping is not None and self.validate_every is None:
            raise ValueError("early_stopping needs validation: set validate_every")
        return self

    def part_of_the_result(self) -> dict[str, Any]:
        """The settings that affect the result, as plain values."""
        hashed_before = {"log_every": type(self).model_fields["log_every"].default}  # so older work is still found
        return {**deciding_fields(self, PART), **hashed_before}


def without_validation(training: TrainingConfig, default: TrainingConfig) -> TrainingConfig:
    """The settings without held-out documents: no validation, and the last weights are kept.

    Early stopping is an error unless it is the method's default or uses the training loss.
    """
    if training.metric == "loss":
        return training
    if training.early_stopping not in (None, default.early_stopping):
        raise ConfigError(
            "training.early_stopping: there are no held-out documents; give a valid part, set "
            "valid_fraction, or set training.metric to loss"
        )
    return training.model_copy(update={"validate_every": None, "early_stopping": None})


class MonitorConfig(Config):
    """Detects collapse during training."""

    enabled: bool = True
    """Diagnose at every validation, or every epoch without validation; costs one pass over the probe."""
    probe: Annotated[int, Field(ge=2)] = 128
    """Number of training documents in the probe, which stays the same."""
    attention: bool = True
    """Include the entropy of attention."""
    stop_on: tuple[VerdictName, ...] = ()
    """Verdicts that stop the training."""
    patience: Annotated[int, Field(ge=1)] = 2
    """Consecutive equal verdicts before training stops."""


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is better, by its name."""
    return any(word in metric.lower() for word in ("loss", "error", "perplexity"))
