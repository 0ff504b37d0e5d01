"""The card of a model: what it was trained on and with, how good it is, how its documents are read, what changed later.

It is one JSON file of the model folder, for commands, and a page made from it for people (`card_page`). It may come
from a stranger: its values are checked when they are read, nothing in it is executed, and no path in it is opened.
Predictions never depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AwareDatetime, Field

from labelwise.data.dataset import Dataset
from labelwise.data.formats.csv import EXTENSION as XLSX
from labelwise.data.formats.csv import TEXT_OPTIONS
from labelwise.data.hashing import dataset_hash
from labelwise.data.options import ReadOptions, split_of, stem_and_extension
from labelwise.data.read import AUTO, find_parts
from labelwise.errors import DataError, LabelwiseError, ModelFormatError
from labelwise.formatting import counted, cut, number, percent, printable
from labelwise.io import folder as store
from labelwise.io.folder import CARD_FILE
from labelwise.io.json import Record, validate
from labelwise.model.fitted import ModelLabels
from labelwise.registry import installed_versions, method_package

if TYPE_CHECKING:
    from labelwise.metrics.evaluate import Evaluation
    from labelwise.model.calibration import CalibrationReport
    from labelwise.model.method import Method


# --- card page ---
# The card of a model as a page in Markdown, README.md of the model folder: what a person who finds the folder needs.
#
# It is made from card.json, the manifest and the labels whenever the card is written, and never read. Everything that
# comes from data (names of files, labels, metrics) is in code spans, where neither Markdown nor HTML is interpreted.

SHOWN_LABELS = 10
CARD_PAGE_SHOWN_CHANGES = 20
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
    what = f"{_count(about.get('n_labels'))} labels for {reads}"
    return (
        f"# A model of labelwise: {what}\n\nIt ranks {what}, by the method {method}{several}. The folder "
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
            for change in card.changes[-CARD_PAGE_SHOWN_CHANGES:]
        ]
        lines.append("\n".join(dated))
    return "\n\n".join(lines)


def _labels(labels: ModelLabels) -> str:
    counts = labels.counts
    top = np.argsort(-counts[:], kind="stable")[:SHOWN_LABELS] if counts.any() else np.arange(0)
    rare = "whose training documents are not known"
    if counts.any():
        rare = f"of which {number(_rare(counts))} have fewer than {RARE} training documents"
    lines = ["## Labels", f"{number(len(counts))} labels, {rare}."]
    if len(top):
        lines.append("The most frequent, with their training documents:")
        lines.append("\n".join(f"- {_label(labels, int(i))}: {number(int(counts[i]))}" for i in top))
    return "\n\n".join(lines)


def _label(labels: ModelLabels, index: int) -> str:
    text = None if labels.texts is None else labels.texts[index]
    name = labels.names[index]
    return code(name) if not text or text == name else f"{code(text)} ({code(name, 60)})"


def _rare(counts: np.ndarray) -> int:
    """How many labels are rare; 0 if that is not known."""
    return int((counts < RARE).sum()) if counts.any() else 0


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
    commands = f"""```bash
pip install labelwise
labelwise info MODEL
labelwise predict MODEL {example_documents(kind, plain)} -o suggestions.csv{threshold}
```"""
    lines = f"""```python
import labelwise as lw

model = lw.load("MODEL")
top = model.predict({ARGUMENTS.get(kind, "documents")}, k=5)
print(top.to_lists())
```"""
    parts = ["## Use", "`MODEL` is the path of this folder.", commands, lines]
    plugin = about.get("plugin")
    if isinstance(plugin, dict):
        parts.append(f"The method comes from the package {code(plugin.get('package'))}.")
    return "\n\n".join(parts)


def _limits(card: Card, about: Mapping[str, Any], labels: ModelLabels) -> str:
    rare = _rare(labels.counts)
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
    listed = ", ".join(code(f"{name} {version or ''}".strip(), 80) for name, version in card.packages.items())
    return f"## Versions\n\n{listed}" if listed else ""


PAGE_FILE = "README.md"
MAX_BYTES = 1 << 20
MAX_NAME = 200
SHOWN_CHANGES = 3
MAX_CHANGES = 1000
"""The last changes are kept: a model may learn every few minutes, and its card has to stay readable."""
TABLES = {".csv", XLSX}
"""Extensions of files that are read with the same options."""
CORE_PACKAGES = ("numpy", "scipy", "numba")

Text = Annotated[str, Field(max_length=2000)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class TrainingData(Record):
    """What the model was trained on."""

    name: Text | None = None
    hash: Text | None = None
    """One hash of all documents and their labels, in order: the same data has the same hash."""
    documents: Count | None = None
    labels: Count | None = None


class Reading(Record):
    """How the training documents were read."""

    extension: Text = ""
    """Of the file, or of the files in a folder, such as `.csv`; the options apply to files of this type, compressed or
    not."""
    format: Text = "auto"
    options: dict[Text, Text | bool | int | None] = {}
    """Fields of `ReadOptions` that differ from the defaults, without paths."""

    @classmethod
    def of(cls, path: str, format: str, options: ReadOptions) -> Reading:
        """As a run reads the training documents at this path."""
        chosen = {key: getattr(options, key) for key in sorted(options.chosen - {"label_names"})}
        return cls(extension=cut(_extension(path, format), MAX_NAME), format=format, options=chosen)

    def options_for(self, path: str) -> dict[str, Any]:
        """The options for reading a file of the same type; none for others."""
        suffix = _extension(path)
        if suffix != self.extension and not {suffix, self.extension} <= TABLES:
            return {}
        unused = TEXT_OPTIONS if suffix == XLSX else ()
        return {key: value for key, value in self.options.items() if key not in ("label_names", *unused)}


def _extension(path: str, format: str = AUTO) -> str:
    """The extension of a file without that of its compression; of a folder, that of its first part."""
    file = Path(path)
    try:
        if file.is_dir():
            file = next(iter(find_parts(file, format)[1].values()))
        return "" if file.is_dir() else stem_and_extension(file)[1]
    except (LabelwiseError, OSError):
        return ""  # whoever reads the folder reports what is wrong


class Scores(Record):
    """An evaluation."""

    data: Text | None = None
    documents: Count | None = None
    at: AwareDatetime | None = None
    values: dict[Text, float | None] = {}
    intervals: dict[Text, tuple[float, float] | None] = {}

    @classmethod
    def of(cls, evaluation: Evaluation, data: Dataset) -> Scores:
        """Of an evaluation that has just been made."""
        found = evaluation.to_dict()
        name, count = short_name(data.name), len(data)
        return cls(data=name, documents=count, at=now(), values=found["values"], intervals=found["intervals"])


class CalibrationNote(Record):
    """The calibration: on what, when, and what it promises."""

    data: Text | None = None
    documents: Count | None = None
    at: AwareDatetime | None = None
    threshold: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None

    @classmethod
    def of(cls, report: CalibrationReport, data: str) -> CalibrationNote:
        """Of a calibration that has just been fitted."""
        return cls(
            data=short_name(data), documents=report.n_documents, at=now(), threshold=report.threshold,
            precision=report.precision, recall=report.recall, f1=report.f1,
        )  # fmt: skip


class Change(Record):
    """A change of the trained model, such as smaller weights."""

    at: AwareDatetime | None = None
    what: Text
    refit: bool = False
    """Whether it is the second training of a run, which the scores are meant for."""


class Card(Record):
    """All of card.json. Every part may be missing; that of a folder without a card is empty."""

    created: AwareDatetime | None = None
    data: TrainingData = TrainingData()
    reading: Reading | None = None
    scores: Scores | None = None
    calibration: CalibrationNote | None = None
    packages: dict[Text, Text | None] = {}
    """Versions of labelwise, Python and the packages that the method uses."""
    changes: tuple[Change, ...] = ()

    def with_change(self, what: str, refit: bool = False) -> Card:
        """The card with one more change, made now; the oldest are left out if there are many."""
        changes = (*self.changes, Change(at=now(), what=what, refit=refit))[-MAX_CHANGES:]
        return self.model_copy(update={"changes": changes})

    def note_on_changes(self, judged: datetime | None = None) -> str | None:
        """A warning that scores are those of an earlier model; None if it has not changed since it was judged.

        Without the time at which it was judged, every change but a refit is later.
        """
        later = [
            f"{change.what} ({change.at:%Y-%m-%d})" if change.at else change.what
            for change in self.changes
            if not change.refit and (judged is None or change.at is None or change.at >= judged)
        ]
        more = [f"and {len(later) - SHOWN_CHANGES:,} before"] if len(later) > SHOWN_CHANGES else []
        listed = ", ".join(later[-SHOWN_CHANGES:] + more)
        return f"the model has changed since it was judged: {listed}" if later else None


def card_of(method: Method, data: Dataset | None, hashes: np.ndarray) -> Card:
    """The card of a model that has just been trained on this data, given the hashes of the documents."""
    plugin = method_package(method.name)
    packages = [*CORE_PACKAGES, *method.fact("needs"), *([plugin[0]] if plugin else [])]
    about = TrainingData(labels=len(method.label_names_))
    if data is not None:
        name, content = short_name(data.name), dataset_hash(data, hashes)
        about = TrainingData(name=name, hash=content, documents=len(data), labels=data.n_labels)
    return Card(created=now(), data=about, packages=installed_versions(packages))


def short_name(name: str) -> str:
    """The name of a data set without the folders of the machine: `catalogue.csv`, `eurlex57k/train_texts.txt`."""
    path = Path(name)
    in_folder = split_of(stem_and_extension(path)[0]) is not None and path.parent.name
    return cut(f"{path.parent.name}/{path.name}" if in_folder else path.name or name, MAX_NAME)


def now() -> datetime:
    """The time in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def write_card(card: Card, folder: store.FolderWriter, labels: ModelLabels) -> None:
    """Write the card into a model folder that is being written, for programs and (not of a member) for people."""
    folder.write_json(CARD_FILE, card.model_dump(mode="json", exclude_none=True))
    if not folder.prefix:
        folder.write_page(PAGE_FILE, card_page(card, folder.about, labels))


def read_card(folder: store.Folder) -> Card:
    """The card of a model folder; an empty one if it has none."""
    path, listed = folder.file(CARD_FILE), folder.manifest["files"].get(CARD_FILE)
    if listed is None:
        return Card()
    if listed["bytes"] > MAX_BYTES:
        raise ModelFormatError(f"{path}: larger than {MAX_BYTES >> 20} MiB, the limit for the card of a model")
    try:
        return validate(folder.read_json(CARD_FILE), Card, path)
    except DataError as error:
        raise ModelFormatError(str(error)) from None


def update_card(path: str | Path, changes: Mapping[str, Any]) -> Card:
    """Replace fields of the card in a model folder; the folder changes in one step."""
    before = store.Folder(path, "model")
    card = read_card(before).model_copy(update=dict(changes))
    with store.update_folder(path, "model", {}) as folder:
        write_card(card, folder, ModelLabels.unchecked(before))
    return card
