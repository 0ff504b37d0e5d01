"""What is special to the text encoder: its settings, resume, validation, frozen encoders, vectors."""

from threading import Thread

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

import labelwise as lw
from common import Stop, same_predictions
from conformance.planted import planted
from labelwise.errors import ConfigError
from labelwise.nn import encode
from labelwise.nn.config import TrainingConfig
from labelwise.nn.inputs import tensors_of
from labelwise.nn.train.loop import History
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

TINY = {"model": "tiny", "max_length": 32, "pooling": "mean"}
QUICK = {"epochs": 4, "optimiser": {"rate": 0.01, "head_factor": 3}}


@pytest.fixture(autouse=True)
def one_thread():
    with using_threads(1):
        yield


def made(training=None, encoder=None, **settings):
    return lw.TextEncoder(encoder={**TINY, **(encoder or {})}, training={**QUICK, **(training or {})}, **settings)


def precision(model, test):
    return lw.evaluate(model.predict(test, k=3), test, metrics=["P@1"])["P@1"]


def test_a_stopped_fit_goes_on_to_the_same_model(tmp_path):
    data = planted("texts", n_documents=300)
    settings = {"checkpoint_every": {"steps": 7}, "log_every": 5}
    whole = made(settings, head={"dropout": 0.3}).fit(data).predict(data, k=5)

    def log(**numbers):
        if numbers.get("step") == 20:
            raise Stop

    model = made(settings, head={"dropout": 0.3})
    with pytest.raises(Stop):
        model.fit(data, job=Job(tmp_path, log))
    steps = []
    model.fit(data, job=Job(tmp_path, lambda **numbers: steps.append(numbers["step"])))
    assert min(steps) > 10, "it started over"
    same_predictions(model.predict(data, k=5), whole)


def test_checkpoints_of_other_documents_are_not_taken_up(tmp_path):
    one, other = planted("texts", n_documents=200), planted("texts", n_documents=200, seed=3)
    made({"epochs": 1}).fit(one, job=Job(tmp_path))
    resumed = made({"epochs": 1}).fit(other, job=Job(tmp_path))
    same_predictions(resumed.predict(other, k=3), made({"epochs": 1}).fit(other).predict(other, k=3))


def test_validation_is_on_held_out_documents_and_the_best_weights_are_kept():
    train, valid = planted("texts", n_documents=500).split(0.3, seed=2)
    model = made(valid_fraction=0.0).fit(train, valid=valid)
    records = model.history_.records
    assert {"P@1", "P@3", "P@5", "nDCG@5", "valid_loss"} <= set(records[-1])
    best = max(record["P@1"] for record in records)
    assert model.history_.best["value"] == best == pytest.approx(precision(model, valid))
    held = made({"epochs": 1}, valid_fraction=0.2).fit(train)
    assert "P@1" in held.history_.records[0]
    assert "P@1" not in made({"epochs": 1}, valid_fraction=0.0).fit(train).history_.records[0]


def test_validation_knows_labels_that_training_has_not():
    train = planted("texts", n_documents=200)
    valid = lw.Dataset(np.eye(2), ["L0", "never seen"], texts=["word0x1 word0x2", "something else"])
    model = made({"epochs": 1}).fit(train, valid=valid)
    assert 0 <= model.history_.records[0]["P@1"] <= 0.5


def test_early_stopping_needs_something_to_stop_by():
    data = planted("texts", n_documents=100)
    with pytest.raises(ConfigError, match="held-out"):
        made({"early_stopping": {"patience": 1}}, valid_fraction=0.0).fit(data)
    model = made({"early_stopping": {"patience": 1}, "metric": "loss", "epochs": 2}, valid_fraction=0.0).fit(data)
    assert model.history_.steps > 0


def test_a_frozen_encoder_trains_only_the_head():
    train, test = planted("texts", n_documents=500).split(0.3, seed=1)
    longer, shorter = (
        {"epochs": epochs, "optimiser": {"rate": 0.01, "head_factor": 10}, "clip": None} for epochs in (15, 1)
    )
    model = made(longer, {"frozen": True}, valid_fraction=0.1).fit(train)
    before = made(shorter, {"frozen": True}, valid_fraction=0.1).fit(train)
    np.testing.assert_array_equal(model.encode(test), before.encode(test))
    floor = precision(lw.Popularity().fit(train), test)
    assert precision(model, test) > floor + 0.1
    assert model.history_.records[-1]["verdict"] == "healthy"


def test_the_head_may_learn_alone_before_both_do():
    train, test = planted("texts", n_documents=500).split(0.3, seed=1)
    standing = {"epochs": 1, "optimiser": {"rate": 1e-9, "head_rate": 0.1}, "clip": None}
    begun = made(standing, head_epochs=15).fit(train)
    untouched = made(standing, {"frozen": True}).fit(train)
    np.testing.assert_allclose(begun.encode(test), untouched.encode(test), atol=1e-4)
    floor = precision(lw.Popularity().fit(train), test)
    assert precision(begun, test) > floor + 0.1 > precision(untouched, test)


