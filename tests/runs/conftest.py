"""Fixtures of the tests of runs."""

import json

import pytest

import labelwise as lw
from conformance.planted import planted_texts
from report.drawn import leave_out_drawing


@pytest.fixture(scope="module", autouse=True)
def _no_drawing():
    """Reports are written here all the time; their charts have tests of their own, and a command's process draws them."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_drawing(patch)
        yield


@pytest.fixture
def config(tmp_path):
    """The config of a run in `run`, with a valid part to calibrate on."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, seed in (("train", 0), ("valid", 1), ("test", 2)):
        data = planted_texts(n_documents=60, n_labels=8, seed=seed)
        rows = [" ".join(row) for row in lw.TopK.from_csr(data.labels, 5, data.label_names).labels]
        (folder / f"{split}_texts.txt").write_text("\n".join(data.texts) + "\n")
        (folder / f"{split}_labels.txt").write_text("\n".join(rows) + "\n")
    run = {"folder": str(tmp_path / "run"), "report": False}
    values = {
        "data": {"path": str(folder)}, "model": {"method": "popularity"}, "evaluate": {"bootstrap": 0}, "run": run,
    }  # fmt: skip
    (tmp_path / "run.yml").write_text(json.dumps(values))
    return tmp_path / "run.yml"
