"""One trial in a separate process: `python -m labelwise.tuning.trial CONFIG METRIC`.

It trains, then evaluates on the valid part. The sweep holds the other end of standard input: when the sweep exits or is
killed, the trial exits too, and a later sweep resumes it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource
from labelwise.data.out_of_core import scratch_at
from labelwise.errors import LabelwiseError
from labelwise.io import folder as files
from labelwise.metrics.names import parse_metric
from labelwise.model.method import load
from labelwise.runs.config import RunConfig, run_config
from labelwise.runs.data import load_run_data
from labelwise.runs.evaluate import evaluate_model
from labelwise.runs.folder import RunFolder
from labelwise.runs.train import train

VALID = "valid.json"
ORPHANED = 75


def run_trial(config: RunConfig, metric: str) -> None:
    """Train as configured, unless that is done already, and write the metric on the valid part to valid.json."""
    run = RunFolder(str(config.run.folder))
    if not ((run / files.STATE).exists() and run.finished):
        train(config)
    if metric in read_values(run.path):  # a finished trial may lack a newly chosen metric
        return
    with run.locked(), scratch_at(run / files.SCRATCH, config.data.mapped) as scratch:
        valid = load_run_data(config.data, scratch).valid
        if valid is None:
            raise LabelwiseError("the data no longer has a valid part; a study needs one to compare trials")
        k = config.evaluate.k
        section = config.evaluate.model_copy(
            update={"metrics": [metric], "bootstrap": 0, "k": k and max(k, parse_metric(metric).k or 0), "limit": None}
        )
        measured = evaluate_model(load(run / files.MODEL), valid, section)
    values = {**read_values(run.path), **measured.evaluation.values}
    run.write_json(VALID, {"n_documents": len(valid), "values": values})


def read_values(folder: Path) -> dict[str, Any]:
    """The metrics on the valid part that were written before."""
    try:
        content = json.loads((folder / VALID).read_text(encoding="utf-8"))
        return dict(content["values"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _exit_with_sweep() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would block the interpreter at exit
        pass
    os._exit(ORPHANED)


def main(arguments: list[str]) -> None:
    """Entry point; the last line on standard error is the reason for a failure."""
    threading.Thread(target=_exit_with_sweep, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path, metric = arguments
    try:
        run_trial(run_config(ConfigSource.from_file(path)), metric)
        code = 0
    except LabelwiseError as error:
        sys.stderr.write(f"labelwise: {' '.join(str(error).split())}\n")
        code = 2
    except MemoryError:
        sys.stderr.write("labelwise: not enough memory\n")
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
