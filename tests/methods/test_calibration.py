"""Probabilities against scikit-learn's isotonic regression, thresholds against brute force, and files."""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.isotonic import isotonic_regression

import labelwise as lw
from conformance.planted import planted_features, planted_texts
from labelwise.errors import (
    ConfigError,
    DataError,
    LabelwiseError,
    ModelFormatError,
    NotFittedError,
)
from labelwise.model.calibration import Calibration, calibration_of, choose_threshold, isotonic_blocks
from labelwise.topk import TopK


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=1, max_size=60))
@settings(max_examples=80)
def test_blocks_are_those_of_scikit_learn(pairs):
    hits, counts = np.array(pairs).T
    hits = np.minimum(hits, counts).astype(np.float64)
    starts, means = isotonic_blocks(hits, counts)
    expected = isotonic_regression(hits / counts, sample_weight=counts)
    np.testing.assert_allclose(np.repeat(means, np.diff(np.append(starts, len(hits)))), expected, atol=1e-9)
    assert (np.diff(means) > 0).all()


def test_neighbours_of_equal_fractions_are_one_block():
    for fractions in ([(1, 3), (2, 6), (1, 3)], [(1, 10), (3, 30), (7, 70)], [(1, 7), (4, 5), (3, 4), (7, 9)]):
        hits, counts = np.array(fractions, np.float64).T
        starts, means = isotonic_blocks(hits, counts)
        assert len(starts) == len({*means})
        assert (np.diff(means) > 0).all()
    assert len(isotonic_blocks(np.array([1.0, 2.0, 3.0]), np.array([3.0, 6.0, 9.0]))[0]) == 1


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=2, max_size=120))
@settings(max_examples=50)
def test_points_are_the_means_of_the_steps(pairs):
    scores, right = (np.array(column) for column in zip(*sorted(pairs), strict=True))
    scores = (scores / 40).astype(np.float32)
    calibration = Calibration.fit(scores, right)
    levels, counts = np.unique(scores, return_counts=True)
    shares = np.array([right[scores == level].mean() for level in levels])
    steps = isotonic_regression(shares, sample_weight=counts)
    least = 0.5 / len(scores)
    for value in np.unique(steps.round(12)):
        block = np.isclose(steps, value, atol=1e-11)
        centre = np.average(levels[block].astype(np.float64), weights=counts[block])
        assert calibration.transform(centre) == pytest.approx(np.clip(value, least, 1 - least), abs=1e-9)


rows = st.lists(
    st.lists(st.one_of(st.floats(-3, 3, width=32), st.sampled_from([0.5, np.nextafter(np.float32(0.5), 1)])),
             min_size=1, max_size=8),
    min_size=1, max_size=5,
)  # fmt: skip


@given(rows, st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_order_and_ties_are_kept_to_the_last_bit(rows, seed):
    rng = np.random.default_rng(seed)
    taught = np.sort(rng.choice([-1.0, 0.0, 0.5, 1.0], 30).astype(np.float32) + rng.integers(0, 2, 30) * 1e-3)
    calibration = Calibration.fit(taught, rng.random(30) < 0.5)
    width = max(map(len, rows))
    scores = np.full((len(rows), width), -np.inf, np.float32)
    ids = np.full(scores.shape, -1, np.int32)
    for place, row in enumerate(rows):
        scores[place, : len(row)] = sorted(row, reverse=True)
        ids[place, : len(row)] = np.arange(len(row))
    top = TopK(ids, scores)
    found = calibration.apply(top)
    assert found.scores.dtype == np.float32
    assert np.isneginf(found.scores[ids < 0]).all()
    filled = ids >= 0
    assert ((found.scores[filled] > 0) & (found.scores[filled] <= 1)).all()
    for before, after, there in zip(scores, found.scores, filled, strict=True):
        np.testing.assert_array_equal(np.sign(np.diff(after[there])), np.sign(np.diff(before[there])))
    for place in range(len(rows)):  # a document alone, and with fewer places
        np.testing.assert_array_equal(calibration.apply(top[place : place + 1]).scores[0], found.scores[place])
    np.testing.assert_array_equal(calibration.apply(top.head(1)).scores, found.scores[:, :1])


def synthetic(n=4000, seed=0, n_labels=50, k=5):
    """Predictions whose score s is right with probability s^2, and two true labels a document nobody proposes."""
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((n, n_labels - 2)), axis=1)[:, :k].astype(np.int32)
    scores = -np.sort(-rng.random((n, k)).astype(np.float32), axis=1)
    right = rng.random((n, k)) < scores**2
    truth = sparse.lil_array((n, n_labels))
    truth[:, n_labels - 2 :] = 1
    for row in range(n):
        truth[row, ids[row][right[row]]] = 1
    data = lw.Dataset(sparse.csr_array(truth), features=sparse.csr_array((n, 1), dtype=np.float32))
    return TopK(ids, scores), data, right


