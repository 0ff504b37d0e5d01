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

from labelwise.data.dataset import Dataset
from labelwise.model.inputs import hold_out
from labelwise.model.method import Method
from labelwise.nn.config import (
    AugmentationConfig,
    FaceNetworkConfig,
    ImageConfig,
    ImageNetworkConfig,
    MarginConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainingConfig,
)
from labelwise.nn.model import MAX_VALID_IMAGES, FaceModel, train_image_network
from labelwise.runtime.job import Job

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


class MheFace(Method):
    """Faces to vectors and people: IResNet or MobileFaceNet with ArcFace or CosFace, all people or sampled groups."""

    name, inputs, Fitted = "mhe_face", ("paths", "arrays"), FaceModel
    needs, extra = ("torch", "pillow"), "vision"
    good_for = "faces: verification and identification"
    speed = "a GPU; small networks and images in minutes on a CPU"
    reads_all_inputs = validates = trains_on_ranks = True
    same_on_any_threads = False

    class Config(ImageNetworkConfig):
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

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> FaceModel:
        from labelwise.nn.images.inputs import advice_on_bad_images, decodable, training_images

        config = self.config
        train, valid = decodable(train, config.image, "training"), decodable(valid, config.image, "held-out")
        train, valid, training = hold_out(train, valid, config, most=MAX_VALID_IMAGES)
        with advice_on_bad_images():
            parts = training_images(train, valid, config.image, training.seed)
            return train_image_network(FaceModel, parts, train, config, training, job)
