"""Finished work under a fingerprint: used again when it is the same and whole, ignored otherwise."""

import numpy as np
import pytest

from labelwise.errors import DataError
from labelwise.runtime import job as finished
from labelwise.runtime.job import (
    find_finished,
    fingerprint,
    fingerprint_in,
    finished_folder,
    keep_finished,
)


def written(count):
    return lambda folder: folder.write_tensors("values.safetensors", {"values": np.arange(count)})


def test_fingerprints_tell_types_shapes_and_order_apart():
    base = np.zeros(4, np.int32)
    others = [np.zeros(4, np.float32), np.zeros((2, 2), np.int32), np.ones(4, np.int32), np.zeros(3, np.int32)]
    assert len({fingerprint({}, "a", array) for array in (base, *others)}) == 5
    assert len({fingerprint("a", base), fingerprint("b", base), fingerprint(base, "a"), fingerprint("a")}) == 4
    assert fingerprint({"x": 1, "y": 2}) == fingerprint({"y": 2, "x": 1}) != fingerprint({"x": 1})
    assert fingerprint("ab", "c") != fingerprint("a", "bc")


def test_the_hash_stays_and_every_version_of_results_has_its_own(monkeypatch):
    """The hash as it was when trainings of this version were written first."""
    parts = ["text", {"b": 1, "a": [1.5, None]}, np.arange(6, dtype=np.int32).reshape(2, 3)]
    now = fingerprint(*parts)
    monkeypatch.setattr(finished, "RESULT_VERSION", 4)
    assert fingerprint(*parts) == "c136a25cce31304ea6227a1194bc39bc2e0dcc89199eaa7d1832d5f97b8a4cfd"
    monkeypatch.setattr(finished, "RESULT_VERSION", 3)
    assert fingerprint(*parts) != now


def test_tensors_are_hashed_by_their_bytes():
    torch = pytest.importorskip("torch")
    values = torch.arange(6, dtype=torch.float32)
    assert fingerprint(values) == fingerprint(values.clone()) != fingerprint(values.bfloat16())
    assert fingerprint(torch.tensor(3)) == fingerprint(3)


def test_work_is_found_by_its_fingerprint_and_only_whole(tmp_path, caplog):
    path = tmp_path / "piece"
    assert find_finished(path, "piece", "mine") is None
    assert fingerprint_in(path, "piece") is None
    assert caplog.text == ""
    with finished_folder(path, "piece", "mine", {"number": 3}) as folder:
        written(4)(folder)
    held = find_finished(path, "piece", "mine")
    assert held is not None
    assert held.manifest["number"] == 3
    np.testing.assert_array_equal(held.tensors("values.safetensors")["values"], np.arange(4))
    assert fingerprint_in(path, "piece") == "mine"
    assert find_finished(path, "piece", "another") is None
    assert "not used: it belongs to another training" in caplog.text
    caplog.clear()
    assert find_finished(path, "ranking", "mine") is None
    assert "not a labelwise ranking" in caplog.text
    caplog.clear()
    content = bytearray((path / "values.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "values.safetensors").write_bytes(content)
    assert find_finished(path, "piece", "mine") is None
    assert "damaged" in caplog.text
    with finished_folder(path, "piece", "mine") as folder:
        written(2)(folder)
    assert find_finished(path, "piece", "mine") is not None


@pytest.mark.parametrize("manifest", ["", "[]", '{"format": "labelwise-other"}', None])
def test_damaged_work_is_replaced(tmp_path, manifest):
    path = tmp_path / "piece"
    assert keep_finished(path, "piece", "mine", written(4))
    (path / "manifest.json").unlink() if manifest is None else (path / "manifest.json").write_text(manifest)
    assert find_finished(path, "piece", "mine") is None
    assert keep_finished(path, "piece", "mine", written(2))
    held = find_finished(path, "piece", "mine")
    assert held is not None
    assert len(held.tensors("values.safetensors")["values"]) == 2


def test_files_that_are_not_ours_are_never_removed(tmp_path, caplog):
    path = tmp_path / "000"
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")
    assert not keep_finished(path, "piece", "mine", written(4))
    assert "training continues" in caplog.text
    assert (path / "thesis.txt").read_text() == "years of work"


def test_a_full_disk_is_a_warning_for_finished_work_and_an_error_for_checkpoints(tmp_path, caplog, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(finished.FolderWriter, "write_tensors", full)
    assert not keep_finished(tmp_path / "piece", "piece", "mine", written(4))
    assert "No space left on device" in caplog.text
    assert "training continues" in caplog.text
    with (
        pytest.raises(
            DataError, match=r"piece: cannot be written: No space left on device; .* start the same training"
        ),
        finished_folder(tmp_path / "piece", "piece", "mine") as folder,
    ):
        written(4)(folder)
    assert list(tmp_path.iterdir()) == []


def test_work_that_a_time_budget_ended_has_a_fingerprint_of_its_own():
    budgets = [None, 1.0, 2.0]
    assert finished.fingerprint_by_budget("mine", None) == finished.fingerprint_by_budget("mine", float("inf"))
    assert len({"mine", *(finished.fingerprint_by_budget("mine", budget) for budget in budgets)}) == 4
