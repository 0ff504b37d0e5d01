"""8-bit layers: close to float32, exact in whole numbers, for inference only, and refused where they cannot be had."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from labelwise.errors import ConfigError
from labelwise.nn.config import EncoderConfig, TrainingConfig
from labelwise.nn.encode import encode_corpus
from labelwise.nn.inputs import tensors_of
from labelwise.nn.text.transformer import Int8Linear, open_encoder, why_not_int8, with_int8_layers
from labelwise.nn.train.loop import train
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

needs_x86 = pytest.mark.skipif(why_not_int8(torch.device("cpu")) is not None, reason="needs AVX2 and oneDNN")
TEXTS = Strings.of([" ".join(f"word{(n * k) % 50}" for k in range(1 + n % 12)) for n in range(60)])
ARCHITECTURE = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1,
}  # fmt: skip


def opened(precision):
    config = EncoderConfig(architecture=ARCHITECTURE, max_length=16, pooling="mean", precision=precision)
    return open_encoder(config, TEXTS, seed=0).eval()


@needs_x86
@pytest.mark.parametrize("bias", [True, False])
def test_whole_numbers_are_multiplied_exactly(bias):
    layer = nn.Linear(300, 20, bias=bias)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # the largest products that 8-bit layers can have: in 16 bits they would overflow with 8-bit weights
        layer.weight.copy_(torch.randint(40, 65, (20, 300), generator=random))
        layer.weight[:, 0] = 64
    inputs = torch.randint(200, 256, (2, 5, 300), generator=random).float()
    inputs[..., 0], inputs[..., 1] = 0, 255
    with torch.inference_mode():
        outputs = Int8Linear(layer)(inputs)
    expected = inputs.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    assert outputs.shape == (2, 5, 20)
    np.testing.assert_allclose(outputs.numpy(), expected.detach().numpy(), rtol=1e-6)


@needs_x86
def test_a_row_is_rounded_by_itself():
    layer = nn.Linear(32, 8)
    rows = torch.randn(6, 32, generator=torch.Generator().manual_seed(1))
    rows[3] *= 1e4
    rows[4], rows[5] = 0.5, 7.0
    with torch.inference_mode():
        fast = Int8Linear(layer)
        together, alone = fast(rows), torch.cat([fast(row[None]) for row in rows])
    np.testing.assert_array_equal(together.numpy(), alone.numpy())
    expected = layer(rows).detach()
    errors = (together - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.max() < 0.05


@needs_x86
def test_vectors_are_close_and_the_original_is_as_it_was():
    exact, fast = opened("float32"), opened("int8")
    before = {name: part.clone() for name, part in fast.backbone.state_dict().items()}
    expected, vectors = encode_corpus(exact, TEXTS), encode_corpus(fast, TEXTS)
    cosines = (expected * vectors).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() > 0.99
    assert (vectors != expected).any()
    state = fast.backbone.state_dict()
    assert all(torch.equal(state[name], part) for name, part in before.items())
    assert sorted(fast.state()) == sorted(exact.state()), "saved models hold float32 weights only"
    copied = with_int8_layers(fast.backbone)
    assert not any(type(part) is nn.Linear for part in copied.modules())
    assert any(type(part) is nn.Linear for part in fast.backbone.modules())
    words = copied.embeddings.word_embeddings.weight
    assert words.data_ptr() == fast.backbone.embeddings.word_embeddings.weight.data_ptr(), "nothing else is copied"


@needs_x86
def test_training_is_in_float32_and_its_weights_are_used_at_once():
    exact, fast = opened("float32"), opened("int8")
    batch = tensors_of(fast.tokenizer.encode(TEXTS, fast.config).batch(np.arange(5)))
    torch.testing.assert_close(fast(*batch), exact(*batch), rtol=1e-6, atol=1e-6)
    fast(*batch).sum().backward()
    before = encode_corpus(fast, TEXTS)
    torch.optim.SGD(fast.parameters(), 0.1).step()
    after, expected = encode_corpus(fast, TEXTS), encode_corpus(opened("int8"), TEXTS)
    np.testing.assert_array_equal(before, expected)
    assert np.abs(after - before).max() > 1e-3


def test_threads_do_not_change_vectors(monkeypatch):
    monkeypatch.setattr("labelwise.nn.encode.TOKENS_PER_THREAD", 64)
    encoder = opened("float32")
    usual = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        with using_threads(count):
            torch.set_num_threads(count)
            results.append(encode_corpus(encoder, TEXTS))
            assert torch.get_num_threads() == count
    torch.set_num_threads(usual)
    np.testing.assert_array_equal(results[1], results[2])
    np.testing.assert_array_equal(results[0], results[1])


def test_a_machine_that_cannot_says_so(monkeypatch, caplog):
    assert "cuda" in (why_not_int8(torch.device("cuda")) or "")
    encoder = opened("float32")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NO AVX")
    with pytest.raises(ConfigError, match=r"encoder.precision: .*AVX2.*; use float32"):
        opened("int8")
    encoder.config = encoder.config.model_copy(update={"precision": "int8"})  # as a model that came from elsewhere
    with caplog.at_level(logging.WARNING, "labelwise"):
        vectors = encode_corpus(encoder, TEXTS)
    assert caplog.text.count("texts are encoded in float32") == 1
    np.testing.assert_array_equal(vectors, encode_corpus(opened("float32"), TEXTS))
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert why_not_int8(torch.device("cpu")) is not None


@needs_x86
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_layers_are_those_of_the_weights_after_training_in_the_loop(optimiser):
    class Fitting:
        module = opened("int8")
        head_names, row_tables = (), ()

        def batches(self, epoch):
            return [np.arange(20)]

        def load(self, item, epoch):
            return tensors_of(self.module.tokenizer.encode(TEXTS, self.module.config).batch(item))

        def loss(self, batch):
            return self.module(*batch).square().sum()

    settings = {"epochs": 2, "clip": None, "optimiser": {"name": optimiser, "rate": 0.01}, "validate_every": None}
    encode_corpus(Fitting.module, TEXTS)
    train(Fitting(), TrainingConfig(**settings), job=Job())
    fresh = opened("int8")
    fresh.backbone.load_state_dict(Fitting.module.backbone.state_dict())
    np.testing.assert_array_equal(encode_corpus(Fitting.module, TEXTS), encode_corpus(fresh, TEXTS))
