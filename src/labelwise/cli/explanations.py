"""Explanations on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labelwise.cli.terminal import echo
from labelwise.methods.explanation_text import causes, shortened, title

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset
    from labelwise.methods.base import Method
    from labelwise.methods.explanation import Explanation


def show_explanation(one: Explanation) -> None:
    """Print one label: score, words, and its path in each tree."""
    echo(str(one))


def show_documents(model: Method, test: Dataset, rows: Sequence[int], k: int = 5) -> None:
    """Print documents with true and predicted labels, ticked if correct, and the words that caused each."""
    for row in rows:
        one = test.take(slice(row, row + 1))
        text = one.texts[0] if one.texts is not None else ""
        echo(f"\n{shortened(_first_line(text), 100) or f'document {row}'}")
        true = test.labels_of(row)
        echo(f"  true: {', '.join(true) or 'none'}")
        for predicted in model.explain(one, k=k, terms=None):
            tick = "✓" if predicted.label in true else " "
            name = shortened(title(predicted), 30)
            echo(f"  {tick} {name:<30} {predicted.score:.2f}  {causes(predicted)}".rstrip())


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
