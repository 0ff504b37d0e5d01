"""Multi-head encoding for images: a residual network, and a head of one output per label or of digits of labels.

Liang, Zhang, Yuan and Zhang, "Multi-Head Encoding for Extreme Label Classification" (TPAMI 2025). Labels are numbers in
mixed radix; a product head has an output per value of each digit, a cascade chooses a group of labels and then among
its labels, a sampling head trains one output per label against some groups only. `kind: one_hot` is the usual one.

Cost: images x operations of the network per epoch, three times that of prediction; the head adds images x its outputs x
width. Memory: weights, gradients and momentum, and the activations of a batch; scores are computed in blocks of labels.
What we do differently: the loss of a product head is the sum of the digits' cross-entropies, a probability of labels;
codes without a label are never predicted; the best k labels of all heads are exact (the cascade's by beam search); the
network, its channels and its first layers can be chosen; and a resumed training reads the same augmented pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.errors import import_required
from labelwise.io.folder import get_tensor
from labelwise.methods.image_method import ImageMethod, ImageMethodConfig
from labelwise.nn.config import BackboneConfig, DigitHeadConfig, OptimiserConfig, ScheduleConfig, TrainingConfig
from labelwise.nn.cost import NetworkSize, digit_head_size

if TYPE_CHECKING:
    from torch import nn

    from labelwise.nn.heads.base import Head

log = logging.getLogger("labelwise")

RECIPE = TrainingConfig(
    epochs=30,
    batch_size=128,
    clip=None,
    optimiser=OptimiserConfig(name="sgd", rate=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    schedule=ScheduleConfig(kind="cosine", warmup=0.05),
    load_ahead=2,
)


class MheImage(ImageMethod):
    """Images to labels by a residual network and multi-head encoding: product, cascade, sampling or one output each."""

    name = "mhe_image"
    good_for = "images with one or several of many labels"
    speed = "minutes for small grey images on a CPU; a GPU for photographs"

    class Config(ImageMethodConfig):
        """Parameters."""

        backbone: BackboneConfig = BackboneConfig()
        """The network from images to vectors."""
        head: DigitHeadConfig = DigitHeadConfig()
        """From vectors to labels: one output per label, or digits of labels."""
        training: TrainingConfig = RECIPE
        """Settings of training."""

    def _head_size(self, labels: int, width: float) -> NetworkSize:
        return digit_head_size(self.config.head, labels, width)

    def _backbone(self) -> nn.Module:
        image, config = self.config.image, self.config.backbone
        if config.name == "transformers":
            from labelwise.nn.images.image_models import new_image_model

            return new_image_model(config, image.channels, image.size)
        from labelwise.nn.images.networks import ResNet

        return ResNet(config, image.channels, image.size)

    def _restored_backbone(self, tensors: Mapping[str, np.ndarray], path: Path) -> nn.Module:
        if self.config.backbone.name != "transformers":
            return self._backbone()
        import_required(self.name, "vision", "transformers")
        from labelwise.nn.images.image_models import restored_image_model

        n_weights = sum(array.size for array in tensors.values())
        return restored_image_model(get_tensor(tensors, "settings", path), n_weights, self.config.backbone, path)

    def _head(self, width: int, train: Dataset) -> Head:
        from labelwise.nn.heads.make_head import make_head

        config, seed, counts = self.config.head, self.config.training.seed, train.label_counts()
        several = int((np.diff(train.labels.indptr) > 1).sum())
        if several and config.loss != "bce":
            log.warning(
                "head.loss: %s is for one label per image; %s have more, which share the target equally; bce learns "
                "every label separately", config.loss, f"{several:,}",
            )  # fmt: skip
        features = self._label_pixels(train) if config.has_code and config.order == "clustered" else None
        head = make_head(width, train.n_labels, config, counts, seed, features)
        return head.initialise(counts, len(train), seed)

    def _label_pixels(self, train: Dataset) -> np.ndarray:
        """The mean image of each label, small: what labels look like before there is a network."""
        from labelwise.nn.images.inputs import label_means

        return label_means(self._images(train, "paths" if train.paths is not None else "arrays"), train.labels)

    def _head_state(self, head: Head) -> dict[str, np.ndarray]:
        from labelwise.nn.heads.make_head import head_state

        return head_state(head)

    def _restored_head(self, width: int, tensors: Mapping[str, np.ndarray], path: Path) -> Head:
        from labelwise.nn.heads.make_head import restored_head

        return restored_head(width, len(self.label_names_), self.config.head, tensors, path)
