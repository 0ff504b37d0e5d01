"""Every config we ship is valid and says so with its own defaults filled in."""

from pathlib import Path

import pytest

from labelwise.config import ConfigSource
from labelwise.runs.config import run_config

CONFIGS = sorted((Path(__file__).parent.parent / "configs").rglob("*.yml"))


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_config_is_valid_and_repeats_itself(path):
    config = run_config(ConfigSource.from_file(path))
    again = run_config(ConfigSource.from_yaml(config.to_yaml(), str(path)))
    assert again.resolved() == config.resolved()
