"""Commands killed at a known moment: they hold there, so that neither a fast nor a busy machine changes the test."""

import signal
import subprocess
import sys

HOLD = """
import sys, time
def hold():
    print("held", flush=True)
    time.sleep(600)
"""
MAIN = """
from labelwise.cli.main import main
main(sys.argv[1:])
"""


def kill_where_it_holds(patch: str, *arguments: object) -> None:
    """`labelwise ARGUMENTS` after `patch`, code that makes it call `hold()` somewhere; SIGKILL when it does."""
    command = [sys.executable, "-c", HOLD + patch + MAIN, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n", process.stderr.read().decode()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
