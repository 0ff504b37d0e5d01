"""Every config we ship is valid and says so with its own defaults filled in."""

import re
from pathlib import Path

import pytest

from labelwise.config import ConfigSource
from labelwise.data.catalogue import names
from labelwise.runs.config import run_config
from labelwise.tuning.study import read_study
from labelwise.tuning.sweep_search import grid_settings

ROOT = Path(__file__).parent.parent
ALL = sorted((ROOT / "configs").rglob("*.yml"))
STUDIES = [path for path in ALL if "search" in ConfigSource.from_file(path).values]
CONFIGS = [path for path in ALL if path not in STUDIES]


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_config_is_valid_and_repeats_itself(path):
    config = run_config(ConfigSource.from_file(path))
    again = run_config(ConfigSource.from_yaml(config.to_yaml(), str(path)))
    assert again.resolved() == config.resolved()


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_trial_of_a_study_is_valid(path):
    study = read_study(ConfigSource.from_file(path))
    assert [trial for setting in grid_settings(study) for trial in study.trials(setting)]


def test_the_page_of_published_figures_names_configs_and_data_sets_that_exist():
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| `(configs/[\w./-]+)` \| (.*?) \|", page, re.MULTILINE)
    listed = {path for _, path, _ in rows}
    for name, path, published in rows:
        assert name in names(), name
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"path: {name}\n" in text, path
        assert published.startswith(("not published", "accuracy")) or published in text, path
    recipes = {str(p.relative_to(ROOT)) for p in CONFIGS if p.stem.endswith(("_paper", "_libmultilabel"))}
    assert recipes <= listed
    assert all((ROOT / path).exists() for path in re.findall(r"configs/[\w/-]+\.yml", page))
