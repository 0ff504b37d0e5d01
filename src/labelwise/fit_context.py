"""What a run provides to a method while it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def _no_log(**_numbers: Any) -> None:
    pass


@dataclass(frozen=True)
class FitContext:
    """Where unfinished work is kept and where numbers are logged."""

    checkpoints: Path | None = None
    """Folder for unfinished work, so that a killed run resumes; None to keep nothing."""
    log: Callable[..., None] = field(default=_no_log)
    """Takes numbers by name (`log(step=10, loss=0.3)`) for metrics.jsonl."""