def test_the_head_begins_alone_where_the_encoder_knows_something(tmp_path):
    data = planted("texts", n_documents=60)
    parts = set()
    seen = Job(log=lambda **numbers: parts.add(numbers["part"]))
    random = made({"epochs": 1, "log_every": 1}).fit(data, job=seen)
    assert parts == {"train"}
    folder = tmp_path / "weights"
    random.network_.encoder.backbone.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=random.network_.encoder.tokenizer.backend).save_pretrained(folder)
    made({"epochs": 1, "log_every": 1}, {"model": str(folder)}).fit(data, job=seen)
    assert parts == {"head", "train"}
    with pytest.raises(ConfigError, match="frozen"):
        made(encoder={"frozen": True}, head_epochs=3)


def test_both_stages_share_one_time_budget(monkeypatch):
    budgets, now = [], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def quick(fitting, config, job, **others):
        budgets.append(job.budget.remaining())
        now[0] += 40.0
        return History(seconds=40.0)

    monkeypatch.setattr("labelwise.nn.train.loop.train", quick)
    data = planted("texts", n_documents=60)
    made({"time_budget": 100.0}, head_epochs=1).fit(data)
    made({"time_budget": 30.0}, head_epochs=1).fit(data)
    assert budgets == [75.0, 60.0, 22.5], "the head has three quarters at most; what no time is left for is left out"


def test_with_little_time_the_head_is_trained_on_some_of_the_texts(monkeypatch, caplog):
    now, encoded = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow(encoder, texts, **others):
        now[0] += len(texts) / 128
        encoded.append(len(texts))
        return plain(encoder, texts, **others)

    plain = encode.encode_corpus
    monkeypatch.setattr(encode, "encode_corpus", slow)
    settings = {"time_budget": 10.0, "epochs": 1}
    with caplog.at_level("INFO", logger="labelwise"):
        made(settings, {"frozen": True}, valid_fraction=0.0).fit(planted("texts", n_documents=1000))
    assert encoded == [128, 512], "half of the time, without that of the first few"
    assert "512 of 1,000 documents" in caplog.text


def test_encoder_and_head_are_where_the_loop_trains_them(monkeypatch):
    places = []
    monkeypatch.setattr("torch.nn.Module.to", lambda module, device: places.append(device) or module)
    monkeypatch.setattr("labelwise.nn.train.loop.train", lambda *_, **__: History())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    data = planted("texts", n_documents=20)
    for name, value, expected in (
        ("LOCAL_RANK", "1", "cuda:1"),
        ("LOCAL_RANK", "", "cuda"),
        ("LABELWISE_DEVICE", "cpu", "cpu"),
    ):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
        made({"epochs": 1}).fit(data)
        assert str(places[-1]) == expected


@pytest.mark.parametrize("stage", ["head", "train"])
def test_a_fit_that_was_stopped_in_either_stage_goes_on_to_the_same_model(tmp_path, stage):
    data = planted("texts", n_documents=300)
    settings = {"checkpoint_every": {"steps": 7}, "log_every": 5, "epochs": 2}
    whole = made(settings, head_epochs=2).fit(data).predict(data, k=5)

    def log(**numbers):
        if numbers["step"] == 10 and numbers["part"] == stage:
            raise Stop

    model = made(settings, head_epochs=2)
    with pytest.raises(Stop):
        model.fit(data, job=Job(tmp_path, log))
    seen = []
    model.fit(data, job=Job(tmp_path, lambda **numbers: seen.append((numbers["part"], numbers["step"]))))
    assert min(step for part, step in seen if part == stage) > 5, "it started over"
    assert {part for part, _ in seen} == ({"head", "train"} if stage == "head" else {"train"})
    same_predictions(model.predict(data, k=5), whole)


def test_encode_gives_the_vectors_that_predict_uses():
    data = planted("texts", n_documents=150)
    model = made({"epochs": 1}).fit(data)
    vectors = model.encode(data)
    assert vectors.shape == (150, 32)
    assert vectors.dtype == np.float32
    head = model.network_.head
    scores = vectors @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    top = model.predict(data, k=1)
    np.testing.assert_array_equal(top.ids[:, 0], scores.argmax(1))
    np.testing.assert_allclose(top.scores[:, 0], 1 / (1 + np.exp(-scores.max(1))), rtol=1e-4)
    assert model.encode(["one text"]).shape == (1, 32)
    with pytest.raises(ConfigError, match="has no document vectors"):
        lw.Popularity().fit(data).encode(data)


def test_a_loaded_model_encodes_the_same(tmp_path):
    data = planted("texts", n_documents=100)
    model = made({"epochs": 1}, {"layers": 2, "long_texts": "windows", "max_length": 8}).fit(data)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(lw.load(tmp_path / "model").encode(data), model.encode(data))


