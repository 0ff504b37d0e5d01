"""The refit of a run: after the scores are known, the model is trained once more, on the held-out documents as well.

The scores stay those of the judged model, which has not seen the test documents. The saved model gets the calibration
of the judged one: this assumes that a score means the same after training on more documents of the same kind. There are
no documents left to fit another calibration on.

Until the refitted model is complete, the judged one is the model of the run; one step replaces it. Which of the two is
in the folder follows from the number of documents that it was trained on.
"""

from __future__ import annotations

import json
from pathlib import Path

from labelwise import run_schema as files
from labelwise.data.concat import concat
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.methods.base import Method
from labelwise.runs.folder import RunFolder, folder_bytes
from labelwise.runs.load_data import RunData


def is_refitted(model: Method, data: RunData) -> bool:
    """Whether a model has seen more documents than the training part has."""
    return model.refits and model.n_documents_ > len(data.train)


def check_resumable(run: RunFolder, data: RunData, held_out: Dataset | None) -> None:
    """Refuse to judge a model on documents that it was trained on: its figures must exist already."""
    needed = {files.RESULTS: data.test is not None, files.CALIBRATION: held_out is not None}
    missing = [name for name, wanted in needed.items() if wanted and not (run / name).exists()]
    if missing:
        raise ConfigError(
            f"{run.path}: the model was trained on all documents, also the held-out ones, and {missing[0]} is missing; "
            "--force starts over"
        )


def documents_to_refit(data: RunData, held_out: Dataset | None, validates: bool, scratch: Path | None) -> Dataset:
    """All documents of a run, or all but the valid part if the method stops early on that."""
    kept_out = data.valid if validates else None
    parts = {id(part): part for part in (data.train, held_out, data.valid, data.test) if part is not None}
    return concat([part for part in parts.values() if part is not kept_out], data.train.name, scratch=scratch)


def carry_over(judged: Method, model: Method) -> None:
    """Give the refitted model the calibration of the judged one, and its scores on the card."""
    before = judged.card_
    kept = {"reading": before.reading, "scores": before.scores, "calibration": before.calibration}
    model.calibration_ = judged.calibration_
    model.card_ = model.card_.model_copy(update=kept).with_change(
        f"trained on all {model.n_documents_:,} documents; scores and calibration are those of a model trained on "
        f"{judged.n_documents_:,} of them",
        refit=True,
    )


def record_refit(run: RunFolder, model: Method, judged_documents: int) -> None:
    """Note in results.json, if there is one, that the saved model is not the one with these scores."""
    path = run / files.RESULTS
    if not path.exists():
        return
    seconds = [entry["seconds"] for entry in run.records() if entry["stage"] == files.REFIT and "done" in entry]
    results = json.loads(path.read_text("utf-8"))
    results["refit"] = {
        "n_documents": model.n_documents_,
        "n_judged": judged_documents,
        "n_labels": len(model.label_names_),
        "bytes": folder_bytes(run / files.MODEL),
        "seconds": sum(seconds),
    }
    files.validate(results, files.Results, path)
    run.write_json(files.RESULTS, results)
