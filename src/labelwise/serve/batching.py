"""Requests of one model are computed by one thread, all that wait together: the more load, the larger the batches.

No request waits for others to come. While the thread computes a batch, in kernels that release the GIL, the event loop
reads further requests; they are the next batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from labelwise.serve.computing import Options, Work, compute
from labelwise.serve.counters import Counters
from labelwise.serve.loading import LoadedModel
from labelwise.serve.problems import Problem
from labelwise.serve.settings import Settings

DEFAULT = Options()


class Batcher:
    """The queue and the thread of one model; `current` returns the model to use for the next batch."""

    def __init__(self, name: str, settings: Settings, counters: Counters, current: Callable[[], LoadedModel]) -> None:
        self.name, self.settings, self.counters, self.current = name, settings, counters, current
        self.pending = 0
        """Documents that wait or are computed; only the event loop changes it."""
        self._pace = 0.01
        """Recent seconds per document, for Retry-After."""
        self._arrived: list[Work] = []
        """Requests that the event loop has read at once: they are queued together."""
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, name=f"labelwise-{name}", daemon=True)
        self._thread.start()

    async def submit(
        self, documents: Sequence[str], options: Options = DEFAULT, call: Callable[[LoadedModel], Any] | None = None
    ) -> Any:
        """Wait for the result of a request; a Problem if the queue is full or the time is over."""
        count = max(1, len(documents))
        if self.pending + count > self.settings.queue:
            self.counters.add("labelwise_refused_total", model=self.name)
            raise Problem(
                429, "queue-full", f"{self.pending:,} documents wait for this model already; try again later",
                retry_after=self.pending * self._pace,
            )  # fmt: skip
        work = Work(documents, options, self._loop.create_future(), call)
        self.pending += count
        self._arrived.append(work)
        if len(self._arrived) == 1:
            self._loop.call_soon(self._hand_over)
        timer = self._loop.call_later(self.settings.timeout, _expire, work.future)  # less work than asyncio.timeout
        try:
            return await work.future
        except TimeoutError:
            self.counters.add("labelwise_refused_total", model=self.name)
            raise Problem(
                503, "timeout", f"the request was not answered within {self.settings.timeout:g} seconds",
                retry_after=self.pending * self._pace,
            ) from None  # fmt: skip
        finally:
            timer.cancel()

    def _hand_over(self) -> None:
        for work in self._arrived:
            self._queue.put(work)
        self._arrived.clear()

    def stop(self) -> None:
        """End the thread after the requests that wait."""
        self._hand_over()
        self._queue.put(None)

    def _run(self) -> None:
        while (works := self._next_batch()) is not None:
            begin = time.perf_counter()
            loaded = self.current()
            results = compute(loaded, works)
            del loaded  # a replaced model is freed as soon as its last batch is done
            seconds = time.perf_counter() - begin
            try:
                self._loop.call_soon_threadsafe(self._deliver, works, results, seconds)
            except RuntimeError:  # the loop is closed: nobody waits for the results
                return
            del works, results

    def _next_batch(self) -> list[Work] | None:
        first = self._queue.get()
        if first is None:
            return None
        works, count = [first], len(first.documents)
        while count < self.settings.batch:
            try:
                more = self._queue.get_nowait()
            except Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            works.append(more)
            count += len(more.documents)
        return works

    def _deliver(self, works: Sequence[Work], results: Sequence[Any], seconds: float) -> None:
        documents = 0
        for work, result in zip(works, results, strict=True):
            documents += max(1, len(work.documents))
            if work.future.done():
                continue
            if isinstance(result, Exception):
                work.future.set_exception(result)
            else:
                work.future.set_result(result)
        self.pending -= documents
        self._pace += 0.1 * (seconds / documents - self._pace)
        self.counters.batch(self.name, documents, seconds)
        self.counters.set("labelwise_queue_documents", self.pending, model=self.name)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
