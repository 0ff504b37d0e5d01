"""Freed memory stays with the process inside the block, and goes back after it."""

import os
import platform
import resource
import subprocess
import sys

import numpy as np
import pytest

from common import default_malloc  # noqa: F401
from labelwise.runtime import memory as kept_memory
from labelwise.runtime.memory import is_set_by_environment, keep_freed_memory

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone"),
    pytest.mark.skipif(is_set_by_environment(), reason="the environment has settings of its own"),
    pytest.mark.usefixtures("default_malloc"),
]
BLOCK = 48 << 20


def faults_of_steps(count: int) -> int:
    """Pages that the system had to hand out while a large block was taken and freed again and again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        np.empty(BLOCK, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


ALONE = """
import resource
import numpy as np
from labelwise.runtime import memory as kept_memory
from labelwise.runtime.memory import keep_freed_memory

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

before = held()
with keep_freed_memory():
    np.empty({size}, np.uint8).fill(1)
    kept = held()
print(kept - before, held() - before)
"""


def test_blocks_that_are_freed_are_taken_again_without_new_pages():
    outside = faults_of_steps(20)
    with keep_freed_memory():
        faults_of_steps(1)
        inside = faults_of_steps(20)
    assert inside < outside / 5
    assert faults_of_steps(20) > outside / 2, "the settings were not set back"


def test_memory_goes_back_to_the_system_at_the_end():
    # in a process of its own: one that has run other tests has freed memory already, which it takes first
    command = [sys.executable, "-c", ALONE.format(size=4 * BLOCK)]
    kept, left = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert kept > 3 * BLOCK
    assert left < BLOCK


def test_settings_of_the_environment_stay():
    command = [sys.executable, "-c", ALONE.format(size=4 * BLOCK)]
    keeping = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=keeping)
    assert int(done.stdout.split()[1]) > 3 * BLOCK, "what the environment keeps was given back"


def test_settings_are_set_back_after_an_error():
    outside = faults_of_steps(10)
    with pytest.raises(RuntimeError), keep_freed_memory():
        raise RuntimeError
    assert faults_of_steps(10) > outside / 2


def test_the_last_of_several_blocks_gives_back():
    outside = faults_of_steps(10)
    with keep_freed_memory():
        with keep_freed_memory():
            faults_of_steps(1)
        inside = faults_of_steps(10)
    assert inside < outside / 5, "the inner block has set the settings back"
    assert faults_of_steps(10) > outside / 2


def test_predictions_that_fail_leave_no_block_open():
    """Also while somebody holds the error, and with it the frames of the loop over batches."""
    torch = pytest.importorskip("torch")
    from labelwise.nn.encode import EncoderHead
    from labelwise.nn.inputs import Vectors

    class Head(torch.nn.Module):
        def best(self, vectors, k):
            assert kept_memory._blocks == 1
            raise RuntimeError

    encoder = torch.nn.Linear(2, 2)
    encoder.device = torch.device("cpu")
    network = EncoderHead(encoder, Head())
    with pytest.raises(RuntimeError) as held:
        network.best(Vectors(np.ones((5000, 2), np.float32)), 1, "predicting")
    assert kept_memory._blocks == 0, held
