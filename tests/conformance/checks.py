"""What every method must hold to. Each check takes a `Subject`, which makes fresh methods and keeps a fitted one.

The checks know nothing of any one method. `test_broken_methods.py` proves that each can fail. Checks of model folders
are in `folder_checks.py`.
"""

from __future__ import annotations

import copy
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from common import same_predictions
from conformance.memory import resident_memory
from conformance.planted import as_given, empty_documents, planted
from conformance.subject import Subject
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError, NotFittedError
from labelwise.parallel import threads, using_threads

CHECKS: dict[str, Callable[[Subject, Path], None]] = {}
MARGIN = 0.3


def check(function):
    CHECKS[function.__name__.removeprefix("check_")] = function
    return function


@check
def check_solves_planted_data(subject: Subject, tmp_path: Path) -> None:
    """Beats popularity by a wide margin on documents it has not seen; a baseline must at least equal it."""
    for kind in subject.kinds():
        train, test = planted(kind, n_documents=900).split(1 / 3, seed=1)
        floor = lw.evaluate(lw.Popularity().fit(train).predict(test, k=3), test, metrics=["P@1", "P@3"])
        found = lw.evaluate(subject().fit(train).predict(test, k=3), test, metrics=["P@1", "P@3"])
        margin = MARGIN if subject().learns else 0.0
        assert found["P@1"] >= min(floor["P@1"] + margin, 0.95), (kind, found["P@1"], floor["P@1"])
        assert found["P@3"] >= floor["P@3"] + margin / 3, (kind, found["P@3"], floor["P@3"])


@check
def check_predictions_are_well_formed(subject: Subject, tmp_path: Path) -> None:
    """Finite scores, best first, equal scores by id, no label twice, empty places at the end."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        top = model.predict(data, k=20)
        assert top.ids.shape == top.scores.shape == (len(data), 20)
        assert top.label_names == data.label_names
        filled = top.ids >= 0
        assert np.isfinite(top.scores[filled]).all()
        assert (top.ids[~filled] == -1).all()
        assert np.isneginf(top.scores[~filled]).all()
        assert (top.ids < data.n_labels).all()
        for ids, scores in zip(top.ids, top.scores, strict=True):
            count = int((ids >= 0).sum())
            assert (ids[:count] >= 0).all()
            assert len(set(ids[:count].tolist())) == count
            order = sorted(range(count), key=lambda j: (-scores[j], ids[j]))
            assert order == list(range(count))


@check
def check_batch_equals_single(subject: Subject, tmp_path: Path) -> None:
    """A document's prediction does not depend on the company it is in."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        whole = model.predict(data, k=5)
        for row in (0, 17, len(data) - 1):
            single = model.predict(data.take(slice(row, row + 1)), k=5)
            np.testing.assert_array_equal(single.ids[0], whole.ids[row])
            np.testing.assert_allclose(single.scores[0], whole.scores[row], rtol=1e-5, atol=1e-6)


@check
def check_is_deterministic(subject: Subject, tmp_path: Path) -> None:
    """The same data and parameters give the same model, on one thread or several.

    A method that says that its sums depend on the threads must give the same on the same number of them, and nearly the
    same on others.
    """
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        one = model.predict(data, k=5)
        if subject().same_on_any_threads:
            for count in (1, 3):
                with using_threads(count):
                    same_predictions(one, subject().fit(data).predict(data, k=5))
        else:
            same_predictions(one, subject().fit(data).predict(data, k=5))
            with using_threads(3 if threads() == 1 else 1):
                other = subject().fit(data).predict(data, k=5)
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-2, atol=1e-3)


