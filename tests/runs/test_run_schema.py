"""What a run writes is what the schema of run folders says: no file and no key that readers do not know."""

import json

import pytest
from pydantic import BaseModel

from labelwise.config import ConfigSource
from labelwise.errors import DataError
from labelwise.io import folder as run_folder
from labelwise.io.json import read_json
from labelwise.report import schema as report_schema
from labelwise.report.schema import (
    Calibration,
    Machine,
    Results,
    State,
    read_metrics,
)
from labelwise.runs.config import run_config
from labelwise.runs.train import train


def unknown_keys(value, kind, place=""):
    """Dotted places of keys that a model of the schema does not have."""
    known = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        known |= {choice: field for choice in getattr(alias, "choices", [name])}
    found = []
    for key, inner in value.items():
        if key not in known:
            found.append(f"{place}{key}")
            continue
        annotation = known[key].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        sections = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
        for item in inner if isinstance(inner, list) else [inner]:
            if sections and isinstance(item, dict):
                found += unknown_keys(item, sections[0], f"{place}{key}.")
    return found


def test_every_key_that_is_written_is_in_the_schema(config):
    run = train(run_config(ConfigSource.from_file(config)))
    parts = {
        run_folder.STATE: State,
        run_folder.RESULTS: Results,
        run_folder.MACHINE: Machine,
        run_folder.CALIBRATION: Calibration,
    }
    for name, kind in parts.items():
        held = json.loads((run / name).read_text())
        assert unknown_keys(held, kind) == [], name
        assert read_json(run / name, kind) is not None
    for line in (run / run_folder.EXAMPLES).read_text().splitlines():
        assert unknown_keys(json.loads(line), report_schema.Example) == []
    known = {*run_folder.WRITTEN_FILES, *run_folder.WRITTEN_FOLDERS, run_folder.STATE, ".lock"}
    assert {path.name for path in run.path.iterdir()} <= known


@pytest.mark.parametrize("cut", [True, False])
def test_metrics_are_read_while_they_are_written(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == ()
    path.write_text('{"stage": "fit"}\nnonsense\n{"stage": "read"}\n' + ('{"sta' if cut else ""))
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: damaged"):
        read_metrics(path)
    notes = []
    assert read_metrics(path, notes, damaged="skip") == ({"stage": "fit"}, {"stage": "read"})
    assert len(notes) == cut


def test_metrics_that_change_while_they_are_read(tmp_path, monkeypatch):
    """What was read once is decided on: neither a line that is completed meanwhile nor a file that goes is damage."""
    path = tmp_path / "metrics.jsonl"
    plain = type(path).read_bytes

    def read_and_complete(self):
        content = plain(self)
        path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
        return content

    path.write_bytes(b'{"a": 1}\n{"a":')
    monkeypatch.setattr(type(path), "read_bytes", read_and_complete)
    notes = []
    assert read_metrics(path, notes) == ({"a": 1},)
    assert len(notes) == 1

    def remove_and_read(self):
        self.unlink()
        return plain(self)

    monkeypatch.setattr(type(path), "read_bytes", remove_and_read)
    assert read_metrics(path, damaged="skip") == ()


def test_metrics_with_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\xff\xfe\n{"a": 2}\n{"b": "\xc3')
    assert read_metrics(path, damaged="skip") == ({"a": 1}, {"a": 2})
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: damaged: not UTF-8"):
        read_metrics(path)
