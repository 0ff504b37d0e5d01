"""Which settings decide a result: the marks, and what follows from them."""

from typing import Annotated

import pytest

from labelwise.config import (
    PART,
    RESULT,
    UNFINISHED,
    Config,
    Decides,
    deciding_fields,
    differing_keys,
    ignored_fields,
    without_fields,
)
from labelwise.registry import method_class, method_names
from labelwise.runs.config import RunConfig, deciding_values, json_schema


class Inner(Config):
    rate: float = 0.1
    budget: Annotated[float | None, Decides.END] = None


class Outer(Config):
    size: int = 1
    threads: Annotated[int | None, Decides.NOTHING] = None
    parts: Annotated[int, Decides.ASSEMBLY] = 3
    inner: Inner | None = Inner()
    files: Annotated[Inner, Decides.NOTHING] = Inner()


def test_each_scope_leaves_out_its_fields():
    assert ignored_fields(Outer, RESULT) == {"threads": True, "files": True}
    assert ignored_fields(Outer, UNFINISHED) == {"threads": True, "files": True, "inner": {"budget": True}}
    whole = Outer(threads=2, inner=Inner(budget=5))
    assert deciding_fields(whole, RESULT) == {"size": 1, "parts": 3, "inner": {"rate": 0.1, "budget": 5}}
    assert deciding_fields(whole, PART) == {"size": 1, "inner": {"rate": 0.1}}
    for scope in (RESULT, UNFINISHED, PART):
        assert without_fields(whole.model_dump(mode="json"), ignored_fields(Outer, scope)) == deciding_fields(
            whole, scope
        )
    assert deciding_fields(Outer(inner=None), PART) == {"size": 1, "inner": None}


def test_differences_are_named_leaf_by_leaf():
    before = {"a": {"b": 1, "c": [1, 2]}, "d": None, "e": {"f": 1}}
    now = {"a": {"b": 2, "c": [1, 2]}, "e": {"f": 1, "g": 0}}
    assert differing_keys(before, now) == ["a.b", "e.g"]
    assert differing_keys({"a": {"b": 1}}, {"a": None}) == ["a.b"]


def config_classes(kind):
    yield kind
    for field in kind.model_fields.values():
        for option in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(option, type) and issubclass(option, Config):
                yield from config_classes(option)


@pytest.mark.parametrize("name", method_names())
def test_a_section_that_changes_a_default_keeps_the_mark(name):
    for kind in config_classes(method_class(name).Config):
        for base in kind.__mro__[1:]:
            for field, held in getattr(base, "model_fields", {}).items():
                marks = [mark for mark in held.metadata if isinstance(mark, Decides)]
                own = [mark for mark in kind.model_fields[field].metadata if isinstance(mark, Decides)]
                assert own == marks, f"{kind.__name__}.{field}"


def test_marks_of_runs():
    run = {
        "data": {"path": "x", "mapped": True}, "run": {"threads": 3}, "inspect": {}, "evaluate": {"k": 3},
        "model": {"method": "linear_tree", "memory": "ignore", "trees": 2},
    }  # fmt: skip
    expected = {"data": {"path": "x"}, "evaluate": {"k": 3}, "model": {"method": "linear_tree", "trees": 2}}
    assert deciding_values(run, UNFINISHED) == expected
    assert deciding_values({"model": {"method": "unknown", "memory": 1}}, UNFINISHED)["model"]["memory"] == 1
    assert RunConfig.model_fields.keys() - ignored_fields(RunConfig, UNFINISHED).keys() == {
        "model", "calibrate", "evaluate",
    } | {"data"} - ignored_fields(RunConfig, UNFINISHED).keys()  # fmt: skip


def test_marks_are_not_in_the_schema_that_editors_see():
    assert "Decides" not in str(json_schema())


def test_what_is_only_logged_decides_nothing():
    settings = pytest.importorskip("labelwise.nn.config")
    plain, logged = settings.TrainingConfig(), settings.TrainingConfig(log_every=1)
    assert deciding_fields(logged, RESULT) == deciding_fields(plain, RESULT)
