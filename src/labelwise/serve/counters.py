"""Counts of requests, documents and times, in the text format of Prometheus.

The series are known at the start, so that they are rows of one array: several worker processes map the same file, each
with a row of its own, and any of them can report the sums.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

STATUSES = (200, 204, 304, 400, 401, 404, 405, 406, 408, 413, 415, 421, 422, 429, 431, 500, 503)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
OTHER = "other"
MAX_WORKERS = 256
STARTED = "_started"
"""A number that is not reported: whether all workers have been ready at a time. It is never set back."""
PROCESS = "_process"
"""The number of the process that has a row; not reported."""

Key = tuple[str, tuple[tuple[str, str], ...]]
HELP = {
    "labelwise_requests_total": ("counter", "Answered requests."),
    "labelwise_request_seconds": ("histogram", "Time from the first byte of a request to the last of its answer."),
    "labelwise_documents_total": ("counter", "Documents that labels were predicted for."),
    "labelwise_batch_documents": ("histogram", "Documents that were computed together."),
    "labelwise_compute_seconds_total": ("counter", "Time in predictions and explanations."),
    "labelwise_refused_total": ("counter", "Requests refused because the queue was full or the time was over."),
    "labelwise_refused_connections_total": ("counter", "Connections refused because there were too many."),
    "labelwise_queue_documents": ("gauge", "Documents that wait or are computed."),
    "labelwise_model_loads_total": ("counter", "Loads of a model, by result."),
    "labelwise_ready_workers": ("gauge", "Processes that have loaded all models."),
    "labelwise_resident_bytes": ("gauge", "Resident memory of the server's processes."),
}


class Counters:
    """All series of a server; `file` is shared by its workers, None for a single process."""

    def __init__(self, routes: Iterable[str], models: Iterable[str], file: str | None = None) -> None:
        self._index: dict[Key, int] = {}
        self._routes = {*routes, OTHER}
        for route in sorted(self._routes):
            for status in (*map(str, STATUSES), OTHER):
                self._declare("labelwise_requests_total", route=route, status=status)
            self._declare_histogram("labelwise_request_seconds", SECONDS, route=route)
        for model in models:
            self._declare_histogram("labelwise_batch_documents", SIZES, model=model)
            for name in ("documents_total", "compute_seconds_total", "refused_total", "queue_documents"):
                self._declare(f"labelwise_{name}", model=model)
            for result in ("ok", "error"):
                self._declare("labelwise_model_loads_total", model=model, result=result)
        self._declare("labelwise_refused_connections_total")
        self._declare("labelwise_ready_workers")
        self._declare("labelwise_resident_bytes")
        self._lock_file: IO[bytes] | None = None
        self._declare(STARTED)
        self._declare(PROCESS)
        self._all = np.zeros((1, len(self._index))) if file is None else self._mapped(Path(file))
        self._gauges = [self._index[PROCESS, ()]]  # what is no longer true when the process of a row has ended
        self._gauges += [column for (name, _), column in self._index.items() if HELP.get(name, ("",))[0] == "gauge"]
        self._row = 0 if file is None else self._claim(Path(file))
        # several times as fast as an array for single numbers; its type says int for any format
        self._own: Any = memoryview(self._all[self._row])
        self.set(PROCESS, os.getpid())
        self._requests = {
            (route, status): self._index["labelwise_requests_total", (("route", route), ("status", str(status)))]
            for route in self._routes
            for status in STATUSES
        }
        self._buckets: dict[tuple[str, str], int] = {}

    def _declare(self, name: str, **labels: str) -> None:
        self._index[name, tuple(labels.items())] = len(self._index)

    def _declare_histogram(self, name: str, bounds: Iterable[float], **labels: str) -> None:
        for bound in (*bounds, float("inf")):
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            self._declare(f"{name}_bucket", **labels, le=edge)
        self._declare(f"{name}_sum", **labels)
        self._declare(f"{name}_count", **labels)

    def _mapped(self, file: Path) -> np.ndarray:
        shape = (MAX_WORKERS, len(self._index))
        if file.stat().st_size != 8 * shape[0] * shape[1]:
            os.truncate(file, 8 * shape[0] * shape[1])  # zeros; the same size in every worker
        return np.asarray(np.memmap(file, np.float64, "r+", shape=shape))

    def _claim(self, file: Path) -> int:
        """A row that no living process has; that of one that has ended is continued, so that counts never fall."""
        import fcntl

        self._lock_file = file.open("r+b")
        for row in range(MAX_WORKERS):
            with contextlib.suppress(OSError):
                fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
                self._all[row, self._gauges] = 0
                return row
        raise RuntimeError("all rows of the counters are taken")

    # --- counting; only from the thread of the event loop ---

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        self._own[self._index[name, tuple(labels.items())]] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._own[self._index[name, tuple(labels.items())]] = value

    def request(self, route: str | None, status: int, seconds: float) -> None:
        """Count an answered request."""
        known = route if route in self._routes else OTHER
        column = self._requests.get((known, status))
        if column is None:
            column = self._index["labelwise_requests_total", (("route", known), ("status", OTHER))]
        self._own[column] += 1
        self._observe("labelwise_request_seconds", "route", known, SECONDS, seconds)

    def batch(self, model: str, documents: int, seconds: float) -> None:
        """Count a computed batch."""
        self._observe("labelwise_batch_documents", "model", model, SIZES, documents)
        self.add("labelwise_documents_total", documents, model=model)
        self.add("labelwise_compute_seconds_total", seconds, model=model)

    def _observe(self, name: str, label: str, value: str, bounds: tuple[float, ...], amount: float) -> None:
        first = self._buckets.get((name, value))
        if first is None:
            edge = f"{bounds[0]:g}"
            first = self._buckets[name, value] = self._index[f"{name}_bucket", ((label, value), ("le", edge))]
        last = first + len(bounds)
        self._own[first + bisect.bisect_left(bounds, amount)] += 1  # cumulated when they are reported
        self._own[last + 1] += amount
        self._own[last + 2] += 1

    # --- reporting ---

    def total(self, name: str, **labels: str) -> float:
        """The sum of all workers; of a gauge, of those that live."""
        return self._sums()[self._index[name, tuple(labels.items())]]

    def _sums(self) -> list[float]:
        sums = self._all.sum(0)
        ended = [row for row in np.flatnonzero(self._all[:, self._gauges].any(1)).tolist() if not self._lives(row)]
        sums[self._gauges] -= self._all[np.ix_(ended, self._gauges)].sum(0)
        return sums.tolist()

    def _lives(self, row: int) -> bool:
        """Whether a process has claimed this row and not ended; by a shared lock, so that others may ask too."""
        import fcntl

        if row == self._row or self._lock_file is None:
            return True
        try:
            fcntl.lockf(self._lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, row)
        except OSError:
            return True
        fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, row)
        return False

    def text(self) -> str:
        """All series of all workers, in Prometheus' text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        sums = self._sums()
        processes = self._all[:, self._index[PROCESS, ()]].astype(int)
        living = [process for row, process in enumerate(processes.tolist()) if process and self._lives(row)]
        sums[self._index["labelwise_resident_bytes", ()]] = sum(map(resident_bytes, living))
        series: dict[str, list[tuple[str, tuple[tuple[str, str], ...], float]]] = {name: [] for name in HELP}
        cumulated, before = 0.0, None
        answered = {
            route: sums[self._index["labelwise_request_seconds_count", (("route", route),)]] for route in self._routes
        }
        for (name, labels), column in self._index.items():
            if name in (STARTED, PROCESS):
                continue
            value = sums[column]
            family = name
            for suffix in ("_bucket", "_sum", "_count"):
                if name not in HELP:
                    family = name.removesuffix(suffix) if name.removesuffix(suffix) in HELP else family
            if name.endswith("_bucket"):
                others = (name, labels[:-1])
                cumulated = value + (cumulated if others == before else 0.0)
                before, value = others, cumulated
            series[family].append((name, labels, value))
        for family, (kind, about) in HELP.items():
            yield f"# HELP {family} {about}"
            yield f"# TYPE {family} {kind}"
            for name, labels, value in series[family]:
                if answered.get(dict(labels).get("route", ""), 1) == 0 or (value == 0 and "status" in dict(labels)):
                    continue  # most combinations never occur
                listed = ",".join(f'{key}="{text}"' for key, text in labels)
                yield f"{name}{{{listed}}} {value:.17g}" if listed else f"{name} {value:.17g}"


def resident_bytes(process: int) -> float:
    """Resident memory of a process; 0 on systems that do not say."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
