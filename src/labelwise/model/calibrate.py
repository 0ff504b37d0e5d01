"""Calibrate a model on held-out documents: rank labels for them, fit probabilities and choose a threshold."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.errors import DataError
from labelwise.metrics.evaluate import check_known, check_labelled
from labelwise.model.calibration import CalibrationReport, calibrated
from labelwise.model.card import CalibrationNote
from labelwise.model.inputs import predict_in_blocks, predict_in_time
from labelwise.model.predictions import CALIBRATION_K, checked_k, k_from_data
from labelwise.runtime.budget import Budget
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.model.method import Method

log = logging.getLogger("labelwise")


def calibrate(
    model: Method, dataset: Dataset, k: int | None, precision: float | None, budget: Budget
) -> CalibrationReport:
    """Set the calibration of a fitted model; `dataset` is in its label space. See `Method.calibrate`."""
    if len(dataset) == 0:
        raise DataError(f"{dataset.name}: there are no documents to calibrate on")
    check_labelled(dataset.labels, dataset.name)
    check_known(dataset, len(model.label_names_))
    count = k_from_data(CALIBRATION_K, model.trained_on_) if k is None else checked_k(k)

    def best(part: Dataset, k: int) -> TopK:
        return model._ranked(model._as_documents(part), k)

    known: TopK | None = None
    available = None
    if budget.is_limited:
        rows, known = predict_in_time(lambda part: best(part, count), dataset, "calibrating", budget)
        if len(rows) < len(dataset):
            log.info(
                "calibrating: ended by the time budget after %s of %s documents", f"{len(rows):,}", f"{len(dataset):,}"
            )
            available, dataset = len(dataset), dataset.take(rows)

    def ranked(rows: np.ndarray | None, k: int) -> TopK:
        if rows is None and k == count and known is not None:
            return known
        chosen = dataset if rows is None else dataset.take(rows)
        return predict_in_blocks(lambda part: best(part, k), chosen, "calibrating")

    # further labels are ranked while there is time
    most = None if k is not None or budget.expired() else len(model.label_names_)
    model.calibration_, report = calibrated(ranked, dataset, count, precision, most)
    report = replace(report, n_available=available)
    overlap = None if model.trained_on_ is None else model.trained_on_.overlap(dataset, model.input_)
    if overlap is not None:
        report = replace(report, n_seen=overlap.seen)
    model.card_ = model.card_.model_copy(update={"calibration": CalibrationNote.of(report, dataset.name)})
    for remark in report.remarks():
        log.warning("calibration: %s", remark)
    return report