def test_probabilities_hold_on_fresh_documents_and_the_report_says_so():
    top, data, _ = synthetic()
    calibration, report = calibration_of(top, data)
    fresh, _, right = synthetic(seed=9)
    found = calibration.apply(fresh).scores
    for low in (0.1, 0.3, 0.5, 0.7):
        inside = (found >= low) & (found < low + 0.1)
        assert right[inside].mean() == pytest.approx(found[inside].mean(), abs=0.03)
    assert report.error_before == pytest.approx(1 / 6, abs=0.01)  # the mean of s - s^2
    assert report.error_after < 0.02
    assert sum(one.pairs for one in report.after) == report.n_pairs == 20_000
    off = sum(one.pairs * abs(one.mean - one.share) for one in report.before if one.pairs) / report.n_pairs
    assert report.error_before == pytest.approx(off)
    assert report.n_true == data.labels.nnz
    above = found >= np.float32(report.threshold)
    assert right[above].mean() == pytest.approx(report.precision, abs=0.03)
    assert right[above].sum() / data.labels.nnz == pytest.approx(report.recall, abs=0.03)
    assert "micro-F1" in str(report)


def test_the_threshold_has_the_best_f1_of_all():
    top, data, _ = synthetic(600)
    calibration, report = calibration_of(top, data)
    probabilities = calibration.apply(top)

    def f1(threshold):
        return lw.evaluate(probabilities, data, metrics=["micro-F1"], threshold=threshold)["micro-F1"]

    best = f1(report.threshold)
    assert best >= max(f1(float(score)) for score in np.unique(probabilities.scores)[::25]) - 1e-9
    assert best == pytest.approx(report.f1, abs=0.03)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=40), st.sampled_from([None, 0.5, 0.9])
)
@settings(max_examples=60)
def test_thresholds_against_brute_force(pairs, precision):
    scores, right = (np.array(column) for column in zip(*sorted(pairs), strict=True))
    scores = (scores / 20).astype(np.float32)
    n_true = int(right.sum()) + 3
    threshold, reached = choose_threshold(scores, right, n_true, precision)
    assert threshold == float(np.float32(threshold))
    cuts = {float(cut): scores >= cut for cut in np.unique(scores)}
    mine = scores >= threshold
    if precision is None:
        assert 2 * right[mine].sum() / (mine.sum() + n_true) == pytest.approx(
            max(2 * right[above].sum() / (above.sum() + n_true) for above in cuts.values())
        )
        return
    enough = [above for above in cuts.values() if right[above].mean() >= precision]
    assert reached == bool(enough)
    if reached:
        assert right[mine].mean() >= precision
        assert mine.sum() == max(above.sum() for above in enough)
    else:
        assert right[mine].mean() == pytest.approx(max(right[above].mean() for above in cuts.values()))


def test_a_wanted_precision_and_one_out_of_reach():
    top, data, _ = synthetic(2000)
    _, report = calibration_of(top, data, precision=0.8)
    assert report.reached
    assert report.precision == pytest.approx(0.8, abs=0.03)
    nothing = replace(data, labels=sparse.csr_array(data.labels.shape, dtype=np.float32))
    calibration, report = calibration_of(top, nothing, precision=0.8)
    assert not report.reached
    assert "cannot be reached" in str(report)
    assert 0 < calibration.threshold <= 1


def test_ten_documents_are_enough_and_one_too():
    for n in (1, 2, 10):
        top, data, _ = synthetic(n)
        _, report = calibration_of(top, data)
        assert report.n_documents == n
        assert 0 <= report.f1 <= 1


@pytest.fixture(scope="module")
def model():
    return lw.LinearTree(trees=1, leaf_size=8, branching=4).fit(planted_texts(400, 40))


