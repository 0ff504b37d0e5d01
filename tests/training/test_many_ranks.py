"""Two processes under torchrun give what one process gives with twice the batches a step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_fitting import TinyFitting, _one_thread, weights_of  # noqa: F401

from labelwise.fit_context import FitContext
from labelwise.networks.settings import TrainingConfig
from labelwise.training.loop import train


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).parent / "rank_script.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([*command, str(folder)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


def test_ranks_agree_and_resume(result):
    assert result["steps"] == 9  # 6 batches an epoch, 3 for each rank
    assert result["ranks_agree"]
    assert result["resumed"]
    assert result["records"]
    assert result["files"] == ["final"]


@pytest.mark.parametrize("key", ["weights", "row_weights"])
def test_one_process_gives_the_same(result, key):
    values = {"epochs": 3, "batch_size": 8, "metric": "valid_loss", "restore_best": False, "accumulate": 2}
    config = TrainingConfig.model_validate(values)
    fitting = TinyFitting(config, dropout=0.0, batch_norm=False, sparse=key == "row_weights")
    train(fitting, config, context=FitContext())
    for name, tensor in weights_of(fitting.module).items():
        torch.testing.assert_close(torch.tensor(result[key][name]), tensor, rtol=1e-4, atol=1e-5)
