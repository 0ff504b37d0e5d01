"""Models of PECOS and omikuji rank labels here as there: compared with brute force over the weights in the folders."""

import json

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from interop.foreign_folders import (
    N_FEATURES,
    Node,
    documents,
    omikuji_scores,
    pecos_scores,
    planted_levels,
    planted_weights,
    uneven_tree,
    write_omikuji,
    write_pecos,
)
from labelwise.errors import ConfigError
from labelwise.interop.models import import_model, read_foreign_model
from labelwise.strings import Strings

POST_PROCESSORS = ["l3-hinge", "l1-hinge", "sigmoid", "log-sigmoid", "log-l3-hinge", "noop"]


def imported(folder, **options):
    return import_model(read_foreign_model(folder), **options)


def assert_ranks_as(model, rows, expected: list[dict[int, float]], k: int = 6) -> None:
    """The labels with the highest expected scores, best first, with these scores; any order of what ties in float32."""
    top = model.predict(rows, k=k)
    for ids, scores, wanted in zip(top.ids, top.scores, expected, strict=True):
        best = sorted(wanted.values(), reverse=True)[:k]
        best = [score for score in best if not 0 < score < 1e-30]  # smaller ones are 0 in float32
        found = [wanted[label] for label in ids[: len(best)].tolist()]
        np.testing.assert_allclose(found, best, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(scores[: len(best)], best, rtol=2e-5, atol=1e-6)


# --- PECOS ---


@pytest.mark.parametrize("post_processor", POST_PROCESSORS)
def test_pecos_levels_in_any_order_and_a_bias_of_two(tmp_path, post_processor):
    levels = planted_levels(1)
    for level in levels:
        level.post_processor = post_processor
    write_pecos(tmp_path / "model", levels, bias=2.0)
    model = imported(tmp_path / "model")
    rows = documents()
    assert_ranks_as(model, rows, [pecos_scores(levels, row, 2.0) for row in rows.toarray()])
    assert model.name == "linear_tree"
    assert (model.config.beam, model.config.trees, model.config.solver.bias) == (3, 1, 2.0)


def test_pecos_levels_with_post_processors_and_beams_of_their_own(tmp_path):
    """As published for the rankers of XR-Transformer: margins of labels below products of the upper levels."""
    levels = planted_levels(8)
    levels[0].kept, levels[1].kept, levels[2].post_processor = 2, 4, "noop"
    write_pecos(tmp_path / "model", levels)
    imported(tmp_path / "model").save(tmp_path / "ours")
    model, rows = lw.load(tmp_path / "ours"), documents()
    assert (model.config.beam, model.config.post_processor) == ((2, 4), ("l3_hinge", "l3_hinge", "none"))
    expected = [pecos_scores(levels, row) for row in rows.toarray()]
    assert_ranks_as(model, rows, expected)
    (explanation,) = model.explain(rows[[3]], k=1)
    assert explanation.score == pytest.approx(max(expected[3].values()), rel=1e-4)
    model.set_params(beam=(2, 4, 4))
    with pytest.raises(ConfigError, match="beam: 3 values are given for a tree that needs 2"):
        model.predict(rows)


def test_pecos_post_processors_that_cannot_be_combined(tmp_path):
    levels = planted_levels(8)
    levels[0].post_processor = "noop"
    write_pecos(tmp_path / "model", levels)
    shown = labelwise("import", tmp_path / "model", "-o", tmp_path / "ours", code=2)
    assert "l3_hinge cannot follow none" in shown.err


@pytest.mark.parametrize("post_processor", ["l3-hinge", "log-l3-hinge"])
def test_saturated_scores_of_pecos_are_ordered_by_the_tree(tmp_path, post_processor):
    levels = planted_levels(9, sizes=(3, 8, 40))
    for level, rise in zip(levels, (2.0, 1.5, 1.5), strict=True):
        level.weights[-1] += rise  # most margins are above 1
        level.post_processor = post_processor
    write_pecos(tmp_path / "model", levels)
    imported(tmp_path / "model").save(tmp_path / "ours")
    model, rows = lw.load(tmp_path / "ours"), documents()
    assert model.config.ties == "tree"
    expected = [pecos_scores(levels, row) for row in rows.toarray()]
    tied = [len(wanted) - len(set(wanted.values())) for wanted in expected]
    assert np.mean(tied) > 4
    wanted = np.array([list(one)[:8] for one in expected])
    np.testing.assert_array_equal(model.predict(rows, k=8).ids, wanted)
    assert_ranks_as(model, rows, expected)
    twice = lw.load(tmp_path / "ours")
    twice.linear_.trees *= 2  # several trees: ties are ordered by the first
    np.testing.assert_array_equal(twice.predict(rows, k=8).ids, wanted)
    assert (model.set_params(ties="label").predict(rows, k=8).ids != wanted).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("bias", [0.0, -1.0])
def test_pecos_without_a_bias(tmp_path, bias):
    levels = planted_levels(2, constant=False)
    write_pecos(tmp_path / "model", levels, bias)
    model, rows = imported(tmp_path / "model"), documents()[1:]  # in an empty document all nodes tie
    assert model.n_features_in_ == N_FEATURES
    assert_ranks_as(model, rows, [pecos_scores(levels, row, bias) for row in rows.toarray()])


def test_pecos_without_a_tree_is_linear_flat(tmp_path):
    levels = planted_levels(3, sizes=(12,))
    write_pecos(tmp_path / "model", levels)
    model, rows = imported(tmp_path / "model"), documents()
    assert model.name == "linear_flat"
    assert_ranks_as(model, rows, [pecos_scores(levels, row) for row in rows.toarray()])


def test_labels_outside_the_tree_are_never_among_the_best(tmp_path):
    levels = planted_levels(4)
    write_pecos(tmp_path / "model", levels)
    path = tmp_path / "model" / "ranker" / "2.model" / "C.npz"
    tree = sparse.load_npz(path).tolil()
    removed = [0, 11]
    tree[removed] = 0
    sparse.save_npz(path, tree.tocsc())
    model, rows = imported(tmp_path / "model"), documents()
    expected = [
        {label: score for label, score in pecos_scores(levels, row).items() if label not in removed}
        for row in rows.toarray()
    ]
    assert_ranks_as(model, rows, expected)
    assert len(model.label_names_) == 25


def write_text2text(folder, seeds: tuple[int, ...]) -> list:
    ensembles = [planted_levels(seed) for seed in seeds]
    for number, levels in enumerate(ensembles):
        write_pecos(folder / "xlinear_ensemble" / str(number), levels)
    about = {"nr_ensembles": len(seeds), "kwargs": [{} for _ in seeds]}
    (folder / "xlinear_ensemble" / "config.json").write_text(json.dumps(about))
    (folder / "output_items.json").write_text(json.dumps([f"item {number}" for number in range(25)]))
    return ensembles


def test_text2text_averages_its_models_and_has_label_names(tmp_path):
    ensembles = write_text2text(tmp_path / "model", (5, 6))
    model, rows = imported(tmp_path / "model"), documents()
    expected = []
    for row in rows.toarray():
        both = [pecos_scores(levels, row) for levels in ensembles]
        expected.append({label: sum(one.get(label, 0) for one in both) / 2 for label in {*both[0], *both[1]}})
    assert_ranks_as(model, rows, expected)
    assert model.label_names_[24] == "item 24"


def test_the_ranker_of_an_xr_transformer(tmp_path):
    levels = planted_levels(7)
    write_pecos(tmp_path / "model" / "concat_model", levels)
    (tmp_path / "model" / "param.json").write_text('{"model": "XTransformer"}')
    shown = labelwise("import", tmp_path / "model", "-o", tmp_path / "ours")
    assert "followed by the encoder's vectors" in shown.err
    rows = documents()
    assert_ranks_as(lw.load(tmp_path / "ours"), rows, [pecos_scores(levels, row) for row in rows.toarray()])


# --- omikuji ---


@pytest.mark.parametrize(("loss", "dense"), [("Hinge", False), ("Log", True)])
def test_omikuji_trees_with_leaves_at_different_depths(tmp_path, loss, dense):
    trees = [uneven_tree(seed, list(range(18))) for seed in (1, 2)]
    write_omikuji(tmp_path / "model", trees, loss, dense)
    model, rows = imported(tmp_path / "model"), documents()
    assert model.config.feature_norm == "l2"
    for beam in (1, 2, 10):
        model.set_params(beam=beam)
        assert_ranks_as(model, rows, [omikuji_scores(trees, row, beam, loss) for row in rows.toarray()], k=5)


def test_omikuji_labels_that_a_tree_lacks(tmp_path):
    trees = [uneven_tree(3, [*range(9), *range(10, 18)]), uneven_tree(4, list(range(1, 17)))]
    write_omikuji(tmp_path / "model", trees)
    model, rows = imported(tmp_path / "model"), documents()
    assert len(model.label_names_) == 18
    assert_ranks_as(model, rows, [omikuji_scores(trees, row, 10, "Hinge") for row in rows.toarray()], k=5)


def test_an_omikuji_tree_that_is_one_leaf(tmp_path):
    trees = [Node(planted_weights(np.random.default_rng(0), 6), labels=[3, 1, 0, 2, 5, 4])]
    write_omikuji(tmp_path / "model", trees)
    model, rows = imported(tmp_path / "model"), documents()
    assert model.name == "linear_flat"
    assert_ranks_as(model, rows, [omikuji_scores(trees, row, 10, "Hinge") for row in rows.toarray()])


# --- as any other model ---


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """An imported model, its source, and labelled documents in a file."""
    folder = tmp_path_factory.mktemp("imported")
    trees = [uneven_tree(seed, list(range(18))) for seed in (1, 2)]
    write_omikuji(folder / "source", trees)
    (folder / "labels.txt").write_text("".join(f"name {number}\n" for number in range(20)))
    labelwise("import", folder / "source", "-o", folder / "model", "--labels", folder / "labels.txt")
    labelwise("import", folder / "source", "-o", folder / "numbered")
    rows = documents()
    best = [max(scores, key=scores.get) for scores in (omikuji_scores(trees, r, 10, "Hinge") for r in rows.toarray())]
    best[1] = (best[1] + 1) % 18  # one mistake
    labels = sparse.csr_array((np.ones(40, np.float32), (np.arange(40), best)), shape=(40, 18))
    lw.write(lw.Dataset(features=rows, labels=labels), folder / "test.txt", format="xc")
    return folder


def test_names_and_numbers_of_labels(ours):
    assert lw.load(ours / "model").label_names_[19] == "name 19"
    assert lw.load(ours / "numbered").label_names_ == Strings.numbers(18)


def test_an_imported_model_is_evaluated_explained_calibrated_and_shrunk(ours, tmp_path):
    shown = labelwise("evaluate", ours / "numbered", ours / "test.txt")
    assert "97.5" in shown.out  # P@1: 39 of 40
    assert "PSP" not in shown.out  # the training documents are not known
    labelwise("shrink", ours / "numbered", "--precision", "int8", "-o", tmp_path / "small")
    rows = documents()
    large, small = (lw.load(path).predict(rows, k=1) for path in (ours / "numbered", tmp_path / "small"))
    assert (large.ids == small.ids).mean() > 0.9
    model = lw.load(ours / "numbered")
    (explanation,) = model.explain(rows[[3]], k=1)
    assert explanation.score == pytest.approx(float(model.predict(rows[[3]], k=1).scores[0, 0]), rel=1e-4)
    shown = labelwise("learn", ours / "numbered", ours / "test.txt", "-o", tmp_path / "more", code=2)
    assert "imported" in shown.err


def test_info_promises_what_an_imported_model_can_do(ours, tmp_path):
    shown = labelwise("info", "model", cwd=ours).out
    assert "imported from omikuji" in shown
    can = next(line for line in shown.splitlines() if line.startswith("can"))
    assert "shrink" in can
    assert "learn" not in can
    assert "labelwise predict model documents.npz -o suggestions.csv" in shown
    sparse.save_npz(tmp_path / "documents.npz", sparse.csr_matrix(documents()))
    labelwise("predict", ours / "model", "documents.npz", "-o", "suggestions.csv", cwd=tmp_path)
    assert len((tmp_path / "suggestions.csv").read_text().splitlines()) == 41


def test_info_of_a_model_that_was_trained_on_sparse_text_files(ours, tmp_path):
    (tmp_path / "run.yml").write_text(
        f"data: {{train: '{ours / 'test.txt'}', format: xc}}\nmodel: {{method: linear_flat}}\n"
        "run: {folder: run, report: false}\n"
    )
    labelwise("train", "run.yml", cwd=tmp_path)
    shown = labelwise("info", "run", cwd=tmp_path).out
    assert "learn" in next(line for line in shown.splitlines() if line.startswith("can"))
    assert "labelwise predict run documents.txt --format xc -o suggestions.csv" in shown


def test_texts_through_the_tfidf_of_a_labelwise_model(tmp_path):
    texts = ["red apples and pears", "green pears", "the red sun", "green fields under the sun"] * 3
    trained = lw.LinearTree(trees=1).fit(texts, [["fruit"], ["fruit"], ["sky"], ["sky"]] * 3)
    trained.save(tmp_path / "texts")
    width = trained.tfidf_.n_features
    rng = np.random.default_rng(0)
    tree = Node(rng.normal(0, 1, (width + 1, 4)).astype(np.float32), labels=[0, 1, 2, 3])
    write_omikuji(tmp_path / "source", [tree])
    (tmp_path / "source" / "settings.json").write_text(
        json.dumps({"n_features": width, "classifier_loss_type": "Hinge"})
    )
    labelwise("import", tmp_path / "source", "-o", tmp_path / "ours", "--tfidf", tmp_path / "texts")
    assert lw.load(tmp_path / "ours").config.feature_norm is None
    lw.LinearTree(trees=1, tfidf={"norm": None}).fit(texts, [["a"], ["b"]] * 6).save(tmp_path / "no norm")
    shown = labelwise("import", tmp_path / "source", "-o", tmp_path / "other", "--tfidf", tmp_path / "no norm", code=2)
    assert "l2 norm" in shown.err
    row = trained.tfidf_.transform(["the green sun"]).toarray()[0]
    expected = omikuji_scores([tree], row, 10, "Hinge")
    top = lw.load(tmp_path / "ours").predict(["the green sun"], k=1)
    assert top.ids[0, 0] == max(expected, key=expected.get)


# --- what is refused ---


def test_mistakes_on_the_command_line(ours, tmp_path):
    (tmp_path / "few.txt").write_text("a\nb\n")
    (tmp_path / "gap.txt").write_text("a\n\nb\n")
    (tmp_path / "empty").mkdir()
    for arguments, message in {
        (ours / "source", "-o", ours / "model"): "exists already",
        (ours / "source", "-o", tmp_path / "new", "--labels", tmp_path / "few.txt"): "at least 18 labels",
        (ours / "source", "-o", tmp_path / "new", "--labels", tmp_path / "gap.txt"): "gap.txt:2: the line is blank",
        (ours / "source", "-o", tmp_path / "new", "--tfidf", ours / "model"): "no TF-IDF",
        (tmp_path / "empty", "-o", tmp_path / "new"): "neither a model folder of omikuji",
        (tmp_path / "nowhere", "-o", tmp_path / "new"): "no such folder",
    }.items():
        assert message in labelwise("import", *arguments, code=2).err
    assert not (tmp_path / "new").exists()
