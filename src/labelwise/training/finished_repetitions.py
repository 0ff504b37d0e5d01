"""Finished repetitions of a bucket code on disk: one folder per repetition, with its fingerprint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labelwise.codes.buckets import checked_table
from labelwise.errors import LabelwiseError
from labelwise.finished import find_finished, fingerprint_in, keep_finished
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
    sizes, n_labels
        Expected shapes of the arrays.
    own_tables
        Whether each repetition stores the buckets of its labels.
    """

    folder: Path
    fingerprint: Callable[[int], str]
    sizes: NetworkShape
    n_labels: int
    own_tables: bool

    def find(self, number: int) -> Repetition | None:
        """A finished repetition of this training; None if there is none."""
        finished = (self._read(path, number) for path in self._paths(number) if path.exists())
        return next((one for one in finished if one is not None), None)

    def keep(self, one: Repetition) -> None:
        """Write a finished repetition; one of another training in the same folder is not replaced."""
        fingerprint = self.fingerprint(one.number)
        usual, beside = self._paths(one.number)
        path = beside if fingerprint_in(usual, KIND) not in (None, fingerprint) else usual
        with keep_finished(path, KIND, fingerprint, {"number": one.number}) as new:
            new.write_tensors(FILE, one.to_tensors(""))

    def _paths(self, number: int) -> tuple[Path, Path]:
        """Folders of a finished repetition: its number, or with a fingerprint if another training has taken that."""
        path = self.folder / f"{number:03d}"
        return path, path.with_name(f"{path.name}-{self.fingerprint(number)[:8]}")

    def _read(self, path: Path, number: int) -> Repetition | None:
        held = find_finished(path, KIND, self.fingerprint(number))
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
