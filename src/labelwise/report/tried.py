"""The section of a run's report on what `labelwise auto` has tried."""

from __future__ import annotations

from typing import Any

from labelwise.auto_schema import AutoRecord, Option
from labelwise.formatting import MISSING, cut, duration, number, percent, size

MAX_ROWS = 60


def tried_table(record: AutoRecord) -> dict[str, Any]:
    """Rows for the template: models from cheap to expensive, then ensembles, and how to read them."""
    lines = [
        f"Compared on {number(record.n_valid)} validation documents, after training on {number(record.n_train)}; test "
        "documents were not used to choose. Figures of ensembles are cross-fitted: learned on one half of the "
        "validation documents and judged on the other.",
        "Chosen is the first model, from cheap to expensive, that is less than one standard error of the paired "
        "difference behind the best.",
        f"Time budget {duration(record.budget)}"
        + (f", of which {duration(record.seconds)} until the decision" if record.seconds is not None else "")
        + ". Which models are tried depends on the clock.",
        *(_sentence(note) for note in record.notes),
    ]
    return {
        "metric": cut(record.metric, 20),
        "why": _sentence(record.why) if record.why else "Nothing is decided yet.",
        "rows": [_row(option, record.chosen) for option in record.options[:MAX_ROWS]],
        "lines": lines,
    }


def _row(option: Option, chosen: str | None) -> dict[str, Any]:
    behind = option.behind_best
    noise = ", within noise" if option.within_noise and behind is not None and behind[0] > 0 else ""
    low, high = option.interval or (None, None)
    return {
        "name": cut(option.name, 120),
        "chosen": option.name == chosen,
        "value": percent(option.value),
        "interval": MISSING if low is None else f"{percent(low)} {MISSING} {percent(high)}",
        "behind": MISSING if behind is None else percent(behind[0]) + noise,
        "seconds": duration(option.seconds),
        "size": size(option.bytes),
        "what": cut(f"{option.status}: {option.reason}" if option.reason else option.about, 300),
    }


def _sentence(text: str) -> str:
    plain = cut(text, 400)
    return f"{plain[:1].upper()}{plain[1:]}."
