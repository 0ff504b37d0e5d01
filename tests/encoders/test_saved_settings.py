"""Saved encoders from strangers: settings and tokenizers that would hang, fetch, fail or take all memory are refused."""

import json
import socket
import time

import numpy as np
import pytest

import labelwise as lw
from conformance.planted import planted_texts
from conformance.small import SMALL
from labelwise.errors import ModelFormatError
from labelwise.io.folder import map_tensors, update_folder
from labelwise.model.folder import STATE_FILE
from labelwise.registry import method_class

SECONDS = 15


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    settings = dict(SMALL["text_encoder"])
    settings["training"] = settings["training"].model_copy(update={"epochs": 1, "steps": 1})
    method_class("text_encoder")(**settings).fit(planted_texts(40, 8)).save(path)
    return path


def with_json(saved, tensor, change):
    """Change one of the JSON tensors of the model; `restored` puts the old one back."""
    tensors = dict(map_tensors(saved / STATE_FILE))
    value = json.loads(tensors[tensor].tobytes())
    value = change(value) or value
    tensors[tensor] = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with update_folder(saved, "model", {}) as folder:
        folder.write_tensors(STATE_FILE, tensors)


@pytest.fixture
def restored(saved):
    tensors = dict(map_tensors(saved / STATE_FILE))
    yield saved
    with update_folder(saved, "model", {}) as folder:
        folder.write_tensors(STATE_FILE, tensors)


SETTINGS = {
    "10^5 layers": {"num_hidden_layers": 10**5},
    "900 layers": {"num_hidden_layers": 900},
    "10^12 layers": {"num_hidden_layers": 10**12},
    "wide": {"hidden_size": 1 << 20, "num_attention_heads": 2},
    "wider": {"hidden_size": 1 << 62},
    "large vocabulary": {"vocab_size": 1 << 30},
    "many positions": {"max_position_embeddings": 1 << 30},
    "chunks": {"chunk_size_feed_forward": 7},
    "heads": {"num_attention_heads": 3},
    "epsilon": {"layer_norm_eps": "x"},
    "activation": {"hidden_act": "no_such"},
    "detr": {"model_type": "detr", "backbone": "someone/backbone", "use_pretrained_backbone": True},
    "timm": {"model_type": "timm_backbone", "backbone": "someone/backbone"},
    "encoder-decoder": {"model_type": "encoder-decoder"},
    "no family": {"model_type": ["bert"]},
    "another family": {"model_type": "gpt2", "n_positions": 1 << 20},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_settings_of_strangers_are_refused_at_once(restored, changes, monkeypatch):
    def no_network(*_):
        raise AssertionError("loading a model has reached for the network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    with_json(restored, "encoder.config", lambda settings: settings.update(changes))
    begin = time.monotonic()
    with pytest.raises(ModelFormatError, match=str(restored)):
        lw.load(restored)
    assert time.monotonic() - begin < SECONDS


def test_settings_of_heads_play_no_part(restored):
    expected = lw.load(restored).predict(["word1x1 word2x2"], k=3)
    with_json(restored, "encoder.config", lambda settings: settings.update(num_labels=10**9, problem_type="x"))
    assert np.array_equal(lw.load(restored).predict(["word1x1 word2x2"], k=3).scores, expected.scores)


def replace(content, count):
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"type": "Sequence", "normalizers": [rule] * count}


def charsmap(text):
    return {"type": "Precompiled", "precompiled_charsmap": text}


TOKENIZERS = {
    "bomb": lambda t: t.update(normalizer=replace("aa", 60)),
    "long": lambda t: t.update(normalizer=replace("a" * 10**6, 1)),
    "deep": lambda t: t.update(normalizer=replace("a", 10**5)),
    "panic": lambda t: t.update(normalizer=charsmap("")),
    "panic of a long one": lambda t: t.update(normalizer=charsmap("QUJD" * 100)),
    "special id": lambda t: [
        token.update(ids=[10**6]) for token in t["post_processor"]["special_tokens"].values()
    ] and None,
    "a list": lambda t: [t],
    "unknown model": lambda t: t["model"].update(type="NoSuch"),
}  # fmt: skip


@pytest.mark.parametrize("change", TOKENIZERS.values(), ids=TOKENIZERS)
def test_tokenizers_of_strangers_are_refused_at_once(restored, change):
    with_json(restored, "encoder.tokenizer", change)
    begin = time.monotonic()
    with pytest.raises(ModelFormatError, match=str(restored)):
        lw.load(restored).predict(["word1x1 aaaa"], k=3)
    assert time.monotonic() - begin < SECONDS
