"""Shared set-up: the tests' own helpers are importable as packages beside this file."""

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# As the command line does, and before torch is loaded: workers whose threads spin take each other's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("LABELWISE_COMPILE_AHEAD", "0")  # workers have all cores busy, and compile what they need
sys.path.insert(0, str(Path(__file__).parent))
# Shells start what runs in the background deaf to Ctrl-C, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines pause at odd moments: time limits belong to the runner, not to single examples.
settings.register_profile("labelwise", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("labelwise")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Tests of a file stay with one worker (`--dist loadgroup`), unless they are in a group of their own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