@pytest.fixture(scope="module")
def valid():
    return planted_texts(150, 40, seed=5)


def test_calibrating_twice_starts_from_the_scores(model, valid):
    first = model.calibrate(valid, k=10)
    assert model.calibrate(valid, k=10) == first
    lists = [valid.labels_of(row) for row in range(len(valid))]
    by_lists = model.calibrate(list(valid.texts), lists, k=10)
    assert by_lists.threshold == first.threshold


def test_scores_that_are_no_probabilities(valid):
    model = lw.LinearTree(trees=1, leaf_size=8, branching=4, post_processor="none").fit(planted_texts(400, 40))
    report = model.calibrate(valid, k=10)
    assert report.error_before is None
    assert report.before == ()
    assert report.error_after < 0.1


def test_mistakes_are_named(model, valid):
    with pytest.raises(ConfigError, match="precision must be"):
        model.calibrate(valid, precision=1.5)
    with pytest.raises(DataError, match="no document"):
        model.calibrate(valid.take(slice(0, 0)))
    with pytest.raises(NotFittedError):
        lw.LinearTree().calibrate(valid)
    with pytest.raises(ConfigError, match="k must be"):
        model.calibrate(valid, k=0)
    with pytest.raises(DataError, match="labels are missing"):
        model.calibrate(list(valid.texts))


def test_calibration_is_added_to_a_folder_without_touching_the_rest(model, valid, tmp_path):
    model.calibration_ = None
    with pytest.raises(NotFittedError, match="not calibrated"):
        model.save_calibration(tmp_path / "m")
    raw = model.predict(valid, k=5)
    model.save(tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    before = os.stat(tmp_path / "m" / "state.safetensors").st_ino
    loaded = lw.load(tmp_path / "m")
    assert loaded.threshold_ is None
    for precision in (None, 0.9):  # added, then replaced
        report = loaded.calibrate(valid, k=10, precision=precision)
        loaded.save_calibration(tmp_path / "m")
        again = lw.load(tmp_path / "m")
        assert again.threshold_ == report.threshold
        assert again.calibration_.expected == (report.precision, report.recall, report.f1)
        np.testing.assert_array_equal(again.predict(valid, k=5).scores, loaded.predict(valid, k=5).scores)
    assert os.stat(tmp_path / "m" / "state.safetensors").st_ino == before
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    again.calibration_ = None
    np.testing.assert_array_equal(again.predict(valid, k=5).scores, raw.scores)


def test_damaged_calibrations_are_refused(tmp_path):
    good = Calibration.fit(np.array([0.1, 0.2, 0.4]), np.array([False, False, True])).to_tensors()
    again = Calibration.from_tensors(good, tmp_path)
    assert again.threshold == 0.5
    for name, value in {
        "scores": np.array([0.2, 0.1]),
        "probabilities": np.array([0.5, 0.5]),
        "threshold": np.array([np.nan]),
        "expected": np.array([0.5, 0.5]),
    }.items():
        with pytest.raises(ModelFormatError, match="damaged"):
            Calibration.from_tensors({**good, name: value}, tmp_path)
    for probabilities in ([0.0, 0.5], [0.5, 1.5], [0.2, np.nan], [np.float32(0.1), np.float32(0.2)]):
        values = np.array(probabilities)
        with pytest.raises(ModelFormatError):
            Calibration.from_tensors({**good, "probabilities": values}, tmp_path)
    with pytest.raises(ModelFormatError, match="missing"):
        Calibration.from_tensors({k: v for k, v in good.items() if k != "threshold"}, tmp_path)


def test_a_manifest_must_agree_about_the_calibration(tmp_path):
    import json

    data = planted_features(80, 12)
    model = lw.Popularity().fit(data)
    model.calibrate(data, k=5)
    model.save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    for change in ({"calibrated": False}, {"calibrated": 1}):
        (tmp_path / "m" / "manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(LabelwiseError, match="calibrated"):
            lw.load(tmp_path / "m")
    older = {key: value for key, value in manifest.items() if key != "calibrated"}
    older["files"] = {name: about for name, about in manifest["files"].items() if "calibration" not in name}
    (tmp_path / "m" / "manifest.json").write_text(json.dumps(older))
    assert lw.load(tmp_path / "m").threshold_ is None
