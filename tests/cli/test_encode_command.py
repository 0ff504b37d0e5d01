"""`labelwise encode`: vectors into a file, and the same file after a kill."""

import json
import os

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from common import Stop
from conformance.planted import planted
from killing import kill_where_it_holds
from labelwise.commands import encode as encoding
from labelwise.commands.encode import DocumentEncoder, encode_file
from labelwise.io.atomic import lock_output
from labelwise.runs.data import Request


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    data = planted("texts", n_documents=120)
    lw.TextEncoder(encoder={"model": "tiny"}, training={"epochs": 1}).fit(data).save(folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(planted("texts", n_documents=50, seed=4).texts) + "\n")
    return path


def test_texts_and_data_files_of_a_trained_model(model, texts, tmp_path):
    out = tmp_path / "x.emb.npy"
    labelwise("encode", model, texts, "-o", out)
    expected = lw.load(model).encode(list(planted("texts", n_documents=50, seed=4).texts))
    np.testing.assert_array_equal(np.load(out), expected)
    lw.write(planted("texts", n_documents=50, seed=4), tmp_path / "data.jsonl")
    labelwise("encode", model, tmp_path / "data.jsonl", "-o", out, "--dtype", "float16", "--force")
    np.testing.assert_array_equal(np.load(out), expected.astype(np.float16))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "texts.txt", "x.emb.npy"]


def mistake(*arguments):
    return labelwise("encode", *arguments, code=2).err


def test_mistakes(model, texts, tmp_path):
    out = tmp_path / "x.npy"
    assert ".npy" in mistake(model, texts, "-o", tmp_path / "x.csv")
    assert "float16" in mistake(model, texts, "-o", out, "--dtype", "int8")
    assert "trained model" in mistake(model, texts, "-o", out, "--set", "encoder.pooling=mean")
    assert "no such folder" in mistake(model, texts, "-o", tmp_path / "no" / "x.npy")
    lw.Popularity().fit(planted("texts")).save(tmp_path / "popularity")
    assert "has no document vectors" in mistake(tmp_path / "popularity", texts, "-o", out)
    assert "not a folder" in mistake(tmp_path / "nothing", texts, "-o", out)
    assert "pooling" in mistake(tmp_path, texts, "-o", out, "--set", "encoder.poling=first")
    assert not out.exists()
    out.write_bytes(b"")
    assert "exists" in mistake(model, texts, "-o", out)


def test_a_pretrained_encoder_as_it_comes(tmp_path, texts):
    transformers = pytest.importorskip("transformers")
    from labelwise.nn.config import EncoderConfig
    from labelwise.nn.encode import encode_corpus
    from labelwise.nn.text.transformer import open_encoder
    from labelwise.strings import Strings

    lines = Strings.of(texts.read_text().splitlines())
    encoder = open_encoder(EncoderConfig(model="tiny", pooling="first", max_length=16), lines, seed=0)
    folder = tmp_path / "encoder"
    encoder.backbone.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=encoder.tokenizer.backend, pad_token="[PAD]").save_pretrained(
        folder
    )
    out = tmp_path / "x.npy"
    labelwise("encode", folder, texts, "-o", out, "--set", "encoder.pooling=first", "--set", "encoder.max_length=16")
    np.testing.assert_allclose(np.load(out), encode_corpus(encoder, lines), rtol=1e-5, atol=1e-6)


def counting(calls, stop_at=None):
    """An encoder whose vectors are lengths of texts; it notes the texts it was asked for."""

    def encode(texts):
        if stop_at is not None and len(calls) == stop_at:
            raise Stop
        calls.append(list(texts))
        return np.array([[len(text), 1.0] for text in texts], np.float32).reshape(-1, 2)

    return DocumentEncoder(encode, "counting")


