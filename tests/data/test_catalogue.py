"""The catalogue: complete, well-formed, and silent about the network."""

import socket
import urllib.parse

import pytest

import labelwise as lw
from labelwise.data import catalogue
from labelwise.data.read import FORMATS
from labelwise.errors import DataError

WANTED = ["eurlex-4k", "wiki10-31k", "amazoncat-13k", "amazon-670k", "wiki-500k", "amazon-3m"]


def test_the_sets_people_ask_for_are_there():
    names = catalogue.names()
    assert {*WANTED, *(f"{name}-attentionxml" for name in WANTED)} <= set(names)
    assert {"delicious-200k", "eurlex57k", "odp", "imagenet-22k"} <= set(names)


@pytest.mark.parametrize("name", catalogue.names())
def test_entries_are_well_formed(name):
    known = catalogue.entry(name)
    assert known.format in FORMATS
    assert known.licence
    assert known.citation
    assert known.notes
    files = [source.file for source in known.sources]
    assert len(set(files)) == len(files)
    for source in known.sources:
        assert "/" not in source.file
        for address in source.addresses:
            split = urllib.parse.urlsplit(address)
            assert split.scheme in ("http", "https")
            assert split.hostname
    # constants of Jain et al. 2016: Wikipedia tagging, item-to-item data, everything else
    tagging, items = name.startswith("wiki-"), name.startswith(("amazon-670k", "amazon-3m"))
    assert known.propensity == ((0.5, 0.4) if tagging else (0.6, 2.6) if items else (0.55, 1.5))
    published = known.published
    assert published.train > (published.test or 0)
    assert published.labels > 1000


def test_versions_of_one_set_agree():
    for name in WANTED:
        ours, bundle = catalogue.entry(name).published, catalogue.entry(f"{name}-attentionxml").published
        assert ours.model_copy(update={"features": None}) == bundle


def test_unknown_names():
    with pytest.raises(DataError, match=r"no known data set 'eurlex-4'; did you mean 'eurlex-4k'\?"):
        catalogue.entry("eurlex-4")
    with pytest.raises(DataError, match="no known data set"):
        lw.dataset("../../etc")


def test_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LABELWISE_DATA", raising=False)
    assert catalogue.data_home() == tmp_path / ".cache" / "labelwise" / "data"
    monkeypatch.setenv("LABELWISE_DATA", "~/elsewhere")
    assert catalogue.data_home() == tmp_path / "elsewhere"
    assert catalogue.folder_of("odp") == tmp_path / "elsewhere" / "odp"


def test_nothing_is_downloaded_unasked(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    for split in (None, "train"):
        with pytest.raises(DataError, match=r"labelwise data download eurlex57k$"):
            lw.dataset("eurlex57k", split)


def test_reading_from_the_home(monkeypatch, tmp_path):
    folder = tmp_path / "eurlex57k"
    folder.mkdir()
    for split, labels in (("train", "a b\nb\n"), ("test", "c\na\n")):
        (folder / f"{split}_texts.txt").write_text("one\ntwo\n")
        (folder / f"{split}_labels.txt").write_text(labels)
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    parts = lw.dataset("eurlex57k")
    assert list(parts) == ["train", "test"]
    assert list(parts["test"].label_names) == ["a", "b", "c"]
    assert list(lw.dataset("eurlex57k", "test", tmp_path).label_names) == ["a", "c"]
    with pytest.raises(DataError, match="valid"):
        lw.dataset("eurlex57k", "valid")
