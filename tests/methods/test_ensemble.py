"""Ensembles as a person uses them: members of different labels and inputs, folders, explanations, learned weights."""

import copy
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from conformance.planted import planted_features, planted_texts
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.model.explanation import top_words
from labelwise.registry import can
from labelwise.runtime.job import Job
from labelwise.testing.subject import same_predictions

SMALL = {"trees": 1, "label_features": 30}


@pytest.fixture(scope="module")
def parts():
    """Training, held-out and test documents over 30 labels."""
    train, rest = planted_texts(500, 30).split(0.4, seed=1)
    return train, *rest.split(0.5, seed=2)


@pytest.fixture(scope="module")
def models(parts):
    """A model of all labels, and one that knows the labels L5 to L29 only, in another order."""
    train = parts[0]
    columns = np.arange(29, 4, -1)
    some = Dataset(
        train.labels[:, columns], [train.label_names[int(j)] for j in columns], texts=train.texts, name="some"
    )
    return lw.LinearTree(**SMALL).fit(train), lw.LinearTree(seed=3, post_processor="sigmoid", **SMALL).fit(some)


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    place = tmp_path_factory.mktemp("members")
    for name, model in zip("ab", models, strict=True):
        model.save(place / name)
    return place


@pytest.fixture(scope="module")
def ensemble(folders):
    return lw.Ensemble(members=[folders / "a", str(folders / "b")]).fit()


def test_the_number_of_candidates_may_change_after_fitting(folders, parts, tmp_path):
    changed = lw.Ensemble(members=[folders / "a", folders / "b"]).fit().set_params(candidates=3)
    changed.save(tmp_path / "changed")
    same_predictions(lw.load(tmp_path / "changed").predict(parts[2], k=3), changed.predict(parts[2], k=3))


def test_labels_are_matched_by_name(ensemble, models, parts):
    test = parts[2]
    assert ensemble.label_names_ == models[0].label_names_
    found = ensemble.predict(test, k=5)
    whole, some = (dict(pairs) for pairs in (next(iter(model.predict(test, k=50))) for model in models))
    for label, score in next(iter(found)):
        expected = (whole[label] + some.get(label, min(some.values()))) / 2
        assert score == pytest.approx(expected, abs=1e-6), label
    assert lw.evaluate(found, test, "P@1")["P@1"] > 0.9
    alone = lw.Ensemble(members=[models[1]]).fit().predict(test, k=5)
    assert alone.to_lists() == models[1].predict(test, k=5).to_lists()


def test_labels_of_any_member_can_be_predicted(models, parts):
    found = lw.Ensemble(members=[models[1], models[0]]).fit()
    assert list(found.label_names_[:25]) == [f"L{j}" for j in range(29, 4, -1)]
    assert list(found.label_names_[25:]) == [f"L{j}" for j in range(5)]
    assert lw.evaluate(found.predict(parts[2], k=1), parts[2], "P@1")["P@1"] > 0.8


def test_unnamed_labels_of_different_number_are_refused():
    documents = sparse.random_array((20, 6), density=0.5, format="csr", rng=np.random.default_rng(0))
    few, many = (lw.Popularity().fit(documents, np.eye(20, n)) for n in (3, 4))
    with pytest.raises(DataError, match="labels without names cannot be matched"):
        lw.Ensemble(members=[few, many]).fit()


