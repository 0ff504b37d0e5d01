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

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.model.inputs import hold_out
from labelwise.model.method import Method
from labelwise.nn.config import (
    BackboneConfig,
    DigitHeadConfig,
    ImageNetworkConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainingConfig,
)
from labelwise.nn.model import MAX_VALID_IMAGES, ImageModel, train_image_network
from labelwise.runtime.job import Job

log = logging.getLogger("labelwise")

RECIPE = TrainingConfig(
    epochs=30,
    batch_size=128,
    clip=None,
    optimiser=OptimiserConfig(name="sgd", rate=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    schedule=ScheduleConfig(kind="cosine", warmup=0.05),
    load_ahead=2,
)


class MheImage(Method):
    """Images to labels by a residual network and multi-head encoding: product, cascade, sampling or one output each."""

    name, inputs, Fitted = "mhe_image", ("paths", "arrays"), ImageModel
    needs, extra = ("torch", "pillow"), "vision"
    good_for = "images with one or several of many labels"
    speed = "minutes for small grey images on a CPU; a GPU for photographs"
    reads_all_inputs = validates = trains_on_ranks = True
    same_on_any_threads = False

    class Config(ImageNetworkConfig):
        """Parameters."""

        backbone: BackboneConfig = BackboneConfig()
        """The network from images to vectors."""
        head: DigitHeadConfig = DigitHeadConfig()
        """From vectors to labels: one output per label, or digits of labels."""
        training: TrainingConfig = RECIPE
        """Settings of training."""

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> ImageModel:
        from labelwise.nn.images.inputs import advice_on_bad_images, decodable, label_means, training_images

        config = self.config
        train, valid = decodable(train, config.image, "training"), decodable(valid, config.image, "held-out")
        train, valid, training = hold_out(train, valid, config, most=MAX_VALID_IMAGES)
        several = int((np.diff(train.labels.indptr) > 1).sum())
        if several and config.head.loss != "bce":
            log.warning(
                "head.loss: %s is for one label per image; %s have more, which share the target equally; bce learns "
                "every label separately", config.head.loss, f"{several:,}",
            )  # fmt: skip
        with advice_on_bad_images():
            parts = training_images(train, valid, config.image, training.seed)
            return train_image_network(
                ImageModel, parts, train, config, training, job, lambda: label_means(parts[0].inputs, train.labels)
            )
