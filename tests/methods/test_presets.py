"""Presets: parameters to start from, in configs and in Python; what is given besides them wins."""

import json

import pytest

import labelwise as lw
from cli.commands import labelwise
from labelwise.config import ConfigSource
from labelwise.errors import ConfigError
from labelwise.registry import METHODS, method_class
from labelwise.runs.config import json_schema, run_config

WITH_PRESETS = [name for name in METHODS if method_class(name).presets]


def resolved(**model):
    return run_config(ConfigSource({"data": {"train": "x.csv"}, "model": model}, "run.yml")).resolved()["model"]


def test_the_slow_methods_have_one():
    assert {"mach", "attention_xml", "bigru"} <= set(WITH_PRESETS)


@pytest.mark.parametrize("name", WITH_PRESETS)
def test_a_preset_differs_from_the_defaults_and_leaves_no_trace(name):
    found = resolved(method=name, preset="cpu")
    assert "preset" not in found
    assert found != resolved(method=name)
    again = run_config(ConfigSource({"data": {"train": "x.csv"}, "model": found}, "run.yml")).resolved()["model"]
    assert again == found
    made = method_class(name).from_preset("cpu")
    assert {"method": name, **made.config.model_dump(mode="json")} == found


def test_given_parameters_win_and_sections_are_merged():
    preset = resolved(method="attention_xml", preset="cpu")
    found = resolved(method="attention_xml", preset="cpu", beam_width=7, training={"batch_size": 9})
    assert found["beam_width"] == 7
    assert found["training"] == {**preset["training"], "batch_size": 9}
    other = resolved(method="attention_xml", preset="cpu", training={"optimiser": {"name": "sgd"}})
    assert other["training"]["optimiser"]["rate"] is None  # a rate for Adam is none for SGD
    assert other["training"]["epochs"] == preset["training"]["epochs"]
    assert lw.Mach.from_preset("cpu", repetitions=2).config.repetitions == 2


def test_unknown_presets(tmp_path):
    with pytest.raises(ConfigError, match="mach has no preset 'gpu'; did you mean 'cpu'"):
        lw.Mach.from_preset("gpu")
    (tmp_path / "run.yml").write_text("data: {train: x.csv}\nmodel:\n  method: linear_tree\n  preset: cpu\n")
    message = labelwise("train", tmp_path / "run.yml", code=2).err
    assert "run.yml:4: model.preset: linear_tree has none" in message


def test_editors_know_presets():
    choices = {one["title"]: one["properties"] for one in json_schema()["properties"]["model"]["anyOf"]}
    assert choices["mach"]["preset"]["enum"] == ["cpu"]
    assert "preset" not in choices["linear_tree"]
    json.dumps(choices)


def test_the_command_lists_them():
    shown = labelwise("models", "mach").out
    assert "\npreset cpu\n" in shown
    assert '"repetitions": 4' in shown
