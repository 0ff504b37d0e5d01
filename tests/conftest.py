"""Shared set-up: the tests' own helpers are importable as packages beside this file."""

import gc
import os
import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# As the command line does, and before torch is loaded: workers whose threads spin take each other's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
for variable in ("LABELWISE_THREADS", "OMP_NUM_THREADS"):  # tests of threads set their own number
    os.environ.setdefault(variable, "1")
os.environ.setdefault("LABELWISE_COMPILE_AHEAD", "0")  # workers have all cores busy, and compile what they need
os.environ["LABELWISE_VECTORS"] = "off"  # tests of the cache name their own folder
sys.path.insert(0, str(Path(__file__).parent))
# Shells start what runs in the background deaf to Ctrl-C, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines pause at odd moments: time limits belong to the runner, not to single examples.
settings.register_profile(
    "labelwise", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("labelwise")


SLOW = ("test_extremes", "test_without_training", "test_methods", "test_compile_ahead", "test_fuzz", "test_inspected_trials",
        "test_collapse", "test_text_encoder", "test_attention_xml", "test_fork", "test_study_page")  # fmt: skip
"""Files of several seconds per test: first in the queue, so that no worker ends with one while the others wait."""
FEW_KERNELS = ("tests/data/", "tests/encoders/", "tests/heads/", "tests/report/", "tests/training/")
"""Folders whose tests compile little that others need: where all other workers begin, while the first compiles."""


LAST = "test_ray_cluster"
"""A process that has used Ray cannot be forked any more, as other tests do."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))
    items.sort(key=lambda item: item.path.stem == LAST)


def pytest_configure(config):
    """Workers that need the same kernel compile it once."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is not None:
        from compile_once import install

        locks = install(run)
        if locks is not None:
            config.add_cleanup(locks.remove)


def pytest_collection_finish(session):
    """What is imported by now stays: the garbage collector need not walk through millions of objects again."""
    gc.freeze()


def pytest_xdist_make_scheduler(config, log):
    """Tests of a file stay with one worker, so that what they set up is not made twice; conformance, by method."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, name = nodeid.partition("::")
            return name.rpartition("-")[2] if file.endswith("conformance/test_methods.py") else file

        def _assign_work_unit(self, node):
            first = node.gateway.id == "gw0"
            wanted = (scope for scope in self.workqueue if scope.startswith(FEW_KERNELS) != first)
            scope = next(wanted, None)
            if scope is not None:
                self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False  # as sorted above, not by the number of tests
    return ByFile(config, log)
