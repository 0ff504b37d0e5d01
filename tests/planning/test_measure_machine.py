"""The measurement of a machine, on less data: every constant that a plan needs is found."""

import dataclasses
import sys

import pytest

from labelwise.planning import measure as measure_machine
from labelwise.planning.costs import Constants


def test_linear_constants_of_every_precision(monkeypatch):
    monkeypatch.setattr(measure_machine, "DOCUMENTS", 1500)
    monkeypatch.setattr(measure_machine, "LABELS", 2000)
    steps = []
    found = measure_machine._linear(steps.append)
    constants = Constants(**found)
    assert Constants.from_json(dataclasses.asdict(constants)) == constants
    sizes = constants.weight_bytes
    assert sizes["float32"] - sizes["float16"] > 1.5, "two bytes less per stored value"
    assert sizes["float16"] - sizes["int8"] > 0.8, "one byte less"
    assert constants.kept_at(0.0) > constants.kept_at(0.1) > constants.kept_at(0.3)
    assert len(steps) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_program_may_have_any_name():
    """Its name is in the file that memory is read from."""
    from pathlib import Path

    from labelwise.runtime.memory import own_memory

    name = Path("/proc/self/comm")
    before = name.read_bytes()
    try:
        name.write_bytes("обучение".encode()[:15])  # also cut inside a character
        assert own_memory() > 1e6
    finally:
        name.write_bytes(before.strip())