@check
def check_fit_again_forgets(subject: Subject, tmp_path: Path) -> None:
    """A second fit leaves nothing of the first."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        used = subject().fit(planted(kind, n_labels=40, seed=5)).fit(data)
        same_predictions(used.predict(data, k=5), model.predict(data, k=5))


@check
def check_more_places_than_labels(subject: Subject, tmp_path: Path) -> None:
    """k above the number of labels gives k places, the rest of them empty."""
    for kind in subject.kinds():
        data = planted(kind, n_labels=7)
        model = subject().fit(data)
        top = model.predict(data.take(slice(0, 3)), k=12)
        assert top.ids.shape == (3, 12)
        assert (top.ids[:, 7:] == -1).all()
        for bad in (0, -1, 2.5):
            with pytest.raises(ConfigError, match="k must be"):
                model.predict(data, k=bad)


@check
def check_empty_rows(subject: Subject, tmp_path: Path) -> None:
    """Empty documents, documents without labels, labels without documents and an empty batch all work."""
    for kind in subject.kinds():
        data = planted(kind)
        labels = sparse.lil_array(data.labels)
        labels[3], labels[:, 5] = 0, 0
        data = replace(data, labels=sparse.csr_array(labels))
        model = subject().fit(data)
        empty = empty_documents(data, kind)
        top = model.predict(empty, k=4)
        assert np.isfinite(top.scores[top.ids >= 0]).all()
        assert model.predict(data.take(slice(0, 0)), k=4).ids.shape == (0, 4)
        nothing = data.take(slice(0, 0))
        with pytest.raises(DataError, match="no document"):
            subject().fit(nothing)


@check
def check_unseen_labels(subject: Subject, tmp_path: Path) -> None:
    """Test labels that training has not seen count as misses; the label space of the model does not change."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        test = replace(data, label_names=lw.Strings.of(f"new{j}" for j in range(data.n_labels)))
        top = model.predict(test, k=3)
        assert lw.evaluate(top, test, metrics=["P@3"])["P@3"] == 0
        assert model.label_names_ == data.label_names


