"""A Job: unfinished work of one `fit` with its folder, log, time and tasks, in one argument.

    with job.stage("level0", 1 / 3, "level 1 of 3") as part:           # a folder, an identity and a part of the time
        tree = LabelTree.from_tensors("tree", part.kept("tree", lambda: build().to_tensors()), path)

What is kept belongs to an *identity*, a hash of method, settings and data that is computed once per fit, and to the
names of its stages. Results of another identity, or damaged ones, are ignored with a warning and made again. The names
are the only thing that a stage chooses: one that is used twice in a folder is an error.

What comes later in a job follows from what was made before, and that need not be the same again: weights differ with
threads and devices, and a time budget may have cut a result short. So the content of every result enters the
fingerprints of those that come later, in this stage and, when it has ended, in the stages around it. Results of one
`each` do not see each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from labelwise.errors import DataError, LabelwiseError
from labelwise.formatting import duration
from labelwise.io.folder import Folder, FolderWriter, new_folder
from labelwise.io.tensors import in_pieces
from labelwise.runtime.budget import NO_LIMIT, RECORD_FILE, Budget
from labelwise.runtime.progress import stage as shown_stage
from labelwise.runtime.ranks import on_rank_zero, rank

# --- results ---
# Finished parts of an interrupted training, kept in store folders that are identified by a fingerprint.
#
# The fingerprint is a hash of everything that decides the result. Folders of another training, or damaged ones, are
# ignored with a warning, and the work is done again; so are chunks of linear trees with an older type of hash. If
# finished work cannot be written, a warning is logged and training continues; a checkpoint must be written.

log = logging.getLogger("labelwise")

RESULT_VERSION = 4
"""Increased when a new version of labelwise computes other results from the same settings and data: older work is then
ignored."""
KEY = "fingerprint"


def fingerprint(*parts: Any) -> str:
    """A hash of texts, JSON values, arrays and tensors; trainings with different fingerprints are different."""
    digest = hashlib.sha256()
    for part in (RESULT_VERSION, *parts):
        plain = _plain(part)
        if isinstance(plain, np.ndarray):
            about = f"array {plain.dtype} {plain.shape}"
            digest.update(f"{len(about)} {about}".encode())
            for piece in in_pieces(np.ascontiguousarray(plain).reshape(-1).view(np.uint8)):
                digest.update(piece.data)
        else:
            text = json.dumps(plain, sort_keys=True)
            digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()


def _plain(part: Any) -> Any:
    """A tensor as an array of its bytes, because NumPy lacks some dtypes; a scalar tensor as a number."""
    if not hasattr(part, "detach"):
        return part
    import torch

    return part.detach().cpu().contiguous().view(torch.uint8).numpy() if part.ndim else part.item()


def fingerprint_by_budget(own: str, seconds: float | None) -> str:
    """The fingerprint of work that a time budget ended: it is only used again under the same budget."""
    return fingerprint(own, "time budget", None if seconds is None or math.isinf(seconds) else seconds)


def find_finished(path: Path, kind: str, *expected: str) -> Folder | None:
    """Finished work with one of these fingerprints, all files verified; None if it is missing or cannot be used."""
    if not path.exists():
        return None
    try:
        folder = Folder(path, kind)
        if folder.manifest.get(KEY) not in expected:
            log.warning("%s: not used: it belongs to another training, with other settings, parameters or data", path)
            return None
        folder.check_files()
    except (LabelwiseError, OSError) as error:
        log.warning("%s: not used: %s", path, error)
        return None
    folder.verify = False  # all hashes have been compared
    return folder


def keep_finished(path: Path, kind: str, own: str, write: Callable[[FolderWriter], None]) -> bool:
    """Write finished work with this fingerprint; False, and a warning, if that is not possible.

    The work itself is not lost then: training continues with what is in memory.
    """
    try:
        with finished_folder(path, kind, own) as folder:
            write(folder)
    except LabelwiseError as error:
        log.warning("%s; training continues, but if it is interrupted this part is trained again", error)
        return False
    return True


@contextmanager
def finished_folder(path: Path, kind: str, own: str, about: Mapping[str, Any] | None = None) -> Iterator[FolderWriter]:
    """Write work with this fingerprint to a folder, atomically; a damaged one is replaced."""
    try:
        if path.exists() and fingerprint_in(path, kind) is None and _holds_only_ours(path):
            shutil.rmtree(path)
        with new_folder(path, kind, {KEY: own, **(about or {})}, force=True) as folder:
            yield folder
    except OSError as error:
        raise DataError(
            f"cannot be written: {error.strerror or error}; fix that and start the same training again: it resumes "
            "from what was written before",
            path,
        ) from error


def _holds_only_ours(path: Path) -> bool:
    """Whether a folder holds only files of the types that labelwise writes."""
    if path.is_symlink() or not path.is_dir():
        return False
    return all(item.is_file() and item.suffix in (".json", ".safetensors") for item in path.iterdir())


def fingerprint_in(path: Path, kind: str) -> str | None:
    """The fingerprint of the work in a folder; None if the folder is missing or of another type."""
    try:
        return Folder(path, kind).manifest.get(KEY)
    except LabelwiseError:
        return None


Arrays = Mapping[str, np.ndarray]

KIND, FILE = "finished part", "arrays.safetensors"
"""Type of the folders of results, and their file."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Stored(NamedTuple):
    """How results of one type are kept in folders: functions at the top level of a module, because tasks get them."""

    write: Callable[[FolderWriter, Any], None]
    read: Callable[[Folder], Any]
    content: Callable[[Any], Sequence[Any]]
    """What a fingerprint takes."""


