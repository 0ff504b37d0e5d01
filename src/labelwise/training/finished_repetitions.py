"""Finished repetitions of a bucket code on disk: one folder per repetition, with its fingerprint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labelwise.codes.buckets import checked_table
from labelwise.errors import LabelwiseError
from labelwise.finished import find_finished, fingerprint_by_budget, fingerprint_in, keep_finished
from labelwise.networks.bucket_networks import NetworkShape, Repetition
from labelwise.store import get_tensor

log = logging.getLogger("labelwise")

KIND, FILE = "repetition", "repetition.safetensors"


@dataclass(frozen=True)
class FinishedRepetitions:
    """Finished repetitions in a folder, which several processes may share.

    Parameters
    ----------
    folder
        Where they are kept.
    fingerprint
        From the number of a repetition to its fingerprint.
    time_budget
        Of this training: a repetition that a budget ended is only used under the same one.
    sizes, n_labels
        Expected shapes of the arrays.
    own_tables
        Whether each repetition stores the buckets of its labels.
    """

    folder: Path
    fingerprint: Callable[[int], str]
    time_budget: float | None
    sizes: NetworkShape
    n_labels: int
    own_tables: bool

    def find(self, number: int) -> Repetition | None:
        """A finished repetition of this training; None if there is none."""
        finished = (self._read(path, number) for path in self._paths(number) if path.exists())
        return next((one for one in finished if one is not None), None)

    def keep(self, one: Repetition, ended_by_budget: bool) -> None:
        """Write a finished repetition; one of another training in the same folder is not replaced."""
        own = self._fingerprints(one.number)[ended_by_budget]
        usual, *beside = self._paths(one.number)
        path = beside[ended_by_budget] if fingerprint_in(usual, KIND) not in (None, own) else usual
        keep_finished(path, KIND, own, FILE, one.to_tensors(""), {"number": one.number})

    def _fingerprints(self, number: int) -> tuple[str, str]:
        """Fingerprints of a repetition that was trained to its end, and of one that the time budget ended."""
        own = self.fingerprint(number)
        return own, fingerprint_by_budget(own, self.time_budget)

    def _paths(self, number: int) -> list[Path]:
        """Folders of a finished repetition: its number, or with a fingerprint if another training has taken that."""
        path = self.folder / f"{number:03d}"
        return [path, *(path.with_name(f"{path.name}-{own[:8]}") for own in self._fingerprints(number))]

    def _read(self, path: Path, number: int) -> Repetition | None:
        held = find_finished(path, KIND, *self._fingerprints(number))
        if held is None:
            return None
        try:
            tensors = held.tensors(FILE)
            buckets = get_tensor(tensors, "buckets", path / FILE) if self.own_tables else None
            if buckets is not None:
                buckets = checked_table(buckets, self.n_labels, self.sizes.n_buckets, f"{path / FILE}: buckets")
            return Repetition(number, self.sizes.checked(tensors, "", path / FILE), buckets)
        except LabelwiseError as error:
            log.warning("%s: not used: %s", path, error)
            return None
