"""Reads and validates the files of a run folder. Reports are a pure function of what is returned here.

Every file may be missing: a run that was stopped has only some. A damaged file is an error that names it, because a
report that silently leaves out figures would be worse than none. The per-label table can have millions of lines, so it
is streamed and only a few lines of it are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource
from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import (
    AUTO,
    CONFIG,
    CONFUSION,
    EXAMPLES,
    LABELS,
    MACHINE,
    MANIFEST,
    METRICS,
    MODEL,
    RESULTS,
    STATE,
    Folder,
)
from labelwise.io.json import (
    parse_json,
    read_json,
    read_lines,
    read_text,
    validate,
)
from labelwise.model.card import read_card
from labelwise.report.label_lines import LabelTable, read_labels
from labelwise.report.schema import (
    AutoRecord,
    Confusions,
    Example,
    Machine,
    Results,
    State,
    read_metrics,
)

FILES = (CONFIG, STATE, METRICS, RESULTS, MACHINE, EXAMPLES, LABELS)

MAX_EXAMPLES = 200


@dataclass(frozen=True)
class Run:
    """The contents of a run folder; None or empty where the file is missing."""

    folder: Path
    config: str | None
    data_section: dict[str, Any]
    """The section `data` of the config."""
    state: State
    metrics: tuple[dict[str, Any], ...]
    results: Results | None
    machine: Machine | None
    examples: tuple[Example, ...]
    labels: LabelTable | None
    confusions: Confusions
    """Empty for methods without a tree, and for older runs."""
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    model_changes: str | None
    """A warning if the model has changed since the results were written."""
    tried: AutoRecord | None = None
    """What `labelwise auto` has tried before it chose the method of this run."""

    @property
    def name(self) -> str:
        """The run's name, or the folder's if it has none."""
        return self.state.name or self.folder.resolve().name

    @property
    def data_name(self) -> str | None:
        """The name of the data: as in the config, or as in the results."""
        given = (self.data_section.get(key) for key in ("path", "train"))
        return next((name for name in given if isinstance(name, str) and name), self._name_of("train"))

    @property
    def test_set(self) -> tuple[str | None, ...]:
        """Identity of the test set, which must be equal for scores to be comparable: split, name and size."""
        if self.results is None:
            return ()
        name = self._name_of(self.results.split) or self.data_name
        # The same files may be given by a relative path in one run and an absolute one in another.
        short = "/".join(Path(name).parts[-2:]) if name else None
        part = self.results.data.get(self.results.split)
        occurrences = part.get("occurrences") if isinstance(part, dict) else None
        return self.results.split, short, str(self.results.n_documents), str(occurrences)

    def _name_of(self, part: str) -> str | None:
        about = self.results.data.get(part) if self.results else None
        name = about.get("name") if isinstance(about, dict) else None
        return name if isinstance(name, str) and name else None


def read_run(folder: str | Path) -> Run:
    """Read a run folder; what is missing is listed in `missing`, what is damaged raises a DataError."""
    path = Path(folder)
    if not path.is_dir():
        raise DataError("there is no such run folder", path)
    missing = tuple(name for name in FILES if not (path / name).is_file())
    if len(missing) == len(FILES):
        raise DataError(f"not a run folder: it contains none of {', '.join(FILES)}", path)
    notes: list[str] = []
    config = read_text(path / CONFIG) if CONFIG not in missing else None
    section = ConfigSource.from_yaml(config, str(path / CONFIG)).values.get("data") if config else None
    return Run(
        folder=path,
        config=config,
        data_section=section if isinstance(section, dict) else {},
        state=read_json(path / STATE, State) if STATE not in missing else State(),
        metrics=read_metrics(path / METRICS, notes) if METRICS not in missing else (),
        results=read_json(path / RESULTS, Results) if RESULTS not in missing else None,
        machine=read_json(path / MACHINE, Machine) if MACHINE not in missing else None,
        examples=_examples(path / EXAMPLES) if EXAMPLES not in missing else (),
        labels=read_labels(path / LABELS) if LABELS not in missing else None,
        confusions=read_json(path / CONFUSION, Confusions) if (path / CONFUSION).is_file() else Confusions(),
        missing=missing,
        notes=tuple(notes),
        model_changes=None if RESULTS in missing else _model_changes(path / MODEL),
        tried=read_json(path / AUTO, AutoRecord) if (path / AUTO).is_file() else None,
    )


def _model_changes(folder: Path) -> str | None:
    if not (folder / MANIFEST).is_file():
        return None
    try:
        return read_card(Folder(folder, "model", verify=False)).note_on_changes()
    except ModelFormatError as error:
        return f"whether the model has changed since it was judged is not known: {error}"


def _examples(path: Path) -> tuple[Example, ...]:
    examples: list[Example] = []
    for number, line in read_lines(path):
        if line.strip() and len(examples) < MAX_EXAMPLES:
            examples.append(validate(parse_json(line, path, number), Example, path, number))
    return tuple(examples)