def test_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH", 10)
    source, out = tmp_path / "lines.txt", tmp_path / "x.npy"
    source.write_text("\n".join("x" * number for number in range(45)))
    first, second = [], []
    with pytest.raises(Stop):
        encode_file(counting(first, stop_at=3), Request(str(source)), str(out), "float32", force=False)
    assert not out.exists()
    encode_file(counting(second), Request(str(source)), str(out), "float32", force=False)
    assert [len(texts) for texts in second] == [10, 5]
    np.testing.assert_array_equal(np.load(out)[:, 0], np.arange(45))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "x.npy"]


def test_begins_anew_for_other_texts_or_damaged_notes(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH", 10)
    source, out = tmp_path / "lines.txt", tmp_path / "x.npy"
    for damage in ("texts", "note", "rows"):
        source.write_text("\n".join("x" * number for number in range(45)))
        with pytest.raises(Stop):
            encode_file(counting([], stop_at=2), Request(str(source)), str(out), "float32", force=False)
        if damage == "texts":
            source.write_text("\n".join("y" * (number + 1) for number in range(45)))
        else:
            (tmp_path / (".x.npy.part" + (".json" if damage == "note" else ""))).write_bytes(b"{nonsense")
        calls = []
        encode_file(counting(calls), Request(str(source)), str(out), "float32", force=False)
        assert len(calls) == 5
        np.testing.assert_array_equal(np.load(out)[:, 0], np.arange(45) + (damage == "texts"))
        out.unlink()


@pytest.mark.parametrize("kind", ["features", "paths"])
def test_begins_again_for_other_documents_of_any_kind(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BATCH", 10)
    source, out = tmp_path / "data.jsonl", tmp_path / "x.npy"
    labels = np.ones((45, 1))
    one, other = (
        lw.Dataset(labels, features=np.full((45, 2), number, np.float32))
        if kind == "features"
        else lw.Dataset(labels, paths=[f"{number}/{row}.jpg" for row in range(45)])
        for number in (1, 2)
    )
    batches = []

    def encode(data):
        if len(batches) == 2:
            raise Stop
        batches.append(len(data))
        return np.full((len(data), 1), 1, np.float32)

    lw.write(one, source)
    with pytest.raises(Stop):
        encode_file(DocumentEncoder(encode, "same"), Request(str(source)), str(out), "float32", force=False)
    lw.write(other, source, force=True)
    with pytest.raises(Stop):
        batches.clear()
        encode_file(DocumentEncoder(encode, "same"), Request(str(source)), str(out), "float32", force=False)
    assert batches == [10, 10], "the first batches are not taken from other documents"


def test_no_documents_give_an_empty_file_and_a_warning(tmp_path, caplog):
    source, out = tmp_path / "lines.txt", tmp_path / "x.npy"
    source.write_text("")
    encode_file(counting([]), Request(str(source)), str(out), "float32", force=False)
    assert np.load(out).shape == (0, 2)
    assert "lines.txt: there are no documents, it is empty" in caplog.text


HOLD_AT_THE_SECOND_BATCH = """
from labelwise.commands.encode import _Unfinished
write = _Unfinished.write
def until_the_second(self, begin, *rest):
    if begin > 0:
        hold()
    write(self, begin, *rest)
_Unfinished.write = until_the_second
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_command_ends_in_the_same_file(model, tmp_path):
    source, out, whole = tmp_path / "lines.txt", tmp_path / "x.npy", tmp_path / "whole.npy"
    texts = list(planted("texts", n_documents=500, seed=4).texts)
    source.write_text("\n".join(texts * 5))
    command = ("encode", model, source, "-o", out)
    kill_where_it_holds(HOLD_AT_THE_SECOND_BATCH, *command)
    assert not out.exists()
    assert "resuming after" in labelwise(*command).err
    said = labelwise("encode", model, source, "-o", whole).err
    assert f"{whole.name}: 2,500 vectors of " in said, "what was written"
    assert out.read_bytes() == whole.read_bytes()


def test_one_process_at_a_time_writes_a_file(model, texts, tmp_path):
    """The second command neither mixes its vectors with those of the first nor replaces them."""
    out = tmp_path / "x.npy"
    with lock_output(out):
        assert f"{out}: another process writes this file" in mistake(model, texts, "-o", out, "--force")
        assert not out.exists()
    labelwise("encode", model, texts, "-o", out)
    with lock_output(out):
        assert "another process" in mistake(model, texts, "-o", out)
    assert "exists already" in mistake(model, texts, "-o", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "x.npy"]


def test_the_lock_of_a_killed_process_does_not_last(model, texts, tmp_path):
    out = tmp_path / "x.npy"
    (tmp_path / ".x.npy.lock").write_bytes(b"")
    labelwise("encode", model, texts, "-o", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "x.npy"]


@pytest.fixture
def xr_transformer(tmp_path, texts):
    """A folder as XR-Transformer writes it, with weights under the name of the model they are part of."""
    transformers = pytest.importorskip("transformers")
    from labelwise.nn.config import EncoderConfig
    from labelwise.nn.text.transformer import open_encoder
    from labelwise.strings import Strings

    lines = Strings.of(texts.read_text().splitlines())
    tokenizer = open_encoder(EncoderConfig(model="tiny"), lines, seed=0).tokenizer
    settings = transformers.BertConfig(
        vocab_size=tokenizer.size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    weights = transformers.BertForSequenceClassification(settings).eval()
    folder = tmp_path / "bert"
    matcher = folder / "text_encoder"
    weights.save_pretrained(matcher / "text_encoder")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(matcher / "text_tokenizer")
    (folder / "param.json").write_text("{}")
    (matcher / "param.json").write_text(json.dumps({"pred_params": {"truncate_length": 7}}))
    (matcher / "text_model").write_bytes(b"a pickle file that is not read")
    return folder, weights.bert, tokenizer


def test_a_folder_of_xr_transformer_with_the_options_of_pecos(xr_transformer, texts, tmp_path):
    import torch

    folder, backbone, tokenizer = xr_transformer
    out, other = folder / "X.emb.npy", tmp_path / "other.npy"
    options = ("--model-folder", folder, "--text-path", texts)
    labelwise("encode", *options, "--save-emb-path", out, "--batch-size", 16)
    vectors = np.load(out)
    for row, text in enumerate(texts.read_text().splitlines()[:5]):
        ids = tokenizer.backend.encode(text).ids
        ids = [*ids[:6], ids[-1]] if len(ids) > 7 else ids
        with torch.no_grad():
            expected = backbone(input_ids=torch.tensor([ids])).pooler_output[0]
        np.testing.assert_allclose(vectors[row], expected.numpy(), rtol=1e-4, atol=1e-5)
    labelwise("encode", folder / "text_encoder", texts, "-o", other)
    np.testing.assert_allclose(np.load(other), vectors, rtol=1e-4, atol=1e-5)
    labelwise("encode", *options, "-o", other, "--force", "--set", "encoder.pooling=first", "--batch-size", 16)
    assert np.abs(np.load(other) - vectors).max() > 1e-3
    assert "same thing" in mistake(folder, texts, *options, "-o", other)
    assert "DOCUMENTS is missing" in mistake(folder, "-o", other)
    assert "--output is missing" in mistake(*options)
    assert "batch" in mistake(*options, "-o", other, "--batch-size", 0)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(xr_transformer, texts, tmp_path):
    import torch

    folder, backbone, _ = xr_transformer
    weights = folder / "text_encoder" / "text_encoder"
    (weights / "model.safetensors").unlink()
    torch.save(backbone.state_dict(), weights / "pytorch_model.bin")
    said = mistake("-m", folder, "-t", texts, "-o", tmp_path / "x.npy")
    assert "pytorch_model.bin" in said
    assert "save_pretrained" in said
    (folder / "text_encoder" / "param.json").write_text("[")
    assert "param.json cannot be read" in mistake("-m", folder, "-t", texts, "-o", tmp_path / "x.npy")
