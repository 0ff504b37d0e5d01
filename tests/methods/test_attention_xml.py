"""AttentionXML and its baselines: trees of any depth, candidates, resume in every level, ensembles, explanations."""

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from common import Stop, same_predictions
from conformance.planted import planted
from labelwise.commands.describe import describe_model
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.methods.attention_xml import clustered
from labelwise.model.fitted import Saved
from labelwise.nn import level_networks
from labelwise.nn.levels import LevelsModel
from labelwise.nn.train import levels as tree_training
from labelwise.registry import can
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads
from labelwise.topk import TopK

SMALL = {"words": {"width": 12}, "recurrent": {"width": 16, "dropout": 0.2}}
QUICK = {"epochs": 2, "batch_size": 16, "optimiser": {"rate": 0.02}}
TREE = {"hidden": [8], "cluster_size": 16, "beam_width": 2}


@pytest.fixture(autouse=True)
def one_thread():
    with using_threads(1):
        yield


def made(training=None, **settings):
    return lw.AttentionXML(**{**SMALL, **TREE, "training": {**QUICK, **(training or {})}, **settings})


def flat(**settings):
    return lw.AttentionXML(**{**SMALL, "flat": True, "hidden": [8], "training": QUICK, **settings})


def precision(model, test):
    return lw.evaluate(model.predict(test, k=3), test, metrics=["P@1"])["P@1"]


OFTEN = {"checkpoint_every": {"steps": 7}, "log_every": 5, "validate_every": 10}


@pytest.fixture(scope="module")
def whole():
    """Documents, and what a fit that nothing stopped predicts for them."""
    data = planted("texts", n_documents=300)
    with using_threads(1):
        return data, made(OFTEN).fit(data).predict(data, k=5)


@pytest.mark.parametrize(("part", "step"), [("level0", 25), ("level1", 25), ("level1", 5)])
def test_a_fit_stopped_in_any_level_goes_on_to_the_same_model(part, step, whole, tmp_path, monkeypatch):
    data, expected = whole

    def log(**numbers):
        if (numbers.get("part"), numbers.get("step")) == (part, step):
            raise Stop

    model = made(OFTEN)
    with pytest.raises(Stop):
        model.fit(data, job=Job(tmp_path, log))
    seen = []
    if part == "level1":  # what level 0 ranks highest is kept too
        monkeypatch.setattr(tree_training, "best_nodes", None)
    model.fit(data, job=Job(tmp_path, lambda **numbers: seen.append((numbers["part"], numbers["step"]))))
    monkeypatch.undo()
    first = min(number for name, number in seen if name == part)
    assert first > step - 10, "it started over"
    if part == "level1":
        assert all(name == "level1" for name, _ in seen)
    same_predictions(model.predict(data, k=5), expected)


def test_trees_of_every_depth_learn():
    train, test = planted("texts", n_documents=700).split(0.3, seed=1)
    floor = precision(lw.Popularity().fit(train), test)
    longer = {"epochs": 7}
    for settings, sizes in (
        ({}, (4, 60)),
        ({"levels": [2, 8], "cluster_size": 8, "beam_width": 2}, (2, 8, 60)),
    ):
        model = made(longer, **settings).fit(train)
        assert model.trees_[0].tree.sizes == sizes
        assert [len(histories) for histories in model.histories_] == [len(sizes)]
        assert precision(model, test) > floor + 0.15, sizes
    one_level = flat(recurrent={"width": 32, "dropout": 0.2}, hidden=[16], training={**QUICK, "epochs": 14}).fit(train)
    assert one_level.trees_[0].tree.sizes == (60,)
    assert precision(one_level, test) > floor + 0.15


@pytest.mark.parametrize("attention", ["label", "none"])
def test_the_baselines_learn(attention):
    train, test = planted("texts", n_documents=700).split(0.3, seed=1)
    model = lw.BiGRU(**SMALL, attention=attention, training={**QUICK, "epochs": 4}).fit(train)
    assert precision(model, test) > precision(lw.Popularity().fit(train), test) + 0.2
    assert type(model.trees_[0].levels[0].encoder.layer).__name__ == "GRU"


