"""The folder of a saved model: parameters, labels, learned state, card, and the calibration if there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.config import Config, validated
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.io import folder as store
from labelwise.io.folder import CONFIG_FILE, STATE_FILE
from labelwise.model.calibration import Calibration
from labelwise.model.card import Card, read_card, write_card
from labelwise.model.fitted import ModelLabels
from labelwise.model.inputs import FeatureWidth, TrainingDocuments
from labelwise.registry import method_package

CALIBRATION_FILE = "calibration.safetensors"
TRAINING_FILE = "training.safetensors"
MAX_MEMBERS = 1000
PACKAGE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._+!-]{0,98}[A-Za-z0-9])?")
"""Names and versions of packages; anything else in a manifest is not repeated in a message."""


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
    trained_on: TrainingDocuments | None
    """None in older folders."""
    card: Card
    members: tuple[tuple[str, SavedModel], ...] = ()
    """Models that it is made of, each with the name of its method."""


def write_model(method: str, model: SavedModel, path: str | Path, force: bool) -> None:
    """Write a fitted model."""
    with store.new_folder(path, "model", _about(method, model), force) as folder:
        _write_files(model, folder)


def member_prefix(number: int) -> str:
    """Before the file names of a model that is part of another one."""
    return f"member{number}."


def _about(method: str, model: SavedModel) -> dict[str, Any]:
    about: dict[str, Any] = {
        "method": method,
        "input": model.input,
        "n_labels": len(model.labels.names),
        "n_documents": model.n_documents,
        **(model.width.to_manifest() if model.width is not None else {"n_features": None}),
        "numbered_labels": model.labels.names.column_numbers,
        "calibrated": model.calibration is not None,
        **({"members": len(model.members)} if model.members else {}),
    }
    package = method_package(method)
    if package is not None:
        about["plugin"] = {"package": package[0], "version": package[1]}
    return about


def _write_files(model: SavedModel, folder: store.FolderWriter) -> None:
    folder.write_json(CONFIG_FILE, model.config.model_dump(mode="json"))
    model.labels.write(folder)
    folder.write_tensors(STATE_FILE, model.state)
    if model.trained_on is not None:
        folder.write_tensors(TRAINING_FILE, model.trained_on.to_tensors())
    write_card(model.card, folder, model.labels)
    if model.calibration is not None:
        folder.write_tensors(CALIBRATION_FILE, model.calibration.to_tensors())
    for number, (method, member) in enumerate(model.members):
        write_member(folder, number, method, member)


def write_member(folder: store.FolderWriter, number: int, method: str, model: SavedModel) -> None:
    """Write a model into a folder of something else, under names with a prefix; `Folder.nested` opens it."""
    with folder.nested(member_prefix(number), "model", _about(method, model)) as inner:
        _write_files(model, inner)


def member_folders(folder: store.Folder) -> list[store.Folder]:
    """The models that this one is made of; none for most methods."""
    count = folder.manifest.get("members", 0)
    if type(count) is not int or not 0 <= count <= MAX_MEMBERS:
        raise ModelFormatError(f"{folder.file(store.MANIFEST)}: the number of members is damaged")
    return [folder.nested(member_prefix(number), "model") for number in range(count)]


def write_calibration(calibration: Calibration, card: Card, path: str | Path) -> None:
    """Write only a calibration and the card, into the folder of a model."""
    labels = ModelLabels.unchecked(store.Folder(path, "model", verify=False))
    with store.update_folder(path, "model", {"calibrated": True}) as folder:
        folder.write_tensors(CALIBRATION_FILE, calibration.to_tensors())
        write_card(card, folder, labels)


def plugin_of(manifest: Mapping[str, Any]) -> tuple[str, str] | None:
    """Name and version of the package that the method came from, if it was plugged in."""
    plugin = manifest.get("plugin")
    if not isinstance(plugin, dict):
        return None
    package, version = plugin.get("package"), plugin.get("version")
    sound = all(isinstance(text, str) and PACKAGE_NAME.fullmatch(text) for text in (package, version))
    return (str(package), str(version)) if sound else None


def unknown_method(folder: store.Folder, error: ConfigError) -> ModelFormatError:
    """The error for a model whose method is not installed; names the package that it came from, if that is known."""
    plugin = plugin_of(folder.manifest)
    if plugin is None:
        return ModelFormatError(f"{folder.file(store.MANIFEST)}: {error}")
    package, version = plugin
    return ModelFormatError(
        f"{folder.file(store.MANIFEST)}: there is no method '{folder.manifest.get('method')}' here; by the manifest "
        f"it comes from the package {package} {version}. If you trust that package: pip install {package}"
    )


def read_parameters(folder: store.Folder, config_class: type[Config]) -> Config:
    """The parameters of the method."""
    values = folder.read_json(CONFIG_FILE)
    if not isinstance(values, dict):
        raise ModelFormatError(f"{folder.file(CONFIG_FILE)}: a mapping is needed")
    try:
        return validated(config_class, values)
    except ConfigError as error:
        raise ModelFormatError(f"{folder.file(CONFIG_FILE)}: {error}") from None


def read_calibration(folder: store.Folder) -> Calibration | None:
    """The calibration, if the model is calibrated."""
    calibrated = folder.manifest.get("calibrated", False)
    if calibrated is not (CALIBRATION_FILE in folder.manifest["files"]):
        raise ModelFormatError(f"{folder.file(store.MANIFEST)}: `calibrated` does not match the files of the model")
    if not calibrated:
        return None
    return Calibration.from_tensors(folder.tensors(CALIBRATION_FILE), folder.file(CALIBRATION_FILE))


def read_training_documents(folder: store.Folder) -> TrainingDocuments | None:
    """The documents that the model was trained on; None in older folders."""
    if TRAINING_FILE not in folder.manifest["files"]:
        return None
    tensors = folder.tensors(TRAINING_FILE)
    return TrainingDocuments.from_tensors(tensors, folder.file(TRAINING_FILE), folder.verify)


def documents_of_encoder(encoder: Any) -> list[np.ndarray]:
    """Hashes of the documents that a saved model was trained on whose encoder an `EncoderConfig` names."""
    from labelwise.nn.text.files import saved_folder

    folder = None if encoder.starts_random else saved_folder(encoder.model)
    before = None if folder is None else read_training_documents(folder)
    return [] if before is None else [before.hashes]


def read_model(folder: store.Folder, config_class: type[Config], inputs: Sequence[str]) -> SavedModel:
    """Read a model, checked against the manifest: both may be untrusted. `inputs` are those the method accepts."""
    manifest, config = folder.manifest, read_parameters(folder, config_class)
    labels = ModelLabels.read(folder, inputs)
    both = manifest.get("input") == "texts" and (
        getattr(config, "reads_vectors", False)
        or (manifest.get("members") is not None and manifest.get("n_features") is not None)
    )
    width = FeatureWidth.from_manifest(manifest, folder.file(store.MANIFEST), both)
    state = folder.tensors(STATE_FILE)
    if folder.verify:
        store.check_weights(state, folder.file(STATE_FILE))
    trained_on = read_training_documents(folder)
    kind, n_documents = manifest["input"], manifest["n_documents"]
    calibration, card = read_calibration(folder), read_card(folder)
    return SavedModel(config, labels, kind, n_documents, width, state, calibration, trained_on, card)
