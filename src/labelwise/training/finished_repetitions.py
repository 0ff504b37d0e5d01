"""Finished repetitions of a bucket code on disk: a folder each, under the fingerprint of all it depends on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labelwise.codes.buckets import checked_table
from labelwise.errors import LabelwiseError
from labelwise.finished import find_finished, fingerprint_in, keep_finished
from labelwise.networks.bucket_networks import Repetition, Sizes
from labelwise.store import get_tensor

log = logging.getLogger("labelwise")

KIND, FILE = "repetition", "repetition.safetensors"


@dataclass(frozen=True)
class FinishedRepetitions:
    """Finished repetitions in a folder, which several processes may share.

    Parameters
    ----------
    folder
        Where they are.
    fingerprint
        Of a repetition, by its number.
    sizes, n_labels
        What is to be found in the files.
    own_tables
        Whether each repetition holds the buckets of its labels.
    """

    folder: Path
    fingerprint: Callable[[int], str]
    sizes: Sizes
    n_labels: int
    own_tables: bool

    def find(self, number: int) -> Repetition | None:
        """A finished repetition of this training; None if there is none."""
        found = (self._read(path, number) for path in self._paths(number) if path.exists())
        return next((one for one in found if one is not None), None)

    def keep(self, one: Repetition) -> None:
        """Put a finished one into the folder; one of another training that is there stays."""
        fingerprint = self.fingerprint(one.number)
        usual, beside = self._paths(one.number)
        path = beside if fingerprint_in(usual, KIND) not in (None, fingerprint) else usual
        with keep_finished(path, KIND, fingerprint, {"number": one.number}) as new:
            new.write_tensors(FILE, one.to_tensors(""))

    def _paths(self, number: int) -> tuple[Path, Path]:
        """Where a finished repetition may be: under its number, or beside another training's that was there before."""
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
