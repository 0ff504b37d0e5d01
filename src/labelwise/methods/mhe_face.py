"""Face recognition: an IResNet or MobileFaceNet trained with margins, over all people or over sampled groups of them.

ArcFace (Deng et al., CVPR 2019), CosFace (Wang et al., CVPR 2018), Partial FC (An et al., CVPR 2022) and the sampling
head of Multi-Head Encoding (MHS; Liang et al., TPAMI 2025). The network is trained to distinguish the people of the
training images; what is used is its vector (`encode`): two images show the same person if the cosine of their vectors
is high, also of people that were never seen. `labelwise verify` measures that.

Cost: images x operations of the network (IResNet-50 at 112 pixels: 6.3 billion), three times in training; the head adds
images x people x dimension, or the sampled fraction of it. Memory: weights, gradients and momentum of the network and
of one vector per person (gradients only of the people that are drawn), and batch x block of scores.
What we do differently: cosines are clamped before a margin divides by their sine; gradients of sampled people are
row-sparse, so that sampling saves memory and updates and not only scores; any width and image size; a training resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.methods.image_method import ImageMethod, ImageMethodConfig
from labelwise.model.inputs import Documents
from labelwise.nn.config import (
    AugmentationConfig,
    FaceNetworkConfig,
    ImageConfig,
    MarginConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainingConfig,
)

if TYPE_CHECKING:
    from torch import nn

    from labelwise.nn.heads.base import Head
    from labelwise.nn.images.inputs import ImageInputs

RECIPE = TrainingConfig(
    epochs=25,
    batch_size=128,
    clip=5.0,
    optimiser=OptimiserConfig(name="sgd", rate=0.1, momentum=0.9, weight_decay=5e-4),
    schedule=ScheduleConfig(kind="poly", power=2.0, warmup=0.05),
    load_ahead=2,
)
IMAGES = ImageConfig(
    size=112, fit="crop", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), augmentation=AugmentationConfig(flip=True)
)


class MheFace(ImageMethod):
    """Faces to vectors and people: IResNet or MobileFaceNet with ArcFace or CosFace, all people or sampled groups."""

    name = "mhe_face"
    good_for = "faces: verification and identification"
    speed = "a GPU; small networks and images in minutes on a CPU"
    verifies = True

    class Config(ImageMethodConfig):
        """Parameters."""

        image: ImageConfig = IMAGES
        """How images are read and augmented: aligned faces, pixels from -1 to 1, mirrored at random."""
        network: FaceNetworkConfig = FaceNetworkConfig()
        """The network from a face to its vector."""
        head: MarginConfig = MarginConfig()
        """Margin, and the people that a step is trained against."""
        mirror: bool = True
        """Whether `encode` adds the vector of the mirror image, as is usual for verification; it takes twice the
        time."""
        training: TrainingConfig = RECIPE
        """Settings of training."""

    def _backbone(self) -> nn.Module:
        from labelwise.nn.images.faces import make_face_network

        image = self.config.image
        return make_face_network(self.config.network, image.channels, image.size, self.config.training.seed)

    def _head(self, width: int, train: Dataset) -> Head:
        from labelwise.nn.heads.sampled import Margin

        head = Margin(width, train.n_labels, self.config.head)
        return head.initialise(train.label_counts(), len(train), self.config.training.seed)

    def _restored_head(self, width: int, tensors: Mapping[str, np.ndarray], path: Path) -> Head:
        import torch

        from labelwise.nn.heads.sampled import Margin

        with torch.device("meta"):
            head = Margin(width, len(self.label_names_), self.config.head)
        return head.restore(tensors, path)

    def _encode(self, data: Documents) -> np.ndarray:
        """Vectors of norm 1."""
        vectors = self.image_vectors(data)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    def image_vectors(self, data: Documents | ImageInputs) -> np.ndarray:
        """Vectors that are not normalised, as templates need them: their norm is a sign of the image's quality."""
        from labelwise.nn.encode import encode_inputs, encode_with_mirror
        from labelwise.runtime.device import torch_threads

        if isinstance(data, Documents):
            data = self._images(data)
        encode = encode_with_mirror if self.config.mirror else encode_inputs
        with torch_threads():
            return encode(self.network_.encoder, data, "encoding")
