"""Vectors on disk: found again, in part, after a stop, by two processes; and never of other texts or encoders."""

import logging
import os
import time

import numpy as np
import pytest

from common import Stop
from labelwise.commands.encode import pretrained_encoder
from labelwise.errors import ConfigError
from labelwise.nn import encode as embed
from labelwise.nn import encode as vector_cache
from labelwise.nn.config import EncoderConfig
from labelwise.nn.encode import (
    OUTDATED,
    VectorCache,
    cache_folder,
    distinct_texts,
    encode_corpus,
    encode_some_texts,
    encoder_fingerprint,
    size_limit,
)
from labelwise.nn.text import transformer
from labelwise.nn.text.transformer import open_encoder
from labelwise.runtime.budget import NO_LIMIT
from labelwise.strings import Strings

TEXTS = Strings.of([f"word{n % 30} " * (1 + n % 7) for n in range(40)])


@pytest.fixture(scope="module")
def encoder():
    return open_encoder(EncoderConfig(model="tiny", max_length=16), TEXTS, seed=0).eval()


@pytest.fixture
def encoded(encoder, monkeypatch):
    """How many texts the encoder has read, block by block; blocks have 16 texts."""
    sizes = []

    def counting(module, inputs):
        sizes.append(len(inputs))
        return plain(module, inputs)

    plain = embed.encode_inputs
    monkeypatch.setattr(embed, "encode_inputs", counting)
    monkeypatch.setattr(embed, "BLOCK", 16)
    return sizes


def test_equal_texts_are_encoded_once(encoder, encoded):
    texts = Strings.of(["a b", "c", "a b", "", "c", "a b"])
    vectors = encode_corpus(encoder, texts)
    assert encoded == [3]
    for row, text in enumerate(texts):
        np.testing.assert_allclose(vectors[row], encode_corpus(encoder, Strings.of([text]))[0], rtol=1e-4, atol=1e-6)
    assert (vectors[0] == vectors[[2, 5]]).all()
    assert (vectors[0] != vectors[1]).any()
    assert distinct_texts(texts).rows.tolist() == [0, 1, 3]
    assert encode_corpus(encoder, Strings.of(())).shape == (0, encoder.width)


def test_a_corpus_is_taken_from_the_folder_to_the_last_bit(encoder, encoded, tmp_path):
    plain = encode_corpus(encoder, TEXTS)
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS, folder=tmp_path), plain)
    assert encoded == [16, 16, 8] * 2
    encoded.clear()
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS, folder=tmp_path), plain)
    some = np.array([39, 3, 3, 17])
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS[some], folder=tmp_path), plain[some])
    assert encoded == []
    more = encode_corpus(encoder, Strings.of(["new", *TEXTS, "newer"]), folder=tmp_path)
    np.testing.assert_array_equal(more[1:-1], plain)
    assert encoded == [2]


def test_finished_blocks_survive_a_stop(encoder, encoded, tmp_path, monkeypatch):
    plain = encode_corpus(encoder, TEXTS)
    keep, kept = VectorCache.keep, []

    def stopping(cache, hashes, vectors):
        if kept:
            raise Stop
        kept.append(len(hashes))
        keep(cache, hashes, vectors)

    monkeypatch.setattr(VectorCache, "keep", stopping)
    with pytest.raises(Stop):
        encode_corpus(encoder, TEXTS, folder=tmp_path)
    monkeypatch.setattr(VectorCache, "keep", keep)
    encoded.clear()
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS, folder=tmp_path), plain)
    assert encoded == [16, 8]


def test_what_another_process_has_stored_meanwhile_is_used(encoder, encoded, tmp_path, monkeypatch):
    plain = encode_corpus(encoder, TEXTS)
    fill = VectorCache.fill

    def with_another(cache, hashes, vectors):
        missing = fill(cache, hashes, vectors)
        cache.keep(hashes[16:32], plain[16:32])
        encoded.clear()
        return missing

    monkeypatch.setattr(VectorCache, "fill", with_another)
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS, folder=tmp_path), plain)
    assert encoded == [16, 8]


