"""Tasks in worker processes of this machine. A worker that dies is replaced, and its task runs again."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from labelwise.executors.base import (
    RETRIES,
    Item,
    LostTaskError,
    Result,
    in_order,
)
from labelwise.executors.commands import NOT_FROM_HERE, LocalCommand, import_path, start_process
from labelwise.executors.shared import Shared, pack
from labelwise.executors.task import Terms
from labelwise.executors.worker import receive, send

log = logging.getLogger("labelwise")


class Processes:
    """`count` worker processes, each with so many threads. Workers start when there are tasks for them."""

    shares_memory: bool = False

    def __init__(self, count: int, terms: Terms) -> None:
        self.slots, self.terms, self.folder = count, terms, terms.folder
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="labelwise-worker")
        for _ in range(count):
            self._idle.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill(wait=0.0)
        self._threads.shutdown(cancel_futures=True)

    def share(self, value: Any) -> Shared:
        """Write the arrays of a value to the folder."""
        return pack(value, self.folder)

    def map(
        self, function: Callable[[Any, Item], Result], items: Iterable[Item], shared: Any = None
    ) -> Iterator[Result]:
        """Run tasks in the workers; see `Executor.map`."""
        return in_order(lambda item: self._threads.submit(self._run, function, shared, item), items, 2 * self.slots)

    def start(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int]
    ) -> LocalCommand:
        """A child process."""
        return start_process(command, output, {**import_path(), **environment}, keep)

    def _run(self, function: Callable[[Any, Any], Any], shared: Shared | None, item: Any) -> Any:
        """One task, on the next free worker."""
        worker, reason = self._idle.get(), ""
        try:
            for attempt in range(RETRIES + 1):
                if worker is None:
                    worker = self._new_worker()
                try:
                    return worker.run((self.terms, function, shared, item)).result()
                except (EOFError, OSError) as error:
                    if not worker.died(error):
                        raise
                    reason, lost = worker.kill(), worker
                    worker = None
                    with self._lock:
                        self._workers.discard(lost)
                    if self._closed:
                        raise LostTaskError("the workers were stopped") from None
                    if attempt < RETRIES:
                        log.warning("a worker process ended (%s); its task runs again", reason)
            raise LostTaskError(
                f"a task was lost {RETRIES + 1} times because its worker process ended, the last time with {reason}; "
                "if memory is short, use fewer --workers"
            )
        finally:
            self._idle.put(worker)

    def _new_worker(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise LostTaskError("the workers were stopped")
            worker = _Worker(self.terms.threads)
            self._workers.add(worker)
            return worker


class _Worker:
    """A worker process, and the pipes to it."""

    def __init__(self, threads: int) -> None:
        environment = {**os.environ, **import_path()}
        environment["OMP_NUM_THREADS"] = str(threads)
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        self.process = subprocess.Popen(
            [sys.executable, NOT_FROM_HERE, "-m", "labelwise.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the driver, which then ends its workers
        )
        self._broken: BaseException | None = None

    def run(self, task: tuple) -> Any:
        """Send a task and wait for its outcome."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            send(self.process.stdin, task)
            return receive(self.process.stdout)
        except (EOFError, OSError) as error:
            self._broken = error
            raise

    def died(self, error: BaseException) -> bool:
        """Whether an error is of the pipes, and not one that the task has raised."""
        return error is self._broken

    def kill(self, wait: float = 0.5) -> str:
        """End the process; returns how it has ended. A pipe closes a moment before, so it has some time for that."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(wait)
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
