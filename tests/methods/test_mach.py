"""MACH: repetitions that need nobody, ways to score, single labels, learned buckets, files."""

import sys

import numpy as np
import pytest
from mach_cases import SHORT, SMALL, TRAINING, few_documents, same_repetitions
from scipy import sparse

import labelwise as lw
from common import Stop
from conformance.planted import planted
from labelwise.errors import ConfigError, DataError, MissingDependencyError
from labelwise.labelspace.buckets import BucketTables
from labelwise.nn.train.repetitions import RepetitionFitting
from labelwise.runtime.job import Job


@pytest.fixture(scope="module")
def data():
    return few_documents()


@pytest.fixture(scope="module")
def model(data):
    return lw.Mach(**SMALL).fit(data)


@pytest.mark.parametrize("at_once", [2, 3, 4])
def test_repetitions_side_by_side_learn_what_they_learn_alone(data, model, at_once):
    same_repetitions(lw.Mach(**SMALL, at_once=at_once).fit(data).repetitions_, model.repetitions_)


def test_repetitions_differ(model):
    first, second = (one.tensors for one in model.repetitions_[:2])
    assert np.abs(first["table"] - second["table"]).mean() > 0.01


def test_the_rate_of_the_head_is_the_outputs(data):
    def trained(**optimiser):
        training = {**TRAINING, "epochs": 1, "optimiser": {"rate": 1e-9, "weight_decay": 0, **optimiser}}
        return lw.Mach(**{**SHORT, "training": training}).fit(data).repetitions_[0].tensors

    still, moved = trained(), trained(head_rate=0.1)
    changed = {name for name in still if np.abs(still[name] - moved[name]).max() > 1e-3}
    assert changed == {"weight0", "bias1"}


def test_more_repetitions_are_better(data, model):
    scores = [model.subset(range(count)).score(data) for count in (1, 4)]
    assert scores[1] > scores[0]
    with pytest.raises(ConfigError, match="choose some of"):
        model.subset([7])


@pytest.mark.parametrize("score", ["logits", "mean", "least", "median", "unbiased"])
def test_every_way_to_score_finds_labels(data, model, score):
    top = model.set_params(score=score).predict(data, k=3)
    put_together = {"least": np.min, "median": np.median}.get(score, np.mean)
    tables, buckets = (
        BucketTables(data.n_labels, 32, range(4)).side_by_side(),
        model.fitted_.bucket_scores(data.features, model.config),
    )
    values = put_together([table[places] for table, places in zip(buckets, tables.T, strict=True)], axis=0).T
    found = np.take_along_axis(values, top.ids, 1)
    np.testing.assert_allclose(found, np.sort(values, axis=1)[:, :-4:-1], rtol=1e-5)
    assert lw.evaluate(top, data, metrics=["P@1"])["P@1"] > lw.Popularity().fit(data).score(data) + 0.1
    assert (np.diff(top.scores, axis=1) <= 0).all()
    model.set_params(score=None)


def test_candidates_find_nearly_the_same(data, model):
    exact = model.predict(data, k=3)
    quick = lw.Mach(**SMALL, candidates={"buckets": 12, "hits": 2}).fit(data).predict(data, k=3)
    assert (exact.ids == quick.ids).mean() > 0.9


@pytest.fixture(scope="module")
def single():
    """One label a document."""
    data = planted("features", n_documents=500, n_labels=40)
    first = data.labels.indices[data.labels.indptr[:-1]]
    labels = sparse.csr_array((np.ones(500, np.float32), first, np.arange(501)), shape=data.labels.shape)
    return lw.Dataset(labels, features=data.features)


def test_several_labels_with_softmax_are_told(caplog, data, single):
    settings = {**SMALL, "repetitions": 1, "loss": "softmax", "training": {**TRAINING, "epochs": 1}}
    lw.Mach(**settings).fit(single)
    assert "softmax" not in caplog.text
    lw.Mach(**settings).fit(data)
    several = int((np.diff(data.labels.indptr) > 1).sum())
    assert several
    assert f"softmax is for one label per document; {several} have more" in caplog.text


def test_single_labels_with_softmax(single):
    settings = {**SMALL, "buckets": 16, "training": {**TRAINING, "epochs": 15}}
    model = lw.Mach(**settings, loss="softmax").fit(single)
    assert model.config.aggregation == "unbiased"
    assert model.score(single) > lw.Popularity().fit(single).score(single) + 0.4
    buckets = model.fitted_.bucket_scores(single.features, model.config)
    np.testing.assert_allclose(buckets.sum(1), 1, rtol=1e-5)
    tables = BucketTables(40, 16, range(4)).side_by_side()
    means = np.mean([table[places] for table, places in zip(buckets, tables.T, strict=True)], axis=0).T
    top = model.predict(single, k=40)
    np.testing.assert_allclose(top.scores, np.take_along_axis(16 / 15 * (means - 1 / 16), top.ids, 1), atol=1e-6)