def test_vectors_of_another_encoder_are_not_used(encoder, encoded, tmp_path):
    encode_corpus(encoder, TEXTS, folder=tmp_path)
    own = encoder_fingerprint(encoder)
    others = [
        open_encoder(EncoderConfig(model="tiny", max_length=16), TEXTS, seed=1),
        *(
            open_encoder(EncoderConfig(model="tiny", **{"max_length": 16, **change}), TEXTS, seed=0)
            for change in ({"pooling": "mean"}, {"max_length": 8}, {"long_texts": "windows"}, {"layers": 2})
        ),
    ]
    assert len({own, *map(encoder_fingerprint, others)}) == 6
    assert encoder_fingerprint(open_encoder(encoder.config, TEXTS, seed=0)) == own
    encoded.clear()
    mean = encode_corpus(others[1].eval(), TEXTS, folder=tmp_path)
    assert encoded == [16, 16, 8]
    np.testing.assert_array_equal(mean, encode_corpus(others[1], TEXTS))


@pytest.mark.parametrize("damage", ["cut", "vector", "nonsense"])
def test_a_damaged_file_is_encoded_again(encoder, encoded, tmp_path, caplog, damage):
    plain = encode_corpus(encoder, TEXTS, folder=tmp_path)
    path = min(tmp_path.rglob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "vector": content, "nonsense": b"{}"}[damage])
    encoded.clear()
    with caplog.at_level(logging.WARNING, "labelwise"):
        np.testing.assert_allclose(encode_corpus(encoder, TEXTS, folder=tmp_path), plain, rtol=1e-4, atol=1e-6)
    assert path.name in caplog.text
    assert "not used" in caplog.text
    assert sum(encoded) in (8, 16)
    encoded.clear()
    caplog.clear()
    encode_corpus(encoder, TEXTS, folder=tmp_path)
    assert encoded == []
    assert "not used" not in caplog.text


def test_a_folder_that_cannot_be_written_costs_a_warning(encoder, encoded, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "labelwise"):
        vectors = encode_corpus(encoder, TEXTS, folder=tmp_path / "file" / "folder")
    assert caplog.text.count("not kept") == 1
    np.testing.assert_array_equal(vectors, encode_corpus(encoder, TEXTS))


def test_known_texts_take_no_time_of_a_budget(encoder, encoded, tmp_path):
    encode_corpus(encoder, TEXTS[:20], folder=tmp_path)
    encoded.clear()
    rows, vectors = encode_some_texts(encoder, TEXTS, folder=tmp_path, budget=NO_LIMIT.limited(1e-9), seed=3)
    assert encoded == [16], "one block, whatever the time"
    assert set(range(20)) < set(rows.tolist())
    assert len(rows) == 36
    np.testing.assert_allclose(vectors, encode_corpus(encoder, TEXTS)[rows], rtol=1e-4, atol=1e-6)


def test_vectors_that_nobody_used_for_a_month_are_removed(encoder, tmp_path):
    encode_corpus(encoder, TEXTS, folder=tmp_path)
    old, foreign = tmp_path / ("f" * 32), tmp_path / "notes"
    for path in (old, foreign, *tmp_path.iterdir()):
        path.mkdir(exist_ok=True)
        os.utime(path, (time.time() - OUTDATED - 60,) * 2)
    before = encode_corpus(encoder, TEXTS, folder=tmp_path)
    assert not old.exists()
    assert foreign.exists()
    np.testing.assert_array_equal(encode_corpus(encoder, TEXTS, folder=tmp_path), before)


def test_files_of_others_are_never_removed(tmp_path):
    named, kept = tmp_path / ("n" * 32), tmp_path / ("a" * 32)
    for path in (named, kept):
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
        (path / "weights.safetensors").write_text("mine")
    (kept / f"{'0' * 32}.safetensors").write_text("vectors")
    for path in (named, kept):
        os.utime(path, (time.time() - OUTDATED - 60,) * 2)
    VectorCache(tmp_path, "f" * 64, 4)
    assert sorted(path.name for path in named.iterdir()) == ["thesis.txt", "weights.safetensors"]
    assert sorted(path.name for path in kept.iterdir()) == ["thesis.txt", "weights.safetensors"]