def test_scores_are_products_of_the_probabilities_on_the_way():
    data = planted("texts", n_documents=200)
    model = made({"epochs": 1}, levels=[2, 8], cluster_size=8, beam_width=8).fit(data)
    tree = model.trees_[0]
    tokens = model.vocabulary_.encode(data.texts[:3])
    top = model.predict(data.take(slice(0, 3)), k=60)
    assert (top.ids >= 0).all(), "a beam as wide as the tree looks at all labels"
    for document in range(3):
        one = tokens.batch(np.array([document]))
        product = np.ones(60)
        for depth, level in enumerate(tree.levels):
            states = brute_states(level, one)
            weights = np.exp(level.head.weight.detach().double().numpy() @ states.T)
            views = weights / weights.sum(1, keepdims=True) @ states
            product *= 1 / (1 + np.exp(-brute_output(level.head.output, views)))[tree.tree.ancestors(depth)]
        np.testing.assert_allclose(top.scores[document], product[top.ids[document]], rtol=2e-4)


def brute_states(level, batch):
    import torch

    with torch.no_grad():
        ids, lengths = map(torch.from_numpy, batch.arrays)
        return level.encoder.by_torch(ids, lengths)[0].double().numpy()


def brute_output(output, views):
    *weights, last = [part.detach().double().numpy() for part in output.weights]
    *biases, bias = [part.detach().double().numpy() for part in output.biases]
    for weight, own in zip(weights, biases, strict=True):
        views = np.maximum(views @ weight.T + own, 0)
    return views @ last[0] + bias


def test_a_level_learns_true_nodes_and_the_highest_ranked_and_starts_from_the_level_above(monkeypatch):
    data = planted("texts", n_documents=200)
    made_fit, parts, starts = tree_training.NetworkFitting, [], []

    def noted(level, train, valid, config, **settings):
        parts.append(train)
        starts.append({name: weight.clone() for name, weight in level.state_dict().items()})
        return made_fit(level, train, valid, config, **settings)

    monkeypatch.setattr(tree_training, "NetworkFitting", noted)
    model = made({"epochs": 1}, levels=[8, 16], cluster_size=8, beam_width=4).fit(data)
    tree = model.trees_[0]
    for depth in (1, 2):
        above, part = parts[depth - 1], parts[depth]
        ranked = tree.search(part.inputs, 5)[depth - 1].ids
        for document, nodes in enumerate(part.parents.nodes):
            true = set(above.labels[[document]].indices.tolist())
            others = [node for node in ranked[document].tolist() if node not in true]
            assert len(true) <= 4 or set(nodes.tolist()) <= true
            assert len(true) > 4 or set(nodes.tolist()) == true | set(others[: 4 - len(true)])
        trained = tree.levels[depth - 1].state_dict()
        for name, weight in starts[depth].items():
            assert (name == "head.weight") or weight.equal(trained[name]), name


def test_a_narrow_beam_offers_only_what_is_below_it():
    data = planted("texts", n_documents=200)
    model = made({"epochs": 1}, beam_width=1).fit(data)
    top = model.predict(data, k=60)
    clusters = model.trees_[0].tree.ancestors(0)
    for ids in top.ids:
        assert len(set(clusters[ids[ids >= 0]])) == 1
        assert (ids >= 0).sum() == 15


@pytest.mark.parametrize("attention", ["shared", "label", "none"])
def test_short_texts_are_not_all_scored_at_once(attention, monkeypatch):
    data = planted("texts", n_documents=100)
    model = flat() if attention == "shared" else lw.BiGRU(**SMALL, attention=attention, training=QUICK)
    model.fit(data)
    before = model.predict(data, k=5)
    sizes, best = [], level_networks.best_of_batch
    monkeypatch.setattr(level_networks, "SCORES_AT_ONCE", 7 * 60)
    monkeypatch.setattr(
        level_networks,
        "best_of_batch",
        lambda level, arrays, *more: sizes.append(len(arrays[1])) or best(level, arrays, *more),
    )
    top = model.predict(data, k=5)
    assert max(sizes) == 7
    assert sum(sizes) == 100
    np.testing.assert_allclose(top.scores, before.scores, rtol=1e-5)


def test_several_trees_are_averaged():
    data = planted("texts", n_documents=200)
    model = made({"epochs": 1}, trees=2, beam_width=4).fit(data)
    first, second = (tree.tree for tree in model.trees_)
    assert first != second
    tokens = model.vocabulary_.encode(data.texts)
    every = [tree.best(tokens, 60).to_csr(60).toarray() for tree in model.trees_]
    top = model.predict(data, k=5)
    expected = TopK.from_csr(sparse.csr_array((every[0] + every[1]) / 2), 5)
    np.testing.assert_allclose(top.scores, expected.scores, rtol=1e-5)
    assert model.encode(data).shape == (200, 32)


