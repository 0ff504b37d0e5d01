"""Explanations on the terminal: words with bars, paths with example labels of their nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labelwise.cli.terminal import echo
from labelwise.formatting import cut, printable

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.methods.base import Method
    from labelwise.methods.explanation import Explanation, Term, TreePath

BAR = 24
WORD = 32
TITLE = 200
CAUSES = 4


def show_explanation(one: Explanation) -> None:
    """Print one label: score, words, and its path in each tree."""
    unreached = "" if one.predicted else "   (not reached by the beam search)"
    echo(f"{_title(one.label, one.text)}   score {one.score:.4f}{unreached}")
    _show_terms(one)
    for number, path in enumerate(one.paths, 1):
        of = f" in tree {number}" if len(one.paths) > 1 else ""
        echo(f"  path{of}, score {path.score:.4f}")
        _show_path(path)


def _show_terms(one: Explanation) -> None:
    rows = [(term.name, term.contribution) for term in one.terms]
    rows += [("other words", one.other)] if one.other else []
    rows += [("bias", one.bias)]
    largest = max((abs(value) for _, value in rows if math.isfinite(value)), default=0) or 1.0
    width = min(max(len(name) for name, _ in rows), WORD)
    mean = f", mean of {len(one.paths)} trees" if len(one.paths) > 1 else ""
    echo(f"  margin {one.margin:+.3f}{mean}")
    for name, value in rows:
        bar = ("█" if value > 0 else "░") * round(BAR * abs(value) / largest)
        echo(f"    {_shortened(name, width):<{width}}  {value:+.3f}  {bar}".rstrip())


def _show_path(path: TreePath) -> None:
    for depth, step in enumerate(path.steps, 1):
        last = depth == len(path.steps)
        what = "the label" if last else f"node {step.node} of level {depth}: {step.n_labels:,} labels"
        some = "" if last else f", such as {', '.join(_shortened(name, 24) for name in step.examples)}"
        off = "" if step.kept else "  - outside the beam"
        echo(f"    {step.margin:+.3f} -> {step.score:.3f}  {what}{some}{off}")


def show_documents(model: Method, test: Dataset, rows: Sequence[int], k: int = 5) -> None:
    """Print documents with true and predicted labels, ticked if correct, and the words that caused each."""
    for row in rows:
        one = test.take(slice(row, row + 1))
        text = one.texts[0] if one.texts is not None else ""
        echo(f"\n{_shortened(_first_line(text), 100) or f'document {row}'}")
        true = test.labels_of(row)
        echo(f"  true: {', '.join(true) or 'none'}")
        for predicted in model.explain(one, k=k, terms=None):
            tick = "✓" if predicted.label in true else " "
            name = _shortened(_title(predicted.label, predicted.text), 30)
            echo(f"  {tick} {name:<30} {predicted.score:.2f}  {_causes(predicted.terms)}".rstrip())


def _causes(terms: Sequence[Term]) -> str:
    """The words with the largest positive contributions."""
    return ", ".join([_shortened(term.name, WORD) for term in terms if term.contribution > 0][:CAUSES])


def _title(label: str, text: str | None) -> str:
    return _shortened(f"{text} ({label})" if text and text != label else label, TITLE)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _shortened(text: str, length: int) -> str:
    """On one line, with control characters escaped."""
    return cut(printable(text), length)
