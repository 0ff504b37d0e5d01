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

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from labelwise.formatting import duration
from labelwise.runtime.budget import NO_LIMIT, RECORD_FILE, Budget, spending
from labelwise.runtime.each import Each
from labelwise.runtime.progress import stage as shown_stage
from labelwise.runtime.ranks import on_rank_zero, rank
from labelwise.runtime.results import (
    ARRAYS,
    Arrays,
    Result,
    Stored,
    checked_name,
    find_result,
    fingerprint,
    flat,
    frozen,
    write_result,
)

log = logging.getLogger("labelwise")

Made = TypeVar("Made")

SAMPLED = "documents"
"""Name of the result of `some`."""
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
        below = f"{self.name}-{name}" if self.name else name
        inner = replace(
            self, folder=folder, budget=self.budget.part(share), identity=own, name=below, _names=set(), _before=[]
        )
        with shown_stage(title):
            yield inner
        self._before.extend(inner._before)

    def kept(self, name: str, make: Callable[[], Arrays], *, of: Any = ()) -> Arrays:
        """A result from disk, or made by rank 0 and written; the same read-only arrays on all ranks.

        `of` are arrays that it follows from and that this job has not made: a mapping, or a sequence of arrays, tensors
        and JSON values.
        """
        result = self._kept(name, make, of)
        self.follow(*flat(result.value))
        return result.value

    def each(
        self,
        name: str,
        keys: Sequence[Any],
        make: Callable[[Any, Job, Any], Mapping[Any, Any]],
        shared: Any = None,
        *,
        group: int = 1,
        of: Mapping[Any, Any] | None = None,
        folder: Path | None = None,
        train: bool = True,
        complete: bool = False,
        stored: Stored = ARRAYS,
    ) -> dict[Any, Any]:
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
        work = Each(
            self,
            name,
            make,
            folder or (None if self.folder is None else self.folder / name),
            of or {},
            complete,
            stored,
        )
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

    def _claim(self, name: str) -> None:
        if self.folder is not None and not self.identity:
            raise ValueError("a job with a folder needs an identity, or it would use the results of other jobs")
        checked_name(name)
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

    def _kept(self, name: str, make: Callable[[], Arrays], of: Any = ()) -> Result:
        self._claim(name)

        def found_or_made() -> Result:
            if self.folder is None:
                return self._watched(make)
            own, path = self.fingerprint("kept", name, *flat(of)), self.folder / name
            found = find_result([path], own, self.budget, ARRAYS)
            if found is None:
                found = self._watched(make)
                for leftover in path.parent.glob(f".{name}.new-*"):
                    shutil.rmtree(leftover, ignore_errors=True)  # left half written by a kill
                write_result(path, own, found, self.budget, ARRAYS)
            return found

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
    with spending(job.budget, seconds, record, begin) as budget:
        yield replace(job, budget=budget, _names=set(), _before=[])


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