class Result(NamedTuple):
    """What was made, whether a budget has cut it short, and whether it is in a file."""

    value: Any
    is_cut: bool
    is_written: bool = False


def find_result(paths: Sequence[Path], own: str, budget: Budget, stored: Stored) -> Result | None:
    """The first result of this fingerprint; one that a budget has cut only under the same budget."""
    for path in paths:
        held = find_finished(path, KIND, own, fingerprint_by_budget(own, budget.seconds))
        if held is not None:
            is_cut = held.manifest[KEY] != own
            if is_cut:
                budget.end_early()
            try:
                return Result(stored.read(held), is_cut, is_written=True)
            except LabelwiseError as error:
                log.warning("%s: not used: %s", path, error)
    return None


def flat(parts: Any) -> Sequence[Any]:
    """What a fingerprint takes: the items of a mapping in the order of their names, or a sequence as it is."""
    return [part for item in sorted(parts.items()) for part in item] if isinstance(parts, Mapping) else parts


def frozen(arrays: Arrays) -> Arrays:
    """The arrays as they are read from a file: C-contiguous and read-only, so that both attempts compute the same."""
    views = {name: np.asarray(array, order="C").view() for name, array in arrays.items()}
    for array in views.values():
        array.flags.writeable = False
    return views


def _write_arrays(folder: FolderWriter, arrays: Arrays) -> None:
    folder.write_tensors(FILE, arrays)


def _read_arrays(folder: Folder) -> Arrays:
    return folder.tensors(FILE)


ARRAYS = Stored(_write_arrays, _read_arrays, flat)
"""Most results: named arrays in one file."""


# --- each ---
# Results that do not depend on each other, each kept under a key of its own: repetitions, members, trees.
#
# Missing ones are made here one group after the other, or by tasks elsewhere, which write them as files.

Key = int
LONGEST = 100
"""Characters of a name that is made of keys; longer ones are hashed."""
WRITTEN = "written"
"""Instead of a result that a task has written to its file."""


