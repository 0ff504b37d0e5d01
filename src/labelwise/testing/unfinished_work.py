"""What every method must do with unfinished work: resume to the same bytes, and use it for the same training only."""

from __future__ import annotations

import os
import random
import shutil
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import sparse

from labelwise.config import PART, ignored_fields
from labelwise.data.dataset import Dataset
from labelwise.errors import LabelwiseError
from labelwise.io import atomic
from labelwise.model.method import NESTED, Method
from labelwise.runtime.job import Job
from labelwise.strings import Strings
from labelwise.testing.checks import CHECKS, check
from labelwise.testing.subject import Subject, planted, require

__all__ = ["CHECKS"]

STOPS, CHANGES = 5, 6
"""How many interruptions and changes the checks of `check_method` try; which ones, a seed decides."""
WIDTH = 16
"""Of vectors next to texts."""
Fit = Callable[[Method, Dataset, Dataset | None, Path, Callable[..., None]], Method]
Learned = dict[str, tuple[str, tuple[int, ...], bytes]]


def fit_in(method: Method, train: Dataset, valid: Dataset | None, folder: Path, log: Callable[..., None]) -> Method:
    """Fit with a folder for unfinished work."""
    return method.fit(train, valid=valid, job=Job(folder, log))


class Stopped(BaseException):
    """The interruption of a fit: nothing that catches errors catches it."""


