"""A small MACH model and its data, for the tests of the method and of its finished repetitions."""

import json

import numpy as np

import labelwise as lw
from conformance.planted import planted
from labelwise.runtime.threads import using_threads

TRAINING = {"epochs": 6, "batch_size": 32, "optimiser": {"rate": 0.02}}
SMALL = {"repetitions": 4, "buckets": 32, "hidden": [24], "training": TRAINING}
SHORT = {**SMALL, "repetitions": 1, "training": {**TRAINING, "epochs": 1}}


def few_documents():
    return planted("features", n_documents=300, n_labels=90)


def same_repetitions(a, b):
    for one, other in zip(a, b, strict=True):
        assert one.number == other.number
        for name, array in one.tensors.items():
            np.testing.assert_array_equal(array, other.tensors[name], err_msg=f"{one.number} {name}")


def run_file(tmp_path, data, **model):
    lw.write(data, tmp_path / "data.jsonl")
    config = {
        "data": {"train": str(tmp_path / "data.jsonl")},
        "model": {"method": "mach", **SMALL, "repetitions_folder": str(tmp_path / "parts"), **model},
        "run": {"folder": str(tmp_path / "run"), "report": False, "threads": 1},
    }
    (tmp_path / "run.yml").write_text(json.dumps(config))
    return tmp_path / "run.yml"


def trained_alone(tmp_path, **model):
    read = lw.read(tmp_path / "data.jsonl")
    with using_threads(1):
        return lw.Mach(**{**SMALL, **model}).fit(read), read
