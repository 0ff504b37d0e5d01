"""Results that do not depend on each other, each kept under a key of its own: repetitions, members, trees.

Missing ones are made here one group after the other, or by tasks elsewhere, which write them as files.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.errors import ConfigError, LabelwiseError
from labelwise.runtime.budget import Budget
from labelwise.runtime.progress import stage as shown_stage
from labelwise.runtime.ranks import on_rank_zero
from labelwise.runtime.results import (
    KIND,
    Result,
    Stored,
    checked_name,
    find_result,
    fingerprint,
    fingerprint_in,
    flat,
    under,
    write_result,
)

if TYPE_CHECKING:
    from labelwise.runtime.job import Job

log = logging.getLogger("labelwise")

Key = int | str
LONGEST = 100
"""Characters of a name that is made of keys; longer ones are hashed."""
RETRIES = 3
"""How often results of tasks that cannot be read are made again."""


class LostResultsError(LabelwiseError):
    """Results of tasks could not be read, again and again."""


@dataclass(frozen=True)
class Each:
    """Results by key: where they are, and how missing ones are made."""

    job: Job
    name: str
    make: Callable[[Any, Job, Any], Mapping[Any, Any]]
    folder: Path | None
    of: Mapping[Any, Any]
    complete: bool
    stored: Stored

    def find(self, key: Key) -> Result | None:
        """A finished result; None if there is none."""
        return (
            None if self.folder is None else find_result(self._paths(key), self._own(key), self.job.budget, self.stored)
        )

    def keep(self, key: Key, result: Result) -> bool:
        """Write a result; one of another job under the same key is not replaced."""
        if self.folder is None:
            return False
        own, (usual, whole, cut) = self._own(key), self._paths(key)
        taken = fingerprint_in(usual, KIND) not in (None, under(own, self.job.budget) if result.is_cut else own)
        return write_result(
            (cut if result.is_cut else whole) if taken else usual, own, result, self.job.budget, self.stored
        )

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
            title = f"{self.name} {keys[0]}" if len(keys) == 1 else f"{self.name} {keys[0]} to {keys[-1]}"
            budget = self.job.budget.part(1 / (len(groups) - index), reserve=late)
            with shown_stage(f"{title} of {n_keys}"):
                made |= self.made_group(shared, keys, budget)
            late = budget.exceeded()
        return made

    def made_group(self, shared: Any, keys: Sequence[Key], budget: Budget) -> dict[Key, Result]:
        """Make a group of results in a stage of their own, and write them; its folder is removed then."""
        name = "-".join([self.name, *(_text(key) for key in keys)])
        name = name if len(name) <= LONGEST else f"{self.name}-{fingerprint(list(keys))[:16]}"
        folder = None if self.job.folder is None else self.job.folder / name
        own = self.job.fingerprint("group", self.name, list(keys), *(part for key in keys for part in self._of(key)))
        count = budget.early_ends.count
        below = f"{self.job.name}-{name}" if self.job.name else name
        job = replace(self.job, folder=folder, budget=budget, identity=own, name=below, _names=set(), _before=[])
        made = self.make(shared, job, keys)
        is_cut = on_rank_zero(lambda: budget.early_ends.count > count)
        results = {key: Result(self.stored.ready(one), is_cut) for key, one in made.items() if one is not None}
        for key in keys:
            if key not in results:
                log.warning("%s %s has diverged: it is left out, and not saved as finished", self.name, key)

        def keep() -> None:
            written = [self.keep(key, result) for key, result in results.items()]
            if folder is not None and all(written):
                shutil.rmtree(folder, ignore_errors=True)

        on_rank_zero(keep)
        return results

    def made_elsewhere(self, shared: Any, groups: Sequence[Sequence[Key]]) -> dict[Key, Result]:
        """Make groups by tasks; results that are written are read from their files, again if that is not possible."""
        if self.job.budget.is_limited:
            raise ConfigError(
                f"{self.name}: a time budget is for one process, which measures its own pace; leave out time_budget or "
                "--launcher"
            )
        # absolute: a worker on another node need not have the driver's directory
        folder, below = (None if path is None else path.absolute() for path in (self.folder, self.job.folder))
        plain = replace(self, folder=folder, job=replace(self.job, folder=below, log=_ignore, tasks=None))
        done: dict[Key, Result] = {}
        left = [tuple(keys) for keys in groups]
        for _ in range(RETRIES + 1):
            lost = []
            with self.job.tasks.share((plain, shared)) as given:
                for keys, (records, made) in self.job.tasks.map(_make_group, left, given, ordered=True):
                    for record in records:
                        self.job.log(**record)
                    written = {key: self.find(key) for key in keys if made[key] == WRITTEN}
                    done |= {key: one for key, one in {**made, **written}.items() if isinstance(one, Result)}
                    if None in written.values():
                        lost.append(keys)
            left = lost
            if not left:
                return done
        raise LostResultsError(f"{self.folder}: results could not be read, {RETRIES + 1} times")

    def _own(self, key: Key) -> str:
        return self.job.fingerprint("each", self.name, key, *self._of(key))

    def _of(self, key: Key) -> Sequence[Any]:
        return flat(self.of.get(key, ()))

    def _paths(self, key: Key) -> list[Path]:
        """Folders of a result: its key or, if another job has taken that, with a hash: of a whole result, a cut one."""
        path, own = Path(str(self.folder)) / _text(key), self._own(key)
        return [path, *(path.with_name(f"{path.name}-{one[:8]}") for one in (own, under(own, self.job.budget)))]


WRITTEN = "written"
"""Instead of a result that a task has written to its file."""


def _make_group(given: tuple[Each, Any], keys: Sequence[Key]) -> tuple[list[dict[str, Any]], dict[Key, Any]]:
    """A task: make a group, unless an attempt before has done so; returns records of its log, and the results."""
    work, shared = given
    records: list[dict[str, Any]] = []
    work = replace(work, job=replace(work.job, log=lambda **numbers: records.append(numbers)))
    found = {key: work.find(key) for key in keys}
    missing = [key for key in keys if found[key] is None]
    made = work.made_group(shared, missing, work.job.budget) if missing else {}
    results = {key: WRITTEN if work.find(key) is not None else made.get(key) for key in keys}
    return records, results


def _text(key: Key) -> str:
    return f"{key:03d}" if isinstance(key, int) else checked_name(key)


def _ignore(**_numbers: Any) -> None:
    pass
