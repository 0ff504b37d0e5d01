"""`labelwise auto` when models are ended by the budget or fail: what is tried again, and what is decided by them."""

import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

from auto.steady import steady
from cli.commands import labelwise
from cli.test_train_data import COLUMNS
from labelwise.io.json import read_json
from labelwise.methods.linear_flat import LinearFlat
from labelwise.methods.linear_tree import LinearTree
from labelwise.report.schema import AutoRecord
from labelwise.runtime.budget import Budget
from labelwise.tuning import auto as search
from labelwise.tuning.auto import Search

QUICK = ("--set", "run.report=false", "--set", "evaluate.bootstrap=0")
COMMAND = ("auto", "table.csv", *COLUMNS, *QUICK)
CUT = "the time budget has ended its training"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    draw, rows = np.random.default_rng(0), ["id,title,abstract,subjects"]
    for number in range(600):  # so many labels that a tree has several chunks
        labels = draw.permutation(60)[:2]
        words = [*(f"w{label}" for label in labels), *(f"n{word}" for word in draw.integers(0, 200, 6))]
        rows.append(f"d{number},{words[0]},{' '.join(words[1:])},{';'.join(f'S{label}' for label in labels)}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def complete(place):
    """The models of a search that had time for all, by name."""
    with steady():
        labelwise(*COMMAND, "--budget", "2m", "-o", "complete", cwd=place)
    return by_name(place / "complete")


def by_name(run):
    return {option.name: option for option in read_json(run / "auto.json", AutoRecord).options}


def values(options):
    return {name: (option.status, option.value, option.parameters) for name, option in options.items()}


def interrupt(*arguments, **named):
    raise KeyboardInterrupt


def interrupted(place, name, monkeypatch, *more):
    """A search whose budget is used before `tree` is trained, stopped before it decides."""
    with steady({"popularity": 100.0}), monkeypatch.context() as patch:
        patch.setattr(Search, "try_ensembles", interrupt)
        labelwise(*COMMAND, "--budget", "30s", "-o", name, *more, cwd=place, code=130)
    assert by_name(place / name)["tree"].reason == CUT


def test_what_the_budget_has_ended_is_trained_to_the_end_with_a_larger_one(place, complete, monkeypatch):
    interrupted(place, "more", monkeypatch)
    assert by_name(place / "more")["tree"].value < complete["tree"].value
    with steady():
        labelwise(*COMMAND, "--budget", "4m", "-o", "more", cwd=place)
    assert values(by_name(place / "more")) == values(complete)
    assert not list((place / "more" / "auto").glob("*/checkpoints"))


def test_the_same_budget_keeps_what_it_has_ended(place, complete, monkeypatch):
    interrupted(place, "same", monkeypatch)
    (model,) = (place / "same" / "auto").glob("tree-*/model/manifest.json")
    assert (model.parents[1] / "checkpoints").exists(), "for an attempt with more time"
    before = model.stat().st_mtime_ns, by_name(place / "same")["tree"].value
    with steady():
        labelwise(*COMMAND, "--budget", "30s", "-o", "same", cwd=place)
    assert (model.stat().st_mtime_ns, by_name(place / "same")["tree"].value) == before


def test_a_killed_attempt_with_the_same_budget_has_no_more_time(place, complete, monkeypatch):
    with steady({"popularity": 100.0}), monkeypatch.context() as patch:
        patch.setattr(Search, "try_ensembles", interrupt)
        patch.setattr(search.RunTime, "interrupted", lambda self: None)  # as after SIGKILL
        labelwise(*COMMAND, "--budget", "30s", "-o", "killed", cwd=place, code=130)
    (model,) = (place / "killed" / "auto").glob("tree-*/model/manifest.json")
    before = model.stat().st_mtime_ns
    with steady():
        labelwise(*COMMAND, "--budget", "30s", "-o", "killed", cwd=place)
    assert model.stat().st_mtime_ns == before


def test_nothing_is_decided_by_a_model_that_the_budget_has_ended(place, complete, monkeypatch):
    """`tree` is ended early, the rest has time: `soft` is better than it, which says nothing about `soft`."""
    plain, calls = LinearTree._fit, []

    def fit(self, train, valid, job):
        calls.append(self)
        budget = job.budget.part(0.0) if len(calls) == 1 else job.budget
        return plain(self, train, valid, replace(job, budget=budget))

    monkeypatch.setattr(LinearTree, "_fit", fit)
    with steady():
        labelwise(*COMMAND, "--budget", "2m", "-o", "undecided", cwd=place)
    found = by_name(place / "undecided")
    assert found["tree"].reason == CUT
    assert found["tree"].value < found["soft"].value
    assert "solver" not in found["trees"].parameters
    assert found["trees"].estimate > complete["trees"].estimate, "not that of a training that was ended early"


def test_only_what_was_ended_early_is_called_so_and_the_time_is_that_of_the_clock(place, monkeypatch):
    plain = Search.try_models
    with steady() as clock, monkeypatch.context() as patch:

        def late(self):
            clock.now += 100.0
            plain(self)

        patch.setattr(Search, "try_models", late)
        shown = labelwise(*COMMAND, "--budget", "30s", "-o", "late", cwd=place).out
    found = by_name(place / "late")
    assert (found["popularity"].reason, found["tree"].reason) == ("", CUT)
    assert read_json(place / "late" / "auto.json", AutoRecord).seconds == pytest.approx(100.1)
    assert "tried in 1 min 40 s" in shown


class Large:
    """What a failed training has computed."""


@pytest.mark.parametrize(
    ("error", "reason", "traceback"),
    [
        (MemoryError(), "not enough memory", False),
        (RuntimeError("CUDA out of memory. Tried to allocate\nhints"), "not enough memory", False),
        (RuntimeError("shapes do not match\nmore"), "RuntimeError: shapes do not match", True),
        (OSError(28, "No space left on device", "big.file"), "big.file: No space left on device", False),
    ],
)
def test_a_model_that_fails_is_a_row_of_the_table(place, complete, tmp_path, monkeypatch, error, reason, traceback):
    alive, plain, ensembles = [], search.cross_fitted, []

    def fit(self, *others):
        large = Large()
        alive.append(weakref.ref(large))
        raise error

    def cross_fitted(members, rule, judge):
        assert [one() for one in alive] == [None] * len(alive), "memory of failed trainings is free"
        ensembles.append(members)
        if len(ensembles) == 1:
            raise error
        return plain(members, rule, judge)

    monkeypatch.setattr(LinearFlat, "_fit", fit)
    monkeypatch.setattr(search, "cross_fitted", cross_fitted)
    with steady():
        labelwise(*COMMAND, "--budget", "2m", "-o", tmp_path / "run", cwd=place)
    found = by_name(tmp_path / "run")
    assert (found["flat"].status, found["flat"].reason) == ("failed", reason)
    assert found["pair_trees"].value == complete["pair_trees"].value
    failed = [option for option in found.values() if option.members and option.status == "failed"]
    assert [option.reason for option in failed] == [reason]
    assert len(ensembles) > 2
    assert ("Traceback" in (tmp_path / "run" / "auto" / "log.txt").read_text()) == traceback


def test_a_search_without_any_model_says_why(place, tmp_path, monkeypatch):
    def fit(self, *others):
        raise MemoryError

    monkeypatch.setitem(sys.modules, "torch", None)  # so that there are linear methods only
    for method in (LinearFlat, LinearTree):
        monkeypatch.setattr(method, "_fit", fit)
    with steady():
        failed = labelwise(*COMMAND, "--budget", "1m", "-o", tmp_path / "run", cwd=place, code=2)
    assert "labelwise: not enough memory" in failed.err


def test_parts_of_a_budget_share_the_record_of_an_early_end():
    whole = Budget(10.0, 10.0)
    other = whole.for_new_work()
    whole.part(0.5).limited(1.0).reserving(1.0).end_early()
    assert (whole.ended_early, other.ended_early) == (True, False)
    Budget().end_early()
    assert not Budget().ended_early
