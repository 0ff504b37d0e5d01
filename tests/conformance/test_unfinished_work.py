"""Every method resumes to the same bytes and uses unfinished work of the same training only; `slow` tries everything.

The checks with some interruptions and changes are among those of `test_methods.py`, for each method.
"""

import zlib
from functools import partial

import pytest
from transformers import PreTrainedTokenizerFast

from conformance.unfinished_cases import names, subject
from labelwise.labelspace.buckets import BucketTables
from labelwise.nn.config import EncoderConfig
from labelwise.nn.text.transformer import open_encoder
from labelwise.registry import method_names
from labelwise.testing.subject import planted
from labelwise.testing.unfinished_work import inexact_stops, wrongly_reused

STOPS, CHANGES = 5, 4


@pytest.fixture(autouse=True)
def shards_at_once(monkeypatch):
    """Finished chunks are written at once and not every second, so that there are some."""
    monkeypatch.setattr("labelwise.linear.train.MIN_INTERVAL", 0.0)
    monkeypatch.setattr("labelwise.linear.train.WRITE_FRACTION", 1e9)


def seed(name):
    """Other interruptions and changes for each method, the same at each run."""
    return zlib.crc32(name.encode())


@pytest.mark.parametrize("name", method_names())
def test_resumes_exactly(name, tmp_path):
    checked = subject(name)
    assert inexact_stops(checked, checked.kinds()[0], tmp_path, STOPS, seed(name)) == []


SLOW_ENCODERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("mhe_text", "text_encoder")]


@pytest.mark.parametrize("name", method_names())
def test_never_reuses(name, tmp_path):
    checked = subject(name)
    found = wrongly_reused(checked, checked.kinds()[0], tmp_path, CHANGES, seed(name))
    assert found == []


@pytest.mark.parametrize("name", ["hybrid_linear", "xr_transformer", *SLOW_ENCODERS])
def test_an_encoder_made_again_under_the_same_name_is_another_one(name, tmp_path):
    folder = tmp_path / "encoder"
    write_encoder(folder, 0)
    checked = subject(name, encoder={"model": str(folder), "max_length": 32, "pooling": "mean", "layers": 2})
    remake = {"encoder": partial(write_encoder, folder)}
    assert wrongly_reused(checked, "texts", tmp_path / "work", ["encoder"], remake=remake) == []


def test_lookup_tables_made_again_under_the_same_name_are_others(tmp_path):
    folder = tmp_path / "lookups"
    write_tables(folder, 0)
    checked = subject("mach", lookups=str(folder))
    remake = {"lookups": partial(write_tables, folder)}
    assert wrongly_reused(checked, "features", tmp_path / "work", ["lookups"], remake=remake) == []


def write_tables(folder, seed):
    BucketTables(12, 64, range(2), "universal", seed=seed).write_lookups(folder)


def write_encoder(folder, seed):
    """As transformers saves it, tiny and untrained."""
    texts = planted("texts", n_documents=40).texts
    encoder = open_encoder(EncoderConfig(model="tiny", max_length=16), texts, seed=seed)
    encoder.backbone.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder.tokenizer.backend, pad_token="[PAD]")
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_resumes_exactly_from_everywhere(name, tmp_path):
    checked = subject(name)
    for kind in checked.kinds():
        assert inexact_stops(checked, kind, tmp_path / kind, None) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_never_reuses_anything(name, tmp_path):
    checked = subject(name)
    for kind in checked.kinds():
        assert sorted(wrongly_reused(checked, kind, tmp_path / kind, None)) == []