@pytest.mark.parametrize("kind", ["tree", "two trees", "flat", "label weights"])
def test_explanations_add_up_to_the_score(kind):
    data = planted("texts", n_documents=200)
    model = {
        "tree": lambda: made(),
        "two trees": lambda: made({"epochs": 1}, trees=2, beam_width=4),
        "flat": lambda: flat(),
        "label weights": lambda: lw.BiGRU(**SMALL, training={**QUICK, "epochs": 1}),
    }[kind]()
    model.fit(data)
    text = data.texts[7]
    top = model.predict(text, k=3)
    for explanation, (label, score) in zip(model.explain(text, k=3, terms=None), next(iter(top)), strict=True):
        assert explanation.label == label
        assert explanation.predicted
        assert sum(path.score for path in explanation.paths) / len(explanation.paths) == pytest.approx(score, rel=1e-4)
        added = explanation.bias + sum(term.contribution for term in explanation.terms) + explanation.other
        assert added == pytest.approx(explanation.margin, rel=1e-6)
        for path in explanation.paths:
            assert path.margin == pytest.approx(path.bias + sum(t.contribution for t in path.terms), rel=1e-6)
            assert sum(term.value for term in path.terms) == pytest.approx(1, rel=1e-5), "attention is shares"
            assert {term.name for term in path.terms} == set(text.split())
            product = np.prod([step.score for step in path.steps])
            assert path.score == pytest.approx(product, rel=1e-6)
    with pytest.raises(DataError, match="no label"):
        model.explain(text, labels=["nothing"])


def test_a_model_without_attention_cannot_explain(tmp_path):
    data = planted("texts", n_documents=100)
    model = lw.BiGRU(**SMALL, attention="none", training={**QUICK, "epochs": 1}).fit(data)
    assert not can(model, "explain")
    with pytest.raises(ConfigError, match="bigru cannot explain its predictions"):
        model.explain(data.texts[0])
    model.save(tmp_path / "model")
    assert not can(lw.load(tmp_path / "model"), "explain")
    assert "explain" not in " ".join(describe_model(tmp_path / "model")["can"])
    assert can(lw.BiGRU(**SMALL, training={**QUICK, "epochs": 1}).fit(data), "explain")


def test_vectors_from_a_file_stay_as_they_are_and_are_stored_once(tmp_path):
    data = planted("texts", n_documents=150)
    random = np.random.default_rng(0)
    words = sorted({word for text in data.texts for word in text.split()})
    lines = [f"{word} {' '.join(f'{v:.4f}' for v in random.normal(size=6))}" for word in words[:-5]]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    model = made({"epochs": 1}, words={"vectors": str(tmp_path / "vectors.txt")}).fit(data)
    place = model.vocabulary_.words.positions[words[0]] + 1
    given = np.array(lines[0].split()[1:], np.float32)
    for level in model.trees_[0].levels:
        np.testing.assert_array_equal(level.encoder.words[place].numpy(), given)
    assert [key for key in model.fitted_.tensors() if "words" in key] == ["words"]
    model.save(tmp_path / "model")
    (tmp_path / "vectors.txt").unlink()  # a saved model needs nothing beside its folder
    loaded = lw.load(tmp_path / "model")
    same_predictions(loaded.predict(data, k=5), model.predict(data, k=5))
    np.testing.assert_array_equal(loaded.encode(data), model.encode(data))
    learned = made({"epochs": 1}, words={"width": 6}).fit(data)
    tables = [level.encoder.words.detach().numpy() for level in learned.trees_[0].levels]
    assert not np.array_equal(*tables), "every level has a table of its own when it learns"


def test_without_held_out_documents_it_trains_to_the_end():
    data = planted("texts", n_documents=100)
    model = made({"epochs": 1}, valid_fraction=0.0).fit(data)
    assert all(history.best is None and history.stopped == "finished" for history in model.histories_[0])
    with pytest.raises(ConfigError, match="held-out"):
        made({"early_stopping": {"patience": 1}}, valid_fraction=0.0).fit(data)


