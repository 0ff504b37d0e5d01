"""Faces on two ranks: batch normalisation, margins, sampled people and divided heads give the weights of one process."""

import numpy as np
import pytest
import torch
from forked_ranks import run_ranks
from scipy import sparse

from labelwise.nn.config import FaceNetworkConfig, ImageConfig, MarginConfig, TrainingConfig
from labelwise.nn.encode import EncoderHead
from labelwise.nn.heads.sampled import Margin
from labelwise.nn.heads.sharding import join_head, split_head
from labelwise.nn.images.faces import make_face_network
from labelwise.nn.images.inputs import ImageInputs
from labelwise.nn.images.networks import ImageEncoder
from labelwise.nn.inputs import Part
from labelwise.nn.train.fit import NetworkFitting
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads

RANKS, IMAGES, PEOPLE, SIZE = 2, 36, 9, 16
GROUPS = {"margin": 0.2, "scale": 8.0, "sampling": "groups", "radices": (5, 2)}
HEADS = {
    "all": MarginConfig(margin=0.2, scale=8.0, block=4),
    "groups": MarginConfig(**GROUPS, negatives="B1"),
    "groups of each image": MarginConfig(**GROUPS, negatives="V2"),
}
DIVIDED = ("all", "groups")


class Broken(Exception):
    pass


class Batches(NetworkFitting):
    """Batches of 11 images and a last one of 3."""

    left = 10**9

    def batches(self, epoch):
        rows = np.random.default_rng(epoch).permutation(IMAGES)
        return np.split(rows, [11, 22, 33])

    def loss(self, batch):
        self.left -= 1
        if self.left < 0:
            raise Broken
        return super().loss(batch)


def trained(head, divided=False, folder=None, left=10**9):
    rng = np.random.default_rng(0)
    who = np.arange(IMAGES) % PEOPLE
    labels = sparse.csr_array((np.ones(IMAGES), who, np.arange(IMAGES + 1)), (IMAGES, PEOPLE))
    config = TrainingConfig(
        epochs=2, batch_size=12, clip=1.0, validate_every=3, metric="valid_loss", shard_head=divided,
        optimiser={"name": "sgd", "rate": 0.02, "momentum": 0.9}, schedule={"kind": "constant"},
        checkpoint_every={"steps": 2},
    )  # fmt: skip
    images = ImageInputs(ImageConfig(size=SIZE), arrays=rng.integers(0, 256, (IMAGES, SIZE, SIZE, 3), np.uint8))
    network = make_face_network(FaceNetworkConfig(network="r10", width_factor=0.125, dimension=8), 3, SIZE, seed=1)
    encoder = ImageEncoder(network, np.full(3, 0.5), np.full(3, 0.25))
    made = Margin(8, PEOPLE, HEADS[head]).initialise(np.full(PEOPLE, 4), IMAGES, seed=2)
    split_head(made, config)
    whole, data = EncoderHead(encoder, made), Part(images, labels)
    fitting = Batches(whole, data, data, config)
    fitting.left = left
    try:
        history = train(fitting, config, job=Job(folder))
    except Broken:
        return None
    join_head(whole)
    records = [{key: value for key, value in one.items() if key != "loss"} for one in history.records]
    return {name: value.clone() for name, value in whole.state_dict().items()}, records


@pytest.fixture(scope="module")
def alone():
    with using_threads(1):
        return {head: trained(head) for head in HEADS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")

    def rank(number):
        results = {head: trained(head) for head in HEADS}
        results |= {f"{head}, divided": trained(head, divided=True) for head in DIVIDED}
        trained("groups", divided=True, folder=folder / "kept", left=5)
        torch.save(results, folder / f"{number}.pt")

    codes, printed = run_ranks(rank)
    assert codes == [0, 0], printed[-3000:]
    return folder


def same(mine, theirs):
    for name, value in theirs[0].items():
        torch.testing.assert_close(mine[0][name], value, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")
    for one, other in zip(mine[1], theirs[1], strict=True):
        assert one == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("name", [*HEADS, *(f"{head}, divided" for head in DIVIDED)])
def test_two_ranks_give_the_weights_and_figures_of_one_process(folder, alone, name):
    ranks = [torch.load(folder / f"{number}.pt") for number in range(RANKS)]
    same(ranks[0][name], alone[name.removesuffix(", divided")])
    for part, value in ranks[0][name][0].items():
        assert torch.equal(value, ranks[1][name][0][part]), part


def test_one_process_resumes_with_the_head_that_ranks_had_divided(folder, alone):
    with using_threads(1):
        same(trained("groups", folder=folder / "kept"), alone["groups"])
