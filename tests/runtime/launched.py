"""Runs on tiny data, and the files of their models, for comparisons byte by byte."""

import json
import multiprocessing
from pathlib import Path

import numpy as np
import yaml

import labelwise as lw
from cli.commands import labelwise
from labelwise.runtime import tasks
from labelwise.testing.subject import planted_texts

SMALL_MACH = {
    "method": "mach", "repetitions": 3, "buckets": 8, "hidden": [8], "training": {"epochs": 1, "batch_size": 16},
}  # fmt: skip
MODELS = {
    "linear_tree": {"method": "linear_tree", "trees": 2, "leaf_size": 2, "branching": 2, "negatives": "matcher"},
    "mach": SMALL_MACH,
    "ensemble": {"method": "ensemble", "members": [{"method": "linear_flat"}, {"method": "popularity"}]},
}


def write_config(folder: Path, model: dict, run: str = "run", **sections) -> Path:
    """The config of a run on planted texts."""
    data = folder / "data.jsonl"
    if not data.exists():
        lw.write(planted_texts(120, 16), data)
    values = {
        "data": {"path": str(data), "test_fraction": 0.2},
        "model": model,
        "run": {"folder": str(folder / run), "threads": 1, "report": False},
        "calibrate": {"enabled": False},
        "inspect": {"enabled": False},
        "evaluate": {"metrics": ["P@1"], "bootstrap": 0, "examples": 0},
        **sections,
    }
    path = folder / f"{run}.yml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def model_files(folder: Path) -> dict[str, bytes]:
    """All files of a model but card.json, which has dates; ensembles have one per member."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if not name.endswith("card.json")}


def trained(folder: Path, model: dict, run: str, *options: str) -> dict[str, bytes]:
    """Train with options of the command; returns the model's files."""
    done = labelwise("train", write_config(folder, model, run), *options)
    assert "P@1" in done.out
    assert not (folder / run / ".tasks").exists()
    return model_files(folder / run / "model")


def same_files(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    """Whether both have the same files; manifest.json lists card.json with its hash, which is left out."""
    assert one.keys() == other.keys()
    manifests = [json.loads(files["manifest.json"]) for files in (one, other)]
    for manifest in manifests:
        for name in [name for name in manifest["files"] if name.endswith("card.json")]:
            del manifest["files"][name]
    equal = manifests[0] == manifests[1]
    return equal and all(one[name] == other[name] for name in one if name != "manifest.json")


def fork_workers(monkeypatch) -> None:
    """Let worker processes be forks of the test's process, which then need no seconds to import everything again."""
    monkeypatch.setattr(tasks, "SPAWN", multiprocessing.get_context("fork"))


def vectors(path: Path) -> bytes:
    """The bytes of a .npy file."""
    assert np.load(path).ndim == 2
    return path.read_bytes()
