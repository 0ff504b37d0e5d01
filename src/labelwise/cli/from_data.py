"""What the commands that train from data share: names of columns, and what to do next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COLUMN_OPTIONS = {"text": "text_column", "labels": "label_column", "id": "id_column"}
"""Options of the commands, and the reading options that they set."""


def next_step(run: Path) -> str:
    """How to use the model of a run."""
    from labelwise.run_schema import CALIBRATION, MODEL

    suffix = ".csv" if _is_table(run / MODEL) else ".jsonl"
    threshold = " --threshold auto" if (run / CALIBRATION).exists() else ""
    return f"next: labelwise predict {shlex.quote(str(run))} NEW{suffix} -o suggestions{suffix}{threshold}"


def _is_table(model: Path) -> bool:
    """Whether a model was trained on tables."""
    from labelwise.methods.card import TABLES, read_card
    from labelwise.store import Folder

    reading = read_card(Folder(model, "model")).reading
    return reading is not None and reading.extension in TABLES


@contextmanager
def proposing_columns() -> Iterator[None]:
    """Columns that are missing are reported with a command that names those that seem right."""
    from labelwise.data.formats.columns import MissingColumnsError
    from labelwise.errors import DataError

    try:
        yield
    except MissingColumnsError as error:
        raise DataError(f"{error.problem}.\n{_with_columns(error.proposed)}", error.path, error.line) from None


def _with_columns(proposed: dict[str, str | None]) -> str:
    """The command that was typed, with the columns that seem right; COLUMN stands for what has to be filled in."""
    names = {key: f"--{option}" for option, key in COLUMN_OPTIONS.items()}
    words = sys.argv[1:]
    for key, column in proposed.items():
        option = names.get(key)
        if option is None:
            words += ["--set", f"data.options.{key}={column or 'COLUMN'}"]
            continue
        at = next((index for index, word in enumerate(words) if word.split("=")[0] == option), None)
        if at is not None:
            del words[at : at + (1 if "=" in words[at] else 2)]
        words += [option, column or "COLUMN"]
    return f"The command with the names of the columns:\n  labelwise {shlex.join(words)}"
