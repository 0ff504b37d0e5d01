"""The identity of a fit: another one for everything that decides the result, and for nothing else."""

import os
import typing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import labelwise as lw
from labelwise.config import Config
from labelwise.data.csr import Blocks
from labelwise.io import contents
from labelwise.io.contents import content_of_path
from labelwise.model.inputs import fit_identity
from labelwise.registry import METHODS, method_class
from labelwise.strings import Strings
from labelwise.testing.subject import planted


@pytest.fixture
def data():
    texts = planted("texts", n_documents=30, n_labels=8)
    vectors = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    return replace(texts, features=vectors, label_texts=Strings.of(f"text {number}" for number in range(8)))


def changed_values(data):
    labels = data.labels.copy()
    labels.data[-1] = 2.0
    return replace(data, labels=labels)


CHANGES = {
    "document": lambda data: replace(data, texts=Strings.of([*data.texts[:-1], "another"])),
    "order": lambda data: data.take(np.arange(len(data))[::-1]),
    "label": lambda data: replace(data, labels=data.labels[::-1]),
    "label's value": changed_values,
    "label's name": lambda data: replace(data, label_names=Strings.of(["other", *data.label_names[1:]])),
    "label's text": lambda data: replace(data, label_texts=Strings.of(["other", *data.label_texts[1:]])),
    "no label texts": lambda data: replace(data, label_texts=None),
    "vectors": lambda data: replace(data, features=data.features + 1),
    "no vectors": lambda data: replace(data, features=None),
    "width": lambda data: replace(data, features=np.pad(data.features, ((0, 0), (0, 1)))),
    "blocks": lambda data: replace(data, features=Blocks(None, data.features)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_all_of_the_training_data_counts(change, data):
    method = lw.LinearTree()
    own = fit_identity(method, method.config, data)
    assert fit_identity(method, method.config, replace(data, name="copy", ids=None)) == own
    assert fit_identity(method, method.config, CHANGES[change](data)) != own


def test_columns_that_no_document_has_count():
    data = planted("features", n_documents=30, n_labels=8)
    wider = data.features.copy()
    wider.resize(wider.shape[0], wider.shape[1] + 1)
    method = lw.LinearTree()
    assert fit_identity(method, method.config, replace(data, features=wider)) != fit_identity(
        method, method.config, data
    )


def test_held_out_documents_count_where_they_are_read(data):
    for method, read in ((lw.LinearTree(), False), (lw.TextEncoder(encoder={"model": "tiny"}), True)):
        own, other = (fit_identity(method, method.config, data, data.take(rows)) for rows in ([0, 1], [0, 2]))
        assert (own != other) == read


def test_fields_count_that_decide_a_trained_part(data):
    def of(method):
        return fit_identity(method, method.config, data)

    own = of(lw.Mach())
    assert of(lw.Mach(repetitions=3)) == of(lw.Mach(at_once=4)) == own
    assert of(lw.Mach(training={"time_budget": 60.0})) == own
    assert len({own, of(lw.Mach(buckets=77)), of(lw.Mach(training={"seed": 1})), of(lw.LinearTree())}) == 4


def test_files_and_folders_count_by_what_they_hold(data, tmp_path):
    tables = tmp_path / "tables"
    (tables / "inner").mkdir(parents=True)
    (tables / "inner" / "table.npy").write_bytes(b"one")
    method, elsewhere = lw.LinearTree(negatives="user", user_negatives=str(tables)), lw.Mach(lookups=str(tables))

    def own(method=method):
        return fit_identity(method, method.config, data)

    first, without = own(), own(elsewhere)
    (tables / "inner" / "table.npy").write_bytes(b"two, longer")
    assert own() != first
    assert own(elsewhere) == without, "each repetition hashes its own table"
    (tables / "inner" / "table.npy").write_bytes(b"one")
    os.utime(tables / "inner" / "table.npy", ns=(1, 1))
    assert own() == first, "times of files do not count"


def test_a_model_counts_by_its_manifest(tmp_path):
    found = []
    for seed in (0, 1):
        lw.LinearTree(seed=seed, trees=1).fit(planted("features", n_documents=60)).save(tmp_path / "member", force=True)
        found.append(content_of_path(tmp_path / "member"))
    assert found[0] != found[1]
    assert not {"manifest.json", "card.json"} & found[0].keys()


def test_a_file_is_read_once_per_process(tmp_path, monkeypatch):
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    first = content_of_path(path)
    monkeypatch.setattr(contents.hashlib, "file_digest", None)
    assert content_of_path(path) == first
    assert content_of_path(tmp_path / "missing") is None


def test_a_folder_with_the_name_of_a_setting_does_not_count(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods = [
        lw.LinearTree(label_documents="texts", tfidf={"stop_words": "english"}),
        lw.TextEncoder(encoder={"model": "tiny"}),
        lw.AttentionXML(training={"metric": "P@5"}),
    ]

    def own():
        return [fit_identity(method, method.config, data) for method in methods]

    before = own()
    for name in ("texts", "english", "tiny", "P@5", "balanced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert own() == before


@pytest.mark.parametrize("field", ["stop_words", "lemmas"])
def test_files_of_words_count_by_what_they_hold(field, data, tmp_path):
    found = []
    for text in ("and\tor", "or\tand"):
        (tmp_path / "words").write_text(text)
        method = lw.LinearTree(tfidf={field: str(tmp_path / "words")})
        found.append(fit_identity(method, method.config, data))
    assert found[0] != found[1]


def test_a_name_on_the_hub_counts_by_its_commit_downloaded_or_not(data, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def info(name, timeout):
        asked.append(name)
        return SimpleNamespace(sha=commit)

    monkeypatch.setattr(hub, "model_info", info)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    method = lw.TextEncoder(encoder={"model": "group/encoder"})
    commit = "1234"
    first = fit_identity(method, method.config, data)
    assert asked == ["group/encoder"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(tmp_path / "snapshots" / commit / file))
    assert fit_identity(method, method.config, data) == first, "as a resumed fit finds it"
    commit = "5678"
    assert fit_identity(method, method.config, data) != first
    assert asked == ["group/encoder"]
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    monkeypatch.setattr(hub, "model_info", None)
    assert contents.content_of_model("group/encoder") is None, "without a network"


NO_FILES = {
    "architecture", "label_language", "lemmatizer", "metric", "repetitions_folder", "stemmer", "tensorboard",
    "lookups",  # handed to the job by the method, for a part of the model only
}  # fmt: skip
"""Fields with texts that name no file on which the whole model depends."""


def text_fields(config, above=()):
    """The paths of all fields that may be texts."""
    for name, field in type(config).model_fields.items():
        if isinstance(value := getattr(config, name), Config):
            yield from text_fields(value, (*above, name))
        elif may_be_text(field.annotation):
            yield (*above, name)


def may_be_text(annotation):
    inner = () if typing.get_origin(annotation) is typing.Literal else typing.get_args(annotation)
    return annotation is str or any(map(may_be_text, inner))


def with_field(config, path, value):
    name, *rest = path
    return config.model_copy(update={name: with_field(getattr(config, name), rest, value) if rest else value})


@pytest.mark.parametrize("name", METHODS)
def test_no_field_that_names_a_file_is_forgotten(name, tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.nn.config.content_of_model", content_of_path)  # no name of the hub is looked up
    file, config = tmp_path / "file", method_class(name)().config
    for path in text_fields(config):
        named, found = with_field(config, path, str(file)), []
        for size in (1, 2):
            file.write_bytes(bytes(size))
            found.append(named.contents())
        assert (found[0] == found[1]) == (path[-1] in NO_FILES), ".".join(path)