def test_validation_goes_by_steps_and_the_best_is_kept():
    train, valid = planted("texts", n_documents=400).split(0.3, seed=2)
    model = made({"validate_every": 6, "averaging": {"kind": "none"}}).fit(train, valid=valid)
    last = model.histories_[0][-1]
    assert [record["step"] for record in last.records] == [6, 12, 18, 24, 30, 36]
    best = max(record["nDCG@5"] for record in last.records)
    found = lw.evaluate(model.predict(valid, k=5), valid, metrics=["nDCG@5"])["nDCG@5"]
    assert last.best["value"] == best == pytest.approx(found)
    unseen = lw.Dataset(np.eye(2), ["L0", "never seen"], texts=["word0x1 word0x2", "something else"])
    made({"epochs": 1}).fit(train, valid=unseen)


def test_clusters_are_as_large_as_wished():
    described = sparse.random_array((100, 30), density=0.3, rng=np.random.default_rng(0), format="csr")
    assert clustered(described, 8, None, 0).sizes == (16, 100)
    assert clustered(described, 100, None, 0).sizes == (100,)
    deep = clustered(described, 8, [4, 16, 64], 0)
    assert deep.sizes == (4, 16, 64, 100)
    assert set(np.diff(deep.children_offsets(1))) == {4}
    assert set(np.diff(deep.children_offsets(3))) <= {1, 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": [6]}, "2, 4, 8"),
        ({"levels": [8, 4]}, "increasing numbers"),
        ({"flat": True, "beam_width": 3}, "beam_width has no effect"),
        ({"levels": [4], "cluster_size": 16}, "leave out levels or cluster_size"),
        ({"recurrent": {"width": 7}}, "recurrent.width"),
        ({"training": {"optimiser": {"rte": 1}}}, r"training\.optimiser\.rte"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        lw.AttentionXML(**settings)


def test_more_clusters_than_labels_are_refused():
    with pytest.raises(ConfigError, match="too many for 60 labels"):
        made(levels=[64], cluster_size=8).fit(planted("texts", n_documents=50))


def test_the_defaults_are_those_of_the_paper_also_where_a_part_is_given():
    training = lw.AttentionXML(training={"epochs": 3, "optimiser": {"rate": 0.01}}).config.training
    assert (training.clip, training.optimiser.name, training.metric) == ("adaptive", "adam", "nDCG@5")
    assert training.averaging.kind == "swa"
    assert lw.BiGRU(training={"epochs": 3}).config.training.optimiser.rate == 3e-4


def test_weights_of_another_shape_are_refused(tmp_path):
    data = planted("texts", n_documents=100)
    model = made({"epochs": 1}).fit(data)
    about, state = Saved(model.config, "texts", model.label_names_, path=tmp_path), model.fitted_.tensors()
    with pytest.raises(ModelFormatError, match=r"level1\.head\.weight is float32 \(3, 16\)"):
        LevelsModel.from_tensors({**state, "tree0.level1.head.weight": np.zeros((3, 16), np.float32)}, about)
    for key in ("trees", "tree0.level0.encoder.words"):
        with pytest.raises(ModelFormatError):
            LevelsModel.from_tensors({**state, key: np.zeros((3, 2), np.float32)}, about)


def test_half_precision_leaves_the_results_about_the_same():
    data = planted("texts", n_documents=150)
    found = [
        made({"epochs": 1, "precision": precision}).fit(data).predict(data, k=5) for precision in ("float32", "bf16")
    ]
    np.testing.assert_allclose(found[0].scores, found[1].scores, rtol=0.05, atol=0.01)


def test_levels_and_trees_share_the_time_budget():
    model = made({"epochs": 10_000, "time_budget": 1.0}, trees=2).fit(planted("texts", n_documents=100))
    assert [[history.stopped for history in tree] for tree in model.histories_] == [["time budget"] * 2] * 2


def test_equal_scores_go_to_the_lower_label_for_any_k():
    """Texts without known words give many labels of one cluster the same score."""
    data = planted("texts", n_documents=200)
    model = made({"epochs": 1}, beam_width=4).fit(data)
    for tree in model.trees_:  # all labels of a document alike
        tree.levels[-1].head.weight.data.zero_()
    texts = ["", "zzz", data.texts[0]]
    whole = model.predict(texts, k=60)
    assert (np.diff(whole.scores[:, :40], axis=1) == 0).any(), "there are ties"
    for k in (1, 3, 5, 10, 37):
        top = model.predict(texts, k=k)
        np.testing.assert_array_equal(top.ids, whole.ids[:, :k])
        np.testing.assert_array_equal(top.scores, whole.scores[:, :k])
    tied = (np.diff(whole.scores, axis=1) == 0) & (whole.ids[:, 1:] >= 0)
    assert (np.diff(whole.ids, axis=1)[tied] > 0).all()
