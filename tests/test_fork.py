"""A process that is forked after its parent has predicted on several threads can predict as well."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from conformance.planted import planted
from conformance.small import small_and_short
from labelwise.registry import METHODS, method_class
from labelwise.runtime.threads import using_threads

SECONDS = 60

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def ended_well(pid: int, seconds: float = SECONDS) -> bool:
    """Wait for a child; one that hangs is ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_predicts(name):
    method = method_class(name)
    data = planted(method.inputs[0], n_documents=60, n_labels=12)
    settings = small_and_short(name)
    with using_threads(2):
        model = method(**settings).fit(data)
        expected = model.predict(data, k=3)
        pid = os.fork()
        if pid == 0:
            try:
                found = model.predict(data, k=3)
                same = np.allclose(found.scores, expected.scores, atol=1e-4)
                learned = method(**settings).fit(data).predict(data, k=3)
                os._exit(0 if same and len(learned) == len(data) else 1)
            finally:
                os._exit(2)
        assert ended_well(pid)


AFTER_THE_USERS_OWN_WORK = """
import os
import torch
from conformance.planted import planted_texts
from labelwise.methods.mach import Mach
from labelwise.runtime.threads import using_threads
from test_fork import ended_well

data = planted_texts(n_documents=300, n_labels=12)
with using_threads(1):
    model = Mach(repetitions=2, buckets=16, hidden=[64], training={"epochs": 1}).fit(data)
torch.set_num_threads(2)
x = torch.randn(1000, 1000)
(x @ x).exp().sum()
pid = os.fork()
if pid == 0:
    with using_threads(2):
        model.predict(data, k=2)
    os._exit(0)
assert ended_well(pid, seconds=20)
"""


def test_a_child_predicts_after_its_parent_has_used_torch_by_itself():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", AFTER_THE_USERS_OWN_WORK]
    subprocess.run(command, check=True, env=environment, timeout=5 * SECONDS)
