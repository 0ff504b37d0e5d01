"""Shared set-up: the tests' own helpers are importable as packages beside this file."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# As the command line does, and before torch is loaded: workers whose threads spin take each other's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("LABELWISE_COMPILE_AHEAD", "0")  # workers have all cores busy, and compile what they need
os.environ["LABELWISE_VECTORS"] = "off"  # tests of the cache name their own folder
sys.path.insert(0, str(Path(__file__).parent))
# Shells start what runs in the background deaf to Ctrl-C, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines pause at odd moments: time limits belong to the runner, not to single examples.
settings.register_profile("labelwise", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("labelwise")


def pytest_xdist_make_scheduler(config, log):
    """Tests of a file stay with one worker, so that what they set up is not made twice; conformance, by method."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, name = nodeid.partition("::")
            return name.rpartition("-")[2] if file.endswith("conformance/test_methods.py") else file

    return ByFile(config, log)
