"""`labelwise` for torchrun in which rank 1 kills itself (SIGKILL) after the first checkpoint, unless it was restarted.

With LABELWISE_TEST_KILLED it is the rank of the node with LABELWISE_TEST_NODE=killed, unless the file exists that the
first variable names: no node knows how often another one was restarted.
"""

import os
import signal
from pathlib import Path

from labelwise.cli.main import main
from labelwise.nn.train.checkpoint import Checkpoints

given = os.environ.get("LABELWISE_TEST_KILLED")
if given is not None:
    is_first, is_killed = not Path(given).exists(), os.environ["LABELWISE_TEST_NODE"] == "killed"
else:
    is_first, is_killed = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"] == "1"

if is_first:
    plain = Checkpoints.save

    def save_and_wait(self, state):
        plain(self, state)
        self.ranks.wait()  # until rank 0 has written it
        if is_killed:
            if given is not None:
                Path(given).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.save = save_and_wait

main()
