"""The table of a study from made-up outcomes."""

import pytest

from labelwise.cli.train import _show
from labelwise.config import ConfigSource
from labelwise.tuning.outcome import FINISHED, Outcome
from labelwise.tuning.results import result_rows
from labelwise.tuning.runner import SettingResult
from labelwise.tuning.study import read_study
from labelwise.tuning.sweep_search import grid_settings
from sweep.planted import write_study


def table(tmp_path, *outcomes):
    """A study whose settings came out so, each with as many seeds."""
    seeds = list(range(len(outcomes[0])))
    vary = {"model.leaf_size": list(range(2, 2 + len(outcomes)))}
    study = read_study(ConfigSource.from_file(write_study(tmp_path, vary=vary, seeds=seeds, seed_field="model.seed")))
    results = []
    for setting, found in zip(grid_settings(study), outcomes, strict=True):
        trials = study.trials(setting)
        named = {trial.name: outcome for trial, outcome in zip(trials, found, strict=True)}
        results.append(SettingResult(setting, trials, named))
    return study, results, result_rows(study, results)


def outcome(value, seconds=1.0, verdict="healthy"):
    return Outcome(FINISHED, value, None, seconds, verdict)


def test_seconds_are_a_mean_like_the_metric(tmp_path, capsys):
    study, results, rows = table(tmp_path, [outcome(0.5, 10.0), outcome(0.7, 30.0)])
    assert (rows[0]["P@1"], rows[0]["seconds"]) == (pytest.approx(0.6), 20.0)
    _show(study, results, rows)
    assert "mean seconds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verdicts", "reported"),
    [
        (("collapsed", "collapsed"), "failed to learn: collapsed"),
        (("healthy", "diverged"), "failed to learn: 1 healthy, 1 diverged"),
        (("healthy", "healthy"), None),
    ],
)
def test_a_best_setting_that_has_not_learned_is_reported(tmp_path, capsys, verdicts, reported):
    best = [outcome(0.2, verdict=verdict) for verdict in verdicts]
    worse = [outcome(0.1, verdict="collapsed")] * 2
    study, results, rows = table(tmp_path, worse, best)
    _show(study, results, rows)
    said = capsys.readouterr().out
    assert ("failed to learn" in said) is (reported is not None)
    assert reported is None or f"{reported}. Its score" in said
    assert reported is None or rows[0]["trials"][0] in said
