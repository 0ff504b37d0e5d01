"""One rank of a training: the first rank writes what came out to `result.json` in the folder."""

import json
import os
import signal

import torch
from tiny_fitting import TinyFitting, same_weights, weights_of

from labelwise.nn.config import TrainingConfig
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job
from labelwise.runtime.threads import set_threads

COMMON = {"epochs": 3, "batch_size": 8, "metric": "valid_loss", "checkpoint_every": {"steps": 2}, "restore_best": False}
UNEVEN = 47
"""A batch size for which the last batch of an epoch has one document: rank 1 has none."""


class Broken(Exception):
    pass


class Breaking(TinyFitting):
    """Breaks off on every rank at the same step."""

    left = 10**9
    asked_at = None
    calls = 0

    def loss(self, batch):
        self.left -= 1
        self.calls += 1
        if self.calls == self.asked_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.left < 0:
            raise Broken
        return super().loss(batch)


def trained(folder, left=10**9, sparse=False, dropout=0.3, asked_at=None, batch_size=8):
    config = TrainingConfig.model_validate({**COMMON, "batch_size": batch_size})
    fitting = Breaking(config, sparse=sparse, dropout=dropout, batch_norm=False)
    fitting.left, fitting.asked_at = left, asked_at
    try:
        history = train(fitting, config, job=Job(folder))
    except Broken:
        return None, fitting
    return history, fitting


def _break_off(number, frame):
    raise Broken


def train_as_rank(folder):
    set_threads(1)
    history, whole = trained(None)
    rank = torch.distributed.get_rank()
    trained(folder / "kept", left=5)
    again, resumed = trained(folder / "kept")
    signal.signal(signal.SIGTERM, _break_off)
    trained(folder / "asked", asked_at=3 if rank == 1 else None)
    _, after = trained(folder / "asked")
    _, even = trained(None, dropout=0.0)
    _, rows = trained(None, sparse=True, dropout=0.0, batch_size=UNEVEN)
    trained(folder / "by two", left=5, sparse=True, dropout=0.0)
    _, from_one = trained(folder / "by one", sparse=True, dropout=0.0)
    mine = torch.cat([p.detach().flatten() for p in whole.module.parameters()])
    every = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(every, mine)
    if rank == 0:
        result = {
            "steps": history.steps,
            "ranks_agree": all(torch.equal(mine, other) for other in every),
            "resumed": same_weights(weights_of(whole.module), weights_of(resumed.module)),
            "steps_after_signal": after.calls,
            "records": [history.records, again.records],
            "files": sorted(path.name for path in (folder / "kept" / "train").iterdir()),
            "weights": {name: tensor.tolist() for name, tensor in weights_of(even.module).items()},
            "row_weights": {name: tensor.tolist() for name, tensor in weights_of(rows.module).items()},
            "from_one": {name: tensor.tolist() for name, tensor in weights_of(from_one.module).items()},
        }
        (folder / "result.json").write_text(json.dumps(result))
    torch.distributed.barrier()  # a group that ends while the other rank still uses it may abort that rank
    torch.distributed.destroy_process_group()
