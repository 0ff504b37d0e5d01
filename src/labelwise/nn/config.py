"""Settings of neural training: one config for every method that uses the training loop. Does not import torch.

Settings that are null have torch's defaults, read from torch itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from labelwise.config import Config, Decides
from labelwise.data.images import MAX_PIXELS, PIXEL_LIMIT
from labelwise.errors import ConfigError, DataError, check_installed
from labelwise.io.contents import content_of_model, content_of_path

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
MAX_WIDTH = 1 << 16
"""Maximum width of a layer; bounds the settings of saved models before they are compared with the weights."""
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


def _whole_from_1_on(value: float) -> float:
    if value >= 1 and value != int(value):
        raise ValueError("a fraction below 1 or a whole number is needed")
    return value


FractionOrCount = Annotated[NotNegative, AfterValidator(_whole_from_1_on)]


class OnlyFor:
    """Marks a field that only some kinds have, by another field and its values: setting it for others is an error."""

    def __init__(self, field: str, *kinds: str) -> None:
        self.field, self.kinds = field, kinds


class KindConfig(Config):
    """A config some of whose fields are marked with `OnlyFor`."""

    @classmethod
    def owners(cls) -> dict[str, OnlyFor]:
        """The marks by the names of their fields."""
        marks = ((name, mark) for name, field in cls.model_fields.items() for mark in field.metadata)
        return {name: mark for name, mark in marks if isinstance(mark, OnlyFor)}

    @model_validator(mode="after")
    def _no_field_of_other_kinds(self) -> Self:
        for name, mark in self.owners().items():
            kind = getattr(self, mark.field)
            if kind not in mark.kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is a setting of {mark.field}: {', '.join(mark.kinds)}; this is {kind}")
        return self


VerdictName = Literal["healthy", "on the plateau", "collapsed", "diverged", "under-trained"]

ADAM_FAMILY = ("adam", "amsgrad", "adamw")


class OptimiserConfig(KindConfig):
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
    betas: Annotated[tuple[Fraction, Fraction] | None, OnlyFor("name", *ADAM_FAMILY)] = None
    """Decay rates of the first and second moment (adam, amsgrad, adamw)."""
    eps: Annotated[Positive | None, OnlyFor("name", *ADAM_FAMILY, "adagrad", "adadelta")] = None
    """Added to the denominator (all except sgd)."""
    momentum: Annotated[Fraction | None, OnlyFor("name", "sgd")] = None
    """Momentum factor (sgd)."""
    nesterov: Annotated[bool | None, OnlyFor("name", "sgd")] = None
    """Nesterov momentum (sgd)."""
    rho: Annotated[Fraction | None, OnlyFor("name", "adadelta")] = None
    """Decay rate of the average of squared gradients (adadelta)."""
    rate_decay: Annotated[NotNegative | None, OnlyFor("name", "adagrad")] = None
    """Learning rate decay (adagrad)."""
    initial_sum: Annotated[NotNegative | None, OnlyFor("name", "adagrad")] = None
    """Initial value of the sum of squares (adagrad)."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Merge with given settings; rates and moments are not carried over to another optimiser."""
        merged = super().completed(given)
        other = given.get("name", self.name) != self.name
        own_fields = ("rate", "head_rate", *self.owners()) if other else ()
        instead = {"head_rate": "head_factor", "head_factor": "head_rate"}
        for field in (*own_fields, *(instead[field] for field in instead if given.get(field) is not None)):
            if field not in given:
                merged.pop(field, None)
        return merged

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.head_rate is not None and self.head_factor != 1.0:
            raise ValueError("give head_rate or head_factor, not both")
        return self


class ScheduleConfig(KindConfig):
    """The learning rate schedule."""

    kind: Literal["constant", "linear", "cosine", "poly"] = "linear"
    """After the warm-up: constant, linear decay, half a cosine, or a power of the linear decay."""
    warmup: FractionOrCount = 0.0
    """Steps of linear warm-up; below 1 a fraction of all steps."""
    final: Annotated[Fraction, OnlyFor("kind", "linear", "cosine", "poly")] = 0.0
    """Rate after the last step as a fraction of the highest (linear, cosine, poly)."""
    power: Annotated[Positive, OnlyFor("kind", "poly")] = 2.0
    """The power of the linear decay (poly)."""


