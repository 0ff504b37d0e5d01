"""What is inside trained models: kept in runs, chosen in studies, and equal to what the model says of itself."""

import json

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA

from cli.commands import labelwise
from labelwise.runs.config import InspectSection
from labelwise.runs.folder import RunFolder
from labelwise.runs.inspect import COLOURS, covering_labels, is_inspected, project_to_plane
from labelwise.tuning.sweep_search import make_search
from sweep.planted import plant, write_study

TINY = {
    "method": "text_encoder",
    "encoder": {"model": "tiny", "max_length": 16, "pooling": "mean"},
    "training": {"epochs": 2, "batch_size": 16, "optimiser": {"rate": 0.005}},
}


def test_the_plane_is_that_of_principal_components():
    vectors = np.random.default_rng(0).normal(size=(40, 7)) * [5, 3, 1, 1, 1, 0.1, 0.1] + 0.5
    plane, shares, cosine = project_to_plane(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    oracle = PCA(2).fit(unit)
    np.testing.assert_allclose(np.abs(plane), np.abs(oracle.transform(unit)), atol=1e-9)
    np.testing.assert_allclose(shares, oracle.explained_variance_ratio_)
    cosines = (unit @ unit.T)[~np.eye(40, dtype=bool)]
    assert cosine == pytest.approx(cosines.mean())


def test_the_plane_of_next_to_nothing():
    for vectors in (np.ones((1, 3)), np.ones((5, 3)), np.zeros((4, 2)), np.arange(4.0).reshape(4, 1)):
        plane, shares, _ = project_to_plane(vectors)
        assert plane.shape == (len(vectors), 2)
        assert np.isfinite(plane).all()
        assert np.isfinite(shares).all()
    assert project_to_plane(np.ones((1, 3)))[2] is None
    assert np.abs(project_to_plane(np.ones((5, 3)))[0]).max() < 1e-12, "one point"


def test_labels_that_colour_points_cover_new_documents():
    # 0 and 1 go together; 2 has a document of its own
    labels = sparse.csr_matrix([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]])
    chosen, colours = covering_labels(labels)
    assert (chosen, colours.tolist()) == ([0, 2], [0, 0, 0, 1, -1])
    many = sparse.csr_matrix(np.eye(20))
    assert len(covering_labels(many)[0]) == COLOURS


