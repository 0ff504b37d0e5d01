"""The example documents of a run's report: cards, and what the browser of examples searches and filters by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from labelwise.formatting import MISSING, cut, number
from labelwise.report.drawing import thinned
from labelwise.report.label_sections import label_title
from labelwise.report_schema import Example, PredictedLabel

MAX_EXAMPLES = 100
SHOWN_AT_FIRST = 4
MAX_TRUE_LABELS = 30
MAX_PREDICTED_LABELS = 10
DATA_URI = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]{1,60000}={0,2}")
"""Images that a run may put on a page."""
FIRST_RIGHT, FIRST_WRONG, ALL_FOUND, NONE_FOUND = "first-right", "first-wrong", "all-found", "none-found"
FILTERS = (
    (FIRST_RIGHT, "best label right"),
    (FIRST_WRONG, "best label wrong"),
    (ALL_FOUND, "all true labels found"),
    (NONE_FOUND, "no true label found"),
)


def example_cards(examples: Sequence[Example]) -> dict[str, Any]:
    """Documents with their true and predicted labels, evenly spaced among all examples."""
    shown = thinned(examples, MAX_EXAMPLES)
    counted = f"{len(shown)} of {len(examples)}" if len(shown) < len(examples) else f"{len(shown)}"
    caption = (
        f"{counted} documents. ✓: both true and predicted; the number after a true label counts its training documents."
    )
    cards = [_example(example) for example in shown]
    kinds = {kind for card in cards for kind in card["kinds"]}
    return {"shown": cards, "caption": caption, "filters": [one for one in FILTERS if one[0] in kinds]}


def _example(example: Example) -> dict[str, Any]:
    predicted = example.predicted[:MAX_PREDICTED_LABELS]
    predicted_names = {label.label for label in predicted}
    widths = _widths(predicted)
    return {
        "id": cut(example.id, 120) or "document",
        "kinds": _kinds(example),
        "text": cut(example.text, 700),
        "images": [uri for uri in (example.image, example.map) if uri and DATA_URI.fullmatch(uri)],
        "truth": [
            {
                "name": label_title(label.label, label.text),
                "hint": cut(label.label, 200),
                "count": number(label.count) if label.count is not None else None,
                "predicted": label.label in predicted_names,
            }
            for label in example.truth[:MAX_TRUE_LABELS]
        ],
        "more_truth": max(0, len(example.truth) - MAX_TRUE_LABELS),
        "predicted": [
            {
                "name": label_title(label.label, label.text),
                "score": MISSING if label.score is None else f"{label.score:.3g}",
                "correct": label.correct,
                "width": width,
            }
            for label, width in zip(predicted, widths, strict=True)
        ],
    }


def _kinds(example: Example) -> list[str]:
    """The filters that an example passes."""
    kinds = []
    if example.predicted:
        kinds.append(FIRST_RIGHT if example.predicted[0].correct else FIRST_WRONG)
    if example.truth:
        found = {label.label for label in example.predicted} & {label.label for label in example.truth}
        kinds += [ALL_FOUND] if len(found) == len({label.label for label in example.truth}) else []
        kinds += [] if found else [NONE_FOUND]
    return kinds


def _widths(predicted: Sequence[PredictedLabel]) -> list[float]:
    """Lengths of the bars in per cent: probabilities unchanged, other scores scaled to the range of the row."""
    scores = [label.score for label in predicted]
    known = [score for score in scores if score is not None]
    if not known:
        return [0.0] * len(scores)
    low, high = (0.0, 1.0) if min(known) >= 0 and max(known) <= 1 else (min(0.0, min(known)), max(known))
    reach = (high - low) or 1.0
    return [0.0 if score is None else round(100 * (score - low) / reach, 1) for score in scores]
