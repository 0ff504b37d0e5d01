"""Overhead of the training loop per step, compared with a bare torch loop: zero_grad, loss, backward, clip, step.

    python benchmarks/training_overhead.py [--width 200] [--steps 500] [--rounds 20]

Both train the same small network on the same batches with the same fused optimiser and the same two parameter groups
(biases without decay), alternating. A step is the CPU time from loading one batch to loading the next; the lower
quartile of all steps is reported, because the machine may have other load.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

from labelwise.nn.config import TrainingConfig
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job
from labelwise.runtime.threads import set_threads


class Network:
    """A small network and some batches; records when each batch is requested."""

    head_names, row_tables = (), ()

    def __init__(self, width, steps):
        torch.manual_seed(0)
        self.module = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        self.data = [(torch.randn(64, width), torch.randint(0, 10, (64,))) for _ in range(8)]
        self.steps = steps
        self.times = []

    def batches(self, epoch):
        return range(self.steps)

    def load(self, item, epoch):
        self.times.append(time.thread_time_ns())
        return self.data[item % 8]

    def loss(self, batch):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.module(inputs), labels)

    def validate(self, budget):
        return {}


def bare(network, clip):
    parameters = list(network.module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    network.module.train()
    for item in network.batches(0):
        optimiser.zero_grad()
        loss = network.loss(network.load(item, 0))
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(network.module.parameters(), 1.0)
        optimiser.step()


def ours(network, clip):
    config = TrainingConfig(epochs=1, clip=1.0 if clip else None, validate_every=None, restore_best=False)
    train(network, config, job=Job())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    set_threads(1)
    torch.set_num_threads(1)
    for clip in (False, True):
        steps = {bare: [], ours: []}
        for _ in range(options.rounds):
            for side, taken in steps.items():
                network = Network(options.width, options.steps)
                side(network, clip)
                taken.append(np.diff(network.times)[5:] / 1000)
        plain, loop = (float(np.quantile(np.concatenate(steps[side]), 0.25)) for side in (bare, ours))
        print(
            f"clip {clip!s:5}  bare {plain:7.1f} us/step  loop {loop:7.1f} us/step  {100 * (loop / plain - 1):+.1f} %"
        )


if __name__ == "__main__":
    main()
