"""Requests of one model are computed by one thread, all that wait together: the more load, the larger the batches.

No request waits for others to come. While the thread computes a batch, in kernels that release the GIL, the event loop
reads further requests; they are the next batch. The oldest request is always in it, with those that can share its call;
each call is delivered as soon as it is done, so that a fast request does not wait for slow ones behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from labelwise.serve.computing import EXPIRED, Options, Work, compute
from labelwise.serve.counters import Counters
from labelwise.serve.loading import TEXT, LoadedModel
from labelwise.serve.problems import Problem
from labelwise.serve.settings import Settings

DEFAULT = Options()
CALL_PART = 0.25
"""Part of `timeout` that predictions computed together may be expected to take: a slow model gets small batches."""


class Batcher:
    """The queue and the thread of one model; `current` returns the model to use for the next batch."""

    def __init__(self, name: str, settings: Settings, counters: Counters, current: Callable[[], LoadedModel]) -> None:
        self.name, self.settings, self.counters, self.current = name, settings, counters, current
        self.pending = 0
        """Documents that wait or are computed; only the event loop changes it."""
        self._pace = 0.01
        """Recent seconds per document, for Retry-After."""
        self._call_pace = 0.01
        """Recent seconds per document in calls of predictions; only the thread changes it."""
        self._ended = False
        self._arrived: list[Work] = []
        """Requests that the event loop has read at once: they are queued together."""
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, name=f"labelwise-{name}", daemon=True)
        self._thread.start()

    async def submit(
        self,
        documents: Sequence[str],
        options: Options = DEFAULT,
        call: Callable[[LoadedModel], Any] | None = None,
        reads: str = TEXT,
    ) -> Any:
        """Wait for the result of a request; a Problem if the queue is full or the time is over."""
        work = Work(documents, options, self._loop.create_future(), reads, call)
        if self.pending + work.size > self.settings.queue:
            self.counters.add("labelwise_refused_total", model=self.name)
            raise Problem(
                429, "queue-full", f"{self.pending:,} documents wait for this model already; try again later",
                retry_after=self.pending * self._pace,
            )  # fmt: skip
        self.pending += work.size
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
        self.counters.set("labelwise_queue_documents", self.pending, model=self.name)

    def stop(self) -> None:
        """End the thread after the requests that wait."""
        self._hand_over()
        self._queue.put(None)

    def _run(self) -> None:
        waiting: deque[Work] = deque()
        while self._receive(waiting):
            works, loaded, begin = self._next_call(waiting), self.current(), time.perf_counter()
            for done, results in compute(loaded, works):
                now = time.perf_counter()
                if done[0].call is None and not isinstance(results[0], Exception):
                    pace = max((now - begin) / sum(work.size for work in done), 1e-6)
                    self._call_pace += 0.5 * (pace - self._call_pace)
                try:
                    self._loop.call_soon_threadsafe(self._deliver, done, results, now - begin)
                except RuntimeError:  # the loop is closed: nobody waits for the results
                    return
                begin = now
            del works, loaded, done, results  # a replaced model is freed as soon as its last call is done

    def _receive(self, waiting: deque[Work]) -> bool:
        """Add what has come in, and wait for it if nothing is there to compute; False: the end."""
        while not self._ended or not self._queue.empty():
            try:
                work = self._queue.get(block=not waiting)
            except Empty:
                break
            if work is None:
                self._ended = True
            else:
                waiting.append(work)
        return bool(waiting)

    def _next_call(self, waiting: deque[Work]) -> list[Work]:
        """The oldest request, and those that can share its call: removed from what waits."""
        first = waiting.popleft()
        shared, works, count = first.shared, [first], first.size
        if shared is None:
            return works
        most = min(self.settings.batch, max(1, round(CALL_PART * self.settings.timeout / self._call_pace)))
        others = []
        while waiting and count < most:
            work = waiting.popleft()
            if count + work.size <= most and work.shared == shared:
                works.append(work)
                count += work.size
            else:
                others.append(work)
        waiting.extendleft(reversed(others))
        return works

    def _deliver(self, works: Sequence[Work], results: Sequence[Any], seconds: float) -> None:
        documents = 0
        for work, result in zip(works, results, strict=True):
            self.pending -= work.size
            if result is EXPIRED:
                continue
            documents += work.size
            if work.future.done():
                continue
            if isinstance(result, Exception):
                work.future.set_exception(result)
            else:
                work.future.set_result(result)
        self.counters.set("labelwise_queue_documents", self.pending, model=self.name)
        if documents:
            self._pace += 0.1 * (seconds / documents - self._pace)
            self.counters.batch(self.name, documents, seconds)


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