@dataclass(frozen=True)
class Each:
    """Results by key: where they are, and how missing ones are made."""

    job: Job
    name: str
    make: Callable[[Any, Job, Any], Mapping[Any, Any]]
    folder: Path | None
    own: Mapping[Key, str]
    """Fingerprints of the results."""
    complete: bool
    stored: Stored

    def find(self, key: Key) -> Result | None:
        """A finished result; None if there is none."""
        if self.folder is None:
            return None
        return find_result(self._paths(key), self.own[key], self.job.budget, self.stored)

    def keep(self, key: Key, result: Result) -> bool:
        """Write a result; one of another job under the same key is not replaced."""
        if self.folder is None:
            return False
        own, (path, of_whole, of_cut) = self.own[key], self._paths(key)
        if result.is_cut:
            own = fingerprint_by_budget(own, self.job.budget.seconds)
        if fingerprint_in(path, KIND) not in (None, own):
            path = of_cut if result.is_cut else of_whole
        return keep_finished(path, KIND, own, lambda folder: self.stored.write(folder, result.value))

    def made_here(self, shared: Any, groups: Sequence[Sequence[Key]], n_keys: int, n_done: int) -> dict[Key, Result]:
        """Make groups one after the other, in equal parts of the time; the first of all results in any case."""
        made: dict[Key, Result] = {}
        late = 0.0  # seconds that the last group took after its time, which the next one reserves
        for index, keys in enumerate(groups):
            if n_done + len(made) and not self.complete and on_rank_zero(self.job.budget.expired):
                log.warning(
                    "time budget: %d of %d results of %s are there, the others are left out",
                    n_done + len(made), n_keys, self.name,
                )  # fmt: skip
                self.job.budget.end_early()
                break
            first = n_done + sum(map(len, groups[:index])) + 1
            last = f" to {first + len(keys) - 1}" if len(keys) > 1 else ""
            budget = self.job.budget.part(1 / (len(groups) - index), reserve=late)
            with shown_stage(f"{self.name} {first}{last} of {n_keys}"):
                made |= self.made_group(shared, keys, budget)
            late = budget.exceeded()
        return made

    def made_group(self, shared: Any, keys: Sequence[Key], budget: Budget) -> dict[Key, Result]:
        """Make a group of results in a stage of their own, and write them; its folder is removed then."""
        name = "-".join([self.name, *(f"{key:03d}" for key in keys)])
        name = name if len(name) <= LONGEST else f"{self.name}-{fingerprint(list(keys))[:16]}"
        folder = None if self.unfinished is None else self.unfinished / name
        own = self.job.fingerprint("group", self.name, *(self.own[key] for key in keys))
        count = budget.early_ends.count
        made = self.make(shared, self.job._inner(name, own, folder, budget), keys)
        is_cut = on_rank_zero(lambda: budget.early_ends.count > count)
        results = {key: Result(one, is_cut) for key, one in made.items() if one is not None}
        for key in keys:
            if key not in results:
                log.warning("%s %s has diverged: it is left out, and not saved as finished", self.name, key)

        def keep() -> dict[Key, bool]:
            written = {key: self.keep(key, result) for key, result in results.items()}
            if folder is not None and all(written.values()):
                shutil.rmtree(folder, ignore_errors=True)
            return written

        written = on_rank_zero(keep)
        return {key: result._replace(is_written=written[key]) for key, result in results.items()}

    def made_elsewhere(self, shared: Any, groups: Sequence[Sequence[Key]]) -> dict[Key, Result]:
        """Make groups by tasks; results that are written are read from their files, again if that is not possible."""
        self.job.budget.refuse_tasks(self.name)
        # absolute: a worker on another node need not have the driver's directory
        folder, below = (None if path is None else path.absolute() for path in (self.folder, self.job.folder))
        plain = replace(self, folder=folder, job=replace(self.job, folder=below, log=ignore, tasks=None))
        records: dict[Any, list[dict[str, Any]]] = {}

        def read(keys: Sequence[Key], result: Any) -> dict[Key, Result | None] | None:
            made, new = result
            records[keys] = records.get(keys, []) + new  # of all attempts
            written = {key: self.find(key) for key, one in made.items() if one == WRITTEN}
            return None if None in written.values() else {**made, **written}

        done: dict[Key, Result] = {}
        items = [tuple(keys) for keys in groups]
        with self.job.tasks.share((plain, shared)) as given:
            for keys, found in self.job.tasks.map(_make_group, items, given, ordered=True, read=read):
                for record in records[keys]:
                    self.job.log(**record)
                done |= {key: one for key, one in found.items() if one is not None}
        return done

    @property
    def unfinished(self) -> Path | None:
        """The folder of unfinished work of groups."""
        return None if self.job.folder is None else self.job.folder / f"{self.name}-unfinished"

    def remove_unfinished(self, all_finished: bool) -> None:
        """Remove the folder of unfinished work, with that of groups that keys were dealt to otherwise before."""
        if self.unfinished is not None and (all_finished or not any(self.unfinished.glob("*"))):
            shutil.rmtree(self.unfinished, ignore_errors=True)

    def _paths(self, key: Key) -> list[Path]:
        """Folders of a result: its key or, if another job has taken that, with a hash: of a whole result, a cut one."""
        path, own = Path(str(self.folder)) / f"{key:03d}", self.own[key]
        hashes = own, fingerprint_by_budget(own, self.job.budget.seconds)
        return [path, *(path.with_name(f"{path.name}-{one[:8]}") for one in hashes)]