@check
def check_unfitted_is_refused(subject: Subject, tmp_path: Path) -> None:
    """Predict and save before fit say so."""
    with pytest.raises(NotFittedError, match="fit"):
        subject().predict(["text"])
    with pytest.raises(NotFittedError, match="fit"):
        subject().save(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@check
def check_sklearn_manners(subject: Subject, tmp_path: Path) -> None:
    """clone, get_params, set_params and fit(X, Y) work; fit returns self and does not touch parameters."""
    from sklearn.base import clone
    from sklearn.utils.validation import check_is_fitted

    model = subject()
    before = model.get_params()
    twin = clone(model)
    assert twin is not model
    assert twin.get_params() == before
    assert set(model.get_params(deep=False)) == set(type(model).Config.model_fields)
    assert model.set_params(**before) is model
    kind = subject.kinds()[0]
    fitted, data = subject.fitted(kind)
    documents = as_given(data, kind)
    assert twin.fit(documents, data.labels) is twin
    check_is_fitted(twin)
    assert twin.get_params() == before
    same_predictions(twin.predict(documents, k=3), fitted.predict(data, k=3))
    assert 0 <= twin.score(documents, data.labels) <= 1


@check
def check_unknown_parameters_are_refused(subject: Subject, tmp_path: Path) -> None:
    """A misspelt parameter is an error in the constructor and in set_params, and changes nothing."""
    model = subject()
    before = model.get_params()
    with pytest.raises(ConfigError, match="no_such_parameter"):
        type(model)(no_such_parameter=1)
    with pytest.raises(ConfigError, match="no_such_parameter"):
        model.set_params(no_such_parameter=1)
    assert model.get_params() == before


@check
def check_inputs_are_left_alone(subject: Subject, tmp_path: Path) -> None:
    """Neither fit nor predict changes the data it is given."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        model.predict(data, k=3)
        files = [Path(path).read_bytes() for path in data.paths] if kind == "paths" else None
        untouched = planted(kind)
        assert (data.labels != untouched.labels).nnz == 0
        if kind == "features":
            assert (data.features != untouched.features).nnz == 0
        elif kind == "arrays":
            np.testing.assert_array_equal(data.arrays, untouched.arrays)
        else:
            assert getattr(data, kind) == getattr(untouched, kind)
        if files is not None:
            assert files == [Path(path).read_bytes() for path in untouched.paths]


@check
def check_never_dense(subject: Subject, tmp_path: Path) -> None:
    """Learning from and predicting for documents over many labels takes far less memory than documents x labels."""
    kind = subject.kinds()[-1]
    n_labels, n_documents = 40_000, 1_000
    small = planted(kind, n_documents=300, n_labels=60).take(np.arange(n_documents) % 300)
    rows = np.repeat(np.arange(n_documents), 2)
    columns = np.random.default_rng(0).integers(0, n_labels, len(rows))
    labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, n_labels))
    data = replace(small, labels=labels, label_names=lw.Strings.numbers(n_labels))
    model = subject()
    subject.fitted(kind)[0].predict(small, k=5)  # what is imported and compiled at the first use does not count
    for step in (lambda: model.fit(data), lambda: model.predict(data, k=5)):
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < n_documents * n_labels * 4 / 4, f"{peak:,} bytes for {n_documents:,} x {n_labels:,}"
    many = data.take(np.tile(np.arange(n_documents), 2))  # networks keep blocks of a fixed size beside
    with resident_memory() as grown:
        model.predict(many, k=5)
    assert max(grown) < len(many) * n_labels * 3, f"the process grew by {max(grown):,} bytes for {len(many):,}"


@check
def check_calibration_keeps_the_ranking(subject: Subject, tmp_path: Path) -> None:
    """Probabilities in the order of the scores, ties as before, the same after saving; a new fit forgets them."""
    for kind in subject.kinds():
        fitted, train = subject.fitted(kind)
        model, valid = copy.copy(fitted), planted(kind, n_documents=200, seed=3)
        before = model.predict(valid, k=20)
        assert model.threshold_ is None
        report = model.calibrate(valid, k=20)
        after = model.predict(valid, k=20)
        np.testing.assert_array_equal(after.ids, before.ids)
        filled = after.ids >= 0
        assert ((after.scores[filled] > 0) & (after.scores[filled] <= 1)).all()
        steps = [np.sign(top.scores[:, 1:] - top.scores[:, :-1])[filled[:, 1:]] for top in (before, after)]
        np.testing.assert_array_equal(*steps)
        assert 0 < model.threshold_ <= 1
        assert model.threshold_ == report.threshold
        model.save(tmp_path / f"calibrated-{kind}")
        same_predictions(lw.load(tmp_path / f"calibrated-{kind}").predict(valid, k=20), after)
        same_predictions(model.fit(train).predict(valid, k=20), before)
        same_predictions(fitted.predict(valid, k=20), before)


@check
def check_learns_more(subject: Subject, tmp_path: Path) -> None:
    """More documents are learned, also with a new label; nothing is learned of no documents. Others refuse."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        if not model.learns_more:
            with pytest.raises(ConfigError, match="cannot learn more documents"):
                model.learn(data)
            continue
        names = lw.Strings.of("new" if name == "L0" else name for name in data.label_names)
        more = replace(data.take(slice(0, 300)), label_names=names)
        model = subject().fit(data.take(slice(300, None)))
        old_names, before = model.label_names_, model.predict(more, k=5)
        assert model.learn(data.take(slice(0, 0))).n_documents == 0
        same_predictions(model.predict(more, k=5), before)
        assert model.learn(more).n_new_labels == 1
        assert list(model.label_names_) == [*old_names, "new"]
        after = model.predict(more, k=5)
        gain = [lw.evaluate(top, more.align(model.label_names_), metrics=["P@5"])["P@5"] for top in (before, after)]
        assert gain[1] > gain[0], (kind, gain)
        true = [row for row in range(len(more)) if "new" in more.labels_of(row)]
        found = ["new" in after.labels[row] for row in true]
        assert np.mean(found) > 0.5, (kind, np.mean(found))
        model.save(tmp_path / f"learned-{kind}")
        same_predictions(lw.load(tmp_path / f"learned-{kind}").predict(more, k=5), after)
        if model.explains:
            assert model.explain(more.take([true[0]]), labels=["new"])[0].label == "new"


@check
def check_wrong_inputs_are_refused(subject: Subject, tmp_path: Path) -> None:
    """Documents of another kind or width, NaN, and nonsense get a clear error."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        for documents in wrong_documents(data, kind):
            with pytest.raises(DataError):
                model.predict(documents)
        if kind == "features":
            with pytest.raises(DataError, match="NaN"):
                model.predict(sparse.csr_array(np.full((1, data.features.shape[1]), np.nan)))
        if kind == "arrays":
            with pytest.raises(DataError, match="NaN"):
                model.predict(np.full((1, *data.arrays.shape[1:]), np.nan))
        if kind == "paths" and subject().learns:
            with pytest.raises(DataError, match=r"missing\.pgm"):
                model.predict([str(tmp_path / "missing.pgm")])
        with pytest.raises(DataError):
            subject().fit(as_given(data, kind), [["x"]])
        with pytest.raises(DataError):
            subject().fit(as_given(data, kind))


def wrong_documents(data: Dataset, kind: str) -> Iterator[Any]:
    """Documents that a model trained on the planted ones cannot read."""
    yield from (None, [1, 2], {"a": 1}, b"bytes", sparse.csr_array((2, 10_000), dtype=np.float32))
    if kind in ("texts", "paths"):
        yield from (np.zeros((2, 5)), np.zeros((2, 5, 5)))
    else:
        yield from ("text", ["text"], [Path("picture.pgm")], data.labels[:1].toarray()[0])
    if kind == "features":
        yield np.zeros((2, 3, 3))
