"""Paired differences of two evaluations: against a plain bootstrap over documents, and where they must be refused."""

import numpy as np
import pytest
from scipy import sparse

from labelwise.errors import ConfigError, DataError
from labelwise.metrics.evaluate import evaluate
from labelwise.metrics.result import SavedPredictions
from labelwise.strings import Strings
from labelwise.topk import TopK

N, LABELS, K = 600, 30, 5
METRICS = ["P@1", "P@5", "nDCG@5", "R@5", "macro-F1@5"]


def planted(noise, seed):
    """Predictions that find the true labels the less, the larger the noise is; some documents are hard for all."""
    rng, truth_rng = np.random.default_rng(seed), np.random.default_rng(0)
    truth = sparse.csr_array((truth_rng.random((N, LABELS)) < 0.1).astype(np.float32))
    hard = truth_rng.random((N, 1)) * 3
    scores = truth.toarray() + (noise + hard) * rng.random((N, LABELS))
    ids = np.argsort(-scores, 1)[:, :K].astype(np.int32)
    return TopK(ids, np.take_along_axis(scores, ids, 1).astype(np.float32)), truth


@pytest.fixture(scope="module")
def two():
    return [evaluate(*planted(noise, seed), METRICS) for noise, seed in ((0.2, 1), (0.8, 2))]


def test_differences_match_a_plain_bootstrap_over_documents(two):
    (good, truth), (poor, _) = planted(0.2, 1), planted(0.8, 2)
    dense = truth.toarray().astype(float)
    hits = [np.take_along_axis(dense, top.ids, 1).sum(1) / K for top in (good, poor)]
    found = two[0].difference(two[1], repeats=2000)["P@5"]
    rows = np.random.default_rng(5).integers(0, N, (2000, N))
    plain = (hits[0][rows] - hits[1][rows]).mean(1)
    assert found.value == pytest.approx((hits[0] - hits[1]).mean(), abs=1e-12)
    assert found.low == pytest.approx(np.quantile(plain, 0.025), abs=0.004)
    assert found.high == pytest.approx(np.quantile(plain, 0.975), abs=0.004)
    assert found.distinguishable


def test_pairing_shows_what_two_intervals_hide(two):
    good, poor = (evaluate(*planted(noise, seed), ["P@5"], bootstrap=500) for noise, seed in ((0.2, 1), (0.35, 1)))
    assert good.intervals["P@5"][0] < poor.intervals["P@5"][1]  # they overlap
    assert good.difference(poor)["P@5"].distinguishable


def test_the_same_predictions_cannot_be_distinguished(two):
    for found in two[0].difference(two[0]).values():
        assert (found.value, found.low, found.high) == (0, 0, 0)
        assert not found.distinguishable
    assert set(two[0].difference(two[1])) == set(METRICS) - {"macro-F1@5"}  # no sum over documents


def test_other_documents_cannot_be_paired(two):
    top, truth = planted(0.2, 1)
    backwards = evaluate(top[::-1], truth[::-1], METRICS)
    with pytest.raises(DataError, match="same documents in the same order"):
        two[0].difference(backwards)
    with pytest.raises(DataError, match="read from JSON"):
        two[0].difference(type(two[0]).from_dict(two[0].to_dict()))
    with pytest.raises(ConfigError, match="at least one"):
        two[0].difference(two[1], repeats=0)


@pytest.fixture
def saved(two, tmp_path):
    top, _ = planted(0.2, 1)
    top = TopK(np.where(top.scores < np.quantile(top.scores, 0.1), -1, top.ids), top.scores, Strings.numbers(LABELS))
    path = tmp_path / "predictions.safetensors"
    kept = SavedPredictions(top, np.arange(N, dtype=np.uint64), two[0].sums, two[1].sums)
    kept.write(path)
    return kept, path


def test_saved_predictions_are_read_back_by_name(saved):
    kept, path = saved
    found = SavedPredictions.read(path)
    assert found.top.labels == kept.top.labels
    assert np.array_equal(found.top.scores, kept.top.scores)
    assert np.array_equal(found.documents, kept.documents)
    assert found.sums.metrics == kept.sums.metrics
    assert found.sums.intervals(50, 3) == kept.sums.intervals(50, 3)
    assert found.baseline.truth == kept.baseline.truth


def test_damaged_predictions_are_refused(saved):
    _, path = saved
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little") + 8
    rng = np.random.default_rng(0)
    refused = 0
    for cut in (0, 5, header // 2, header + 9, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match=r"damaged|cut short"):
            SavedPredictions.read(path)
    for position in rng.integers(8, header, 150).tolist():
        changed = bytearray(content)
        changed[position] ^= 1 + int(rng.integers(255))
        path.write_bytes(changed)
        try:
            SavedPredictions.read(path)
        except DataError:
            refused += 1
    assert refused > 75
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        SavedPredictions.read(path)
