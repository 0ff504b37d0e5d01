"""`labelwise` for torchrun in which rank 1 kills itself (SIGKILL) after the first checkpoint, unless it was restarted."""

import os
import signal

from labelwise.cli.main import main
from labelwise.training.checkpoint_manager import CheckpointManager

if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    plain = CheckpointManager.save

    def save(self, state):
        plain(self, state)
        self.ranks.wait()  # until rank 0 has written it
        os.kill(os.getpid(), signal.SIGKILL)

    CheckpointManager.save = save
elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    first = CheckpointManager.save

    def save_and_wait(self, state):
        first(self, state)
        self.ranks.wait()

    CheckpointManager.save = save_and_wait

main()
