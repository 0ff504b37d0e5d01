"""The folder of a saved model: parameters, labels, learned state, and the calibration if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise import store
from labelwise.config import Config, validated
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.methods.calibration import Calibration
from labelwise.methods.label_file import ModelLabels
from labelwise.methods.training_documents import TrainingDocuments

STATE_FILE = "state.safetensors"
CONFIG_FILE = "config.json"
CALIBRATION_FILE = "calibration.safetensors"
TRAINING_FILE = "training.safetensors"


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds."""

    config: Config
    labels: ModelLabels
    input: str
    """What documents are given as."""
    n_documents: int
    n_features: int | None
    state: Mapping[str, np.ndarray]
    """What was learned."""
    calibration: Calibration | None
    trained_on: TrainingDocuments | None
    """None in older folders."""


def write_model(method: str, model: SavedModel, path: str | Path, force: bool) -> None:
    """Write a fitted model."""
    about = {
        "method": method,
        "input": model.input,
        "n_labels": len(model.labels.names),
        "n_documents": model.n_documents,
        "n_features": model.n_features,
        "calibrated": model.calibration is not None,
    }
    with store.new_folder(path, "model", about, force) as folder:
        folder.write_json(CONFIG_FILE, model.config.model_dump(mode="json"))
        model.labels.write(folder)
        folder.write_tensors(STATE_FILE, model.state)
        if model.trained_on is not None:
            folder.write_tensors(TRAINING_FILE, model.trained_on.to_tensors())
        if model.calibration is not None:
            folder.write_tensors(CALIBRATION_FILE, model.calibration.to_tensors())


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write only a calibration, into the folder of a model."""
    with store.update_folder(path, "model", {"calibrated": True}) as folder:
        folder.write_tensors(CALIBRATION_FILE, calibration.to_tensors())


def read_model(folder: store.Folder, config_class: type[Config], inputs: Sequence[str]) -> SavedModel:
    """Read a model, checked against the manifest: both may be untrusted. `inputs` are those the method accepts."""
    values, manifest = folder.read_json(CONFIG_FILE), folder.manifest
    if not isinstance(values, dict):
        raise ModelFormatError(f"{folder.path / CONFIG_FILE}: a mapping is needed")
    try:
        config = validated(config_class, values)
    except ConfigError as error:
        raise ModelFormatError(f"{folder.path / CONFIG_FILE}: {error}") from None
    labels = ModelLabels.read(folder, inputs)
    state = folder.tensors(STATE_FILE)
    if folder.verify:
        store.check_weights(state, folder.path / STATE_FILE)
    calibrated, calibration = manifest.get("calibrated", False), None
    if calibrated is not (CALIBRATION_FILE in manifest["files"]):
        raise ModelFormatError(f"{folder.path / store.MANIFEST}: `calibrated` does not match the files of the model")
    if calibrated:
        calibration = Calibration.from_tensors(folder.tensors(CALIBRATION_FILE), folder.path / CALIBRATION_FILE)
    kind, n_documents, n_features = manifest["input"], manifest["n_documents"], manifest["n_features"]
    trained_on = None
    if TRAINING_FILE in manifest["files"]:
        path = folder.path / TRAINING_FILE
        trained_on = TrainingDocuments.from_tensors(folder.tensors(TRAINING_FILE), path, folder.verify)
    return SavedModel(config, labels, kind, n_documents, n_features, state, calibration, trained_on)
