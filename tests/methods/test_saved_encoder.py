"""`encoder.model` as the folder of a saved model or of a run: the same vectors, its settings, what is refused."""

import json
import shutil

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.small import small_and_short
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.io.folder import CONFIG_FILE, STATE_FILE, new_folder
from labelwise.nn.encode import encoder_fingerprint
from labelwise.nn.text.files import with_saved_settings
from labelwise.registry import method_class
from labelwise.runtime.threads import using_threads
from labelwise.testing.subject import planted_texts

ENCODERS = {
    "text_encoder": {"model": "tiny", "max_length": 12, "pooling": "first", "layers": 2},
    "mhe_text": {
        "model": "tiny",
        "max_length": 9,
        "pooling": "last",
        "layers": 1,
        "long_texts": "windows",
        "windows": 2,
    },
    "xr_transformer": {"model": "tiny", "max_length": 10, "pooling": "mean", "long_texts": "head_tail"},
}


@pytest.fixture(scope="module")
def data():
    return planted_texts(60, 10)


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    """Folders of models with a fine-tuned encoder, by method."""
    folders = {}
    with using_threads(1):
        for name, encoder in ENCODERS.items():
            folders[name] = tmp_path_factory.mktemp("saved") / name
            model = method_class(name)(**{**small_and_short(name), "encoder": encoder})
            model.fit(data).save(folders[name])
    return folders


def hybrid(model, **settings):
    return lw.HybridLinear(encoder={"model": str(model), **settings}, trees=1)


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_that_encode_writes_for_the_saved_model(name, saved, data, tmp_path):
    model = hybrid(saved[name]).fit(data)
    for setting in ("max_length", "pooling"):
        assert getattr(model.config.encoder, setting) == ENCODERS[name][setting]
    (tmp_path / "texts.txt").write_text("\n".join(data.texts) + "\n", encoding="utf-8")
    labelwise("encode", saved[name], tmp_path / "texts.txt", "-o", tmp_path / "x.npy")
    np.testing.assert_allclose(model.encode(data), np.load(tmp_path / "x.npy"), atol=1e-5)


def test_a_run_by_its_folder_and_the_model_without_it(saved, data, tmp_path):
    lw.write(data, tmp_path / "data.jsonl")
    settings = {"encoder": ENCODERS["text_encoder"], "head_epochs": 0, "training": {"steps": 1}}
    configs = {
        "first": {"method": "text_encoder", **settings},
        "second": {"method": "hybrid_linear", "encoder": {"model": "runs/first"}, "trees": 1},
    }
    for name, model in configs.items():
        config = {
            "data": {"train": "data.jsonl"}, "model": model, "run": {"folder": f"runs/{name}", "report": False},
            "inspect": {"enabled": False},
        }  # fmt: skip
        (tmp_path / f"{name}.yml").write_text(json.dumps(config))
        labelwise("train", f"{name}.yml", cwd=tmp_path)
    first, second = (lw.load(tmp_path / "runs" / name) for name in configs)
    assert encoder_fingerprint(first.network_.encoder) == encoder_fingerprint(second.encoder_)
    assert "max_length: 12" in (tmp_path / "runs" / "second" / "config.yml").read_text()
    wrong = labelwise("train", "second.yml", "--set", "model.encoder.pooling=mean", "--force", cwd=tmp_path, code=2).err
    assert "encoder.pooling: the encoder in runs/first was trained with first, got mean; leave pooling out" in wrong
    shutil.rmtree(tmp_path / "runs" / "first")
    np.testing.assert_array_equal(lw.load(tmp_path / "runs" / "second").encode(data), second.encode(data))


def test_settings_of_the_saved_encoder_may_be_repeated_and_not_changed(saved, data):
    assert hybrid(saved["text_encoder"], max_length=12, layers=2).check_needs() is None
    for name, other in {"max_length": 13, "pooling": "mean", "layers": 1, "long_texts": "head_tail"}.items():
        with pytest.raises(ConfigError, match=f"encoder.{name}: the encoder in .* was trained with"):
            hybrid(saved["text_encoder"], **{name: other}).fit(data)
    assert hybrid(saved["mhe_text"], windows=2).config.encoder.long_texts == "windows"


def test_models_without_a_text_encoder_are_refused(saved, data, tmp_path):
    lw.LinearTree(trees=1).fit(data).save(tmp_path / "tree")
    with pytest.raises(
        ConfigError, match=r"is a saved model of linear_tree, which has no text encoder.*xr_transformer"
    ):
        hybrid(tmp_path / "tree").fit(data)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match="this run has no model yet"):
        hybrid(tmp_path / "run").check_needs()


def test_a_damaged_model_is_refused(saved, data, tmp_path):
    folder = shutil.copytree(saved["text_encoder"], tmp_path / "model")
    content = bytearray((folder / STATE_FILE).read_bytes())
    content[-1] ^= 1
    (folder / STATE_FILE).write_bytes(content)
    with pytest.raises(ModelFormatError, match="damaged"):
        hybrid(folder).fit(data)


def test_training_goes_on_from_the_saved_encoder_and_leaves_it_as_it_is(saved, data):
    source = saved["text_encoder"]
    before = lw.load(source).network_.encoder.state()
    settings = {**small_and_short("text_encoder"), "encoder": {"model": str(source)}, "head_epochs": 0}
    model = lw.TextEncoder(**settings).fit(data)
    after = model.network_.encoder.state()
    np.testing.assert_array_equal(after["tokenizer"], before["tokenizer"])
    differences = [np.abs(after[name] - before[name]).max() for name in before if name.startswith("weights.")]
    assert 0 < max(differences) < 0.2, "it has moved on from the saved weights"
    lw.load(source)  # compares hashes


def test_documents_of_the_encoders_training_count_as_seen(saved, data):
    others = planted_texts(40, 10, seed=5)
    model = hybrid(saved["text_encoder"]).fit(others)
    assert model.trained_on_.overlap(data, "texts").seen == len(data)
    assert model.trained_on_.overlap(others, "texts").seen == len(others)


def test_tiny_is_never_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with new_folder(tmp_path / "tiny", "model", {"method": "text_encoder"}) as folder:
        folder.write_json(CONFIG_FILE, {"encoder": {"max_length": 12}})
    assert with_saved_settings({"encoder": {"model": "./tiny"}})["encoder"]["max_length"] == 12
    assert with_saved_settings({"encoder": {"model": "tiny"}}) == {"encoder": {"model": "tiny"}}


def test_documents_of_the_encoders_training_are_read_before_training():
    class Unreadable(lw.Popularity):
        learns = True

        class Config(lw.Popularity.Config):
            def documents_before(self):
                raise ModelFormatError("damaged")

        def _fit(self, *arguments):
            pytest.fail("hours of training would be lost")

    with pytest.raises(ModelFormatError, match="damaged"):
        Unreadable().fit(["a text"], [["x"]])
