"""Two ranks, in the surroundings that torchrun gives them, give what one process gives with the same batches."""

import json

import pytest
import torch
from forked_ranks import run_ranks
from ranks import UNEVEN, train_as_rank, trained
from tiny_fitting import _one_thread, weights_of  # noqa: F401

from labelwise.runtime.threads import using_threads

STEPS = 18  # 6 batches an epoch


@pytest.fixture(scope="module")
def alone():
    """The weights of one process."""
    with using_threads(1):
        fittings = {
            "weights": trained(None, dropout=0.0)[1],
            "row_weights": trained(None, sparse=True, dropout=0.0, batch_size=UNEVEN)[1],
            "from_one": trained(None, sparse=True, dropout=0.0)[1],
        }
    return {key: weights_of(fitting.module) for key, fitting in fittings.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, alone):
    folder = tmp_path_factory.mktemp("ranks")
    with using_threads(1):
        trained(folder / "by one", left=5, sparse=True, dropout=0.0)
    codes, printed = run_ranks(lambda rank: train_as_rank(folder))
    assert codes == [0, 0], printed[-3000:]
    return folder


@pytest.fixture(scope="module")
def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_ranks_agree_and_resume(result):
    assert result["steps"] == STEPS
    assert result["ranks_agree"]
    assert result["resumed"]
    for one, other in zip(*result["records"], strict=True):
        assert one == pytest.approx(other, rel=1e-6)  # a checkpoint has the mean of the ranks' sums of losses
    assert result["files"] == ["final"]


def test_a_signal_to_one_rank_ends_all_after_a_checkpoint(result):
    assert result["steps_after_signal"] == STEPS - 3


@pytest.mark.parametrize("key", ["weights", "row_weights"])
def test_one_process_gives_the_same(result, alone, key):
    for name, tensor in alone[key].items():
        torch.testing.assert_close(torch.tensor(result[key][name]), tensor, rtol=1e-4, atol=1e-5)


def test_two_ranks_resume_what_one_process_began(result, alone):
    for name, tensor in alone["from_one"].items():
        torch.testing.assert_close(torch.tensor(result["from_one"][name]), tensor, rtol=1e-4, atol=1e-5)


def test_one_process_resumes_what_two_ranks_began(folder, alone):
    _, after = trained(folder / "by two", sparse=True, dropout=0.0)
    assert after.calls == STEPS - 4
    for name, tensor in alone["from_one"].items():
        torch.testing.assert_close(weights_of(after.module)[name], tensor, rtol=1e-4, atol=1e-5)
