"""`labelwise info`, and models that remember how their documents are read."""

import csv
import json
import random
import shutil

import pytest

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted_texts
from labelwise.commands.describe import describe
from labelwise.errors import ConfigError
from labelwise.io.atomic import lock_folder
from labelwise.io.folder import MANIFEST

SUBJECTS = ("cats", "dogs", "law", "tax", "ships", "music")


def write_catalogue(path, documents, seed):
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "title", "abstract", "subjects"])
        for number in range(documents):
            chosen = draw.sample(SUBJECTS, 2)
            writer.writerow([number, f"A bill on {chosen[0]}", f"it concerns {chosen[1]}", "; ".join(chosen)])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on a spreadsheet with columns of its own."""
    folder = tmp_path_factory.mktemp("library")
    write_catalogue(folder / "catalogue.csv", 120, 0)
    write_catalogue(folder / "toindex.csv", 9, 1)
    (folder / "run.yml").write_text(
        "data: {train: catalogue.csv, test_fraction: 0.2, options: {text_column: title+abstract, "
        "label_column: subjects}}\nmodel: {method: linear_flat, solver: {cost_positive: 0.5}}\n"
        "calibrate: {fraction: 0.2}\nrun: {folder: runs/judged, report: false}\n"
    )
    labelwise("train", "run.yml", cwd=folder)
    shutil.copytree(folder / "runs" / "judged" / "model", folder / "elsewhere" / "subjects")
    return folder


def test_a_copied_model_reads_the_same_columns(place):
    done = labelwise("predict", "elsewhere/subjects", "toindex.csv", "-k", "2", cwd=place)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == 9
    by_run = labelwise("predict", "runs/judged", "toindex.csv", "-k", "2", cwd=place).out
    assert done.out == by_run
    assert "P@1" in labelwise("evaluate", "elsewhere/subjects", "toindex.csv", cwd=place).out
    other = labelwise("predict", "elsewhere/subjects", "toindex.csv", "--set", "text_column=name", cwd=place, code=2)
    assert "no column 'name'" in other.err


def test_options_are_for_files_of_the_same_type(place):
    (place / "more.jsonl").write_text('{"text": "A bill on cats"}\n')
    assert len(labelwise("predict", "elsewhere/subjects", "more.jsonl", cwd=place).out.splitlines()) == 1


def test_no_file_named_in_a_card_is_opened(place, tmp_path):
    folder = shutil.copytree(place / "elsewhere" / "subjects", tmp_path / "m")
    from methods.test_card import rewrite

    card = json.loads((folder / "card.json").read_text())
    card["reading"]["options"]["label_names"] = "/etc/hostname-that-is-not-there"
    rewrite(folder, json.dumps(card).encode())
    labelwise("predict", folder, place / "toindex.csv")
    card["reading"]["options"]["from_the_future"] = 1
    rewrite(folder, json.dumps(card).encode())
    assert "from_the_future" in labelwise("predict", folder, place / "toindex.csv", code=2).err


def test_info_is_one_screen(place):
    shown = labelwise("info", "runs/judged", cwd=place).out
    lines = shown.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    about = {line[:14].strip(): line[14:] for line in lines if line[:14].strip()}
    assert about["method"] == "linear_flat"
    assert about["parameters"] == "solver.cost_positive 0.5"
    assert about["data"].startswith("catalogue.csv: 77 documents, 6 labels; texts (hash ")
    assert about["reads"] == ".csv with label_column=subjects, text_column=title+abstract"
    assert "trained, calibrated, evaluated" in about["status"]
    assert about["scores, %"].startswith("P@1 ")
    assert "on catalogue.csv, 24 documents" in shown
    assert about["threshold"].split(":")[0] == f"{lw.load(place / 'runs' / 'judged').threshold_:.4g}"
    assert f"labelwise {lw.__version__}" in about["versions"]
    assert {"explain", "shrink", "learn"} <= set(about["can"].split(", "))
    assert ", micro-F1 " in about["threshold"]
    assert about["use"] == "labelwise predict runs/judged documents.csv -o suggestions.csv --threshold auto"


def test_scores_of_a_model_that_has_learned_since(place):
    shutil.copytree(place / "runs" / "judged", place / "runs" / "learned")
    (place / "new.csv").write_text(
        "id,title,abstract,subjects\n1,A novel,of cats at sea,cats; ships\n2,An ode,to law,law\n"
    )
    labelwise("learn", "runs/learned", "new.csv", cwd=place)
    note = "the model has changed since it was judged: learned 2 documents; new labels: 0 ("
    assert note in " ".join(labelwise("info", "runs/learned", cwd=place).out.split())
    assert note not in " ".join(labelwise("info", "runs/judged", cwd=place).out.split())
    said = labelwise("compare", "runs/judged", "runs/learned", cwd=place)
    assert (said.out + said.err).count(note) == 1


def test_info_for_programs(place):
    about = json.loads(labelwise("info", "elsewhere/subjects", "--json", cwd=place).out)
    assert "run" not in about
    assert about["model"]["card"]["scores"]["documents"] == 24
    results = json.loads((place / "runs" / "judged" / "results.json").read_text())
    assert about["model"]["card"]["scores"]["values"] == results["evaluation"]["values"]
    sizes = about["model"]["bytes"]
    folder = place / "elsewhere" / "subjects"
    assert sizes == {name: (folder / name).stat().st_size for name in sizes}
    assert sum(about["model"]["state_bytes"].values()) <= sizes["state.safetensors"]


def test_info_of_a_run_without_a_model(place, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    state = {"format": "labelwise-run", "status": "failed", "error": "the disk is full", "method": "mach"}
    (run / "state.json").write_text(json.dumps(state))
    (run / "metrics.jsonl").write_text('{"time": 1, "stage": "read", "seconds": 1, "done": true}\n{"stage": "fit"}\n')
    shown = labelwise("info", run).out
    assert "nothing is finished yet; last stage: fit\n" in shown
    (run / "checkpoints" / "chunks-0").mkdir(parents=True)
    (run / "checkpoints" / "chunks-0" / "chunks.safetensors").write_bytes(bytes(3_000_000))
    begun = " ".join(labelwise("info", run).out.split())
    assert "last stage: fit; unfinished training in checkpoints: 3.0 MB" in begun
    assert "the disk is full" in shown
    assert "config.yml" in shown
    assert "no such folder" in labelwise("info", tmp_path / "nothing", code=2).err
    assert "manifest.json is missing" in labelwise("info", tmp_path, code=2).err


def test_info_of_a_model_whose_method_is_not_installed(place, tmp_path):
    folder = shutil.copytree(place / "elsewhere" / "subjects", tmp_path / "m")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest |= {"method": "knn", "plugin": {"package": "knnx", "version": "0.3"}}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert "knn of the package knnx 0.3 (not installed here)" in labelwise("info", folder).out
    assert "pip install knnx" in labelwise("predict", folder, stdin="x\n", code=2).err


def test_info_of_a_model_from_python(tmp_path):
    lw.Popularity().fit(planted_texts(20, 6)).save(tmp_path / "m")
    shown = labelwise("info", tmp_path / "m").out
    assert "scores" not in shown
    assert "threshold" not in shown


def test_damaged_files_are_named(tmp_path):
    lw.LinearFlat().fit(planted_texts(60, 8)).save(tmp_path / "model")
    assert labelwise("info", tmp_path / "model").err == ""
    state = tmp_path / "model" / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    damaged = labelwise("info", tmp_path / "model", code=2)
    assert f"{state}: the contents are damaged" in damaged.err
    assert "linear_flat" in damaged.out
    shown = json.loads(labelwise("info", tmp_path / "model", "--json", code=2).out)
    assert str(state) in shown["damages"][0]


def test_numbers_that_no_float_holds_are_damage(tmp_path):
    lw.Popularity().fit(planted_texts(60, 8)).save(tmp_path / "model")
    path = tmp_path / "model" / MANIFEST
    manifest = json.loads(path.read_text())
    for number in ("1e400", "-1e999", "NaN", "Infinity"):
        path.write_text(json.dumps({**manifest, "n_documents": "HERE"}).replace('"HERE"', number))
        for command in (("info", tmp_path / "model"), ("predict", tmp_path / "model", "a text")):
            assert f"{path}: not valid JSON: {number} is not a finite number" in labelwise(*command, code=2).err


def test_a_run_in_which_no_process_works_is_stopped(place, tmp_path):
    run = shutil.copytree(place / "runs" / "judged", tmp_path / "killed")
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**state, "status": "running"}))
    with lock_folder(run, ConfigError("busy")):
        assert describe(run)["run"]["status"] == "running"
    shown = labelwise("info", run).out
    assert "stopped, started" in shown
    assert f"{run}/config.yml" in shown
    (run / ".lock").unlink()
    assert json.loads(labelwise("info", run, "--json").out)["run"]["status"] == "stopped"
    assert not (run / ".lock").exists()