@pytest.mark.parametrize("loss", ["bce", "squared_hinge", "focal", "asymmetric"])
def test_every_loss_learns(loss):
    train, test = planted("texts", n_documents=600).split(0.3, seed=1)
    model = made({"epochs": 6}, head={"loss": {"name": loss}}, valid_fraction=0.0).fit(train)
    assert precision(model, test) > precision(lw.Popularity().fit(train), test) + 0.2


def test_blocks_of_labels_change_nothing_but_memory():
    data = planted("texts", n_documents=200)
    whole = made({"epochs": 2}).fit(data).predict(data, k=5)
    blocks = made({"epochs": 2}, head={"block": 7}).fit(data).predict(data, k=5)
    np.testing.assert_allclose(blocks.scores, whole.scores, rtol=1e-3, atol=1e-4)


def test_scores_that_saturate_are_in_the_order_of_ids():
    from labelwise.topk import sorted_by_score

    top = sorted_by_score(np.array([[5, 2, 9]]), np.array([[1.0, 1.0, 0.5]], np.float32))
    assert top.ids.tolist() == [[2, 5, 9]]


def test_the_recipe_is_a_training_config():
    assert isinstance(lw.TextEncoder().config.training, TrainingConfig)
    with pytest.raises(ConfigError, match=r"training\.optimiser\.rte"):
        lw.TextEncoder(training={"optimiser": {"rte": 1}})
    with pytest.raises(ConfigError, match="model_type"):
        lw.TextEncoder(encoder={"architecture": {"hidden_size": 8}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"head": {"loss": {"name": "bce", "focus": 3.0}}}, "focus is a setting of name: focal"),
        ({"head": {"loss": {"name": "focal", "shift": 0.2}}}, "shift is a setting of name: asymmetric"),
        ({"encoder": {"windows": 2}}, "windows is a setting of long_texts: windows"),
    ],
)
def test_settings_without_effect_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        lw.TextEncoder(**settings)
    whole = lw.TextEncoder().config.model_dump()
    lw.TextEncoder(**whole)  # a config with all defaults written out


def test_attention_is_that_of_the_monitor():
    from labelwise.nn.text.transformer import attention_entropy

    data = planted("texts", n_documents=60)
    model = made({"epochs": 1}).fit(data)
    texts = [data.texts[0], data.texts[5] + " " + data.texts[6]]
    encoder = model.network_.encoder
    tokens = encoder.tokenizer.encode(Strings.of(texts), encoder.config)
    for place, found in enumerate(model.attention(texts, tokens=64)):
        ids, mask, _ = tensors_of(tokens.batch(np.array([place])))
        np.testing.assert_allclose(
            found.entropy, attention_entropy(encoder.attention_reader()(ids, mask), mask), atol=1e-5
        )
        assert found.tokens[0] == "[CLS]"
        assert found.tokens[-1] == "[SEP]"
        assert len(found.tokens) == found.n_tokens


def test_methods_without_attention_say_so():
    model = lw.Popularity().fit(planted("texts", n_documents=20))
    with pytest.raises(ConfigError, match="no attention among tokens"):
        model.attention(["a text"])


def test_predictions_beside_attention_are_the_same(monkeypatch):
    """While one thread computes attention, another predicts with the same model."""
    data = planted("texts", n_documents=60)
    model = made({"epochs": 1}).fit(data)
    expected, maps = model.predict(data, k=5), model.attention(data.texts[:1])
    backbone = model.network_.encoder.backbone
    plain, kind, beside = type(backbone).forward, backbone.config._attn_implementation, []

    def forward(self, *given, **named):
        if named.get("output_attentions") and not beside:
            beside.append(backbone.config._attn_implementation)
            thread = Thread(target=lambda: beside.append(model.predict(data, k=5)))
            thread.start()
            thread.join()
        return plain(self, *given, **named)

    monkeypatch.setattr(type(backbone), "forward", forward)
    again = model.attention(data.texts[:1])
    np.testing.assert_array_equal(again[0].weights, maps[0].weights)
    during, top = beside
    assert during == kind == backbone.config._attn_implementation
    np.testing.assert_array_equal(top.ids, expected.ids)
    np.testing.assert_array_equal(top.scores, expected.scores)


def test_a_model_predicts_equal_texts_once(monkeypatch):
    data = planted("texts", n_documents=60)
    model = lw.TextEncoder(encoder={"model": "tiny"}, training={"steps": 2}).fit(data)
    tokenised = []
    encode = model.network_.encoder.tokenizer.encode
    monkeypatch.setattr(
        model.network_.encoder.tokenizer,
        "encode",
        lambda texts, config: tokenised.append(len(texts)) or encode(texts, config),
    )
    texts = [data.texts[n] for n in (0, 1, 0, 2, 1)]
    top = model.predict(texts, k=2)
    assert tokenised == [3]
    single = [model.predict([text], k=2) for text in texts]
    np.testing.assert_array_equal(top.ids, np.concatenate([one.ids for one in single]))
