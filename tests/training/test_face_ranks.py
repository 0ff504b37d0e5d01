"""Faces on two ranks: batch normalisation, margins and sampled people give the weights of one process with the whole batch."""

import os
import socket
import tempfile

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from scipy import sparse

from forking import Forked
from labelwise.encoders.face_config import FaceNetworkConfig
from labelwise.encoders.image_config import ImageConfig
from labelwise.encoders.image_encoder import ImageEncoder
from labelwise.encoders.images import ImageInputs
from labelwise.encoders.iresnet import make_face_network
from labelwise.fit_context import FitContext
from labelwise.heads.margin import MarginHead
from labelwise.heads.margin_config import MarginConfig
from labelwise.networks.encoder_head import EncoderHead
from labelwise.networks.settings import TrainingConfig
from labelwise.parallel import set_threads, using_threads
from labelwise.training.encoder_fitting import EncoderData, EncoderFitting
from labelwise.training.loop import train

RANKS, IMAGES, PEOPLE, SIZE = 2, 36, 9, 16
HEADS = {
    "all": MarginConfig(margin=0.2, scale=8.0),
    "groups": MarginConfig(margin=0.2, scale=8.0, sampling="groups", radices=(5, 2), negatives="B1"),
}


class Parts(EncoderFitting):
    """Batches of 12 images: whole, or as parts of 6 that follow each other, one for each rank."""

    parts = 1

    def batches(self, epoch):
        rows = np.random.default_rng(epoch).permutation(IMAGES)
        return [part for batch in np.split(rows, 3) for part in np.split(batch, self.parts)]


def trained(head, parts):
    rng = np.random.default_rng(0)
    who = np.arange(IMAGES) % PEOPLE
    labels = sparse.csr_array((np.ones(IMAGES), who, np.arange(IMAGES + 1)), (IMAGES, PEOPLE))
    config = TrainingConfig(
        epochs=2, batch_size=12, clip=None, validate_every=None,
        optimiser={"name": "sgd", "rate": 0.02, "momentum": 0.9}, schedule={"kind": "constant"},
    )  # fmt: skip
    images = ImageInputs(ImageConfig(size=SIZE), arrays=rng.integers(0, 256, (IMAGES, SIZE, SIZE, 3), np.uint8))
    network = make_face_network(FaceNetworkConfig(network="r10", width_factor=0.125, dimension=8), 3, SIZE, seed=1)
    encoder = ImageEncoder(network, np.full(3, 0.5), np.full(3, 0.25))
    whole = EncoderHead(encoder, MarginHead(8, PEOPLE, HEADS[head]).initialise(np.full(PEOPLE, 4), IMAGES, seed=2))
    fitting = Parts(whole, EncoderData(images, labels), None, config)
    fitting.parts = parts
    train(fitting, config, context=FitContext(), rows=fitting.row_tables)
    return {name: value.clone() for name, value in whole.state_dict().items()}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
        "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
    }  # fmt: skip

    def rank(number):
        AcceleratorState._reset_state(reset_partial_state=True)  # of the test's process, which has no ranks
        set_threads(1)
        torch.save({head: trained(head, RANKS) for head in HEADS}, folder / f"{number}.pt")

    with tempfile.TemporaryFile("w+b") as printed:
        ranks = []
        for number in range(RANKS):
            env = {**os.environ, **common, "RANK": str(number), "LOCAL_RANK": str(number)}
            ranks.append(Forked(lambda n=number: rank(n), stdout=printed.fileno(), stderr=printed.fileno(), env=env))
        codes = [one.wait() for one in ranks]
        printed.seek(0)
        assert codes == [0] * RANKS, printed.read().decode()[-3000:]
    return [torch.load(folder / f"{number}.pt") for number in range(RANKS)]


@pytest.mark.parametrize("head", HEADS)
def test_two_ranks_give_the_weights_of_one_process(together, head):
    with using_threads(1):
        alone = trained(head, 1)
    for name, value in alone.items():
        torch.testing.assert_close(
            together[0][head][name], value, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
        assert torch.equal(together[0][head][name], together[1][head][name]), name
