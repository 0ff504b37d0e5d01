"""labelwise calibrate MODEL DATA"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from labelwise.cli.options import ForceOption, ReadSetOption, VectorsOption

log = logging.getLogger("labelwise")
BIASED_SPLITS = {
    "train": "if the model was trained on these documents, probabilities and threshold will be far too high",
    "test": "if the model is evaluated on these documents, its metrics at the threshold will be too optimistic",
}


def calibrate_command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    data: Annotated[str, typer.Argument(help="Labelled documents used neither for training nor for evaluation.")],
    split: Annotated[str, typer.Option(help="Part to use when DATA is a folder.")] = "valid",
    precision: Annotated[
        float | None, typer.Option(help="Precision to reach at the threshold. Not given: the best micro-F1.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", "--k", help="Predicted labels per document to fit on. Not given: as many as needed."),
    ] = None,
    format: Annotated[str, typer.Option(help="Format of the data.")] = "auto",
    features: VectorsOption = None,
    overrides: ReadSetOption = None,
    force: ForceOption = False,
) -> None:
    """Turn a model's scores into probabilities and choose a threshold.

    The ranking of labels does not change. The calibration is saved in the model folder: predict then returns
    probabilities, and predict --threshold auto only labels above the threshold.
    """
    from labelwise.cli.tables import show_calibration
    from labelwise.config import ConfigSource
    from labelwise.errors import DataError
    from labelwise.methods.base import load
    from labelwise.run_schema import model_folder
    from labelwise.runs.folder import RunFolder
    from labelwise.runs.load_data import known_name, read_part
    from labelwise.runs.open_model import read_options
    from labelwise.runs.train import write_calibration
    from labelwise.runs.vectors import check_reads_vectors, with_vectors

    source = ConfigSource({}, "calibrate").override(overrides or [])
    options = read_options(model, data, source.values, source)
    if not Path(data).exists():
        known_name(data, "data")
    fitted = load(model)
    if fitted.calibration_ is not None and not force:
        raise DataError(f"{model_folder(model)} is calibrated already; --force calibrates it again")
    if split in BIASED_SPLITS:
        log.warning("--split %s: %s", split, BIASED_SPLITS[split])
    documents = read_part(data, format, split, options)
    if features is not None:
        check_reads_vectors(fitted)
        documents = with_vectors(documents, features)
    report = fitted.calibrate(documents, k=k, precision=precision)
    fitted.save_calibration(model_folder(model))
    if model_folder(model) != Path(model):
        write_calibration(RunFolder(model), report)
    show_calibration(model, report.to_dict())
