"""Networks of an encoder and a head: how they are trained, and what was learned.

Texts: first the head alone, on vectors of the pretrained encoder that are computed once, then both together; with a
frozen encoder the head alone. Images: both from the start. Imports torch only where something is computed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from labelwise.data.dataset import Dataset, Documents
from labelwise.errors import import_required
from labelwise.nn.config import EncoderConfig, ImageNetworkConfig, MonitorConfig, TextNetworkConfig, TrainingConfig
from labelwise.nn.images.inputs import ImageInputs, image_inputs, normalisation
from labelwise.nn.inputs import Inputs, Part, Vectors, texts_of
from labelwise.runtime.device import computing_device, seeded, torch_threads
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import on_rank_zero
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.nn.encode import EncoderHead
    from labelwise.nn.text.tokens import Tokens
    from labelwise.nn.text.transformer import AttentionMap
    from labelwise.nn.train.loop import History

log = logging.getLogger("labelwise")

HEAD_TIME, ENCODING_TIME, PREPARING_TIME = 0.75, 0.5, 0.25
"""Maximum fractions of the time budget: of training the head alone; of reading the texts, if they are encoded once for
that; and of reading them otherwise."""
MAX_VALID_TEXTS, MAX_VALID_IMAGES = 2000, 5000
"""Maximum number of documents held out from the training documents: more would only cost time."""
STEP_COST = 8
"""Time of a document in a step of training, as a multiple of encoding it; rather too much than too little."""


class NetworkModel:
    """An encoder and a head; `inputs` and `_encoder` say what of.

    Parameters
    ----------
    network
        Encoder and head.
    config
        The parameters that it was trained with.
    history
        Of its training; None if it was loaded.
    stored
        The arrays of a loaded model, which are written again as they are.
    """

    network: EncoderHead
    packages: ClassVar[tuple[str, ...]] = ("a network", "nn", "torch")
    """What the packages of an extra are needed for, the extra, and the packages."""

    def __init__(
        self, network: Any, config: Any, history: History | None = None, stored: dict[str, np.ndarray] | None = None
    ) -> None:
        self.network, self.config, self.history, self._stored = network, config, history, stored

    def inputs(self, documents: Documents) -> Inputs:
        """The documents as the encoder reads them."""
        raise NotImplementedError

    @classmethod
    def _encoder(cls, tensors: Mapping[str, np.ndarray], config: Any, path: Path) -> Any:
        """The encoder of a saved model."""
        raise NotImplementedError

    def top(self, documents: Documents, k: int, config: Any) -> TopK:

        with torch_threads():
            return self.network.best(self.inputs(documents), k, "predicting")

    def tensors(self) -> dict[str, np.ndarray]:
        from labelwise.nn.heads.make_head import head_state

        if self._stored is not None:
            return self._stored
        states = {"encoder": self.network.encoder.state(), "head": head_state(self.network.head)}
        return {f"{part}.{name}": value for part, state in states.items() for name, value in state.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        import_required(*cls.packages)
        from labelwise.nn.encode import EncoderHead
        from labelwise.nn.heads.make_head import restored_head
        from labelwise.nn.text.files import state_of

        encoder = cls._encoder(state_of("encoder.", tensors), about.config, about.path)
        settings = about.config.head_for(about.n_labels)
        head = restored_head(encoder.width, about.n_labels, settings, state_of("head.", tensors), about.path)
        network = EncoderHead(encoder, head).requires_grad_(False).to(computing_device()).eval()
        return cls(network, about.config, stored=dict(tensors))


# --- texts ---


class TextModel(NetworkModel):
    """A text encoder and a head."""

    packages = ("a text encoder", "nn", "torch", "transformers")

    def inputs(self, documents: Documents) -> Inputs:
        return self.network.encoder.tokenizer.encode(texts_of(documents), self.config.encoder)

    @classmethod
    def _encoder(cls, tensors: Mapping[str, np.ndarray], config: Any, path: Path) -> Any:
        from labelwise.nn.text.transformer import TransformerEncoder

        return TransformerEncoder.restored(tensors, config.encoder, path)

    def top(self, documents: Documents, k: int, config: Any) -> TopK:
        """Equal texts are encoded once."""
        from labelwise.nn.encode import distinct_texts

        distinct = distinct_texts(texts_of(documents))
        return super().top(documents.take(distinct.rows), k, config)[distinct.copies]

    def vectors(self, documents: Documents, config: Any) -> np.ndarray:
        from labelwise.nn.encode import encode_corpus

        with torch_threads():
            return encode_corpus(self.network.encoder, texts_of(documents))

    def attention(self, documents: Documents, tokens: int, config: Any) -> list[AttentionMap]:
        from labelwise.nn.text.transformer import attention_maps

        with torch_threads():
            return attention_maps(self.network.encoder, texts_of(documents), tokens)


def train_text_network(
    encoder: Any,
    head: Any,
    train: Dataset,
    valid: Dataset | None,
    config: TextNetworkConfig,
    training: TrainingConfig,
    job: Job,
) -> TextModel:
    """Train a head and, unless it is frozen, its encoder, both of which have their initial weights."""
    from labelwise.nn.encode import EncoderHead, encode_corpus
    from labelwise.nn.heads.sharding import sharded

    network, folder = EncoderHead(encoder, head), _vector_folder(config.encoder, len(train), job)
    frozen, head_epochs = config.encoder.frozen, config.epochs_of_the_head()

    def tokens(part: Dataset) -> Tokens:
        return encoder.tokenizer.encode(texts_of(part), config.encoder)

    def vectors(part: Dataset) -> np.ndarray:
        return encode_corpus(encoder, texts_of(part), folder=folder)

    def encoded(part: Dataset) -> Part:
        return Part(Vectors(on_rank_zero(lambda: vectors(part))), part.labels)

    with torch_threads(), sharded(network, training):
        first, share = (vectors, ENCODING_TIME) if frozen or head_epochs else (tokens, PREPARING_TIME)
        given = [part for part in job.some((train, valid), first, share) if part is not None]
        if frozen:
            with job.stage("train") as stage:
                parts = [encoded(part) for part in given]
                history = _train_watched(network.head, parts, training, config.monitor, stage, "training the head")
            return TextModel(network, config, history)
        if head_epochs:
            begin, alone = time.monotonic(), head_alone(training, head_epochs)
            with job.stage("head", HEAD_TIME) as stage:
                parts = [encoded(given[0])]
                pace = (time.monotonic() - begin) / len(given[0])
                history = _train_watched(network.head, parts, alone, None, stage, "training the head")
            step = STEP_COST * pace * training.batch_size * training.accumulate
            if on_rank_zero(lambda: job.budget.remaining() <= step and not _has_begun(job)):
                job.budget.end_early()
                log.info("training: left out, only the head is trained: the time budget does not allow a step of both")
                return TextModel(network, config, history)
        with job.stage("train") as stage:
            parts = [Part(tokens(part), part.labels) for part in given]
            history = _train_watched(network, parts, training, config.monitor, stage)
    return TextModel(network, config, history)


def _has_begun(job: Job) -> bool:
    """Whether an interrupted attempt has weights of encoder and head, which are better than those of the head alone."""
    return job.folder is not None and any((job.folder / "train").glob("last-*"))


def head_alone(training: TrainingConfig, epochs: int) -> TrainingConfig:
    """The settings of training the head before both: all epochs, without held-out documents."""
    schedule = training.schedule.model_copy(update={"warmup": 0.0})  # a linear model needs none
    alone = {"epochs": epochs, "steps": None, "validate_every": None, "early_stopping": None, "schedule": schedule}
    return training.model_copy(update=alone)


def _train_watched(
    network: Any,
    parts: list[Part],
    training: TrainingConfig,
    monitor: MonitorConfig | None,
    job: Job,
    title: str = "training",
) -> History:
    """Train on the first part and validate on the second, if there is one; a monitor of None sees nothing."""
    from labelwise.nn.train.fit import NetworkFitting
    from labelwise.nn.train.loop import train
    from labelwise.nn.train.monitor import CollapseMonitor

    fitting = NetworkFitting(network, parts[0], parts[1] if len(parts) > 1 else None, training)
    watching = CollapseMonitor(fitting, monitor) if monitor is not None and monitor.enabled else None
    return train(fitting, training, job=job, monitor=watching, title=title)


def _vector_folder(encoder: EncoderConfig, count: int, job: Job) -> Path | None:
    """Where vectors of the untrained encoder are kept: random weights are of no use to other runs."""
    from labelwise.nn.encode import cache_folder

    if not encoder.starts_random:
        return cache_folder(count)
    return None if job.folder is None else job.folder / "vectors"


# --- images ---


class ImageModel(NetworkModel):
    """An encoder of images and a head."""

    packages = ("a network for images", "vision", "torch", "pillow")

    def inputs(self, documents: Documents) -> ImageInputs:
        return image_inputs(documents, self.config.image)

    @classmethod
    def _encoder(cls, tensors: Mapping[str, np.ndarray], config: Any, path: Path) -> Any:
        import torch

        from labelwise.nn.images.networks import ImageEncoder, image_backbone

        with torch.device("meta"):
            backbone = image_backbone(config, tensors, path)
            encoder = ImageEncoder(backbone, *np.ones((2, config.image.channels), np.float32))
        return encoder.restore(tensors, path)

    def vectors(self, documents: Documents, config: Any) -> np.ndarray:
        from labelwise.nn.encode import encode_inputs

        with torch_threads():
            return encode_inputs(self.network.encoder, self.inputs(documents))

    def pixels(
        self, documents: Documents, labels: np.ndarray, cells: int, config: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """How much the logarithm of each label's score falls when one of cells x cells parts of the image is covered.

        Also the image as the network reads it, uint8 [height, width, channels].
        """
        from labelwise.nn.images.networks import occlusion_maps
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            image = self.inputs(documents).batch(np.zeros(1, np.int64)).arrays[0][0]
            return occlusion_maps(self.network, image, labels, cells), image.transpose(1, 2, 0)


Images = TypeVar("Images", bound=ImageModel)


class FaceModel(ImageModel):
    """An encoder of faces, whose vectors are compared, and a head."""

    def vectors(self, documents: Documents, config: Any) -> np.ndarray:
        """Vectors of norm 1."""
        vectors = self.image_vectors(documents, config)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    def image_vectors(self, documents: Documents | ImageInputs, config: Any) -> np.ndarray:
        """Vectors that are not normalised, as templates need them: their norm is a sign of the image's quality."""
        from labelwise.nn.encode import WithMirror, encode_inputs

        images = documents if isinstance(documents, ImageInputs) else self.inputs(documents)
        encoder: Any = WithMirror(self.network.encoder) if config.mirror else self.network.encoder
        with torch_threads():
            return encode_inputs(encoder, images)


def train_image_network(
    model: type[Images],
    parts: list[Part],
    train: Dataset,
    config: ImageNetworkConfig,
    training: TrainingConfig,
    job: Job,
    label_features: Callable[[], Any] | None = None,
) -> Images:
    """Train the network and the head of a config together, from their initial weights; the first part is `train`."""
    from labelwise.nn.encode import EncoderHead
    from labelwise.nn.heads.make_head import new_head
    from labelwise.nn.heads.sharding import sharded
    from labelwise.nn.images.networks import ImageEncoder, image_backbone

    with torch_threads(), seeded(training.seed):
        encoder = ImageEncoder(image_backbone(config), *normalisation(parts[0].inputs))
        head = new_head(encoder.width, train, config.head_for(train.n_labels), training.seed, label_features)
        network = EncoderHead(encoder, head)
        with sharded(network, training), job.stage("train") as stage:
            return model(network, config, _train_watched(network, parts, training, config.monitor, stage))
