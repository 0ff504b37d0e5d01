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
from labelwise.methods.feature_width import FeatureWidth
from labelwise.methods.label_file import ModelLabels

STATE_FILE = "state.safetensors"
CONFIG_FILE = "config.json"
CALIBRATION_FILE = "calibration.safetensors"


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds."""

    config: Config
    labels: ModelLabels
    input: str
    """What documents are given as."""
    n_documents: int
    width: FeatureWidth | None
    """Of the features; None if documents are given as something else."""
    state: Mapping[str, np.ndarray]
    """What was learned."""
    calibration: Calibration | None


def write_model(method: str, model: SavedModel, path: str | Path, force: bool) -> None:
    """Write a fitted model."""
    about = {
        "method": method,
        "input": model.input,
        "n_labels": len(model.labels.names),
        "n_documents": model.n_documents,
        **(model.width.to_manifest() if model.width is not None else {"n_features": None}),
        "numbered_labels": model.labels.names.column_numbers,
        "calibrated": model.calibration is not None,
    }
    with store.new_folder(path, "model", about, force) as folder:
        folder.write_json(CONFIG_FILE, model.config.model_dump(mode="json"))
        model.labels.write(folder)
        folder.write_tensors(STATE_FILE, model.state)
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
    width = FeatureWidth.from_manifest(manifest, folder.path / store.MANIFEST)
    state = folder.tensors(STATE_FILE)
    if folder.verify:
        store.check_weights(state, folder.path / STATE_FILE)
    calibrated, calibration = manifest.get("calibrated", False), None
    if calibrated is not (CALIBRATION_FILE in manifest["files"]):
        raise ModelFormatError(f"{folder.path / store.MANIFEST}: `calibrated` does not match the files of the model")
    if calibrated:
        calibration = Calibration.from_tensors(folder.tensors(CALIBRATION_FILE), folder.path / CALIBRATION_FILE)
    kind, n_documents = manifest["input"], manifest["n_documents"]
    return SavedModel(config, labels, kind, n_documents, width, state, calibration)
