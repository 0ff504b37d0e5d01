"""Base class of methods that read images: an encoder of images, a head, and the training loop.

A subclass chooses backbone and head (`_backbone`, `_head`); reading, augmentation, training with resume, prediction,
vectors and files are here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from labelwise.config import PART, deciding_json
from labelwise.config import Config as BaseConfig
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.data.images import ImageError
from labelwise.errors import ConfigError, DataError, import_required
from labelwise.model.inputs import Documents, split_for_early_stopping
from labelwise.model.old_method import OldMethod as Method
from labelwise.nn.config import ImageConfig, MonitorConfig, TrainingConfig, without_validation
from labelwise.nn.cost import NetworkSize, head_size, network_cost
from labelwise.runtime.finished import fingerprint
from labelwise.runtime.job import Job
from labelwise.topk import TopK

if TYPE_CHECKING:
    from torch import nn

    from labelwise.nn.encoder_head import EncoderHead
    from labelwise.nn.heads.base import Head
    from labelwise.nn.images.inputs import ImageInputs
    from labelwise.nn.images.networks import ImageEncoder
    from labelwise.nn.train.callbacks import History

log = logging.getLogger("labelwise")

MAX_VALID = 5000
"""Maximum number of images held out from the training images: more would only cost time."""
CELLS, MAX_CELLS = 8, 32
"""Parts per side of an image that are covered one after the other to explain a label."""
NAMES_SHOWN = 5
"""Files that a message about bad images names."""


class ImageMethodConfig(BaseConfig):
    """Parameters of all methods that read images."""

    image: ImageConfig = ImageConfig()
    """How images are read and augmented."""
    training: TrainingConfig = TrainingConfig()
    """Settings of training."""
    valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
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


class ImageMethod(Method):
    """An image encoder with a head."""

    needs = ("torch", "pillow")
    extra = "vision"
    inputs = ("paths", "arrays")
    reads_all_inputs = True
    same_on_any_threads = False
    validates = True
    encodes = True
    shows_pixels = True
    trains_on_ranks = True
    plans = True

    config: Any
    network_: EncoderHead
    history_: History | None
    _stored: dict[str, np.ndarray] | None

    # --- hooks of a method of images ---

    def _backbone(self) -> nn.Module:
        """The network from normalised images to vectors, with its `width`; weights are drawn by torch's generator."""
        raise NotImplementedError

    def _restored_backbone(self, tensors: Mapping[str, np.ndarray], path: Path) -> nn.Module:
        """The network without weights, for the saved weights of the encoder."""
        return self._backbone()

    def _head(self, width: int, train: Dataset) -> Head:
        """A head for vectors of this width, with initial weights."""
        raise NotImplementedError

    def _head_state(self, head: Head) -> dict[str, np.ndarray]:
        """The arrays of the head to write to a model file."""
        return head.state()

    def _restored_head(self, width: int, tensors: Mapping[str, np.ndarray], path: Path) -> Head:
        """The head from what `_head_state` returned."""
        raise NotImplementedError

    def _head_size(self, labels: int, width: float) -> NetworkSize:
        """Weights and operations of the head."""
        return head_size(labels, width, labels)

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        import_required(self.name, "vision", *self.needs[:2])
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        image = self.config.image
        backbone = self._backbone().eval()
        kept: list[int] = []
        for module in backbone.modules():
            module.register_forward_hook(lambda _, __, output: kept.append(output.numel()))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            width = backbone(torch.zeros(1, image.channels, image.size, image.size)).shape[1]
        weights = sum(parameter.numel() for parameter in backbone.parameters())
        encoder = NetworkSize(weights, counter.get_total_flops(), sum(kept))
        pixels = replace(shape, words=None, nonzeros=image.size**2 * image.channels / 8)
        size = encoder + self._head_size(shape.labels, width)
        return network_cost(pixels, constants, "image", size, self.config.training)

    # --- fit ---

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        import_required(self.name, "vision", *self.needs)
        from labelwise.nn.encoder_head import EncoderHead
        from labelwise.nn.inputs import Part
        from labelwise.nn.train.checkpoint import seed_random_state
        from labelwise.nn.train.head_shards import join_head, split_head
        from labelwise.runtime.device import computing_device, torch_threads

        config = self.config
        seed = config.training.seed
        data, valid = self._decodable(data, kind, "training"), self._decodable(valid, kind, "held-out")
        train, held_out = split_for_early_stopping(data, valid, config.valid_fraction, MAX_VALID, seed)
        training = config.training if held_out is not None else without_validation(config.training, self._recipe())
        images = self._images(train, kind, keep=True)
        parts = [Part(images, train.labels)]
        if held_out is not None:
            parts.append(Part(self._images(held_out, kind, keep=True), held_out.labels))
        try:
            with torch_threads(), seed_random_state(seed):
                encoder = self._encoder(images)
                head = self._head(encoder.width, train)
                split_head(head, training)
                self.network_ = EncoderHead(encoder, head).to(computing_device())  # type: ignore[arg-type]
                self.history_ = self._train(parts, training, job)
                join_head(self.network_)
        except ImageError as error:
            advice = "; `image.bad_images: skip` leaves such files out of training" if kind == "paths" else ""
            raise ImageError(error.what + advice, error.path) from None
        self._stored = None

    def _train(self, parts: list[Any], training: TrainingConfig, job: Job) -> History:
        from labelwise.nn.train.fit import Fit
        from labelwise.nn.train.loop import train as train_loop
        from labelwise.nn.train.monitor import CollapseMonitor

        config, valid = self.config, parts[1] if len(parts) > 1 else None
        fitting = Fit(self.network_, parts[0], valid, training)
        settings = deciding_json(config, PART, {"training": True, "valid_fraction": True})
        identity = fingerprint(*(array for part in parts for array in part.identity()), settings)
        monitor = CollapseMonitor(fitting, config.monitor) if config.monitor.enabled else None
        return train_loop(
            fitting, training, job=job, monitor=monitor, title="training", identity=identity,
        )  # fmt: skip

    def _recipe(self) -> TrainingConfig:
        """The default settings of training."""
        return type(self).Config.model_fields["training"].default

    def _decodable(self, data: Dataset | None, kind: str, what: str) -> Any:
        """The data without images that cannot be decoded, if the config says so; with their number in the log."""
        from labelwise.nn.images.inputs import bad_images

        if data is None or kind != "paths" or self.config.image.bad_images == "error":
            return data
        bad = bad_images(data.paths or [], self.config.image.max_pixels)
        if not bad:
            return data
        if len(bad) == len(data):
            raise DataError(f"{data.name}: none of the {len(data):,} images can be decoded: {next(iter(bad.values()))}")
        shown = "; ".join(str(error) for error in list(bad.values())[:NAMES_SHOWN])
        log.warning(
            "%s of %s %s images cannot be decoded and are left out: %s%s", f"{len(bad):,}", f"{len(data):,}", what,
            shown, " ..." if len(bad) > NAMES_SHOWN else "",
        )  # fmt: skip
        return data.take(np.delete(np.arange(len(data)), list(bad)))

    def _images(self, data: Dataset | Documents, kind: str | None = None, keep: bool = False) -> ImageInputs:
        """Images of one type of documents; None: the one that there is."""
        from labelwise.nn.images.inputs import image_inputs

        kind = kind or ("arrays" if data.arrays is not None else "paths")
        return image_inputs(data, kind, self.config.image, self.config.training.seed, keep)

    def _encoder(self, images: ImageInputs) -> ImageEncoder:
        """The encoder with initial weights, and with the normalisation of the config or of these images."""
        from labelwise.nn.images.inputs import measure
        from labelwise.nn.images.networks import ImageEncoder

        mean, std = self.config.image.mean, self.config.image.std
        if mean is None:
            mean, std = measure(images)
        return ImageEncoder(self._backbone(), np.asarray(mean), np.asarray(std))

    # --- predict ---

    def _predict(self, data: Documents, k: int) -> TopK:
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            return self.network_.best(self._images(data), k, "predicting")

    def _encode(self, data: Documents) -> np.ndarray:
        from labelwise.nn.encode import encode_inputs
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            return encode_inputs(self.network_.encoder, self._images(data), "encoding")

    def explain(  # type: ignore[bad-override]
        self, document: Any, labels: Sequence[str] | None = None, k: int = 5, terms: Any = "auto"
    ) -> Any:
        """Which parts of one image the scores of its labels depend on, as a `PixelMap` per label.

        Parameters
        ----------
        document
            A path, an array [1, height, width, ...], or a Dataset with one image.
        labels
            Names of labels to explain, predicted or not. None: the best k.
        k
            Labels to explain when none are named.
        terms
            Parts per side of the image, each of which is covered once. None: 8.
        """
        from labelwise.model.explanation import PixelMap, PixelMaps, labels_to_explain
        from labelwise.nn.images.occlusion import occlusion_maps
        from labelwise.runtime.device import torch_threads

        cells, most = CELLS if terms in (None, "auto") else terms, min(MAX_CELLS, self.config.image.size)
        if not 1 <= cells <= most:
            raise ConfigError(f"terms: from 1 to {most} parts per side of the image can be covered, got {cells}")
        data, ids, scores = labels_to_explain(self, document, labels, k)
        with torch_threads():
            pixels = self._images(data).batch(np.zeros(1, np.int64)).arrays[0][0]
            maps = occlusion_maps(self.network_, pixels, ids, cells)
        missing = [label for label in ids.tolist() if label not in scores]
        if missing:
            every = self.predict(document, len(self.label_names_))
            scores = dict(zip(every.ids[0].tolist(), every.scores[0].tolist(), strict=True))
        shown = pixels.transpose(1, 2, 0)
        return PixelMaps(
            PixelMap(
                self.label_names_[label], None if self.label_texts_ is None else self.label_texts_[label],
                scores.get(label, 0.0), label not in missing, falls, shown, self.calibration_ is not None,
            )
            for label, falls in zip(ids.tolist(), maps, strict=True)
        )  # fmt: skip

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        if self._stored is not None:
            return self._stored
        states = {"encoder": self.network_.encoder.state(), "head": self._head_state(self.network_.head)}
        return {f"{part}.{name}": value for part, state in states.items() for name, value in state.items()}

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        import_required(self.name, "vision", "torch", "pillow")
        import torch

        from labelwise.nn.encoder_head import EncoderHead
        from labelwise.nn.images.networks import ImageEncoder
        from labelwise.nn.text.tokens import state_of
        from labelwise.runtime.device import computing_device

        weights = state_of("encoder.", tensors)
        with torch.device("meta"):
            backbone = self._restored_backbone(weights, path)
            encoder = ImageEncoder(backbone, *np.ones((2, self.config.image.channels), np.float32))
        encoder.restore(weights, path)
        head = self._restored_head(encoder.width, state_of("head.", tensors), path)
        network: Any = EncoderHead(encoder, head)  # type: ignore[arg-type]
        self.network_ = network.requires_grad_(False).to(computing_device()).eval()
        self.history_ = None
        self._stored = dict(tensors)
