"""Two ranks, in the surroundings that torchrun gives them, give what one process gives with twice the batches a step."""

import json
import os
import socket
import tempfile

import pytest
import torch
from accelerate.state import AcceleratorState
from ranks import train_as_rank
from tiny_fitting import TinyFitting, _one_thread, weights_of  # noqa: F401

from forking import Forked
from labelwise.fit_context import FitContext
from labelwise.networks.settings import TrainingConfig
from labelwise.parallel import using_threads
from labelwise.training.loop import train

RANKS = 2


@pytest.fixture(scope="module")
def alone():
    """The weights of one process."""
    values = {"epochs": 3, "batch_size": 8, "metric": "valid_loss", "restore_best": False, "accumulate": 2}
    config = TrainingConfig.model_validate(values)
    weights = {}
    for key in ("weights", "row_weights"):
        fitting = TinyFitting(config, dropout=0.0, batch_norm=False, sparse=key == "row_weights")
        with using_threads(1):
            train(fitting, config, context=FitContext())
        weights[key] = weights_of(fitting.module)
    return weights


@pytest.fixture(scope="module")
def result(tmp_path_factory, alone):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }

    def rank():
        AcceleratorState._reset_state(reset_partial_state=True)  # of the test's process, which has no ranks
        train_as_rank(folder)

    with tempfile.TemporaryFile("w+b") as printed:
        ranks = []
        for number in map(str, range(RANKS)):
            own = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
            env = {**os.environ, **common, **own}
            ranks.append(Forked(rank, stdout=printed.fileno(), stderr=printed.fileno(), env=env))
        codes = [one.wait() for one in ranks]
        printed.seek(0)
        assert codes == [0] * RANKS, printed.read().decode()[-3000:]
    return json.loads((folder / "result.json").read_text())


def test_ranks_agree_and_resume(result):
    assert result["steps"] == 9  # 6 batches an epoch, 3 for each rank
    assert result["ranks_agree"]
    assert result["resumed"]
    assert result["records"]
    assert result["files"] == ["final"]


def test_a_signal_to_one_rank_ends_all_after_a_checkpoint(result):
    assert result["steps_after_signal"] == 9 - 3


@pytest.mark.parametrize("key", ["weights", "row_weights"])
def test_one_process_gives_the_same(result, alone, key):
    for name, tensor in alone[key].items():
        torch.testing.assert_close(torch.tensor(result[key][name]), tensor, rtol=1e-4, atol=1e-5)
