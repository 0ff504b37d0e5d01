"""Make a trained model smaller, and compare it with the larger one on labelled documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labelwise.config import ConfigSource
from labelwise.data.dataset import Dataset
from labelwise.errors import DataError
from labelwise.methods.base import load
from labelwise.methods.card import Scores, update_card
from labelwise.run_schema import CONFIG, is_run_folder, model_folder
from labelwise.runs.config import EvaluateSection, run_config
from labelwise.runs.evaluate import evaluate_model
from labelwise.runs.folder import folder_bytes
from labelwise.runs.load_data import load_run_data
from labelwise.runs.remarks import evaluation_remarks

METRICS = ["P@1", "P@3", "P@5", "nDCG@5", "PSP@5"]
AT_THRESHOLD = "micro-F1"
WARM_UP = 200
MOSTLY = 0.5
"""Scores on documents of which more than this fraction was trained on do not become those of the smaller model."""


@dataclass(frozen=True)
class Size:
    """A model on disk, and how it does on documents, if there are any."""

    bytes: int
    values: dict[str, float | None]
    documents_per_second: float | None
    remarks: tuple[str, ...] = ()
    """What to know before relying on the values, such as that the model was trained on the documents."""


def shrink_model(
    model: str,
    target: Path,
    precision: str | None,
    threshold: float | None,
    data: Dataset | None,
    section: EvaluateSection,
    force: bool = False,
) -> tuple[Size, Size]:
    """Write the smaller model to the target; returns the sizes of both.

    With data that the model was not trained on, its card gets the new scores.
    """
    source = model_folder(model)
    smaller = load(source).shrink(precision=precision, threshold=threshold)
    before = _measured(source, data, section)  # before saving: the target may replace the source
    smaller.save(target, force)
    return before, _measured(target, data, section, keep=True)


def data_of_run(run: str) -> Dataset | None:
    """The test documents of a run, else its valid ones; None for a model folder."""
    if not is_run_folder(Path(run)):
        return None
    section = run_config(ConfigSource.from_file(Path(run) / CONFIG)).data
    if section.mapped:
        raise DataError("its rows are memory-mapped; --data gives documents to compare both models on")
    parts = load_run_data(section)
    return parts.test if parts.test is not None else parts.valid


def _measured(folder: Path, data: Dataset | None, section: EvaluateSection, keep: bool = False) -> Size:
    if data is None:
        return Size(folder_bytes(folder), {}, None)
    if len(data) == 0:
        raise DataError(f"{data.name}: there are no documents to compare the models on")
    model = load(folder)
    metrics = METRICS if model.threshold_ is None else [*METRICS, AT_THRESHOLD]
    chosen = section.model_copy(update={"metrics": metrics, "bootstrap": 0, "examples": 0})
    model.predict(data.take(slice(0, WARM_UP)))  # weights are read from the disk, and kernels compiled
    measured = evaluate_model(model, data, chosen)
    overlap = measured.overlap
    if keep and (overlap is None or overlap.seen <= MOSTLY * overlap.documents):
        update_card(folder, {"scores": Scores.of(measured.evaluation, measured.test)})
    rate = len(measured.test) / max(measured.seconds["predict"], 1e-9)
    values, remarks = measured.evaluation.to_dict()["values"], tuple(evaluation_remarks(measured))
    return Size(folder_bytes(folder), values, rate, remarks)
