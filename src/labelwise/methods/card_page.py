"""The card of a model as a page in Markdown, README.md of the model folder: what a person who finds the folder needs.

It is made from card.json, the manifest and the labels whenever the card is written, and never read. Everything that
comes from data (names of files, labels, metrics) is in code spans, where neither Markdown nor HTML is interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.formatting import counted, cut, number, percent, printable

if TYPE_CHECKING:
    from labelwise.methods.card import CalibrationNote, Card, Scores
    from labelwise.methods.label_file import ModelLabels

SHOWN_LABELS = 10
SHOWN_CHANGES = 20
RARE = 5
"""Labels with fewer training documents are hard to learn."""
MAX_TEXT = 120
READS = {"texts": "texts", "features": "feature vectors", "paths": "files of images", "arrays": "arrays of images"}
ARGUMENTS = {"texts": '["a text"]', "paths": '["image.png"]', "features": "matrix", "arrays": "images"}


def card_page(card: Card, about: Mapping[str, Any], labels: ModelLabels) -> str:
    """The page; `about` is the manifest."""
    parts = [
        _heading(about),
        _data(card, about),
        _labels(labels),
        _scores(card.scores, card.note_on_changes(card.scores.at) if card.scores else None),
        _probabilities(card.calibration, bool(about.get("calibrated"))),
        _use(card, about),
        _limits(card, about, labels),
        _versions(card),
        "Made from `card.json`, which `labelwise info MODEL` shows in full; replaced whenever the card changes.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def code(text: object, most: int = MAX_TEXT) -> str:
    """Text from data as a code span on one line, also for cells of tables."""
    plain = cut(printable(" ".join(str(text).split())), most).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain.strip() else "`(empty)`"


def _count(value: object) -> str:
    """A number of the manifest, which may be anything in a folder of a stranger."""
    return number(value) if isinstance(value, int | float) else code(value)


def example_documents(kind: str | None, reading: Mapping[str, Any]) -> str:
    """Documents of a command: files of the type that the training documents had, else of one that can hold them."""
    extension = reading.get("extension") or {"features": ".npz", "arrays": ""}.get(str(kind), ".txt")
    if extension != ".txt" or kind in ("texts", "paths"):
        return f"documents{extension}"
    format = reading.get("format", "auto")
    return f"documents{extension} --format {'xc' if format == 'auto' else format}"  # .txt alone means texts


def _heading(about: Mapping[str, Any]) -> str:
    reads, method = READS.get(str(about.get("input")), "documents"), code(about.get("method"), 60)
    several = f", made of {_count(about['members'])} models" if about.get("members") else ""
    return (
        f"# A model of labelwise: {_count(about.get('n_labels'))} labels for {reads}\n\n"
        f"It ranks {_count(about.get('n_labels'))} labels for {reads}, by the method {method}{several}. The folder "
        "holds numbers and JSON only: loading it runs no code of its author."
    )


def _data(card: Card, about: Mapping[str, Any]) -> str:
    documents = about.get("n_documents")
    name = f" of {code(card.data.name)}" if card.data.name else ""
    size = f"{_count(documents)} documents" if documents else "documents that are not known (an imported model)"
    made = f", on {card.created:%Y-%m-%d}" if card.created else ""
    lines = ["## Data", f"Trained on {size}{name}{made}."]
    if card.data.hash:
        lines[-1] += f" Hash of documents and labels: {code(card.data.hash)}."
    reading = card.reading
    if reading is not None and reading.options:
        options = ", ".join(code(f"{key}={value}") for key, value in reading.options.items())
        lines.append(f"Files like the training file ({code(reading.extension or 'any')}) are read with {options}.")
    if card.changes:
        lines.append("Changed after training:")
        dated = [
            f"- {f'{change.at:%Y-%m-%d}: ' if change.at else ''}{code(change.what, 300)}"
            for change in card.changes[-SHOWN_CHANGES:]
        ]
        lines.append("\n".join(dated))
    return "\n\n".join(lines)


def _labels(labels: ModelLabels) -> str:
    counts = labels.counts
    top = np.argsort(-counts[:], kind="stable")[:SHOWN_LABELS] if counts.any() else np.arange(0)
    lines = ["## Labels", f"{number(len(counts))} labels, {_rare(counts)}."]
    if len(top):
        lines.append("The most frequent, with their training documents:")
        lines.append("\n".join(f"- {_label(labels, int(i))}: {number(int(counts[i]))}" for i in top))
    return "\n\n".join(lines)


def _label(labels: ModelLabels, index: int) -> str:
    text = None if labels.texts is None else labels.texts[index]
    name = labels.names[index]
    return code(name) if not text or text == name else f"{code(text)} ({code(name, 60)})"


def _rare(counts: np.ndarray) -> str:
    if not counts.any():
        return "whose training documents are not known"
    return f"of which {number(int((counts < RARE).sum()))} have fewer than {RARE} training documents"


def _scores(scores: Scores | None, changed: str | None) -> str:
    if scores is None or not scores.values:
        return "## Scores\n\nNot evaluated: `labelwise evaluate MODEL DATA` does that."
    where = code(scores.data) if scores.data else "test documents"
    on = f"On {number(scores.documents)} documents of {where}"
    at = f", {scores.at:%Y-%m-%d}" if scores.at else ""
    lines = ["| metric | % | 95 % interval |", "|---|---|---|"]
    for name, value in scores.values.items():
        interval = scores.intervals.get(name)
        span = "" if interval is None else f"{percent(interval[0])} to {percent(interval[1])}"
        lines.append(f"| {code(name, 40)} | {percent(value)} | {span} |")
    note = f"\n\n**Attention:** {code(changed, 400)}" if changed else ""
    return f"## Scores\n\n{on}{at}:\n\n" + "\n".join(lines) + note


def _probabilities(note: CalibrationNote | None, calibrated: bool) -> str:
    if not calibrated:
        return ""
    lines = "## Probabilities\n\nScores are calibrated probabilities."
    if note is None or note.threshold is None:
        return lines
    on = f" ({number(note.documents)} documents of {code(note.data)})" if note.data else ""
    return (
        f"{lines} At the threshold {note.threshold:.4g}, chosen on held-out documents{on}, expect precision "
        f"{percent(note.precision)} %, recall {percent(note.recall)} %, micro-F1 {percent(note.f1)} %."
    )


def _use(card: Card, about: Mapping[str, Any]) -> str:
    kind = str(about.get("input"))
    reading = card.reading.model_dump(exclude_none=True) if card.reading else {}
    plain = {key: value for key, value in reading.items() if re.fullmatch(r"[\w.]{1,20}", str(value))}
    threshold = " --threshold auto" if about.get("calibrated") else ""
    commands = [
        "pip install labelwise",
        "labelwise info MODEL",
        f"labelwise predict MODEL {example_documents(kind, plain)} -o suggestions.csv{threshold}",
    ]
    lines = [
        "import labelwise as lw",
        "",
        'model = lw.load("MODEL")',
        f"top = model.predict({ARGUMENTS.get(kind, 'documents')}, k=5)",
        "print(top.to_lists())",
    ]
    parts = ["## Use", "`MODEL` is the path of this folder.", _block("bash", commands), _block("python", lines)]
    plugin = about.get("plugin")
    if isinstance(plugin, dict):
        parts.append(f"The method comes from the package {code(plugin.get('package'))}.")
    return "\n\n".join(parts)


def _block(language: str, lines: Sequence[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _limits(card: Card, about: Mapping[str, Any], labels: ModelLabels) -> str:
    rare = int((labels.counts < RARE).sum()) if labels.counts.any() else 0
    lines = [
        "It predicts the labels it was trained on and no others; documents of another kind or language than the "
        "training documents have worse results than the scores say.",
        "Errors and preferences of the training labels are learned with them.",
    ]
    if rare:
        lines.append(
            f"{counted(rare, len(labels.counts))} labels have fewer than {RARE} training documents and are "
            "predicted correctly less often."
        )
    if not about.get("calibrated"):
        lines.append("Scores are not probabilities: they rank labels. `labelwise calibrate MODEL DATA` converts them.")
    if card.scores is None:
        lines.append("How good it is has not been measured.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _versions(card: Card) -> str:
    listed = ", ".join(_version_list(card.packages))
    return f"## Versions\n\n{listed}" if listed else ""


def _version_list(packages: Mapping[str, str | None]) -> Iterator[str]:
    for name, version in packages.items():
        yield code(f"{name} {version}" if version else name, 80)
