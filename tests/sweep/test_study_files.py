"""Study files: which trials they stand for, and what is said about bad ones."""

import math
import sys

import pytest

from labelwise.config import ConfigSource
from labelwise.errors import ConfigError, MissingDependencyError
from labelwise.tuning.outcome import hopeless_reason
from labelwise.tuning.study import StopSection, read_study
from labelwise.tuning.sweep_search import grid_settings, make_search, random_settings
from sweep.planted import write_study

BASE = {"data": {"path": "x"}, "model": {"method": "linear_tree"}}


def study_of(tmp_path, **changes):
    return read_study(ConfigSource.from_file(write_study(tmp_path, run=BASE, **changes)))


def test_grid_is_every_combination_of_every_group(tmp_path):
    groups = [
        {"name": "a", "vary": {"model.trees": [1, 2, 3]}},
        {"name": "b", "vary": {"model.trees": 2, "model.seed": [0, 5]}},
    ]
    study = study_of(tmp_path, vary={"model.leaf_size": [10, 20]}, groups=groups)
    settings = grid_settings(study)
    expected = [("a", s, {"trees": t}) for s in (10, 20) for t in (1, 2, 3)]
    expected += [("b", s, {"trees": 2, "seed": d}) for s in (10, 20) for d in (0, 5)]
    flat = [
        (x.group.name, x.values["model.leaf_size"], {k[6:]: v for k, v in x.values.items() if k != "model.leaf_size"})
        for x in settings
    ]
    assert flat == expected
    names = {trial.name for setting in settings for trial in study.trials(setting)}
    assert len(names) == 8, "trees 2 with seed 0 stands in both groups and is one trial for each leaf size"


def test_a_trial_is_named_by_what_is_learned(tmp_path):
    def names(**changes):
        study = study_of(tmp_path, **changes)
        return [trial.name for setting in grid_settings(study) for trial in study.trials(setting)]

    first = names()
    assert names(threads=1, parallel=3, folder="elsewhere") == first
    assert names(vary={"model.leaf_size": [4, 2]}) == first[::-1]
    assert names(groups=[{"name": "a", "vary": {"data.mapped": [False, True]}}]) == [n for n in first for _ in range(2)]
    seeded = names(seeds=[0, 1], seed_field="model.seed")
    assert len(set(seeded)) == 4
    assert set(first) < set(seeded), "seed 0 is the default"


def test_seeds_reach_the_config(tmp_path):
    study = study_of(tmp_path, seeds=[3, 4], seed_field="model.seed")
    trials = study.trials(grid_settings(study)[0])
    assert [trial.config.resolved()["model"]["seed"] for trial in trials] == [3, 4]


def test_random_settings_keep_to_their_spans_and_repeat(tmp_path):
    vary = {
        "model.solver.tolerance": {"low": 1e-3, "high": 1e3, "log": True},
        "model.trees": {"low": 1, "high": 3},
        "model.leaf_size": {"choices": [5, 50]},
    }
    found = [s.values for s in random_settings(study_of(tmp_path, vary=vary, search={"kind": "random", "trials": 200}))]
    costs = sorted(values["model.solver.tolerance"] for values in found)
    assert costs[0] >= 1e-3
    assert costs[-1] <= 1e3
    assert abs(math.log10(costs[100])) < 0.7, "the middle of a logarithmic span is its geometric mean"
    assert {values["model.trees"] for values in found} == {1, 2, 3}
    assert {values["model.leaf_size"] for values in found} == {5, 50}
    fewer = random_settings(study_of(tmp_path, vary=vary, search={"kind": "random", "trials": 20}))
    assert [s.values for s in fewer] == found[:20]