def test_the_folder_holds_its_members(ensemble, parts, tmp_path, folders):
    ensemble.save(tmp_path / "whole")
    loaded = lw.load(tmp_path / "whole")
    same_predictions(loaded.predict(parts[2], k=5), ensemble.predict(parts[2], k=5))
    assert loaded.get_params()["members"] == [str(folders / "a"), str(folders / "b")]
    nested = lw.Ensemble(members=[loaded, loaded.members_[0]], weights=[3, 1]).fit()
    nested.save(tmp_path / "nested")
    shutil.rmtree(tmp_path / "whole")
    again = lw.load(tmp_path / "nested")
    same_predictions(again.predict(parts[2], k=5), nested.predict(parts[2], k=5))
    assert again.members_[0].members_[1].config.post_processor == "sigmoid"
    assert again.weights_.tolist() == [0.75, 0.25]
    assert again.fit().weights_.tolist() == [0.75, 0.25], "models given in Python are those in the folder"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 1}, "does not match their weights"),
        ({"members": 3}, r"member2\.manifest\.json is not listed"),
        ({"members": "2"}, "number of members is damaged"),
        (
            {"input": "features", "n_features": 5, "n_dense_features": 0},
            "the members have other labels, or read other documents",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(ensemble, tmp_path, change, message):
    ensemble.save(tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelFormatError, match=message):
        lw.load(tmp_path / "model")


def test_what_cannot_be_combined_says_so(models, folders, parts):
    for given, message in [
        ({"members": "runs/a"}, "a list is needed"),
        ({"members": [3]}, "member 0: a path of a model or a run"),
        ({"members": [{"method": "linear_tre"}]}, "member 0: there is no method 'linear_tre'"),
        ({"members": [{"method": "linear_tree", "tree": 2}]}, "member 0"),
        ({"members": list(models), "weights": [1]}, "1 for 2 members"),
        ({"members": list(models), "weights": [0, 0]}, "one of them must be above 0"),
        ({"members": list(models), "combine": "logistic", "weights": "learn"}, "logistic learns its own"),
        ({"metric": "R@5"}, "P@k, RP@k or nDCG@k"),
    ]:
        with pytest.raises(ConfigError, match=message):
            lw.Ensemble(**given)
    with pytest.raises(ConfigError, match="at least one model"):
        lw.Ensemble().fit()
    with pytest.raises(ConfigError, match=r"member 1: .*nowhere: there is no such folder"):
        lw.Ensemble(members=[models[0], "nowhere"]).fit()
    with pytest.raises(DataError, match=r"weights: learn: held-out documents .* are needed"):
        lw.Ensemble(members=list(models), weights="learn").fit()
    with pytest.raises(DataError, match="member 0 is not calibrated: held-out documents"):
        lw.Ensemble(members=list(models), combine="probability_average").fit()
    with pytest.raises(DataError, match="some members are to be trained"):
        lw.Ensemble(members=[{"method": "popularity"}]).fit()
    with pytest.raises(DataError, match=r"300 of 300 documents .* were in the training data: learn the combination"):
        lw.Ensemble(members=list(models), weights="learn").fit(parts[0])
    with pytest.raises(DataError, match="were in the training data: learn the combination"):
        lw.Ensemble(members=[models[0], {"method": "popularity"}], weights="learn").fit(parts[0])


def test_weights_are_learned_on_held_out_documents(models, parts, folders):
    train, valid, test = parts
    shuffled = Dataset(train.labels[np.random.default_rng(0).permutation(len(train))], train.label_names, train.texts)
    useless = lw.LinearTree(**SMALL).fit(shuffled)
    members = [useless, models[0]]
    plain = lw.Ensemble(members=members).fit().predict(test, k=5)
    for given in ({"weights": "learn"}, {"combine": "logistic"}):
        found = lw.Ensemble(members=members, **given).fit(valid)
        assert abs(found.weights_[0]) < 0.3 * found.weights_[1]
        scores = [lw.evaluate(top, test, "nDCG@5")["nDCG@5"] for top in (found.predict(test, k=5), plain)]
        assert scores[0] > scores[1]
        assert found.learned_on_ == (len(valid), 0)
        assert found.remarks() == []
    both = lw.concat([valid, train.take(slice(0, 40))])
    found = lw.Ensemble(members=members, weights="learn").fit(train, valid=both)
    assert found.learned_on_ == (len(both), 40)
    assert "40 of 140 documents (28.6 %) were in the training data" in found.remarks()[0]


def test_probabilities_of_calibrated_members_need_no_documents(parts):
    members = [lw.LinearTree(**SMALL).fit(parts[0]) for _ in range(2)]
    for member in members:
        member.calibrate(parts[1])
    found = lw.Ensemble(members=members, combine="probability_average").fit()
    own = members[0].predict(parts[2], k=5)
    together = found.predict(parts[2], k=5)
    np.testing.assert_allclose(together.scores, own.scores, atol=1e-5)


@pytest.fixture(scope="module")
def mixed():
    """Documents with texts and features, and an ensemble of a member per kind and one of both."""
    texts, features = planted_texts(300, 20), planted_features(300, 20)
    dense = np.asarray(features.features.toarray()[:, :30], np.float32)
    data = Dataset(texts.labels, texts.label_names, texts=texts.texts, features=dense, name="mixed")
    members = [
        lw.LinearTree(**SMALL).fit(texts),
        lw.LinearTree(**SMALL).fit(Dataset(texts.labels, texts.label_names, features=dense)),
        lw.LinearTree(vector_scale=1.0, **SMALL).fit(data),
    ]
    return data, members


def test_every_member_gets_what_it_reads(mixed, tmp_path):
    data, members = mixed
    found = lw.Ensemble(members=members).fit()
    assert (found.input_, found.n_features_in_) == ("texts", 30)
    top = found.predict(data, k=3)
    assert lw.evaluate(top, data, "P@1")["P@1"] > 0.9
    found.save(tmp_path / "model")
    same_predictions(lw.load(tmp_path / "model").predict(data, k=3), top)
    with pytest.raises(DataError, match=r"texts and 30 more features"):
        found.predict(list(data.texts))
    assert all(part.rank in (1, 2) for part in found.explain(data.take([0]), k=1)[0].members)


def test_labels_can_be_chosen_and_weighted(ensemble, models, parts):
    test = parts[2].take(slice(0, 30))
    chosen = ensemble.predict(test, k=5, labels=["L0", "L7", "L8"])
    assert {label for row in chosen.to_lists() for label in row} <= {"L0", "L7", "L8"}
    assert (chosen.ids >= 0).sum() == 3 * len(test)
    plain = [dict(row) for row in ensemble.predict(test, k=30)]
    for row, pairs in enumerate(ensemble.predict(test, k=30, label_weights={"L7": 2.0})):
        for label, score in pairs:
            assert score == pytest.approx(plain[row][label] * (2.0 if label == "L7" else 1.0), rel=1e-4, abs=1e-6)
    only_second = ensemble.predict(test, k=2, labels=[f"L{j}" for j in range(5)])
    assert {label for row in only_second.to_lists() for label in row} <= {f"L{j}" for j in range(5)}
    unable = lw.Ensemble(members=[models[0], lw.Popularity().fit(parts[0])]).fit()
    assert not can(unable, "top_of")
    with pytest.raises(ConfigError, match=r"member 1 \(popularity\) cannot leave out or weight labels"):
        unable.predict(test, k=2, labels=["L0"])


def test_explanations_say_whose_word_counted(ensemble, models, parts):
    document = parts[2].take([0])
    best = next(iter(ensemble.predict(document, k=2)))
    found = ensemble.explain(document, k=2)
    for (label, score), one in zip(best, found, strict=True):
        assert (one.label, one.score) == (label, pytest.approx(score, abs=1e-6))
        assert sum(part.contribution for part in one.members) == pytest.approx(score, abs=1e-6)
        own = models[0].explain(document, [label])[0]
        assert [term.name for term in one.members[0].explanation.terms] == [term.name for term in own.terms]
    unknown = ensemble.explain(document, ["L0"])[0]
    assert unknown.members[1].rank is None
    assert unknown.members[1].explanation is None
    assert "not ranked" in str(unknown)
    assert "before calibration" not in str(found[0])
    assert json.dumps(unknown.to_dict())
    words = top_words(ensemble, document, ensemble.predict(document, k=2), 2)
    assert len(words[0]) == 2
    assert all(word in parts[2].texts[0] for row in words[0] for word in row)
    against = copy.copy(ensemble)
    against.fitted_ = copy.copy(ensemble.fitted_)
    against.fitted_.combination = replace(ensemble.combination_, weights=np.array([0.0, -1.0]))
    assert top_words(against, document, ensemble.predict(document, k=2), 2) == [[[], []]]


def test_explanations_say_what_is_a_probability(ensemble, parts):
    document, whole, member = parts[2].take([0]), copy.copy(ensemble), copy.copy(ensemble.members_[0])
    whole.fitted_ = copy.copy(ensemble.fitted_)
    whole.fitted_.members = [member, ensemble.members_[1]]
    member.calibrate(parts[1])
    lines = str(whole.explain(document, k=1)[0]).splitlines()
    assert "   score " in lines[0]
    assert [("before calibration" in line) for line in lines if "rank 1" in line] == [True, False]
    whole.calibrate(parts[1])
    (one,) = whole.explain(document, k=1)
    assert f"   probability {one.score:.4f}" in str(one)
    assert one.to_dict()["calibrated"]


def test_members_are_trained_and_resumed(parts, tmp_path, caplog):
    members = [{"method": "linear_tree", **SMALL}, lw.LinearTree(seed=5, **SMALL), {"method": "popularity"}]
    found = lw.Ensemble(members=members, weights="learn").fit(parts[0])
    assert found.learned_on_ == (30, 0), "a tenth of the documents is held out"
    assert not hasattr(members[1], "label_names_"), "the given method stays as it was"
    job = Job(tmp_path)
    first = lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=job)
    with caplog.at_level("INFO", "labelwise"):
        again = lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=job)
    assert "member: 3 of 3 are already finished" in caplog.text
    same_predictions(again.predict(parts[2], k=5), first.predict(parts[2], k=5))
    lw.Ensemble(members=members).fit(parts[1], job=job)
    assert "it belongs to another training" in caplog.text


