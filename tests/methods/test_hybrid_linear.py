"""What is special to `hybrid_linear`: two blocks of features, their scaling, resume, explanations, its limits."""

import json
import os

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import Stop, same_predictions
from killing import kill_where_it_holds
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.features.featurizers import VectorScaling
from labelwise.linear.settings import SearchSettings
from labelwise.model.explanation import top_words
from labelwise.nn.featurizer import DOCUMENT_VECTOR
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads
from labelwise.testing.subject import planted_texts

HOLD_AFTER_THE_FIRST_TREE = """
import labelwise.linear.train as train
plain, trained = train.train_tree, []
def train_tree(*given):
    if trained:
        hold()
    trained.append(None)
    return plain(*given)
train.train_tree = train_tree
"""
TINY = {"model": "tiny", "max_length": 16, "pooling": "mean"}


@pytest.fixture(autouse=True)
def one_thread():
    with using_threads(1):
        yield


@pytest.fixture(scope="module")
def data():
    return planted_texts(200, 20)


def made(**settings):
    return lw.HybridLinear(**{"encoder": TINY, "trees": 1, **settings})


@pytest.fixture(scope="module")
def model(data):
    with using_threads(1):
        return made(trees=2).fit(data)


@pytest.fixture
def encoded(monkeypatch):
    """The number of texts in each batch that an encoder reads."""
    from labelwise.nn.text.transformer import TransformerEncoder

    sizes, forward = [], TransformerEncoder.forward

    def counted(self, ids, mask, documents):
        sizes.append(int(documents[-1]) + 1)
        return forward(self, ids, mask, documents)

    monkeypatch.setattr(TransformerEncoder, "forward", counted)
    return sizes


def test_features_are_tfidf_and_centred_vectors_of_the_given_norm(data):
    model = made(vector_scale=0.5, whitening=0).fit(data)
    features = model.features_.rows(data)
    raw = model.encode(data).astype(np.float64)
    centred = raw - raw.mean(axis=0)
    expected = 0.5 * centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(features.dense, expected, atol=1e-5)
    np.testing.assert_allclose(features.sparse.multiply(features.sparse).sum(axis=1), 1, rtol=1e-5)


def test_whitening_makes_the_variance_of_all_directions_equal():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(500, 6)) * [9, 5, 3, 2, 1, 1]) @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + 4
    spread = []
    for power in (0, 0.25, 0.5):
        scaling = VectorScaling.learn(vectors, 1.0, power)
        plain = (vectors - scaling.mean) @ (np.eye(6) if scaling.matrix is None else scaling.matrix)
        np.testing.assert_allclose(
            scaling.apply(vectors), plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-5
        )
        variances = np.linalg.eigvalsh(np.cov(plain.T))
        spread.append(variances[-1] / variances[0])
    assert spread[1] == pytest.approx(np.sqrt(spread[0]), rel=1e-3)
    assert spread[2] == pytest.approx(1, rel=1e-3)


def test_equal_vectors_have_no_direction():
    assert not VectorScaling.learn(np.ones((3, 4)), 1.0, 0.25).apply(np.ones((3, 4))).any()


def test_a_vector_that_equals_the_mean_has_no_direction():
    scaling = VectorScaling(np.array([1.0, 2.0], np.float32), 3.0)
    np.testing.assert_array_equal(scaling.apply(np.array([[1.0, 2.0], [2.0, 2.0]])), [[0, 0], [3, 0]])


def test_the_vectors_matter(data, model):
    other = model.features_.rows(data)
    words = model.linear_.best(lw.Blocks(other.sparse, np.zeros_like(other.dense)), 5, SearchSettings.of(model.config))
    assert not np.allclose(words.scores, model.predict(data, k=5).scores, atol=1e-3)


def test_encode_prints_the_vectors_of_the_model(model, data, tmp_path):
    model.save(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(data.texts[:9]) + "\n", encoding="utf-8")
    labelwise("encode", tmp_path / "model", tmp_path / "texts.txt", "-o", tmp_path / "out.npy")
    vectors = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(vectors, model.encode(list(data.texts[:9])), atol=1e-5)
    assert vectors.shape == (9, 32)


def test_explanations_have_the_vector_as_one_term_and_add_up(model, data):
    for one in model.explain(data.texts[0], k=3, terms=None):
        names = [term.name for term in one.terms]
        assert names.count(DOCUMENT_VECTOR) == 1
        assert not any(name.startswith("vector[") for name in names)
        assert one.bias + sum(term.contribution for term in one.terms) == pytest.approx(one.margin)
        assert one.other == pytest.approx(0)
        assert one.margin == pytest.approx(np.mean([path.margin for path in one.paths]))


def test_words_of_a_batch_are_those_of_single_explanations(model, data):
    texts = list(data.texts[:6])
    top = model.predict(texts, k=3)
    listed = top_words(model, texts, top, 4)
    assert any(DOCUMENT_VECTOR in words for row in listed for words in row)
    for row, text in enumerate(texts):
        for rank, one in enumerate(model.explain(text, k=3, terms=None)):
            positive = [term.name for term in one.terms if term.contribution > 0]
            assert listed[row][rank] == positive[:4]


