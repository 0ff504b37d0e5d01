"""How an ensemble is fitted: members that are trained first, labels of all members, documents to learn on, the card."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labelwise.config import RESULT, deciding_fields
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import dataset_hash
from labelwise.data.out_of_core import scratch_at
from labelwise.ensembles.combine import (
    CALIBRATED,
    Combination,
    Held,
    fitted_calibrations,
    learned,
    needs_data,
    normalized,
)
from labelwise.ensembles.members import columns_of, common_labels, member_top
from labelwise.errors import DataError, LabelwiseError
from labelwise.io.atomic import replacing
from labelwise.io.run_schema import SCRATCH
from labelwise.linear.trees import side_by_side
from labelwise.metrics.names import parse_metric
from labelwise.model.calibration import are_right
from labelwise.model.card import CORE_PACKAGES, Card, TrainingData, now
from labelwise.model.inputs import (
    Overlap,
    TrainingDocuments,
    predict_in_blocks,
    predict_in_time,
    split_for_early_stopping,
)
from labelwise.model.method import Method, load
from labelwise.registry import installed_versions
from labelwise.runtime.finished import fingerprint, named_files
from labelwise.runtime.job import Job
from labelwise.runtime.progress import progress
from labelwise.runtime.tasks import current, refuse_time_budget
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.methods.ensemble import Ensemble

log = logging.getLogger("labelwise")

FRACTION, MOST_DOCUMENTS = 0.1, 5000
"""Documents held out from the training of members, if none are given."""
MOSTLY = 0.5
MODEL, FINISHED = "model", "fingerprint.txt"
"""Of a finished member: its folder, and the file with the fingerprint of its training."""
MAX_BYTES = 64


@dataclass(frozen=True, eq=False)
class MergedLabels:
    """The labels of all members, and the ids of each member's labels among them (None: the same)."""

    names: Strings
    columns: list[np.ndarray | None]
    texts: Strings | None
    counts: np.ndarray
    """Training documents per label, of the member that has most."""

    @classmethod
    def of(cls, members: Sequence[Method], first: Strings | None) -> MergedLabels:
        """Of trained members; labels of `first` come before the others."""
        names = common_labels(first, members)
        columns = [columns_of(member, names) for member in members]
        counts, texts = np.zeros(len(names), np.int64), None
        for member, own in zip(reversed(members), reversed(columns), strict=True):
            ids = np.arange(len(names)) if own is None else own
            counts[ids] = np.maximum(counts[ids], member.label_counts_)
            if member.label_texts_ is not None:
                texts = list(names) if texts is None else texts
                for label, text in zip(ids.tolist(), member.label_texts_, strict=True):
                    texts[label] = text
        return cls(names, columns, None if texts is None else Strings.of(texts), counts)


def trained_members(members: Sequence[Method], train: Dataset, valid: Dataset | None, job: Job) -> list[Method]:
    """The members, those that are not trained yet trained one after the other; finished ones are kept if killed."""
    if not current().shares_memory:
        return _trained_elsewhere(members, train, valid, job)
    left = sum(not hasattr(member, "label_names_") for member in members)
    done: list[Method] = []
    for number, member in enumerate(members):
        if hasattr(member, "label_names_"):
            done.append(member)
            continue
        log.info("member %d: %s ...", number, member.name)
        folder = None if job.folder is None else job.folder / f"member{number}"
        own = "" if folder is None else _fingerprint(member, train, valid)
        kept = None if folder is None else _finished(folder, own)
        if kept is None:
            part = job.within(job.budget.part(1 / (left + 0.1)))
            kept = member.fit(train, valid=valid, job=replace(part, folder=folder))
            if folder is not None:
                _keep(folder, kept, own)
        left -= 1
        done.append(kept)
    return done