def _make_group(given: tuple[Each, Any], keys: Sequence[Key]) -> tuple[dict[Key, Any], list[dict[str, Any]]]:
    """A task: make a group, unless an attempt before has done so; returns the results, and records of its log."""
    work, shared = given
    records: list[dict[str, Any]] = []
    work = replace(work, job=replace(work.job, log=lambda **numbers: records.append(numbers)))
    found = {key: work.find(key) for key in keys}
    missing = [key for key in keys if found[key] is None]
    if missing:
        found |= work.made_group(shared, missing, work.job.budget)
    return {key: WRITTEN if one is not None and one.is_written else one for key, one in found.items()}, records


Made = TypeVar("Made")

SAMPLED = "documents"
"""Name of the result of `some`."""
NOTED = 0.05
"""A time budget that is exceeded by more than this fraction is reported."""
PROBE, HELD_OUT = 128, 0.1
"""Documents whose preparation is timed, and the fraction of its time for documents that are not to train on."""


def ignore(**_numbers: Any) -> None:
    """A log that nobody reads."""


@dataclass(frozen=True)
class Job:
    """Unfinished work of one `fit`, or of a stage of it.

    Parameters
    ----------
    folder
        Where it is kept, so that a killed fit resumes; None to keep nothing.
    log
        Takes numbers by name (`log(step=10, loss=0.3)`) for metrics.jsonl.
    budget
        When this work has to end.
    scratch
        Folder for temporary files: set for data larger than memory, whose features are then kept there and mapped.
    tasks
        Where `each` runs; None: here.
    identity
        Hash of everything that decides the result of the fit, with the names of the stages down to this one.
    name
        The names of the stages down to this one, for logs.
    """

    folder: Path | None = None
    log: Callable[..., None] = ignore
    budget: Budget = NO_LIMIT
    scratch: Path | None = None
    tasks: Any = None
    identity: str = ""
    name: str = ""
    _names: set[str] = field(default_factory=set, repr=False, compare=False)
    _before: list[str] = field(default_factory=list, repr=False, compare=False)
    """Hashes of what was made in this job so far."""

    @contextmanager
    def stage(self, name: str, share: float = 1.0, title: str = "") -> Iterator[Job]:
        """A job with its own folder, its own identity and a share of the remaining time; shown with a title.

        Training loops keep their checkpoints in its folder.
        """
        self._claim(name)
        folder = None if self.folder is None else self.folder / name
        own = self.fingerprint("stage", name) if self.identity else ""
        inner = self._inner(name, own, folder, self.budget.part(share))
        with shown_stage(title):
            yield inner
        self._before.extend(inner._before)

    def kept(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """A result from disk, or made by rank 0 and written; the same read-only arrays on all ranks."""
        result = self._kept(name, make)
        self.follow(*flat(result.value))
        return result.value

    def each(
        self,
        name: str,
        keys: Sequence[Key],
        make: Callable[[Any, Job, Any], Mapping[Any, Any]],
        shared: Any = None,
        *,
        group: int = 1,
        of: Mapping[Key, Sequence[Any]] | None = None,
        folder: Path | None = None,
        train: bool = True,
        complete: bool = False,
        stored: Stored = ARRAYS,
    ) -> dict[Key, Any]:
        """Results by key, those that are missing made in groups by `make(shared, job, keys)`.

        They do not depend on each other, so that any process may make any of them. Where time is spent, those left are
        left out, but never all; one that diverged (None) is left out too, and is not kept. Under torchrun all ranks
        make them together.

        Parameters
        ----------
        name, keys
            Of the results; a key has a folder of its own.
        make, shared
            Where `tasks` run elsewhere, a function at the top level of a module and what it is given.
        group
            How many are made at a time.
        of
            What single ones depend on besides the identity, such as a table of their own.
        folder
            Where they are kept, instead of the job's folder; processes that know nothing of each other may share it.
        train
            False: only those that are finished.
        complete
            True: none are left out where time is spent; the last ones have no time then.
        stored
            How a result is kept; named arrays, unless this says otherwise.
        """
        self._claim(name)
        if folder is not None and not self.identity:
            raise ValueError("results in a folder need the identity of their job")
        if folder is None and self.folder is not None:
            folder = self.folder / name
        own = {key: self.fingerprint("each", name, key, *(of or {}).get(key, ())) for key in keys}
        work = Each(self, name, make, folder, own, complete, stored)
        done = self._on_rank_zero(lambda: {key: found for key in keys if (found := work.find(key)) is not None})
        if done:
            log.info("%s: %d of %d are already finished", name, len(done), len(keys))
        missing = [key for key in dict.fromkeys(keys) if key not in done] if train else []
        groups = [missing[begin : begin + group] for begin in range(0, len(missing), group)]
        if groups and self.tasks is not None and not self.tasks.shares_memory:
            done |= work.made_elsewhere(shared, groups)
        else:
            done |= work.made_here(shared, groups, n_keys=len(keys), n_done=len(done))
        found = {key: done[key] for key in keys if key in done}
        on_rank_zero(lambda: work.remove_unfinished(all_finished=all(key in found for key in keys)))
        for key, result in found.items():
            self.follow(key, *stored.content(result.value))
        return {key: result.value for key, result in found.items()}

    def some(self, parts: Sequence[Any], prepare: Callable[[Any], Any], share: float = 0.25) -> tuple[Any, ...]:
        """The data to train on and held-out data (or None), or random samples that a share of the time suffices for.

        `prepare` does with a few documents what the fit will do with all of them, such as to tokenise and encode; it
        must not change the state of random generators. The sample is kept: a resumed fit has the same documents.
        """
        if not self.budget.is_limited:
            return tuple(parts)
        sample = self._kept(SAMPLED, lambda: self._sample(parts, prepare, share))
        rows = sample.value
        if sample.is_cut:  # otherwise all that comes later is the same as without a budget
            self.follow(*flat(rows))
        return tuple(
            part if part is None or len(rows[str(number)]) == len(part) else part.take(rows[str(number)])
            for number, part in enumerate(parts)
        )

    def alone(self, make: Callable[[Job], Arrays]) -> Arrays:
        """What rank 0 makes by itself with this job; its arrays are on all ranks then, and its error too.

        Inside, the job's own functions know of no other rank; a training loop does, and would wait for them.
        """
        return self._on_rank_zero(lambda: frozen(make(self)))

    def fingerprint(self, *parts: Any) -> str:
        """A hash of this job, of what was made in it so far, and of these texts, JSON values, arrays and tensors."""
        return fingerprint(self.identity, self._before, *parts)

    def follow(self, *parts: Any) -> None:
        """Make everything that comes later depend on these arrays, such as the final weights of a training loop."""
        if self.identity:
            self._before.append(fingerprint(*parts))

    # --- small parts ---

    def _inner(self, name: str, identity: str, folder: Path | None, budget: Budget) -> Job:
        below = f"{self.name}-{name}" if self.name else name
        return replace(self, folder=folder, budget=budget, identity=identity, name=below, _names=set(), _before=[])

    def _claim(self, name: str) -> None:
        if self.folder is not None and not self.identity:
            raise ValueError("a job with a folder needs an identity, or it would use the results of other jobs")
        if not NAME.fullmatch(name):
            raise ValueError(f"'{name}': names of stages and results are letters, digits, - and _")
        if name in self._names:
            raise ValueError(f"the name '{name}' is used twice in {self.folder or 'one job'}")
        self._names.add(name)

    def _on_rank_zero(self, make: Callable[[], Made]) -> Made:
        """What rank 0 makes, on all ranks, with what its job follows from by then and whether time has cut it short."""
        count = self.budget.early_ends.count
        made, self._before[:], cuts = on_rank_zero(
            lambda: (make(), list(self._before), self.budget.early_ends.count - count)
        )
        self.budget.early_ends.count = count + cuts
        return made

    def _kept(self, name: str, make: Callable[[], Arrays]) -> Result:
        self._claim(name)
        if self.folder is None:
            return self._on_rank_zero(lambda: self._watched(make))
        own, path = self.fingerprint("kept", name), self.folder / name

        def found_or_made() -> Result:
            found = find_result([path], own, self.budget, ARRAYS)
            if found is not None:
                return found
            made = self._watched(make)
            for leftover in path.parent.glob(f".{name}.new-*"):
                shutil.rmtree(leftover, ignore_errors=True)  # left half written by a kill
            kept_as = fingerprint_by_budget(own, self.budget.seconds) if made.is_cut else own
            keep_finished(path, KIND, kept_as, lambda folder: ARRAYS.write(folder, made.value))
            return made

        return self._on_rank_zero(found_or_made)

    def _watched(self, make: Callable[[], Arrays]) -> Result:
        """What `make` returns, and whether a budget has ended something in it."""
        count = self.budget.early_ends.count
        arrays = frozen(make())
        return Result(arrays, self.budget.early_ends.count > count)

    def _sample(self, parts: Sequence[Any], prepare: Callable[[Any], Any], share: float) -> Arrays:
        """Indices of the documents of each part; held-out ones are counted first, in little time."""
        rows = {}
        for number, part in reversed(list(enumerate(parts))):
            if part is None:
                continue
            count = _affordable(part, prepare, self.budget.part(share * (HELD_OUT if number else 1.0)))
            rows[str(number)] = np.sort(np.random.default_rng(number).permutation(len(part))[:count])
            if number == 0 and count < len(part):
                self.budget.end_early()
        return rows


@contextmanager
def limited_time(job: Job, seconds: float | None, begin: float | None = None) -> Iterator[Job]:
    """The job of a `fit` that has so many seconds, including those of interrupted attempts.

    It began at `begin` on the monotonic clock; None: now. The time spent is recorded in the folder of the job until the
    fit is done.
    """
    record = None if job.folder is None or rank() > 0 else job.folder / RECORD_FILE
    budget = job.budget.limited(seconds, record, begin)
    own = budget.records[len(job.budget.records) :]
    if any(one.before for one in own):
        log.info("time budget: %s of %s were spent before", duration(sum(r.before for r in own)), duration(seconds))
    try:
        yield replace(job, budget=budget, _names=set(), _before=[])
    except BaseException:
        for one in own:
            one.write_if_old()
        raise
    for one in own:
        one.remove()
    if budget.is_limited and budget.exceeded() > NOTED * budget.seconds:
        log.warning(
            "time budget of %s: training ended %s late; what a model cannot do without, such as reading its texts and "
            "one step of each stage, is done in any case",
            budget,
            duration(budget.exceeded()),
        )


def _affordable(data: Any, prepare: Callable[[Any], Any], budget: Budget) -> int:
    """Documents that can be prepared within the budget, at least a few; by the pace of a sample."""
    if len(data) <= 2 * PROBE:
        return len(data)
    begin = time.monotonic()
    prepare(data.take(np.sort(np.random.default_rng(0).permutation(len(data))[:PROBE])))
    pace = (time.monotonic() - begin) / PROBE
    count = len(data) if pace == 0 else max(int(min(budget.remaining() / pace, len(data))), PROBE)
    if count < len(data):
        log.info(
            "time budget: %s of %s documents of %s are used; preparing all would take %s", f"{count:,}",
            f"{len(data):,}", data.name, duration(pace * len(data)),
        )  # fmt: skip
    return count
