"""Trains the tiny model in a process of its own that can be killed: CONFIG FOLDER RESULT. Prints every step."""

import json
import sys
from pathlib import Path

import numpy as np
from tiny_fitting import TinyFitting, weights_of

from labelwise.fit_context import FitContext
from labelwise.networks.settings import TrainingConfig
from labelwise.parallel import set_threads
from labelwise.training.callbacks import Callback
from labelwise.training.loop import train


class Printer(Callback):
    def after_step(self, step, loss):
        print(step, flush=True)


if __name__ == "__main__":
    set_threads(1)
    config = TrainingConfig.model_validate(json.loads(sys.argv[1]))
    fitting = TinyFitting(config)
    train(fitting, config, context=FitContext(Path(sys.argv[2])), head=("head.",), callbacks=[Printer()])
    np.savez(sys.argv[3], **{name: tensor.numpy() for name, tensor in weights_of(fitting.module).items()})