class Events:
    """Counts what a fit writes to its folder and what it logs; stops it before event number `stop`, once."""

    def __init__(self, folder: Path, stop: int | None = None) -> None:
        self.folder, self.stop, self.count = folder, stop, 0

    def happens(self) -> None:
        """One more write or call of the log."""
        self.count += 1
        if self.count == self.stop:
            raise Stopped

    def log(self, **_numbers: Any) -> None:
        """The log of the fit."""
        self.happens()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block, files and folders that get their names below the folder are events."""

        def watched(rename: Callable[..., Any]) -> Callable[..., Any]:
            def renamed(new: Any, target: Any, *more: Any, **named: Any) -> Any:
                if Path(os.fspath(target)).is_relative_to(self.folder):
                    self.happens()
                return rename(new, target, *more, **named)

            return renamed

        with ExitStack() as stack:
            for owner, name in ((os, "replace"), (atomic, "_exchange")):
                stack.enter_context(patch.object(owner, name, watched(getattr(owner, name))))
            yield


def learned(model: Method) -> Learned:
    """All that a model has learned, by name: type, shape and bytes of each array, those of members too."""
    found = {
        name: (str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())
        for name, array in model.fitted_.tensors().items()
    }
    for number, member in enumerate(getattr(model, "members_", ())):
        found |= {f"member {number}: {name}": array for name, array in learned(member).items()}
    return found


def attempt(
    method: Method, data: tuple[Dataset, Dataset | None], folder: Path, fit: Fit, stop: int | None = None
) -> tuple[Learned | None, int]:
    """Fit once; what was learned, None if it was stopped, and the number of events."""
    events = Events(folder, stop)
    model = None
    with suppress(Stopped), events.watching():
        model = fit(method, *data, folder, events.log)
    return None if model is None else learned(model), events.count


# --- check 1 ---


def inexact_stops(
    subject: Subject, kind: str, folder: Path, stops: int | None = STOPS, seed: int = 0, fit: Fit = fit_in
) -> list[int]:
    """Interruptions after which a resumed fit has learned something else; of as many as wished for, None: of all.

    A fit is stopped before a write or call of the log, and started again by a method that knows nothing of it.
    """
    data = documents(subject, kind)
    whole, count = attempt(_writing(subject()), data, folder / "whole", fit)
    numbers = range(1, count + 1)
    chosen = numbers if stops is None else sorted(random.Random(seed).sample(numbers, min(stops, count)))
    found = []
    for number in chosen:
        work = folder / f"stopped-{number}"
        stopped, _ = attempt(_writing(subject()), data, work, fit, number)
        require(
            stopped is None, f"{kind}: the fit has {count} writes and lines of its log, and then fewer than {number}"
        )
        resumed, _ = attempt(_writing(subject()), data, work, fit)
        if resumed != whole:
            found.append(number)
        shutil.rmtree(work, ignore_errors=True)
    return found


@check
def check_resumes_exactly(subject: Subject, tmp_path: Path) -> None:
    """A fit that is stopped anywhere and started again learns the same, to the last bit."""
    kind = subject.kinds()[0]
    found = inexact_stops(subject, kind, tmp_path)
    require(not found, f"{kind}: stopped before its writes or log lines {found}, the fit resumes to another result")


def _writing(method: Method) -> Method:
    """The method with a checkpoint after every step, where it has such a setting."""
    every = [name for name in method.get_params() if name.rpartition(NESTED)[2] == "checkpoint_every"]
    return method.set_params(**{f"{name}{NESTED}steps": 1 for name in every})


# --- check 2 ---


@dataclass(frozen=True)
class Change:
    """Something that decides a result: a field of the config, a part of the data, or what a named file holds."""

    name: str
    method: Callable[[], Method]
    data: tuple[Dataset, Dataset | None]
    before: Callable[[], None] = lambda: None
    """Called before the fit with the change, and `after` before the next one without it."""
    after: Callable[[], None] = lambda: None
    is_field: bool = False


def wrongly_reused(
    subject: Subject,
    kind: str,
    folder: Path,
    changes: int | Collection[str] | None = CHANGES,
    seed: int = 0,
    fit: Fit = fit_in,
    remake: Mapping[str, Callable[[int], None]] | None = None,
) -> list[str]:
    """Changes after which a fit has used work of the training before them: it learns something else in a fresh folder.

    Parameters
    ----------
    subject, kind, folder
        The method, the type of documents it reads, and where its work goes.
    changes, seed
        How many changes to try, half of the data, a document first, and half of fields that decide a trained part; each
        with what a finished fit or a stopped one has left. With both, those of these names or, with None, all.
    fit
        Starts a fit.
    remake
        By what it is, a function that writes a file or folder that the config names, with other contents for each
        number; it was called with 0 before.
    """
    data, draw = documents(subject, kind), random.Random(seed)
    left = [folder / "finished", folder / "stopped"]
    before, count = attempt(_writing(subject()), data, left[0], fit)
    attempt(_writing(subject()), data, left[1], fit, count)
    files = [Change(name, subject, data, partial(make, 1), partial(make, 0)) for name, make in (remake or {}).items()]
    of_data = [*_data_changes(subject, kind, data), *files]
    of_fields = _field_changes(subject, data, draw)
    if isinstance(changes, int):
        first, *others = of_data  # a document
        drawn = draw.sample(others, min(changes - changes // 2 - 1, len(others)))
        chosen = [first, *drawn, *islice(of_fields, changes // 2)]
    else:
        chosen = [one for one in (*of_data, *of_fields) if changes is None or one.name in changes]
    found = []
    for change in chosen:
        used = [draw.choice(left)] if isinstance(changes, int) else left
        if not _is_used_for_nothing_else(change, before, used, folder, fit):
            found.append(change.name)
    return found


def _is_used_for_nothing_else(change: Change, before: Any, left: Sequence[Path], folder: Path, fit: Fit) -> bool:
    """Whether a fit with the change learns the same in a fresh folder and in those with work from before it."""
    change.before()
    try:
        fresh, _ = attempt(_writing(change.method()), change.data, folder / "fresh", fit)
        for path in left if fresh != before else ():
            if path.exists():
                shutil.copytree(path, folder / "used")
            used, _ = attempt(_writing(change.method()), change.data, folder / "used", fit)
            shutil.rmtree(folder / "used", ignore_errors=True)
            if used != fresh:
                return False
    except LabelwiseError:
        if not change.is_field:  # some values do not fit to the data
            raise
    finally:
        change.after()
        shutil.rmtree(folder / "fresh", ignore_errors=True)
        shutil.rmtree(folder / "used", ignore_errors=True)
    return True


@check
def check_never_reuses(subject: Subject, tmp_path: Path) -> None:
    """Unfinished work of other settings or other data is not used."""
    kind = subject.kinds()[0]
    found = wrongly_reused(subject, kind, tmp_path)
    require(not found, f"{kind}: unfinished work from before these changes is used after them: {', '.join(found)}")


def documents(subject: Subject, kind: str, n_documents: int = 60, n_labels: int = 12) -> tuple[Dataset, Dataset]:
    """Planted documents to train on and held-out ones, texts of labels, and vectors next to texts if they are read."""
    sizes = {"n_documents": n_documents + 12, "n_labels": n_labels}
    data = replace(planted(kind, **sizes), label_texts=Strings.of(f"about word{label}x0" for label in range(n_labels)))
    if subject.vectors:
        data = replace(data, features=planted("features", **sizes).features[:, :WIDTH].toarray())
    return data.take(slice(0, n_documents)), data.take(slice(n_documents, None))


def _data_changes(subject: Subject, kind: str, data: tuple[Dataset, Dataset]) -> Iterator[Change]:
    train, valid = data
    changed = {
        "document": _with_other_document(train, kind),
        "label": replace(train, labels=_with_other_label(train)),
        "label's value": replace(train, labels=_with_other_values(train)),
        "label's name": replace(train, label_names=Strings.of(["renamed", *train.label_names[1:]])),
        "label's text": replace(train, label_texts=Strings.of(list(train.label_texts or ())[::-1])),
    }
    if kind == "texts" and train.features is not None:
        changed["features next to texts"] = _with_other_document(train, "features")
    for name, other in changed.items():
        held_out = replace(valid, label_names=other.label_names, label_texts=other.label_texts)
        yield Change(name, subject, (other, held_out))
    if train.features is not None:
        yield Change("width of the features", subject, (_wider(train), _wider(valid)))
    if subject().validates:
        yield Change("held-out document", subject, (train, _with_other_document(valid, kind)))
        yield Change("held-out label", subject, (train, replace(valid, labels=_with_other_label(valid))))


def _with_other_document(data: Dataset, kind: str) -> Dataset:
    """The data with another last document: the first one."""
    rows = np.arange(len(data))
    rows[-1] = 0
    return replace(data, **{kind: getattr(data.take(rows), kind)})


def _with_other_label(data: Dataset) -> Any:
    """The label matrix with another label for the last document."""
    labels = sparse.lil_array(data.labels)
    labels[-1] = 0
    labels[-1, (data.labels.indices[-1] + 1) % data.n_labels] = 1
    return sparse.csr_array(labels)


def _with_other_values(data: Dataset) -> Any:
    """The label matrix with another relevance for each label."""
    return sparse.csr_array(data.labels * np.linspace(1, 2, data.n_labels, dtype=np.float32)[None])


def _wider(data: Dataset) -> Dataset:
    """The data with one more feature that no document has."""
    if isinstance(data.features, np.ndarray):
        return replace(data, features=np.pad(data.features, ((0, 0), (0, 1))))
    matrix: Any = data.features
    parts = (matrix.data, matrix.indices, matrix.indptr)
    return replace(data, features=sparse.csr_array(parts, (matrix.shape[0], matrix.shape[1] + 1)))


def _field_changes(subject: Subject, data: tuple[Dataset, Dataset], draw: random.Random) -> Iterator[Change]:
    """Fields that decide a trained part, one at a time with another value that the config accepts."""
    names = _named_fields(subject())
    for name in draw.sample(names, len(names)):
        other = _other_value(subject, name)
        if other is not None:
            changed = partial(lambda **values: subject().set_params(**values), **{name: other})
            yield Change(name, changed, data, is_field=True)


def _named_fields(method: Method) -> list[str]:
    """Names of the fields that decide a trained part, those of sections with their section in front."""
    params, ignored = method.get_params(), ignored_fields(type(method.config), PART)

    def decides(name: str) -> bool:
        inner: Any = ignored
        for part in name.split(NESTED):
            inner = inner.get(part, {}) if isinstance(inner, Mapping) else inner
        return inner is not True

    sections = {name.rpartition(NESTED)[0] for name in params}
    return [name for name in params if name not in sections and decides(name)]


def _other_value(subject: Subject, name: str) -> Any:
    """Another value of a field that the config accepts; None if none was found."""
    value, owner = subject().get_params()[name], subject().config
    for part in name.split(NESTED)[:-1]:
        owner = getattr(owner, part)
    field = type(owner).model_fields[name.rpartition(NESTED)[2]]
    for other in _candidates(value, field.annotation):
        with suppress(LabelwiseError):
            if subject().set_params(**{name: other}).get_params()[name] != value:
                return other
    return None


def _candidates(value: Any, annotation: Any) -> Iterator[Any]:
    """Values that a field may take instead of the one it has, by that value and by its type."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1, value / 2, value + 0.25, value * 1.5)
    elif isinstance(value, list | tuple) and value and all(isinstance(one, int) for one in value):
        yield [one + 1 for one in value]
    types = [annotation]
    while types:
        one = types.pop()
        if typing.get_origin(one) is typing.Literal:
            yield from typing.get_args(one)
        elif one in (int, float):
            yield from (2, 1, 0.5)
        else:
            types += [inner for inner in typing.get_args(one) if isinstance(inner, type) or typing.get_args(inner)]