def test_optuna_finds_the_top_and_goes_on_where_it_was(tmp_path):
    pytest.importorskip("optuna")
    vary = {"model.solver.tolerance": {"low": 0.0, "high": 10.0}, "model.trees": [1, 2]}
    study = study_of(tmp_path, vary=vary, search={"kind": "optuna", "trials": 40})
    study.folder.mkdir()

    def tried(number):
        search = make_search(study)
        found = []
        while len(found) < number and (setting := search.next()) is not None:
            found.append(setting.values)
            search.tell(
                setting, 2 * setting.values["model.trees"] - (setting.values["model.solver.tolerance"] - 7) ** 2
            )
        return found, search

    first, _ = tried(25)
    again, search = tried(100)
    assert again[:25] == first
    assert len(again) == 40
    assert search.next() is None
    late = [values["model.solver.tolerance"] for values in again[25:]]
    assert sum(abs(cost - 7) < 2 for cost in late) > len(late) / 2, "chance would give 40 %"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": {"model.leaf_sise": [1]}}, r"study\.yml:\d+: model\.leaf_sise: .*did you mean 'leaf_size'"),
        (
            {"vary": {"model.solver.tolerancex": [1]}},
            r"study\.yml:\d+: model\.solver\.tolerancex: .*did you mean 'tolerance'",
        ),
        ({"vary": {"model.trees": [1, "many"]}}, r"study\.yml:\d+: model\.trees: .*got 'many'"),
        ({"vary": {"model.trees.x": [1]}, "run": {**BASE, "model": {**BASE["model"], "trees": 2}}}, "is a value"),
        ({"vary": {"model.trees": {"low": 1, "high": 3}}}, r"study\.yml:\d+: model\.trees: a grid needs a list"),
        ({"vary": {"model.trees": []}}, "a list of values"),
        ({"vary": {}}, "nothing varies"),
        ({"metric": "Q@1"}, r"study\.yml:\d+: metric: there is no metric 'Q@1'"),
        ({"seeds": [1, 2]}, "seed_field"),
        ({"searchx": {}}, r"study\.yml:\d+: searchx: .*did you mean 'search'"),
        ({"search": {"kind": "random"}}, "`trials`"),
        ({"run": {**BASE, "modelx": {}}}, r"study\.yml:\d+: modelx: .*did you mean 'model'"),
        ({"seeds": [0], "seed_field": "model.sed"}, r"study\.yml:\d+: model\.sed: .*did you mean 'seed'"),
    ],
)
def test_bad_study_files(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        study = read_study(ConfigSource.from_file(write_study(tmp_path, **{"run": BASE, **changes})))
        for setting in grid_settings(study):
            study.trials(setting)


def test_base_file_with_changes_over_it(tmp_path):
    (tmp_path / "base.yml").write_text("data: {path: x}\nmodel:\n  method: linear_tree\n  branching: 8\n  trees: 9\n")
    path = write_study(tmp_path, run={"model": {"trees": 4}}, base="base.yml")
    study = read_study(ConfigSource.from_file(path))
    model = study.trials(grid_settings(study)[0])[0].config.resolved()["model"]
    assert (model["trees"], model["branching"], model["leaf_size"]) == (4, 8, 2)


def test_hopeless_is_below_a_share_of_the_median_at_the_same_point():
    rule = StopSection(after=2, factor=0.5)
    others = [[(1, 0.2), (2, 0.4), (3, 0.9)], [(1, 0.2), (2, 0.6), (3, 0.9)]]
    assert hopeless_reason([(1, 0.0)], others, rule) is None, "too early"
    assert hopeless_reason([(1, 0.0), (2, 0.26)], others, rule) is None, "the median at 2 is 0.5, not 0.9"
    assert "the median of 2 others had 0.5000" in hopeless_reason([(1, 0.0), (2, 0.24)], others, rule)
    assert "best" in hopeless_reason([(2, 0.26)], others, StopSection(after=2, factor=0.5, than="best"))
    assert hopeless_reason([(2, 0.0)], others[:1], rule) is None, "one other is not enough"
    assert hopeless_reason([(4, 0.0)], others, rule) is None, "nobody has come as far"


def test_optuna_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    study = study_of(tmp_path, search={"kind": "optuna", "trials": 1})
    with pytest.raises(MissingDependencyError, match=r"labelwise\[sweep\]"):
        make_search(study)


def test_settings_that_decide_nothing_do_not_name_a_trial_unless_they_vary(tmp_path):
    def names(vary, **model):
        run = {"data": {"path": "x"}, "model": {"method": "mach", **model}}
        study = read_study(ConfigSource.from_file(write_study(tmp_path, run=run, vary=vary)))
        return [trial.name for setting in grid_settings(study) for trial in study.trials(setting)]

    buckets = {"model.buckets": [10, 20]}
    first = names(buckets)
    assert names(buckets, training={"load_ahead": 3, "tensorboard": "events"}, at_once=2) == first
    assert names({**buckets, "model.training.load_ahead": [0]}) == first, "its default"
    varied = names({**buckets, "model.training.load_ahead": [0, 1], "model.training.checkpoint_every.steps": [5]})
    assert len(set(varied)) == 4
    assert not set(names(buckets, training={"time_budget": 60})) & set(first), "what it comes to is another result"
    assert not set(names(buckets, repetitions=3)) & set(first)