def _trained_elsewhere(members: Sequence[Method], train: Dataset, valid: Dataset | None, job: Job) -> list[Method]:
    """Train members by the tasks of the executor, one each."""
    if job.budget.is_limited:
        refuse_time_budget("members")
    tasks, done, todo = current(), dict(enumerate(members)), []
    base = job.folder or tasks.folder
    assert base is not None
    for number, member in done.items():
        if not hasattr(member, "label_names_"):
            folder, mapped = base.absolute() / f"member{number}", job.scratch is not None
            task = MemberTask(number, member, folder, _fingerprint(member, train, valid), mapped)
            known = _finished(task.folder, task.fingerprint)
            done[number] = known or member
            todo += [task] if known is None else []

    def read(task: MemberTask, records: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Method] | None:
        found = _finished(task.folder, task.fingerprint)
        return None if found is None else (records, found)

    with progress("members", len(todo)) as step, tasks.share((train, valid)) as shared:
        for task, (records, found) in tasks.map(train_member, todo, shared, ordered=True, read=read):
            for record in records:
                job.log(**record)
            done[task.number] = found
            step(1)
    return list(done.values())


class MemberTask(NamedTuple):
    """A member to train, the folder of its work, and the fingerprint of its training."""

    number: int
    member: Method
    folder: Path
    fingerprint: str
    mapped: bool
    """Whether the data may be larger than memory, so that what is computed from it is kept in files."""


def train_member(shared: tuple[Dataset, Dataset | None], task: MemberTask) -> list[dict[str, Any]]:
    """A task: train a member and save it, unless an attempt before has done so; returns numbers for metrics.jsonl."""
    train, valid = shared
    records: list[dict[str, Any]] = []
    if _finished(task.folder, task.fingerprint) is None:
        task.folder.mkdir(parents=True, exist_ok=True)
        with scratch_at(task.folder / SCRATCH, task.mapped) as scratch:
            job = Job(task.folder, lambda **numbers: records.append(numbers), scratch=scratch)
            _keep(task.folder, task.member.fit(train, valid=valid, job=job), task.fingerprint)
    return records


def _keep(folder: Path, member: Method, own: str) -> None:
    """Save a trained member, then the fingerprint of its training, which says that it is complete."""
    (folder / FINISHED).unlink(missing_ok=True)
    member.save(folder / MODEL, force=True)
    with replacing(folder / FINISHED) as file:
        file.write(own)


def _fingerprint(member: Method, train: Dataset, valid: Dataset | None) -> str:
    """Of everything that decides what a member learns, the contents of files that its parameters name too."""
    held_out = dataset_hash(valid) if valid is not None and member.validates else None
    parameters = deciding_fields(member.config, RESULT)
    return fingerprint(member.name, parameters, named_files(parameters), dataset_hash(train), held_out)


def _finished(folder: Path, own: str) -> Method | None:
    """The member of an interrupted training, if it has this fingerprint."""
    if not (folder / MODEL).exists() or not (folder / FINISHED).is_file():
        return None
    try:
        found = load(folder / MODEL)
        noted = (folder / FINISHED).read_bytes()[:MAX_BYTES].decode("ascii", "replace")
    except (LabelwiseError, OSError) as error:
        log.warning("%s: not used: %s", folder / MODEL, error)
        return None
    if noted != own:
        log.warning("%s: not used: it belongs to another training, with other parameters or data", folder / MODEL)
        return None
    log.info("already trained")
    return found


def held_out_part(data: Dataset, valid: Dataset | None, needed: bool) -> tuple[Dataset, Dataset | None]:
    """Documents to train members on, and those to learn the combination on."""
    if not needed or valid is not None:
        return data, valid
    train, held_out = split_for_early_stopping(data, None, FRACTION, MOST_DOCUMENTS, seed=0)
    if held_out is not None:
        log.info("%s documents are held out to learn the combination on", f"{len(held_out):,}")
    return train, held_out


