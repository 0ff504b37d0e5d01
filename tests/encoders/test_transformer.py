"""Encoders: from folders, from settings, from a saved state; pooling; and what is refused."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from labelwise.errors import ConfigError, ModelFormatError
from labelwise.nn.config import EncoderConfig
from labelwise.nn.encode import encode_corpus
from labelwise.nn.inputs import batches_by_length, tensors_of
from labelwise.nn.text.files import check_vocabulary
from labelwise.nn.text.transformer import TransformerEncoder, attention_maps, open_encoder
from labelwise.strings import Strings

TEXTS = Strings.of([f"word{n} " * (1 + n % 7) + f"and {'tail ' * (n % 5)}" for n in range(40)])
BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
FAMILIES = {
    "bert": BERT,
    "distilbert": {"model_type": "distilbert", "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "roberta": {**BERT, "model_type": "roberta"},
    "mpnet": {**BERT, "model_type": "mpnet"},
    "xlnet": {"model_type": "xlnet", "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
    "electra": {**BERT, "model_type": "electra", "embedding_size": 16},
}


def opened(texts=TEXTS, **settings):
    return open_encoder(EncoderConfig(**{"architecture": BERT, "max_length": 16, **settings}), texts, seed=0).eval()


@pytest.fixture
def folder(tmp_path):
    """A pretrained model on disk, as transformers writes it."""
    encoder = opened()
    place = tmp_path / "encoder"
    encoder.backbone.save_pretrained(place)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=encoder.tokenizer.backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )
    fast.save_pretrained(place)
    return place


def token_vectors(encoder, text):
    """The states of all layers for one text, straight from transformers."""
    ids = torch.tensor([encoder.tokenizer.backend.encode(text).ids[:16]])
    with torch.no_grad():
        return [s[0] for s in encoder.backbone(input_ids=ids, output_hidden_states=True).hidden_states]


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_restored_without_a_network(family):
    encoder = opened(architecture=FAMILIES[family], pooling="last" if family == "xlnet" else "first")
    vectors = encode_corpus(encoder, TEXTS)
    state = encoder.state()
    again = TransformerEncoder.restored(state, encoder.config, Path("state"))
    np.testing.assert_array_equal(encode_corpus(again, TEXTS), vectors)
    assert vectors.shape == (40, 16)
    assert vectors.std(0).min() > 0


@pytest.mark.parametrize(("family", "token"), [("bert", 0), ("xlnet", -1)])
def test_the_summary_is_the_token_of_the_family(family, token):
    encoder = opened(architecture=FAMILIES[family], pooling="summary", layers=2).eval()
    mine = encode_corpus(encoder, Strings.of(["word1 word2", "word3"]))  # the second is padded in a batch
    for vector, text in zip(mine, ("word1 word2", "word3"), strict=True):
        states = token_vectors(encoder, text)
        np.testing.assert_allclose(vector, torch.cat([state[token] for state in states[-2:]]), rtol=1e-4, atol=1e-5)


def test_random_weights_follow_the_seed():
    config = EncoderConfig(architecture=BERT)
    one, same, other = (open_encoder(config, TEXTS, seed).state() for seed in (1, 1, 2))
    name = "weights.encoder.layer.0.attention.self.query.weight"
    np.testing.assert_array_equal(one[name], same[name])
    assert (one[name] != other[name]).any()


def test_a_folder_is_opened_with_its_own_weights_and_tokenizer(folder):
    encoder = open_encoder(EncoderConfig(model=str(folder), max_length=16), Strings.of(["other", "texts"]), 5).eval()
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS), encode_corpus(opened(), TEXTS))


def test_pooling_by_hand():
    text = TEXTS[6]
    for pooling, expected in (
        ("first", lambda states: states[-1][0]),
        ("last", lambda states: states[-1][-1]),
        ("mean", lambda states: states[-1].mean(0)),
    ):
        encoder = opened(pooling=pooling)
        found = encode_corpus(encoder, TEXTS)[6]  # in a batch with longer and shorter ones
        np.testing.assert_allclose(found, expected(token_vectors(encoder, text)), rtol=1e-4, atol=1e-5)
    encoder = opened(layers=2)
    assert encoder.width == 32
    states = token_vectors(encoder, text)
    np.testing.assert_allclose(
        encode_corpus(encoder, TEXTS)[6], torch.cat([states[-2][0], states[-1][0]]), rtol=1e-4, atol=1e-5
    )


def test_windows_are_averaged():
    encoder = opened(max_length=6, long_texts="windows", windows=3)
    text = " ".join(f"word{n}" for n in range(10))
    pieces = Strings.of([" ".join(f"word{n}" for n in range(b, min(b + 4, 10))) for b in (0, 4, 8)])
    found = encode_corpus(encoder, Strings.of(["word1", text, "word2 word3"]))[1]
    np.testing.assert_allclose(found, encode_corpus(encoder, pieces).mean(0), rtol=1e-4, atol=1e-5)


def test_attention_of_padded_documents_adds_up_to_one():
    encoder = opened()
    tokens = encoder.tokenizer.encode(TEXTS, encoder.config)
    ids, mask, _ = tensors_of(tokens.batch(np.arange(5)))
    before = encode_corpus(encoder, TEXTS)
    weights = encoder.attention_reader()(ids, mask)
    assert weights.shape == (3, 5, 2, ids.shape[1], ids.shape[1])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert float((weights * ~mask[None, :, None, None, :]).max()) == 0
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS), before)


def test_a_model_without_attention_says_so():
    encoder = opened(architecture={**BERT, "model_type": "fnet"})
    ids, mask, _ = tensors_of(encoder.tokenizer.encode(TEXTS, encoder.config).batch(np.arange(2)))
    assert encoder.attention_reader()(ids, mask) is None
    (found,) = attention_maps(encoder, TEXTS[:1], 8)
    assert found.weights.shape[0] == len(found.entropy) == 0


def test_gradient_checkpointing_gives_the_same_gradients():
    gradients = []
    for checkpointing in (False, True):
        still = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        encoder = opened(gradient_checkpointing=checkpointing, architecture=still)
        tokens = encoder.tokenizer.encode(TEXTS, encoder.config)
        encoder.train()(*tensors_of(tokens.batch(np.arange(6)))).square().sum().backward()
        gradients.append(encoder.backbone.encoder.layer[0].attention.self.query.weight.grad)
    torch.testing.assert_close(*gradients)


def test_batches_by_length_hold_every_document_once():
    lengths = np.random.default_rng(0).integers(1, 50, 333)
    batches = list(batches_by_length(lengths, 200))
    assert sorted(np.concatenate(batches).tolist()) == list(range(333))
    assert all(lengths[batch].max() * len(batch) <= 200 for batch in batches)
    assert next(batches_by_length(np.array([500]), 200)).tolist() == [0]


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"architecture": {"model_type": "no_such_model"}}, "encoder.architecture"),
        ({"architecture": {**BERT, "hidden_size": 15}}, "multiple"),
        ({"architecture": {**BERT, "hidden_size": "wide"}}, "hidden_size"),
        ({"architecture": {"model_type": "t5"}}, "decoder"),
        ({"architecture": {**BERT, "model_type": "vit"}}, "does not read tokens"),
        ({"max_length": 1000}, "at most 512 tokens"),
        ({"architecture": {**BERT, "model_type": "roberta", "max_position_embeddings": 66}, "max_length": 65}, "64"),
        ({"layers": 4}, "has 3 layers"),
        ({"model": "/no/such/folder", "architecture": None}, "not a folder"),
        ({"model": "nobody/no-such-model", "architecture": None}, "Hugging Face hub"),
    ],
)
def test_bad_settings_are_refused_with_a_reason(settings, words, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=words):
        opened(**settings)


def test_folders_without_safetensors_or_with_code_are_refused(folder, tmp_path):
    config = EncoderConfig(model=str(folder), max_length=16)
    state = open_encoder(config, TEXTS, 0).backbone.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        open_encoder(config, TEXTS, 0)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="needs its own code"):
        open_encoder(config, TEXTS, 0)
    assert not marker.exists()
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        open_encoder(config, TEXTS, 0)


def test_weights_that_are_missing_are_not_drawn_at_random(folder):
    config, file = EncoderConfig(model=str(folder), max_length=16), folder / "model.safetensors"
    held = safetensors.torch.load_file(file)
    without = {name: tensor for name, tensor in held.items() if not name.startswith("pooler.")}
    safetensors.torch.save_file(without, file, {"format": "pt"})
    open_encoder(config, TEXTS, 0)  # nobody needs the pooler
    fewer = {name: tensor for name, tensor in held.items() if ".layer.1." not in name}
    renamed = {f"other.{name}": tensor for name, tensor in held.items()}
    for tensors in (fewer, renamed):
        safetensors.torch.save_file(tensors, file, {"format": "pt"})
        with pytest.raises(ConfigError, match="lacks"):
            open_encoder(config, TEXTS, 0)


def test_damaged_folders_are_refused_with_a_reason(folder):
    config, file = EncoderConfig(model=str(folder), max_length=16), folder / "model.safetensors"
    whole, settings = file.read_bytes(), json.loads((folder / "config.json").read_text())
    for left in (b"", whole[:6], whole[: len(whole) // 2], b"version https://large-files\n"):
        file.write_bytes(left)
        with pytest.raises(ConfigError, match=r"encoder\.model: .*(again|no weights)"):
            open_encoder(config, TEXTS, 0)
    file.write_bytes(whole)
    for change in ({"hidden_size": 32}, {"num_hidden_layers": "x"}):
        (folder / "config.json").write_text(json.dumps({**settings, **change}))
        with pytest.raises(ConfigError, match=r"encoder\.model"):
            open_encoder(config, TEXTS, 0)


def test_a_folder_without_tokenizer_files_is_refused(folder):
    config = EncoderConfig(model=str(folder), max_length=16)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer; accepted is one of tokenizer\.json, .* Copy"):
        open_encoder(config, TEXTS, 0)
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"vocab\.json with merges\.txt"):
        open_encoder(config, TEXTS, 0)


def test_a_tokenizer_that_knows_no_words_is_refused(folder):
    config = EncoderConfig(model=str(folder), max_length=16)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    # BERT reads vocab.txt; that of another family is passed over by transformers without a word
    for files in ({"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"}, {"vocab.json": "{}", "merges.txt": ""}):
        for name, text in files.items():
            (folder / name).write_text(text)
        with pytest.raises(ConfigError, match="knows 0 tokens beside the special ones, the weights know 4"):
            open_encoder(config, TEXTS, 0)
        for name in files:
            (folder / name).unlink()


def test_a_tokenizer_far_smaller_than_the_weights_is_refused():
    known = [f"w{n}" for n in range(3000)]
    check_vocabulary("x", [*known, "[PAD]"], ["[PAD]"], 30000)
    with pytest.raises(ConfigError, match="knows 2,999 tokens"):
        check_vocabulary("x", [*known[1:], "[PAD]"], ["[PAD]"], 30000)


def test_tokenizer_and_weights_of_different_models_are_refused():
    big = opened(Strings.of([f"w{n}" for n in range(500)]))
    with pytest.raises(ConfigError, match="same model"):
        TransformerEncoder(opened().backbone, big.tokenizer, EncoderConfig(max_length=16))


def with_settings(state, **changes):
    settings = {**json.loads(state["config"].tobytes()), **changes}
    return {**state, "config": np.frombuffer(json.dumps(settings).encode(), np.uint8)}


def test_damaged_states_are_refused():
    encoder = opened()
    good = encoder.state()
    name = "weights.encoder.layer.0.attention.self.query.weight"
    damaged = [
        {**good, "config": np.frombuffer(b"{", np.uint8)},
        {**good, "config": np.frombuffer(b"[]", np.uint8)},
        with_settings(good, model_type="no_such_model"),
        with_settings(good, hidden_size=32),
        with_settings(good, vocab_size=10**9),
        with_settings(good, num_hidden_layers=2),
        with_settings(good, num_hidden_layers=-1),
        {key: value for key, value in good.items() if key != name},
        {**good, name: good[name].astype(np.int64)},
        {**good, name: good[name][:5]},
        {**good, "weights.unknown": good[name]},
    ]
    for state in damaged:
        with pytest.raises(ModelFormatError, match="state"):
            TransformerEncoder.restored(state, encoder.config, Path("state"))


def test_a_state_cannot_name_code():
    encoder = opened()
    state = with_settings(
        encoder.state(), auto_map={"AutoModel": "evil--evil.Model"}, _attn_implementation="evil/kernel",
        attn_implementation="evil/kernel", quantization_config={"quant_method": "evil"},
    )  # fmt: skip
    again = TransformerEncoder.restored(state, encoder.config, Path("state"))
    assert again.backbone.config._attn_implementation in ("sdpa", "eager")
    np.testing.assert_array_equal(encode_corpus(again, TEXTS), encode_corpus(encoder, TEXTS))


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch, caplog):
    def unreachable(*_args, **_options):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError(
            "We couldn't connect to 'https://hub' to load the files. Check your connection or see 'https://x'"
        )

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError) as raised:
        open_encoder(EncoderConfig(model="nobody/no-such-model"), Strings.of(["a"]), seed=0)
    assert str(raised.value).endswith("The hub said: We couldn't connect to 'https://hub' to load the files")
    assert "Retrying" not in caplog.text
    assert "nobody/no-such-model is no folder" in caplog.text


def test_the_pooling_layer_is_kept_where_it_is_asked_for():
    encoder = opened(pooling="pooler")
    ids = torch.tensor([encoder.tokenizer.backend.encode(TEXTS[3]).ids[:16]])
    with torch.no_grad():
        expected = encoder.backbone(input_ids=ids).pooler_output[0].numpy()
    vectors = encode_corpus(encoder, TEXTS)
    np.testing.assert_allclose(vectors[3], expected, rtol=1e-4, atol=1e-5)
    again = TransformerEncoder.restored(encoder.state(), encoder.config, Path("state"))
    np.testing.assert_array_equal(encode_corpus(again, TEXTS), vectors)
    assert not any("pooler" in name for name in opened().state())
    with pytest.raises(ConfigError, match="no pooling layer"):
        opened(pooling="pooler", architecture=FAMILIES["distilbert"])
    with pytest.raises(ValueError, match="one vector"):
        EncoderConfig(pooling="pooler", layers=2)
