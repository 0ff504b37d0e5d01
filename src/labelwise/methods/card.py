"""The card of a model: what it was trained on and with, how good it is, how its documents are read, what changed later.

It is one JSON file of the model folder, for commands, and a page made from it for people (`card_page.py`). It may come
from a stranger: its values are checked when they are read, nothing in it is executed, and no path in it is opened.
Predictions never depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AwareDatetime, Field, ValidationError

from labelwise import store
from labelwise.data.dataset import Dataset
from labelwise.data.document_hash import dataset_hash
from labelwise.data.formats.workbook import EXTENSION as XLSX
from labelwise.data.formats.workbook import TEXT_OPTIONS
from labelwise.data.options import ReadOptions
from labelwise.data.read import AUTO, find_parts
from labelwise.data.splits import split_of, stem_and_extension
from labelwise.errors import LabelwiseError, ModelFormatError
from labelwise.formatting import cut
from labelwise.methods.card_page import card_page
from labelwise.methods.label_file import ModelLabels
from labelwise.registry import installed_versions, method_package
from labelwise.run_schema import Record

if TYPE_CHECKING:
    import numpy as np

    from labelwise.methods.base import Method
    from labelwise.methods.threshold import CalibrationReport
    from labelwise.metrics.evaluate import Evaluation

CARD_FILE, PAGE_FILE = "card.json", "README.md"
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
    """All of card.json. Every part may be missing; that of a model saved before there were cards is empty."""

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


def card_of(method: Method, data: Dataset, hashes: np.ndarray) -> Card:
    """The card of a model that has just been trained on this data, given the hashes of the documents."""
    plugin = method_package(method.name)
    packages = [*CORE_PACKAGES, *method.needs, *([plugin[0]] if plugin else [])]
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
    listed = folder.manifest["files"].get(CARD_FILE)
    if listed is None:
        return Card()
    path = folder.file(CARD_FILE)
    if listed["bytes"] > MAX_BYTES:
        raise ModelFormatError(f"{path}: larger than {MAX_BYTES >> 20} MiB, the limit for the card of a model")
    values = folder.read_json(CARD_FILE)
    try:
        return Card.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise ModelFormatError(f"{path}: damaged: {key}: {fault['msg'].removeprefix('Input ')}") from None


def update_card(path: str | Path, changes: Mapping[str, Any]) -> Card:
    """Replace fields of the card in a model folder; the folder changes in one step."""
    before = store.Folder(path, "model")
    card = read_card(before).model_copy(update=dict(changes))
    with store.update_folder(path, "model", {}) as folder:
        write_card(card, folder, ModelLabels.unchecked(before))
    return card