def test_a_study_looks_into_the_best_of_each_verdict(tmp_path):
    pytest.importorskip("torch")
    _import_for_trials()
    plant(tmp_path / "data")
    run = {
        "data": {"path": str(tmp_path / "data")},
        "model": TINY,
        "calibrate": {"enabled": False},
        "evaluate": {"metrics": ["P@1"], "bootstrap": 0, "examples": 0, "k": 2},
        "inspect": {"documents": [3], "tokens": 4, "vectors": 25},
    }
    vary = {"model.training.optimiser.rate": [0.005, 1e-7, 1e-8]}
    study = write_study(tmp_path, run=run, vary=vary, parallel=2)
    labelwise("sweep", study)
    folder = tmp_path / "sweep"
    trials = json.loads((folder / "results.json").read_text())["trials"]
    verdicts = {name: trial["verdict"] for name, trial in trials.items()}
    looked_into = [path.parent.name for path in folder.glob("trials/*/inspection.json")]
    assert len(looked_into) == len(set(verdicts.values())) < 3
    assert {verdicts[name] for name in looked_into} == set(verdicts.values())
    best = max(trials, key=lambda name: trials[name]["value"])
    assert best in looked_into
    assert not (folder / "report.html").exists()
    _check_inspection(folder / "trials" / best, tmp_path / "data")
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/inspection.json")}
    done = labelwise("sweep", study, "--set", "report=true")
    assert f"written: {folder / 'report.html'}" in done.out
    for chart in ("settings", "curves", "by-rate", "collapse", "points", "attention-1"):
        assert (folder / "plots" / f"{chart}.svg").exists(), chart
    assert {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/inspection.json")} == kept
    wishes = InspectSection(documents=[3], tokens=4, vectors=25)
    assert is_inspected(RunFolder(folder / "trials" / best), wishes)
    assert not is_inspected(RunFolder(folder / "trials" / best), InspectSection())


def _import_for_trials():
    """What trials import, here and not in each of their processes."""
    import labelwise as lw

    lw.TextEncoder(encoder=TINY["encoder"], training={"epochs": 1}).fit(["a b", "b c"] * 8, [["x"], ["y"]] * 8)


def _check_inspection(run, data):
    """The file against the model itself."""
    import labelwise as lw

    found = json.loads((run / "inspection.json").read_text())
    model = lw.load(run / "model")
    texts = (data / "valid_texts.txt").read_text().splitlines()
    places = np.unique(np.linspace(0, len(texts) - 1, 25).astype(int))
    vectors = model.encode([texts[place] for place in places])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    plane = PCA(2).fit_transform(unit.astype(np.float64))
    points = found["points"]
    np.testing.assert_allclose(np.abs(points["x"]), np.abs(plane[:, 0]), atol=2e-5)
    np.testing.assert_allclose(np.abs(points["y"]), np.abs(plane[:, 1]), atol=2e-5)
    assert [one["document"] for one in found["attention"]] == ["document 3"]
    (one,), words = found["attention"], texts[3].split()
    assert one["n_tokens"] == len(words) + 2
    assert one["tokens"] == ["[CLS]", *words[:2], "[SEP]"]
    whole = model.attention([texts[3]], tokens=32)[0]
    np.testing.assert_allclose(whole.weights.sum(-1), 1, rtol=1e-5)
    keep = [0, 1, 2, len(words) + 1]
    np.testing.assert_allclose(one["weights"], whole.weights[:, keep][:, :, keep], atol=6e-5)


def test_mapped_data_is_looked_into_from_files(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    import labelwise as lw
    from labelwise.config import ConfigSource
    from labelwise.io.tensors import mapping_of
    from labelwise.runs.inspect import inspect
    from labelwise.tuning import results as of_studies
    from labelwise.tuning.study import read_study
    from labelwise.tuning.trial import run_trial

    for split, data in lw.read_splits(plant(tmp_path / "lines", documents=40)).items():
        half = len(data) // 2
        for number, rows in enumerate((slice(0, half), slice(half, None))):
            lw.write(data.take(rows), tmp_path / "data" / f"{split}-{number}")
    data = {"path": str(tmp_path / "data"), "mapped": True}
    run = {"data": data, "model": {**TINY, "training": {"epochs": 1}}, "evaluate": {"bootstrap": 0}}
    study = read_study(ConfigSource.from_file(write_study(tmp_path, run=run, vary={"data.limit": [40]})))
    (trial,) = (trial for setting in make_search(study).settings for trial in study.trials(setting))
    run_trial(trial.config, "P@1")
    seen = []

    def looking(run, model, data, section):
        seen.append([mapping_of(part.texts.buffer) is not None for part in (data.train, data.valid, data.test)])
        inspect(run, model, data, section)

    monkeypatch.setattr(of_studies, "chosen_trials", lambda _: [trial])
    monkeypatch.setattr(of_studies, "inspect", looking)
    of_studies.inspect_chosen(study, [])
    assert seen == [[True, True, True]]
    assert (trial.folder / "inspection.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "lines", "study.yml", "sweep"]


def test_other_methods_have_nothing_inside(tmp_path):
    plant(tmp_path / "data")
    study = write_study(tmp_path, report=True)
    done = labelwise("sweep", study)
    folder = tmp_path / "sweep"
    assert list(folder.glob("trials/*/inspection.json")) == []
    assert sorted(path.name for path in (folder / "plots").iterdir()) == [
        "by-leaf-size.png", "by-leaf-size.svg", "settings.png", "settings.svg",
    ]  # fmt: skip
    assert "4 charts in" in done.out


def test_a_run_is_looked_into_unless_told_otherwise(tmp_path):
    pytest.importorskip("torch")
    from labelwise.runs.config import RunConfig
    from labelwise.runs.train import train

    plant(tmp_path / "data", documents=40)
    short = {**TINY, "training": {"epochs": 1}}
    for name, section, looked in (("on", {}, True), ("off", {"enabled": False}, False)):
        values = {
            "data": {"path": str(tmp_path / "data")},
            "model": short,
            "inspect": section,
            "calibrate": {"enabled": False},
            "evaluate": {"bootstrap": 0},
            "run": {"folder": str(tmp_path / name), "report": False},
        }
        run = train(RunConfig(**values))
        assert (run / "inspection.json").exists() is looked
        assert ("inspect" in [entry["stage"] for entry in run.records()]) is looked
    found = json.loads((tmp_path / "on" / "inspection.json").read_text())
    assert found["part"] == "valid"
    assert len(found["points"]["x"]) == 40, "all there are of the 200 asked for"
    assert set(found["points"]["labels"]) <= {f"l{k}" for k in range(8)}
    assert [one["document"] for one in found["attention"]] == ["document 0", "document 39"]