class AveragingConfig(KindConfig):
    """Weight averaging; the averages are validated and kept instead of the weights."""

    kind: Literal["none", "ema", "swa"] = "none"
    """ema: exponential moving average over steps; swa: mean of the weights from some epoch on."""
    decay: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, OnlyFor("kind", "ema")] = None
    """Decay of the moving average (ema; null is 0.999); lower in the first steps, so that initial weights fade."""
    start: Annotated[FractionOrCount | None, OnlyFor("kind", "swa")] = None
    """Start of averaging (swa; null is 0.5): below 1 a fraction of all steps, or of the time budget if that is reached
    first, otherwise a number of epochs."""
    every: Annotated[Count | None, OnlyFor("kind", "swa")] = None
    """Steps between two averaged states (swa); null is once per epoch."""
    window: Annotated[Count | None, OnlyFor("kind", "swa")] = None
    """After this many states a new one has the weight 1/window (swa); null weighs all equally."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Merge with given settings; none are carried over to another kind of averaging."""
        if given.get("kind", self.kind) != self.kind:
            return dict(given)
        return super().completed(given)


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


class WordTraining(TrainingConfig):
    """Training of recurrent networks: Adam at a constant rate, adaptive clipping, the mean of weights (SWA)."""

    batch_size: Count = 40
    """Maximum number of documents per batch."""
    clip: Positive | Literal["adaptive"] | None = "adaptive"
    """Maximum gradient norm over all parameters; `adaptive` allows five times the largest of the last five."""
    optimiser: OptimiserConfig = OptimiserConfig(name="adam")
    """The optimiser and its settings."""
    schedule: ScheduleConfig = ScheduleConfig(kind="constant")
    """The learning rate schedule."""
    averaging: AveragingConfig = AveragingConfig(kind="swa", start=0.3, window=5)
    """Weight averaging; `every: null` averages ten states per epoch, or one every 100 steps."""
    validate_every: Count | Literal["epoch"] | None = 100
    """Steps between two validations, or every epoch, or null: never."""
    metric: str = "nDCG@5"
    """The metric that decides which weights are best."""
    early_stopping: EarlyStoppingConfig | None = EarlyStoppingConfig(patience=20)
    """Stop when the metric has stopped improving; null: never."""


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
    patience: Count = 2
    """Consecutive equal verdicts before training stops."""


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of a metric is better, by its name."""
    return any(word in metric.lower() for word in ("loss", "error", "perplexity"))


# --- text encoders ---
# Which pretrained encoder to use and how; free of torch, so that configs can be checked without it.

TINY = "tiny"
"""The name of a small BERT with random weights, for tests and for trials without pretrained weights."""


class EncoderConfig(KindConfig):
    """A text encoder: weights, maximum length of texts, and pooling."""

    model: str = "distilbert/distilbert-base-uncased"
    """Folder with weights, folder of a saved model or run whose encoder is used, or a name on the Hugging Face hub;
    `tiny` is a small BERT with random weights."""
    architecture: dict[str, Any] | None = None
    """Random weights instead: the settings of any transformers config, including `model_type`."""
    vocabulary: Annotated[int, Field(ge=16)] = 8000
    """Vocabulary size of the tokenizer that is trained on the training texts when weights are random."""
    max_length: Annotated[int, Field(ge=4)] = 128
    """Tokens the encoder reads at once, special ones included."""
    long_texts: Literal["head", "head_tail", "windows"] = "head"
    """What is read of a longer text: its start, its start and its end, or several windows (their vectors are
    averaged)."""
    windows: Annotated[Count, OnlyFor("long_texts", "windows")] = 4
    """Maximum number of windows per text, with `long_texts: windows`."""
    pooling: Literal["first", "mean", "last", "summary", "pooler"] = "first"
    """The vector of a text: that of its first token (BERT's [CLS]), the mean, the last token (XLNet, decoders), the one
    of these two in which the model's family sums up a text, or what the model's own pooling layer makes of the first
    one (XR-Transformer)."""
    layers: Count = 1
    """Number of last layers whose pooled vectors are concatenated (LightXML uses 5 of 12)."""
    frozen: bool = False
    """Train only the head; each text is then encoded only once."""
    precision: Literal["float32", "int8"] = "float32"
    """Linear layers when texts are encoded: int8 takes about two thirds of the CPU time on x86, for nearly the same
    vectors. Weights are trained and saved in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third slower, much less memory."""

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        if self.architecture is not None and not isinstance(self.architecture.get("model_type"), str):
            raise ValueError("architecture needs a model_type, for example {model_type: distilbert, n_layers: 2}")
        if self.pooling == "pooler" and self.layers > 1:
            raise ValueError("layers: with pooling: pooler there is one vector, that of the model's pooling layer")
        return self

    def check_files(self) -> None:
        """Raise an error if there is no such encoder, or if it was trained with other settings."""
        from labelwise.nn.text.files import check_encoder

        check_encoder(self)

    def contents(self) -> list[Any]:
        return [] if self.starts_random else [content_of_model(self.model)]

    @property
    def starts_random(self) -> bool:
        """Whether weights are initialised at random instead of loaded."""
        return self.architecture is not None or self.model == TINY


# --- words: vocabulary, vectors, recurrent layer ---
class WordsConfig(Config):
    """The vocabulary and its word vectors."""

    max_length: Count = 500
    """Words read per text, from its start."""
    min_frequency: Count = 1
    """Leave out words that occur in fewer training texts."""
    max_size: Count = 500_000
    """Maximum vocabulary size: the words that occur in most texts, ties in alphabetical order."""
    lowercase: bool = True
    """Convert texts to lower case."""
    numbers: bool = False
    """Include words of digits only; otherwise they are ignored."""
    vectors: str | None = None
    """File with pretrained vectors: text with a word and its numbers per line (GloVe, word2vec, fastText; also
    gzip), or a .npy array with `vectors_words`. null: see `initial`."""
    vectors_words: str | None = None
    """With a .npy of vectors: a file with the word of each row, one per line."""
    initial: Literal["random", "labels"] = "random"
    """Initial vectors without a file: drawn at random, or computed from the labels that each word occurs with (a
    truncated SVD), with which networks learn from few documents."""
    width: Count | None = None
    """Dimension of vectors without a file; null is 300. A file of vectors has its own."""
    normalise: bool = False
    """Scale the file's vectors to norm 1."""
    frozen: bool | None = None
    """Do not train the vectors; null does so when they come from a file."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.vectors is None:
            for field in ("vectors_words", "normalise"):
                if getattr(self, field):
                    raise ValueError(f"{field} needs a file of vectors: set vectors")
            if self.frozen and self.initial == "random":
                raise ValueError("random vectors cannot be frozen; give a file of vectors, or set initial to labels")
        elif self.width is not None:
            raise ValueError("width is for vectors without a file; the file of vectors has its own")
        elif self.initial != "random":
            raise ValueError("initial is for vectors without a file; leave out initial or vectors")
        elif (self.vectors_words is not None) != self.vectors.endswith(".npy"):
            raise ValueError("a .npy of vectors and vectors_words go together; a text file has its words inside")
        return self

    def check_files(self) -> None:
        """Raise an error if the file of word vectors is missing."""
        if self.vectors is not None and not Path(self.vectors).expanduser().exists():
            name = Path(self.vectors).name
            glove = "; GloVe's are at nlp.stanford.edu/projects/glove" if name.startswith("glove") else ""
            raise DataError(f"{self.vectors}: there is no such file of vectors{glove}")

    def contents(self) -> list[Any]:
        return [content_of_path(name) for name in (self.vectors, self.vectors_words) if name is not None]

    @property
    def is_frozen(self) -> bool:
        """Whether the vectors are not trained."""
        return self.vectors is not None if self.frozen is None else self.frozen


class RecurrentConfig(Config):
    """A bidirectional recurrent layer over the words."""

    cell: Literal["lstm", "gru"] = "lstm"
    """The type of cell."""
    width: Annotated[int, Field(ge=2, le=MAX_WIDTH, multiple_of=2)] = 512
    """Dimension of the hidden state, both directions together."""
    word_dropout: Fraction = 0.2
    """Dropout rate of word vectors."""
    dropout: Fraction = 0.5
    """Dropout rate of hidden states."""
    learned_start: bool = False
    """Learn the initial states of both directions; otherwise they are zero."""


# --- networks for images ---

RESNETS: dict[str, tuple[tuple[int, ...], bool]] = {
    "tiny": ((1, 1), False),
    "resnet10": ((1, 1, 1, 1), False),
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
}
"""Blocks per stage, and whether they are bottlenecks."""


class BackboneConfig(KindConfig):
    """The network from images to vectors."""

    name: Literal["tiny", "resnet10", "resnet18", "resnet34", "resnet50", "transformers"] = "resnet18"
    """A residual network (He et al. 2016), or a model of the package transformers. `tiny` has two blocks, for tests and
    first attempts."""
    channels: Annotated[int, Field(ge=4, le=512), OnlyFor("name", *RESNETS)] = 64
    """Channels of the first stage, which double from stage to stage; the paper's networks have 64. Time and memory grow
    with its square."""
    stem: Annotated[Literal["auto", "small", "large"], OnlyFor("name", *RESNETS)] = "auto"
    """First layers: a 3x3 convolution for small images, or a 7x7 convolution with stride 2 and a pooling layer. `auto`:
    large from 96 pixels on."""
    pool: Annotated[Literal["mean", "flatten"], OnlyFor("name", *RESNETS)] = "mean"
    """The vector of an image: the mean over all positions of the last stage, or its values at all positions, to keep
    where something is."""
    dropout: Fraction = 0.0
    """Dropout rate of the vector."""
    model: Annotated[str | None, OnlyFor("name", "transformers")] = None
    """transformers: a local folder, or the name of a model on the hub, with its weights."""
    architecture: Annotated[dict[str, Any] | None, OnlyFor("name", "transformers")] = None
    """transformers: settings of a network with random weights instead, such as {model_type: vit, hidden_size: 192}."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == "transformers" and (self.model is None) == (self.architecture is None):
            raise ValueError("name: transformers needs model (weights) or architecture (random weights), one of both")
        if self.architecture is not None and not isinstance(self.architecture.get("model_type"), str):
            raise ValueError("architecture needs a model_type, for example {model_type: vit, hidden_size: 192}")
        return self

    def has_large_stem(self, size: int) -> bool:
        """Whether images of this size are shrunk by the first layers."""
        return size >= 96 if self.stem == "auto" else self.stem == "large"

    def check_files(self) -> None:
        """Raise an error if transformers or the folder of a model is missing."""
        if self.name == "transformers":
            from labelwise.nn.text.files import encoder_source

            check_installed("backbone.name: transformers", "vision", "transformers")
            if self.model is not None:
                encoder_source(self.model)

    def contents(self) -> list[Any]:
        return [] if self.model is None else [content_of_model(self.model)]


# --- networks for faces ---

BLOCKS = {
    "r10": (1, 1, 1, 1),
    "r18": (2, 2, 2, 2),
    "r34": (3, 4, 6, 3),
    "r50": (3, 4, 14, 3),
    "r100": (3, 13, 30, 3),
}
"""Blocks per stage of the IResNets."""


class FaceNetworkConfig(Config):
    """The network from an aligned face to its vector."""

    network: Literal["r10", "r18", "r34", "r50", "r100", "mobile"] = "r50"
    """IResNet-18, -34, -50 or -100 (Deng et al. 2019), one with a block per stage for small images, or MobileFaceNet
    (Chen et al. 2018)."""
    width_factor: Annotated[float, Field(gt=0, le=4)] = 1.0
    """Channels of every layer as a multiple of the published ones, rounded to multiples of 8."""
    dimension: Annotated[int, Field(ge=2, le=4096)] = 512
    """Dimension of the vectors."""
    dropout: Fraction = 0.0
    """Dropout rate before the last layer of an IResNet."""

    def channels(self, published: int) -> int:
        """Channels of a layer that has `published` ones at factor 1."""
        return max(8, round(published * self.width_factor / 8) * 8)


# --- images: how they become arrays of one size, and how they are augmented in training ---


class AugmentationConfig(KindConfig):
    """Random changes of training images; each depends on seed, epoch and document alone."""

    crop: Literal["none", "padded", "resized"] = "none"
    """Random crop: none; of the image with a border (`padded`, for CIFAR); or of a random part that is scaled to the
    full size (`resized`, for ImageNet)."""
    padding: Annotated[int, Field(ge=1, le=256), OnlyFor("crop", "padded")] = 4
    """Pixels of the border (padded)."""
    pad_with: Annotated[Literal["black", "white", "edge"], OnlyFor("crop", "padded")] = "black"
    """Content of the border (padded): `edge` repeats the outermost pixels."""
    scale: Annotated[tuple[float, float], OnlyFor("crop", "resized")] = (0.08, 1.0)
    """Smallest and largest area of the part, as fractions of the image (resized)."""
    ratio: Annotated[tuple[float, float], OnlyFor("crop", "resized")] = (0.75, 4 / 3)
    """Smallest and largest width of the part as a multiple of its height (resized)."""
    flip: bool = False
    """Mirror half of the images, left to right."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError("scale needs two fractions above 0 and at most 1, the smaller one first")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError("ratio needs two numbers above 0, the smaller one first")
        return self


class ImageConfig(Config):
    """How images are read."""

    size: Annotated[int, Field(ge=4, le=2048)] = 32
    """Width and height of the images that the encoder reads, in pixels."""
    channels: Literal[1, 3] = 3
    """1 reads grey images, 3 colour; the others are converted."""
    fit: Literal["crop", "pad", "stretch"] = "crop"
    """How other sizes are made square: the middle is kept, the whole image with a black border, or the whole image
    distorted."""
    resize: Annotated[int, Field(ge=4, le=4096)] | None = None
    """With `fit: crop`, pixels of the shorter side before the middle is cut out, such as 256 for a size of 224; null
    is `size`."""
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    """How pixels are computed when an image is scaled."""
    mean: tuple[float, ...] | None = None
    """Mean per channel that is subtracted, for pixels from 0 to 1; null measures it on training images."""
    std: tuple[float, ...] | None = None
    """Standard deviation per channel that pixels are divided by; null measures it on training images."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Random changes of training images."""
    max_pixels: Annotated[int, Field(ge=16, le=PIXEL_LIMIT), Decides.NOTHING] = MAX_PIXELS
    """Larger images are refused before they are decoded."""
    bad_images: Literal["error", "skip"] = "error"
    """Training images that cannot be decoded: stop with the name of the file, or leave them out and report how many.
    `skip` decodes every file once before training. In predictions they are always an error."""
    memory: Annotated[int, Field(ge=0), Decides.NOTHING] = 1 << 30
    """Bytes of decoded training images that are kept in memory, so that files are decoded once; 0 keeps none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.channels:
                raise ValueError(f"{name} needs {self.channels} numbers, one per channel, got {len(values)}")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ValueError("std must be above 0")
        if (self.mean is None) != (self.std is None):
            raise ValueError("give mean and std, or neither of them")
        if self.resize is not None and (self.fit != "crop" or self.resize < self.size):
            raise ValueError("resize is for fit: crop and at least size")
        return self

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Merge with given settings; mean and std are not carried over to another number of channels."""
        merged = super().completed(given)
        if given.get("channels", self.channels) != self.channels and not given.keys() & {"mean", "std"}:
            merged.pop("mean", None)
            merged.pop("std", None)
        return merged

    @property
    def short_side(self) -> int:
        """The shorter side before the middle is cut out."""
        return self.resize or self.size

    @property
    def shrink_to(self) -> int | None:
        """The shorter side to which files may be shrunk while they are decoded; random parts need all pixels."""
        return None if self.augmentation.crop == "resized" else self.short_side


# --- heads and losses ---


class LossConfig(KindConfig):
    """The loss of one score per label."""

    name: Literal["bce", "hinge", "squared_hinge", "focal", "asymmetric", "softmax"] = "bce"
    """Binary cross-entropy, hinge, squared hinge, focal loss (Lin et al. 2017), asymmetric loss (Ridnik et al. 2021),
    or cross-entropy of the softmax over all labels, for documents with one label each; several divide the target
    equally."""
    reduction: Literal["sum", "mean"] = "sum"
    """Sum or mean over labels; always the mean over documents. With the mean, gradients shrink with the number of
    labels, until an optimiser's eps or L2 term dominates them."""
    focus: Annotated[NotNegative, OnlyFor("name", "focal")] = 2.0
    """Focal loss: the focusing parameter (gamma), which reduces the loss of labels that are already right."""
    focus_positive: Annotated[NotNegative, OnlyFor("name", "asymmetric")] = 0.0
    """Asymmetric loss: the focusing parameter for labels a document has."""
    focus_negative: Annotated[NotNegative, OnlyFor("name", "asymmetric")] = 4.0
    """Asymmetric loss: the focusing parameter for labels a document does not have."""
    shift: Annotated[Fraction, OnlyFor("name", "asymmetric")] = 0.05
    """Asymmetric loss: probability margin; wrong labels below it have no loss."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == "softmax" and self.reduction == "mean":
            raise ValueError("reduction: the softmax loss has no term per label to take the mean of; leave it at sum")
        return self


class HeadConfig(Config):
    """One linear output per label."""

    loss: LossConfig = LossConfig()
    """The loss to minimise."""
    bias: Literal["prior", "zero"] = "prior"
    """Initial biases: the constant scores with the lowest loss given the label frequencies (for cross-entropy the
    log-odds of each label), or 0."""
    dropout: Fraction = 0.1
    """Dropout rate of the document's vector."""
    block: Count = 8192
    """Labels per block: memory beside the weights is bounded by batch x block."""


# --- heads of multi-head encoding ---

Negatives = Literal["batch", "document", "V0", "V2", "B1"]
DIGITS = ("product", "cascade", "sampling")
"""Heads whose labels have digits."""


class DigitHeadConfig(KindConfig):
    """A head: one output per label, or labels as digits in mixed radix (multi-head encoding)."""

    kind: Literal["one_hot", "product", "cascade", "sampling"] = "one_hot"
    """one_hot: an output per label. product: an output per value of each digit, digits are independent. cascade: the
    first digit is a group of labels; labels of the best groups are scored by embeddings. sampling: an output per label,
    trained against the labels of some groups only."""
    loss: Literal["softmax", "joint_softmax", "bce"] = "softmax"
    """softmax: cross-entropy, for documents with one label; several divide the target equally. bce: binary
    cross-entropy, for documents with several labels. joint_softmax: one softmax over the outputs of all digits together
    (product only)."""
    reduction: Annotated[Literal["sum", "mean"], OnlyFor("kind", "one_hot", "product", "cascade")] = "sum"
    """With bce: sum over outputs, or their mean."""
    radices: Annotated[Annotated[tuple[Count, ...], Field(max_length=8)] | None, OnlyFor("kind", *DIGITS)] = None
    """Values of each digit, the most significant first; their product is at least the number of labels. null: near
    equal."""
    heads: Annotated[int, Field(ge=2, le=8), OnlyFor("kind", *DIGITS)] = 2
    """Number of digits when `radices` is null."""
    order: Annotated[Literal["index", "frequency", "clustered", "random"], OnlyFor("kind", *DIGITS)] = "index"
    """Which labels share digits: neighbours by index; labels dealt to groups by frequency, so that groups have equally
    many documents; neighbours in a balanced tree of the labels' features; or at random."""
    bottleneck: Annotated[Width | None, OnlyFor("kind", "cascade")] = None
    """Width of the label embeddings (cascade); null is 256, or the width of the vectors if that is smaller."""
    groups: Annotated[Count | None, OnlyFor("kind", "cascade")] = None
    """Nodes per document and level whose children are scored in training (cascade): the true ones, all of them, then
    those that the model ranks highest. null is 1 with softmax (only the true node) and 10 with bce."""
    beam: Annotated[Count, OnlyFor("kind", "cascade")] = 10
    """Nodes per level whose children are scored in prediction (cascade)."""
    negatives: Annotated[Negatives, OnlyFor("kind", "sampling")] = "batch"
    """Groups that a step is trained against (sampling). batch: those of the batch's labels and random ones, the same
    for all its documents. document: those of a document's labels and random ones, drawn for each document. V0: those of
    the document's labels only. V2: these and one random group. B1: those of the batch's labels only."""
    sampled_groups: Annotated[Count | None, OnlyFor("kind", "sampling")] = None
    """Groups per batch, or per document, with those of the labels (sampling); null is 10, or `sampled_fraction`."""
    sampled_fraction: Annotated[PositiveFraction | None, OnlyFor("kind", "sampling")] = None
    """Instead of `sampled_groups`: the fraction of all groups."""
    log_q: Annotated[bool, OnlyFor("kind", "sampling")] = False
    """Correct scores of random groups by the logarithm of the probability of being drawn (sampling): the softmax is
    then an unbiased estimate of that over all labels."""
    bias: Literal["prior", "zero"] = "prior"
    """Initial biases: from label frequencies, or 0."""
    dropout: Fraction = 0.0
    """Dropout rate of the document's vector."""
    block: Count = 8192
    """Labels per block: memory beside the weights is bounded by batch x block."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.loss == "joint_softmax" and self.kind != "product":
            raise ValueError(f"loss: joint_softmax is a loss of product heads, the kind is {self.kind}")
        if self.loss == "bce" and self.kind == "sampling":
            raise ValueError("loss: sampling heads are trained by softmax; several labels share the target equally")
        if self.reduction == "mean" and self.loss != "bce":
            raise ValueError("reduction: only bce has a term per output to take the mean of")
        if self.radices is not None and len(self.radices) < 2:
            raise ValueError("radices: give at least two digits; one is kind: one_hot")
        if self.radices is not None and self.heads != type(self).model_fields["heads"].default:
            raise ValueError("give radices or heads, not both")
        if self.sampled_groups is not None and self.sampled_fraction is not None:
            raise ValueError("give sampled_groups or sampled_fraction, not both")
        if self.negatives in ("V0", "B1") and self.log_q:
            raise ValueError(f"log_q: negatives: {self.negatives} draws no random groups to correct")
        if self.negatives in ("V0", "V2", "B1") and (self.sampled_groups or self.sampled_fraction):
            raise ValueError(f"negatives: {self.negatives} fixes the number of groups; leave sampled_groups out")
        return self

    @property
    def has_code(self) -> bool:
        """Whether labels have digits."""
        return self.kind != "one_hot"

    def flat(self) -> HeadConfig:
        """The settings of a flat head with the same loss, of all labels or of the groups."""
        name = "bce" if self.loss == "bce" else "softmax"
        loss = LossConfig(name=name, reduction=self.reduction)
        return HeadConfig(loss=loss, bias=self.bias, dropout=self.dropout, block=self.block)


# --- heads with margins ---

USUAL_MARGINS = {"arcface": 0.5, "cosface": 0.4}


class MarginConfig(KindConfig):
    """Cosines of vectors with one vector per class, and a margin that training has to keep."""

    kind: Literal["arcface", "cosface"] = "arcface"
    """arcface: the margin is an angle (Deng et al. 2019). cosface: it is subtracted from the cosine (Wang et al.
    2018)."""
    margin: Annotated[float, Field(ge=0, lt=1.5)] | None = None
    """The margin; null is 0.5 for arcface and 0.4 for cosface. 0 is a softmax of cosines without margin."""
    scale: Annotated[float, Field(gt=0, le=1000)] = 64.0
    """Cosines are multiplied by it before the softmax. Smaller ones are easier to train on few classes."""
    sampling: Literal["all", "classes", "groups"] = "all"
    """Classes that a step is trained against: all; those of the batch and random ones (Partial FC, An et al. 2022); or
    groups of classes (MHS, Liang et al. 2025), those of the batch and random ones."""
    sample_rate: Annotated[PositiveFraction, OnlyFor("sampling", "classes")] = 0.1
    """Fraction of all classes of a step (classes); at least those of the batch."""
    radices: Annotated[tuple[Count, Count] | None, OnlyFor("sampling", "groups")] = None
    """Number of groups and classes per group; their product is at least the number of classes (groups). null: near
    equal."""
    order: Annotated[Literal["index", "frequency", "random"], OnlyFor("sampling", "groups")] = "random"
    """Which classes form a group (groups): neighbours by index, classes dealt by frequency, or random ones."""
    negatives: Annotated[Negatives, OnlyFor("sampling", "groups")] = "batch"
    """batch: the groups of the batch's classes and random ones, the same for all images. document: those of an image's
    class and random ones, drawn for each image. V0, V2, B1: the original's variants, with the image's group alone, one
    random group more, or the batch's groups alone (groups)."""
    sampled_groups: Annotated[Count | None, OnlyFor("sampling", "groups")] = None
    """Groups per batch, or per image, with those of the classes (groups); null is 10, or `sampled_fraction`."""
    sampled_fraction: Annotated[PositiveFraction | None, OnlyFor("sampling", "groups")] = None
    """Instead of `sampled_groups`: the fraction of all groups."""
    block: Count = 8192
    """Classes per block: memory beside the weights is bounded by batch x block."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampling == "groups":
            self.group_settings()
        return self

    @property
    def size(self) -> float:
        """The margin."""
        return USUAL_MARGINS[self.kind] if self.margin is None else self.margin

    def group_settings(self) -> DigitHeadConfig:
        """The settings of groups, as a head of multi-head encoding has them."""
        names = {"radices", "order", "negatives", "sampled_groups", "sampled_fraction", "block"}
        return DigitHeadConfig(kind="sampling", **self.model_dump(include=names))


# --- networks ---
# What methods with one encoder and one head have in common.


class NetworkConfig(Config):
    """An encoder with a head; a method has its own `head` and its own default of `training`."""

    if TYPE_CHECKING:
        head: Any

    def head_for(self, n_labels: int) -> Any:
        """The settings of the head for a number of labels."""
        return self.head


class TextNetworkConfig(NetworkConfig):
    """Parameters of a text encoder with a head."""

    encoder: EncoderConfig = EncoderConfig()
    """The pretrained encoder and its tokenization."""
    head: Any = None
    """The head."""
    training: TrainingConfig = TrainingConfig()
    """Settings of training."""
    head_epochs: Annotated[int, Field(ge=0)] | None = None
    """Epochs in which only the head is trained, on the vectors of the pretrained encoder, before both are trained
    together: the texts are encoded once more, and gradients of an untrained head do not disturb the encoder.
    null is 10, and 0 if the encoder is frozen or starts from random weights."""
    valid_fraction: Fraction = 0.05
    """Fraction of the training documents held out to choose the best weights when the data has no valid part; at
    most 2,000 documents."""
    monitor: MonitorConfig = MonitorConfig()
    """Detects collapse during training."""

    @classmethod
    def filled_in(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters, with settings of the encoder of a saved model that they name."""
        from labelwise.nn.text.files import with_saved_settings

        return with_saved_settings(given)

    @model_validator(mode="after")
    def _frozen_encoders_have_no_second_stage(self) -> Self:
        if self.encoder.frozen and self.head_epochs:
            raise ValueError("head_epochs: with a frozen encoder only the head is trained anyway, for training.epochs")
        return self

    def epochs_of_the_head(self) -> int:
        """Epochs in which only the head is trained, before both are."""
        usual = 0 if self.encoder.starts_random or self.encoder.frozen else 10
        return usual if self.head_epochs is None else self.head_epochs


class ImageNetworkConfig(NetworkConfig):
    """Parameters of an encoder of images with a head."""

    image: ImageConfig = ImageConfig()
    """How images are read and augmented."""
    training: TrainingConfig = TrainingConfig()
    """Settings of training."""
    valid_fraction: Fraction = 0.05
    """Fraction of the training images held out to choose the best weights when the data has no valid part; at most
    5,000."""
    monitor: MonitorConfig = MonitorConfig(attention=False)
    """Detects collapse during training."""

    @model_validator(mode="after")
    def _check_images(self) -> Self:
        if self.monitor.enabled and self.monitor.attention:
            raise ValueError("monitor.attention: networks of images have no attention to read; leave it false")
        if self.training.tokens_per_batch is not None:
            raise ValueError("training.tokens_per_batch has no effect: images have no tokens; set batch_size")
        return self


# --- fine-tuning ---
# Of an encoder through the levels of a label tree.

PER_LEVEL = ("level_steps", "level_rates", "level_warmup")
LEVEL_TRAINING = TrainingConfig(
    epochs=1,
    optimiser=OptimiserConfig(name="adamw", rate=5e-5, weight_decay=0.0),
    schedule=ScheduleConfig(kind="linear", warmup=0.1),
    validate_every=None,
    metric="P@5",
)


class FineTuningConfig(Config):
    """Fine-tuning through the levels of a preliminary tree, from coarse to fine."""

    leaf_size: Count = 16
    """Maximum number of labels per leaf cluster of the preliminary tree."""
    branching: Annotated[int, Field(ge=2)] = 16
    """Children per inner node of the preliminary tree."""
    top_nodes: Annotated[int, Field(ge=2)] = 128
    """Nodes are joined, `branching` under one, level by level, until a level has at most this many: it is the top
    level, the first that is fine-tuned. A larger number means fewer levels."""
    keep_tree: bool = False
    """Rank with the preliminary tree; otherwise labels are clustered again, by words and vectors."""
    max_nodes: Annotated[int, Field(ge=2)] = 32_768
    """Levels with more nodes are not fine-tuned."""
    documents: Count | None = None
    """Maximum number of documents to fine-tune on, drawn at random; null: all."""
    loss: LossConfig = LossConfig(name="squared_hinge", reduction="mean")
    """The loss of a node's score, over the nodes that are scored for a document."""
    weighted: bool = True
    """Weight the loss of a true node by the number of the document's labels below it."""
    dropout: Fraction = 0.1
    """Dropout rate of a document's vector."""
    first_head: Literal["linear", "random"] = "linear"
    """Initial weights of the first level's outputs: linear classifiers on the vectors of the pretrained encoder, which
    encodes all documents for that, or random."""
    bootstrap: Literal["linear", "weighted", "inherit", "none"] = "weighted"
    """Initial weights of the outputs below the first level: linear classifiers on the current vectors, the same with
    examples weighted by the number of labels below a node, the parent's weights, or random."""
    bootstrap_cost: Positive = 100.0
    """Cost of examples in these classifiers relative to the regularization of weights (C)."""
    negatives: Literal["teacher", "linear", "network"] = "linear"
    """Nodes scored besides the siblings of true nodes: none; those below the nodes that are ranked highest above, by
    linear classifiers on words and vectors or by the network itself."""
    beam: Count = 10
    """Nodes per document that are ranked highest."""
    training: TrainingConfig = LEVEL_TRAINING
    """Settings of training, for each level."""
    level_steps: Annotated[list[Count], Field(min_length=1)] | None = None
    """Instead of `training.steps` and `training.epochs`: steps for each level from the top."""
    level_rates: Annotated[list[Positive], Field(min_length=1)] | None = None
    """Instead of `training.optimiser.rate`: a learning rate for each level."""
    level_warmup: Annotated[list[FractionOrCount], Field(min_length=1)] | None = None
    """Instead of `training.schedule.warmup`: steps of warm-up for each level; below 1 a fraction of its steps."""
    valid_fraction: Fraction = 0.0
    """Fraction of the training documents held out to choose the best weights of each level when the data has no valid
    part; at most 2,000 documents. Used with `training.validate_every`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.time_budget is not None:
            raise ValueError("training.time_budget: set the method's time_budget, which limits all of fit")
        if self.training.validate_every is None and self.valid_fraction:
            raise ValueError("valid_fraction holds out documents to validate with; set training.validate_every as well")
        if self.loss.name == "softmax":
            raise ValueError("loss.name: softmax is a loss of all labels together; levels of a tree score a few nodes")
        return self

    def trained_levels(self, sizes: Sequence[int]) -> list[int]:
        """The numbers of nodes of the levels that are fine-tuned, of a tree with levels of these sizes."""
        trained = [size for size in sizes if size <= self.max_nodes]
        if not trained:
            raise ConfigError(
                f"fine_tuning.max_nodes: the top level of the tree has {sizes[0]:,} nodes, more than "
                f"{self.max_nodes:,}; there is nothing to train"
            )
        return trained

    def trainings(self, sizes: Sequence[int]) -> tuple[TrainingConfig, ...]:
        """The settings of each level; `sizes` are the numbers of nodes of the levels that are trained."""
        for field in PER_LEVEL:
            values = getattr(self, field)
            if values is not None and len(values) != len(sizes):
                nodes = ", ".join(f"{size:,}" for size in sizes)
                raise ConfigError(
                    f"fine_tuning.{field} has {len(values)} entries, but {len(sizes)} levels are trained ({nodes} "
                    "nodes); give one entry per level, or change leaf_size, branching, top_nodes or max_nodes"
                )
        return tuple(self._training(depth) for depth in range(len(sizes)))

    def _training(self, depth: int) -> TrainingConfig:
        training = self.training
        changed: dict[str, Any] = {"seed": training.seed + depth}
        if self.level_steps is not None:
            changed |= {"steps": self.level_steps[depth], "epochs": None}
        if self.level_rates is not None:
            changed["optimiser"] = training.optimiser.model_copy(update={"rate": self.level_rates[depth]})
        if self.level_warmup is not None:
            changed["schedule"] = ScheduleConfig(kind=training.schedule.kind, warmup=self.level_warmup[depth])
        return training.model_copy(update=changed)
