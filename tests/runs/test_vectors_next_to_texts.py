"""`data.features: [tfidf, vectors-{split}.npy]`: vectors next to TF-IDF, in runs and in the commands for their models."""

import re

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from labelwise.data.csr import Blocks
from labelwise.errors import ConfigError, DataError
from labelwise.testing.subject import planted_texts

DATA = planted_texts(150, 10)
TRAIN, TEST = DATA.split(0.2)
RUN = """
data: {path: data, features: [tfidf, "data/v-{split}.npy"]}
model: {method: linear_flat, vector_scale: 2}
evaluate: {bootstrap: 0}
calibrate: {enabled: false}
run: {report: false}
"""


def vectors_of(data):
    """Vectors that carry what the texts lack: one column per label."""
    noise = np.random.default_rng(len(data)).normal(0, 0.01, data.labels.shape)
    return (data.labels.toarray() + noise).astype(np.float32)


def without_words(data):
    return lw.Dataset(data.labels, data.label_names, texts=["same words everywhere"] * len(data))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on texts that say nothing and vectors that say all."""
    folder = tmp_path_factory.mktemp("vectors")
    for name, part in (("train", TRAIN), ("test", TEST)):
        lw.write(without_words(part), folder / "data" / f"{name}.jsonl")
        np.save(folder / "data" / f"v-{name}.npy", vectors_of(part))
    (folder / "run.yml").write_text(RUN)
    (folder / "texts.txt").write_text("same words everywhere\n" * len(TEST))
    labelwise("train", "run.yml", cwd=folder)
    return folder


def test_a_run_learns_from_both(folder):
    model = lw.load(folder / "runs" / "run" / "model")
    test = lw.Dataset(texts=without_words(TEST).texts, features=vectors_of(TEST))
    assert lw.evaluate(model.predict(test, k=1), TEST, "P@1")["P@1"] > 0.9
    assert "vector[" in model.fitted_.names(np.array([model.tfidf_.n_features]))[0]
    words = model.tfidf_.transform(test.texts)
    direct = lw.LinearFlat().fit(
        Blocks(model.tfidf_.transform(without_words(TRAIN).texts), 2 * vectors_of(TRAIN)), TRAIN.labels
    )
    same_predictions(model.predict(test, k=3), direct.predict(Blocks(words, 2 * test.features), k=3))
    assert model.explain(test.take([0]), k=1)[0].terms


def test_commands_take_the_vectors(folder):
    said = labelwise("evaluate", "runs/run", "data", "--features", "data/v-test.npy", cwd=folder).out
    assert "P@1" in said
    expected = lw.load(folder / "runs" / "run").predict(
        lw.Dataset(texts=without_words(TEST).texts, features=vectors_of(TEST))
    )
    for documents in ("texts.txt", "data/test.jsonl"):
        labelwise(
            "predict", "runs/run", documents, "--features", "data/v-test.npy", "-k", 1, "-o", "out.tsv", "--force",
            cwd=folder,
        )  # fmt: skip
        lines = (folder / "out.tsv").read_text().splitlines()[1:]
        assert [line.split("\t")[1] for line in lines] == [labels[0] for labels in expected.to_lists()]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["predict", "runs/run", "texts.txt"], "texts and 10 more features of each document; .*--features FILE.npy"),
        (["evaluate", "runs/run", "data"], "--features FILE.npy"),
        (["predict", "runs/run", "texts.txt", "--features", "data/v-train.npy"], "120 vectors for 30 documents"),
        (["evaluate", "runs/run", "data", "--features", "data/v-train.npy"], "120 vectors for 30 documents of"),
        (["predict", "runs/run", "texts.txt", "--features", "no.npy"], "no.npy: there is no such file of vectors"),
        (["predict", "runs/run", "texts.txt", "--features", "run.yml"], "run.yml: vectors cannot be read"),
        (
            ["train", "run.yml", "--set", "data.features=[tfidf, data/v-train.npy]", "--set", "run.folder=x"],
            "train, test",
        ),
        (["train", "run.yml", "--set", "data.features=[v.npy]"], "write \\[tfidf, vectors-{split}.npy\\]"),
        (["train", "run.yml", "--set", "model={method: mach}"], "mach cannot read vectors next to TF-IDF"),
        (["train", "run.yml", "--set", "model={method: hybrid_linear}"], "hybrid_linear cannot read vectors next to"),
    ],
)
def test_what_does_not_fit_is_refused(folder, command, message):
    said = labelwise(*command, *(["-o", "new.jsonl"] if command[0] == "predict" else []), cwd=folder, code=2).err
    assert re.search(message, " ".join(said.split())), said
    assert not (folder / "new.jsonl").exists()


def test_models_without_vectors_refuse_them(folder):
    lw.Popularity().fit(TRAIN).save(folder / "plain", force=True)
    said = labelwise("predict", "plain", "texts.txt", "--features", "data/v-test.npy", cwd=folder, code=2).err
    assert "trained without vectors" in said
    for data in (TRAIN, lw.Dataset(TRAIN.labels, TRAIN.label_names, features=vectors_of(TRAIN))):
        with pytest.raises(DataError, match="give a Dataset with both"):
            lw.LinearTree(vector_scale=1.0).fit(data)


def test_what_needs_vectors_of_new_documents_is_refused(folder):
    model = lw.load(folder / "runs" / "run")
    more = lw.Dataset([["L1"]], texts=["other words"], features=np.ones((1, 10), np.float32))
    with pytest.raises(ConfigError, match="cannot learn more documents"):
        model.learn(more)
    both = lw.Dataset(TRAIN.labels, TRAIN.label_names, texts=TRAIN.texts, features=vectors_of(TRAIN))
    with pytest.raises(ConfigError, match="label_documents cannot be used with vector_scale"):
        lw.LinearFlat(vector_scale=1.0, label_documents="texts").fit(both)
    tree = lw.LinearTree(vector_scale=1.0, trees=1).fit(both)
    assert lw.evaluate(tree.predict(both, k=1), both, "P@1")["P@1"] > 0.9
