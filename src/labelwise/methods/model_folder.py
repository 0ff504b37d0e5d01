"""The folder of a saved model: parameters, labels, learned state, and the calibration if there is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from labelwise import store
from labelwise.config import validated
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.methods.calibration import Calibration
from labelwise.methods.label_file import ModelLabels

if TYPE_CHECKING:
    from labelwise.methods.base import Method

STATE_FILE = "state.safetensors"
CONFIG_FILE = "config.json"
CALIBRATION_FILE = "calibration.safetensors"


def write_model(model: Method, path: str | Path, force: bool) -> None:
    """Write a fitted model."""
    about = {
        "method": model.name,
        "input": model.input_,
        "n_labels": len(model.label_names_),
        "n_documents": model.n_documents_,
        "n_features": model.n_features_in_,
        "calibrated": model.calibration_ is not None,
    }
    with store.new_folder(path, "model", about, force) as folder:
        folder.write_json(CONFIG_FILE, model.config.model_dump(mode="json"))
        ModelLabels(model.label_names_, model.label_texts_, model.label_counts_).write(folder)
        folder.write_tensors(STATE_FILE, model._state())
        if model.calibration_ is not None:
            folder.write_tensors(CALIBRATION_FILE, model.calibration_.to_tensors())


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write only a calibration, into the folder of a model."""
    with store.update_folder(path, "model", {"calibrated": True}) as folder:
        folder.write_tensors(CALIBRATION_FILE, calibration.to_tensors())


def read_model(model: Method, folder: store.Folder) -> None:
    """Restore a method from a folder, checked against its manifest: both may be untrusted."""
    config = folder.read_json(CONFIG_FILE)
    if not isinstance(config, dict):
        raise ModelFormatError(f"{folder.path / CONFIG_FILE}: a mapping is needed")
    try:
        held = validated(model.Config, config)
        model._configure({key: getattr(held, key) for key in model.Config.model_fields})
    except ConfigError as error:
        raise ModelFormatError(f"{folder.path / CONFIG_FILE}: {error}") from None
    labels, manifest = ModelLabels.read(folder, model.inputs), folder.manifest
    model.label_names_, model.label_texts_, model.label_counts_ = labels.names, labels.texts, labels.counts
    model.n_documents_, model.input_ = manifest["n_documents"], manifest["input"]
    model.n_features_in_ = manifest["n_features"] if model.input_ == "features" else None
    tensors = folder.tensors(STATE_FILE)
    if folder.verify:
        store.check_weights(tensors, folder.path / STATE_FILE)
    model._restore(tensors, folder.path / STATE_FILE)
    model._loaded_from = folder.path
    calibrated = manifest.get("calibrated", False)
    if calibrated is not (CALIBRATION_FILE in manifest["files"]):
        raise ModelFormatError(f"{folder.path / store.MANIFEST}: `calibrated` does not match the files of the model")
    if calibrated:
        path = folder.path / CALIBRATION_FILE
        model.calibration_ = Calibration.from_tensors(folder.tensors(CALIBRATION_FILE), path)