def test_many_files_need_few_file_descriptors(tmp_path):
    resource = pytest.importorskip("resource")
    hashes, vectors = np.arange(60, dtype=np.uint64), np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    cache = VectorCache(tmp_path, "f" * 64, 4)
    for row in range(60):
        cache.keep(hashes[row : row + 1], vectors[row : row + 1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.open(tmp_path, os.O_RDONLY) for _ in range(20)]  # descriptors have the lowest free numbers
    for one in free:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))
    try:
        found = np.empty_like(vectors)
        assert len(VectorCache(tmp_path, "f" * 64, 4).fill(hashes, found)) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    np.testing.assert_array_equal(found, vectors)


def test_the_variable_names_the_folder_or_switches_it_off(monkeypatch, tmp_path):
    monkeypatch.setenv("LABELWISE_VECTORS", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder(10) is None, "a few texts are encoded sooner than looked up"
    monkeypatch.setenv("LABELWISE_VECTORS", "off")
    assert cache_folder() is None
    monkeypatch.delenv("LABELWISE_VECTORS")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "labelwise" / "vectors"


def test_a_cache_above_its_limit_loses_what_was_used_least_recently(tmp_path):
    hashes, vectors = np.arange(12, dtype=np.uint64), np.ones((12, 100), np.float32)
    cache = VectorCache(tmp_path, "a" * 64, 100)
    for row in range(6):
        cache.keep(hashes[row : row + 1], vectors[row : row + 1])
    blocks = [cache._path(hashes[row : row + 1]) for row in range(12)]
    size = blocks[0].stat().st_size
    for row in range(6):
        os.utime(blocks[row], (1000 + row, 1000 + row))
    foreign = [tmp_path / "notes.txt", tmp_path / "thesis" / f"{'0' * 32}.safetensors", cache.folder / "w.safetensors"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine" * size)
        os.utime(path, (1, 1))
    found = np.zeros((1, 100), np.float32)
    assert len(VectorCache(tmp_path, "a" * 64, 100, limit=6 * size).fill(hashes[:1], found)) == 0, "it is used now"
    other = VectorCache(tmp_path, "b" * 64, 100, limit=6 * size)
    other.keep(hashes[6:7], vectors[6:7])  # 7 files: reduced to nine tenths of 6
    assert [row for row in range(6) if blocks[row].exists()] == [0, 3, 4, 5]
    for row in range(7, 12):
        other.keep(hashes[row : row + 1], vectors[row : row + 1])
        assert sum(path.stat().st_size for path in tmp_path.glob("[ab]*/[0-9a-f]*.safetensors")) <= 6 * size
    assert len(other.fill(hashes[11:], found)) == 0
    assert [path.read_bytes() for path in foreign] == [b"mine" * size] * 3


def test_the_limit_is_that_of_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LABELWISE_VECTORS", str(tmp_path))
    assert size_limit(tmp_path) == 20_000_000_000
    assert size_limit(tmp_path / "checkpoints") is None
    monkeypatch.setenv("LABELWISE_VECTORS_GB", "0.5")
    assert size_limit(tmp_path) == 500_000_000
    for wrong in ("-1", "0", "much", "nan"):
        monkeypatch.setenv("LABELWISE_VECTORS_GB", wrong)
        with pytest.raises(ConfigError, match=f"LABELWISE_VECTORS_GB: .* GB above 0, got '{wrong}'"):
            size_limit(tmp_path)


def test_batches_of_a_file_open_the_cache_once(encoder, encoded, monkeypatch, tmp_path):
    monkeypatch.setattr(vector_cache, "MIN_TEXTS", 4)
    monkeypatch.setattr(transformer, "open_encoder", lambda *_, **__: encoder)
    monkeypatch.setenv("LABELWISE_VECTORS", str(tmp_path))
    opened = []
    plain = VectorCache.__init__
    monkeypatch.setattr(VectorCache, "__init__", lambda *given: (opened.append(given), plain(*given))[1])
    batches = pretrained_encoder(encoder.config)
    first = [batches.encode(TEXTS[slice(begin, begin + 10)]) for begin in range(0, 40, 10)]
    assert (len(opened), sum(encoded)) == (1, 40)
    again = batches.encode(TEXTS)
    assert (len(opened), sum(encoded)) == (1, 40), "what was kept since is known"
    np.testing.assert_array_equal(again, np.concatenate(first))