def test_a_finished_member_is_used_again_only_with_all_its_parameters(parts, tmp_path):
    """Also with those that decide no part of it, such as how an ensemble within the ensemble combines."""
    inner = [{"method": "linear_flat"}, {"method": "popularity"}]
    for combine in ("average", "rank_average"):
        members = [{"method": "ensemble", "members": inner, "combine": combine}, {"method": "popularity"}]
        found = lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=Job(tmp_path))
        assert found.members_[0].combination_.rule == combine


def test_a_finished_member_is_used_again_only_with_the_same_held_out_documents(parts, tmp_path, caplog, monkeypatch):
    """Members that validate depend on them, others do not."""
    members, job = [lw.LinearTree(seed=5, **SMALL), lw.Popularity()], Job(tmp_path)
    monkeypatch.setattr(lw.LinearTree, "validates", True)
    lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=job)
    for valid in (parts[2], None, parts[1]):
        caplog.clear()
        with caplog.at_level("INFO", "labelwise"):
            lw.Ensemble(members=members).fit(parts[0], valid=valid, job=job)
        finished = 2 if valid is parts[1] else 1  # work of another training is not replaced
        assert f"member: {finished} of 2 are already finished" in caplog.text
        assert "member/000: not used: it belongs to another training" in caplog.text.replace("\\", "/") or finished == 2
    (tmp_path / "members" / "member" / "000" / "manifest.json").unlink()
    caplog.clear()
    with caplog.at_level("INFO", "labelwise"):
        lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=job)
        lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=job)
    assert caplog.text.count("member: 1 of 2 are already finished") == 1
    assert caplog.text.count("member: 2 of 2 are already finished") == 1