def combination_of(
    model: Ensemble, held_out: Dataset | None, job: Job, chosen: bool
) -> tuple[Combination, tuple[int, int]]:
    """The combination of trained members; and on how many documents it was learned, how many of them members know."""
    config, members = model.config, model.members_
    known = [member.calibration_ for member in members]
    given = config.weights if isinstance(config.weights, list) else [1.0] * len(members)
    start = Combination(config.combine, normalized(given))
    why = needs_data(config.combine, config.weights, known)
    if why is None:
        calibrations = tuple(one for one in known if one is not None) if config.combine in CALIBRATED else ()
        return replace(start, calibrations=calibrations), (0, 0)
    if held_out is None or not len(held_out):
        raise DataError(f"{why}: held-out documents with their labels are needed; call fit(valid_data)")
    seen = _overlap(members, held_out)
    if seen.seen and not chosen and seen.seen > MOSTLY * seen.documents:
        raise DataError(
            f"{held_out.name}: {seen.remark('learn the combination on others')}; give held-out documents "
            "(data.valid or data.valid_fraction in a config)"
        )
    if seen.seen:
        log.warning("%s: %s", held_out.name, seen.remark("the learned combination favours members that remember them"))
    held = _held(model, held_out, job)
    if config.combine in CALIBRATED:
        start = replace(start, calibrations=fitted_calibrations(held, known))
    if config.combine == "logistic" or config.weights == "learn":
        start = learned(held, start, parse_metric(config.metric))
    return start, (seen.documents, seen.seen)


def _overlap(members: Sequence[Method], documents: Dataset) -> Overlap:
    """How many documents any one member was trained on, at most."""
    known = [(member.trained_on_, member.input_) for member in members]
    found = [trained.overlap(documents, kind) for trained, kind in known if trained is not None]
    return Overlap(len(documents), max((one.seen for one in found if one is not None), default=0))


def _held(model: Ensemble, documents: Dataset, job: Job) -> Held:
    """The members' candidates for held-out documents, or for a sample of them if there is little time."""
    truth, count = documents.align(model._names), model.config.candidates
    tops: list[TopK] = []
    rows = np.arange(len(truth))
    for number, (member, columns) in enumerate(zip(model.members_, model._columns, strict=True)):
        part = truth.take(rows) if len(rows) < len(truth) else truth
        what = f"member {number}"

        def best(some: Dataset, member: Method = member, columns: Any = columns) -> TopK:
            return member_top(member, columns, member._as_documents(some), count, None)

        if job.budget.is_limited:
            budget = job.budget.part(1 / (len(model.members_) - number + 0.1))
            chosen, top = predict_in_time(best, part, what, budget)
            if len(chosen) < len(part):
                log.info("%s: the time budget allows for %s documents", what, f"{len(chosen):,}")
                tops, rows = [before[chosen] for before in tops], rows[chosen]
        else:
            top = predict_in_blocks(best, part, what)
        tops.append(top)
    labels = truth.labels[rows]
    candidates = side_by_side(tops)
    right = are_right(candidates.labels, labels)
    return Held(candidates, right, np.diff(labels.indptr), model._counts)


def merged_hashes(own: TrainingDocuments | None, members: Sequence[Method]) -> TrainingDocuments | None:
    """The training documents of all members together; None if none are known."""
    known = [one for one in (own, *(member.trained_on_ for member in members)) if one is not None]
    if not known:
        return None
    hashes = np.unique(np.concatenate([one.hashes for one in known]))
    return TrainingDocuments(hashes, max(one.labels_per_document for one in known))


def card_of_members(model: Ensemble) -> Card:
    """The card of an ensemble of models that were trained before: their common training data."""
    data = [member.card_.data for member in model.members_]
    same = data[0] if all(one == data[0] for one in data) else TrainingData()
    about = same.model_copy(update={"documents": model.n_documents_, "labels": len(model.label_names_)})
    reading = [member.card_.reading for member in model.members_]
    first = reading[0] if all(one == reading[0] for one in reading) else None
    packages = installed_versions([*CORE_PACKAGES, *model.needs])
    return Card(created=now(), data=about, reading=first, packages=packages)
