"""Explanations as text: words with bars, paths with example labels of their nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from labelwise.formatting import cut, printable

if TYPE_CHECKING:
    from labelwise.model.explanation import Explanation, TreePath

BAR = 24
WORD = 32
TITLE = 200
CAUSES = 4


class Explanations(list[Any]):
    """The explanations of one document; `print` shows them as the command line does."""

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def __str__(self) -> str:
        return "\n\n".join(map(str, self))


def explanation_lines(one: Explanation) -> list[str]:
    """One label: score, words, and its path in each tree. Control characters are escaped."""
    unreached = "" if one.predicted else "   (not reached by the beam search)"
    lines = [f"{title(one)}   {named_score(one)}{unreached}", *_term_lines(one)]
    for number, path in enumerate(one.paths, 1):
        of = f" in tree {number}" if len(one.paths) > 1 else ""
        lines += [f"  path{of}, {plain_score(path.score, one.calibrated)}", *_path_lines(path)]
    return lines


def short_explanation(one: Explanation) -> str:
    """One line: label, score and the words that contributed most."""
    return f"{title(one)}   {named_score(one)}   {causes(one)}".rstrip()


def named_score(one: Any) -> str:
    """The score of a label, called a probability if it is one."""
    return f"{'probability' if one.calibrated else 'score'} {one.score:.4f}"


def plain_score(score: float, calibrated: bool) -> str:
    """A score of the model itself, which says so where the model's predictions are probabilities."""
    return f"score {score:.4f}{' before calibration' if calibrated else ''}"


def title(one: Any) -> str:
    """The label with its text."""
    named = f"{one.text} ({one.label})" if one.text and one.text != one.label else one.label
    return shortened(named, TITLE)


def causes(one: Any) -> str:
    """The words with the largest positive contributions."""
    return ", ".join([shortened(term.name, WORD) for term in one.terms if term.contribution > 0][:CAUSES])


def shortened(text: str, length: int) -> str:
    """On one line, with control characters escaped."""
    return cut(printable(text), length)


def _term_lines(one: Explanation) -> list[str]:
    rows = [(term.name, term.contribution) for term in one.terms]
    rows += [("other words", one.other)] if one.other else []
    rows += [("bias", one.bias)]
    largest = max((abs(value) for _, value in rows if math.isfinite(value)), default=0) or 1.0
    width = min(max(len(name) for name, _ in rows), WORD)
    mean = f", mean of {len(one.paths)} trees" if len(one.paths) > 1 else ""
    lines = [f"  margin {one.margin:+.3f}{mean}"]
    for name, value in rows:
        bar = ("█" if value > 0 else "░") * round(BAR * abs(value) / largest)
        lines.append(f"    {shortened(name, width):<{width}}  {value:+.3f}  {bar}".rstrip())
    return lines


def _path_lines(path: TreePath) -> list[str]:
    lines = []
    for depth, step in enumerate(path.steps, 1):
        last = depth == len(path.steps)
        what = "the label" if last else f"node {step.node} of level {depth}: {step.n_labels:,} labels"
        some = "" if last else f", such as {', '.join(shortened(name, 24) for name in step.examples)}"
        off = "" if step.kept else "  - outside the beam"
        lines.append(f"    {step.margin:+.3f} -> {step.score:.3f}  {what}{some}{off}")
    return lines