def test_linear_networks_and_hashed_features(data):
    settings = {**SMALL, "hidden": [], "training": {**TRAINING, "epochs": 10}}
    floor = lw.Popularity().fit(data).score(data)
    assert lw.Mach(**settings).fit(data).score(data) > floor + 0.2
    hashed = lw.Mach(**settings, feature_hashing=64).fit(data)
    assert hashed.repetitions_[0].tensors["table"].shape == (64, 32)
    assert hashed.score(data) > floor + 0.1


def test_tables_of_features_are_built_once(data, monkeypatch):
    hashed = lw.Mach(**SMALL, feature_hashing=64).fit(data)
    expected = hashed.predict(data, k=5)
    monkeypatch.setattr(BucketTables, "table", None)
    np.testing.assert_array_equal(hashed.predict(data, k=5).scores, expected.scores)


def test_tables_of_the_original(tmp_path, data, model):
    """Lookups written by MACH's own tools take the place of the hash, and are part of the model."""
    BucketTables(data.n_labels, 32, range(4), "universal", seed=9).write_lookups(tmp_path / "lookups")
    found = lw.Mach(**SMALL, lookups=str(tmp_path / "lookups")).fit(data)
    found.save(tmp_path / "model")
    for path in (tmp_path / "lookups").iterdir():
        path.unlink()
    loaded = lw.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(data, k=5).ids, found.predict(data, k=5).ids)
    BucketTables(data.n_labels, 32, range(4)).write_lookups(tmp_path / "lookups")
    same_repetitions(lw.Mach(**SMALL, lookups=str(tmp_path / "lookups")).fit(data).repetitions_, model.repetitions_)
    with pytest.raises(DataError, match="bucket_order_3"):
        (tmp_path / "lookups" / "bucket_order_3.npy").unlink()
        lw.Mach(**SMALL, lookups=str(tmp_path / "lookups")).fit(data)


def test_labels_move_to_buckets_that_suit_them(tmp_path, data):
    settings = {**SMALL, "training": {**TRAINING, "epochs": 8}, "repartition": {"every": 3, "offers": 5}}
    model = lw.Mach(**settings).fit(data)
    hashed = BucketTables(data.n_labels, 32, range(4))
    for one in model.repetitions_:
        assert (one.buckets != hashed.table(one.number)).mean() > 0.3
        offered = model.config.repartition.offered(data.n_labels, 32, 0, one.number).rows(0, data.n_labels)
        assert (one.buckets[:, None] == offered).any(1)[data.label_counts() > 0].all()
        assert np.bincount(one.buckets, minlength=32).max() <= 12, "buckets stay about equally full"
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(lw.load(tmp_path / "model").predict(data, k=5).ids, model.predict(data, k=5).ids)


def test_learned_buckets_resume_to_the_same(tmp_path, data):
    settings = {**SMALL, "repetitions": 1, "repartition": {"every": 2}}
    expected = lw.Mach(**settings).fit(data)
    with pytest.MonkeyPatch.context() as patch:
        steps, plain = [], RepetitionFitting.loss

        def stopping(self, batch):
            steps.append(1)
            if len(steps) == 35:  # in the second round of ten steps an epoch
                raise Stop
            return plain(self, batch)

        patch.setattr(RepetitionFitting, "loss", stopping)
        with pytest.raises(Stop):
            lw.Mach(**settings).fit(data, job=Job(tmp_path / "work"))
    found = lw.Mach(**settings).fit(data, job=Job(tmp_path / "work"))
    same_repetitions(found.repetitions_, expected.repetitions_)
    np.testing.assert_array_equal(found.repetitions_[0].buckets, expected.repetitions_[0].buckets)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at_once": 2, "training": {"clip": 1.0}}, "at_once"),
        ({"at_once": 2, "training": {"restore_best": True}}, "at_once"),
        ({"training": {"restore_best": True}}, "validate_every"),
        ({"training": {"tokens_per_batch": 100}}, "batch_size"),
        ({"missing": "leave"}, "repetitions_folder"),
        ({"repartition": {}, "training": {"epochs": None, "steps": 5}}, "epochs"),
        ({"repartition": {"choices": 4}}, "4 choices among 4 offered buckets"),
        ({"repartition": {"choices": 8, "offers": 100}, "buckets": 8}, "8 choices among 8 offered buckets"),
        ({"buckets": 1}, "buckets"),
        ({"hash": "md5"}, "hash"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        lw.Mach(**settings)


def test_without_torch_it_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="torch"):
        lw.Mach(**SHORT).fit(data)