@pytest.mark.parametrize("change", ["file", "version"])
def test_a_member_is_trained_again_if_a_file_that_it_reads_has_changed(parts, tmp_path, caplog, monkeypatch, change):
    names, file = list(parts[0].label_names), tmp_path / "tree.tsv"

    def write_tree(groups):
        file.write_text("".join(f"{name}\tgroup{number % groups}\n" for number, name in enumerate(names)))

    def fit():
        caplog.clear()
        members = [{"method": "linear_tree", "tree": "hierarchy", "hierarchy": str(file)}, {"method": "popularity"}]
        with caplog.at_level("INFO", "labelwise"):
            found = lw.Ensemble(members=members).fit(parts[0], valid=parts[1], job=Job(tmp_path / "work"))
        finished = re.search(r"member: (\d) of 2 are already finished", caplog.text)
        return int(finished[1]) if finished else 0, found.members_[0].trees_[0][0]

    write_tree(4)
    assert fit()[0] == 0
    assert fit()[0] == 2
    if change == "file":
        write_tree(2)
        count, tree = fit()
        assert (count, tree.children_offsets(0)[-1]) == (1, 2)
    else:
        monkeypatch.setattr("labelwise.runtime.job.RESULT_VERSION", 1000)
        assert fit()[0] == 0


def test_little_time_is_enough(models, parts):
    found = lw.Ensemble(members=list(models), combine="logistic", time_budget=1e-3).fit(parts[1])
    assert lw.evaluate(found.predict(parts[2], k=1), parts[2], "P@1")["P@1"] > 0.8


def test_a_clone_trains_its_members(models, parts):
    clone = pytest.importorskip("sklearn.base").clone
    twin = clone(lw.Ensemble(members=list(models)))
    assert all(not hasattr(member, "label_names_") for member in twin.config.members)
    assert lw.evaluate(twin.fit(parts[0]).predict(parts[2], k=1), parts[2], "P@1")["P@1"] > 0.8