def test_a_request_encodes_a_text_once(model, encoded):
    model.explain("word1x1 group0 noise3 a new text", k=2)
    assert encoded == [1]
    model.predict(["another text", "another text", "a third"], k=None, threshold=0.0)
    assert sum(encoded[1:]) == 2


def test_a_stopped_fit_resumes_without_encoding_again(data, tmp_path, monkeypatch, encoded):
    whole = made().fit(data)
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr("labelwise.linear.train.train_tree", lambda *_: (_ for _ in ()).throw(Stop))
        made().fit(data, job=Job(tmp_path))
    encoded.clear()
    resumed = made().fit(data, job=Job(tmp_path))
    assert not encoded
    same_predictions(resumed.predict(data, k=5), whole.predict(data, k=5))


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_resumes_after_its_encoded_texts_and_trained_chunks(data, tmp_path):
    lw.write(data, tmp_path / "data.jsonl")
    config = {
        "data": {"train": str(tmp_path / "data.jsonl")},
        "model": {"method": "hybrid_linear", "encoder": TINY, "trees": 2, "leaf_size": 8},
        "run": {"folder": str(tmp_path / "run"), "report": False, "threads": 1},
    }
    (tmp_path / "run.yml").write_text(json.dumps(config))
    kill_where_it_holds(HOLD_AFTER_THE_FIRST_TREE, "train", tmp_path / "run.yml")
    labelwise("train", tmp_path / "run.yml")
    assert "200 of 200 texts are known" in (tmp_path / "run" / "log.txt").read_text()
    labelwise("train", tmp_path / "run.yml", "--set", f"run.folder={tmp_path / 'whole'}")
    models = [tmp_path / folder / "model" / "state.safetensors" for folder in ("run", "whole")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_documents_without_time_to_encode_them_are_learned_from_their_words(data, caplog):
    caplog.set_level("INFO", logger="labelwise")
    model = made(time_budget=1e-6).fit(data)
    assert "encoding: ended by the time budget after 16 of 200 documents" in caplog.text
    words = lw.LinearTree(trees=1, time_budget=1e-6).fit(data)
    scores = [lw.evaluate(one.predict(data, k=1), data, metrics=["P@1"])["P@1"] for one in (model, words)]
    assert scores[0] > scores[1] - 0.1


def test_label_names_are_documents_with_vectors(data):
    named = lw.Dataset(
        data.labels, data.label_names, texts=data.texts, label_texts=[f"unheard{j}" for j in range(data.n_labels)]
    )
    model = made(label_documents="texts").fit(named)
    assert model.predict(["unheard7"], k=1).ids[0, 0] == 7


def test_memory_is_estimated_before_anything_is_encoded(data, encoded):
    with pytest.raises(ConfigError, match="training needs about"):
        made(memory=0.001).fit(data)
    assert not encoded


@pytest.mark.parametrize("setting", ["frozen", "gradient_checkpointing"])
def test_settings_of_training_an_encoder_are_refused(setting):
    with pytest.raises(ConfigError, match=f"encoder.{setting} is for methods that train the encoder"):
        made(encoder={**TINY, setting: True})


def test_learn_is_refused(model, data):
    with pytest.raises(ConfigError, match="hybrid_linear cannot learn more documents; linear_flat and linear_tree can"):
        model.learn(data)


def test_a_damaged_mean_is_refused(model, tmp_path):
    state = model.fitted_.tensors()
    for damaged in (np.zeros(31, np.float32), np.full(32, np.nan, np.float32), np.zeros(32)):
        with pytest.raises(ModelFormatError, match=r"vectors\.mean does not fit"):
            VectorScaling.restored({**state, "vectors.mean": damaged}, 32, 1.0, True, tmp_path)
    with pytest.raises(ModelFormatError, match=r"vectors\.whitening does not fit"):
        VectorScaling.restored({**state, "vectors.whitening": np.zeros((32, 31), np.float32)}, 32, 1.0, True, tmp_path)


def test_the_cache_of_vectors_is_opened_once(data, tmp_path, monkeypatch):
    """Not for every batch of texts: the fingerprint of the encoder is a hash of all its weights."""
    from labelwise.nn import encode

    monkeypatch.setenv("LABELWISE_VECTORS", str(tmp_path))
    opened, plain = [], encode.encoder_fingerprint
    monkeypatch.setattr(encode, "encoder_fingerprint", lambda encoder: (opened.append(None), plain(encoder))[1])
    model = made().fit(data)
    model.features_.published = True  # as pretrained ones, which tests do not download
    batches = [[f"text {number} of batch {batch}" for number in range(300)] for batch in range(3)]
    first = [model.encode(batch) for batch in batches]
    assert len(opened) == 1
    model.features_._recent = None
    monkeypatch.setattr(encode, "encode_inputs", None)  # nobody gets as far as this
    for batch, vectors in zip(batches, first, strict=True):
        np.testing.assert_array_equal(model.encode(batch), vectors)
    assert len(opened) == 1
