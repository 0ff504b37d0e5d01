"""Requests of one model are computed by one thread, all that wait together: the more load, the larger the batches.

No request waits for others to come. While the thread computes a batch, in kernels that release the GIL, the event loop
reads further requests; they are the next batch. The oldest request is always in it, with those that can share its call;
each call is delivered as soon as it is done, so that a fast request does not wait for slow ones behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from labelwise.model.explanation import check_explains, top_words
from labelwise.model.method import Method
from labelwise.model.predictions import (
    CALIBRATION_K,
    LabelFilter,
    best_and_reaching,
    checked_limits,
    k_from_data,
)
from labelwise.registry import can
from labelwise.serve.answers import Ranked
from labelwise.serve.gate import Counters
from labelwise.serve.loading import TEXT, LoadedModel
from labelwise.serve.schemas import Problem
from labelwise.serve.settings import Settings
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

# --- computing ---
# What a model computes for requests: predictions of many requests in one call, explanations one by one.


@dataclass(frozen=True, slots=True)
class Options:
    """Which labels of a document to return."""

    k: int | None = None
    threshold: float | str | None = None
    labels: tuple[str, ...] | None = None
    weights: Mapping[str, float] | None = None
    explain: int | None = None
    max_k: int = 1000

    @property
    def shared(self) -> tuple | None:
        """What must be equal for the predictions of two requests to be computed in one call; None: they never are."""
        if self.labels is not None or self.weights is not None:
            return None
        return self.k, self.threshold, self.explain


EXPIRED = TimeoutError()
"""The result of a request that was not computed, because nobody waits for it any more."""


@dataclass(slots=True, eq=False)
class Work:
    """A request in the queue of a model."""

    documents: Sequence[str]
    """Texts, or paths of images."""
    options: Options
    future: asyncio.Future[Any]
    reads: str
    """What the documents are; a folder may be replaced by a model that reads something else."""
    call: Callable[[LoadedModel], Any] | None = None
    """Computed instead of predictions, such as an explanation."""

    @property
    def size(self) -> int:
        """Documents, for limits: a request counts as one at least."""
        return max(1, len(self.documents))

    @property
    def shared(self) -> tuple | None:
        """What must be equal for two requests to be computed in one call; None: they never are."""
        return None if self.call is not None else self.options.shared


@dataclass(frozen=True, slots=True)
class Labelled:
    """The predictions of a request, and the model they are from."""

    loaded: LoadedModel
    documents: list[Ranked]


def compute(loaded: LoadedModel, works: Sequence[Work]) -> Iterator[tuple[Sequence[Work], Sequence[Any]]]:
    """Results or errors of requests that share a call, as soon as they exist: one by one if the call fails."""
    refused: dict[Work, Exception] = {}
    for work in works:
        if work.future.done():
            refused[work] = EXPIRED
        elif work.reads != loaded.reads:
            refused[work] = _replaced()
    if refused:
        yield list(refused), list(refused.values())
        works = [work for work in works if work not in refused]
    if not works:
        return
    call = works[0].call
    if call is not None:
        yield works, [_attempt(lambda: call(loaded))]
        return
    together = _attempt(lambda: _predict_together(loaded, works))
    if not isinstance(together, Exception):
        yield works, together
    elif len(works) == 1:
        yield works, [together]
    else:  # one bad request must not fail the others
        for work in works:
            yield from compute(loaded, [work])


def _replaced() -> Problem:
    """A text must not get to a model of images, which would read the file of that name."""
    return Problem(
        503, "loading", "the model was replaced by one of another kind; send the request again", retry_after=1
    )


def _attempt(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # delivered to the request that caused it
        return error


def _predict_together(loaded: LoadedModel, works: Sequence[Work]) -> list[Labelled]:
    texts = [text for work in works for text in work.documents]
    found = predictions(loaded.model, texts, works[0].options)
    results, begin = [], 0
    for work in works:
        end = begin + len(work.documents)
        results.append(Labelled(loaded, found[begin:end]))
        begin = end
    return results


def predictions(model: Method, documents: Sequence[str], options: Options) -> list[Ranked]:
    """The labels of each document. With a threshold and without k, those that reach it, at most `max_k`."""
    if not documents:
        return []
    if options.explain is not None:
        check_explains(model, options.explain)
    chosen = model.label_filter(options.labels, options.weights)
    given = list(documents)
    top = _top(model, given, options, chosen)
    words = None if options.explain is None else top_words(model, given, top, options.explain)
    found = []
    for row, (ids, scores) in enumerate(zip(top.ids.tolist(), top.scores.tolist(), strict=True)):
        if NO_LABEL in ids:
            filled = [rank for rank, label in enumerate(ids) if label != NO_LABEL]
            ids, scores = [ids[rank] for rank in filled], [scores[rank] for rank in filled]
        found.append(Ranked(ids, scores, None if words is None else words[row]))
    return found


def _top(model: Method, documents: list[str], options: Options, chosen: LabelFilter | None) -> TopK:
    threshold: Any = options.threshold
    if options.k is not None or threshold is None:
        return model.predict(documents, options.k, threshold=threshold, labels=chosen)
    _, least = checked_limits(None, threshold, model.threshold_)
    texts = Strings.of(documents)

    def ranked(rows: np.ndarray | None, k: int) -> TopK:
        return model.predict(texts if rows is None else texts[rows], k, labels=chosen)

    assert least is not None
    first = min(k_from_data(CALIBRATION_K, model.trained_on_), options.max_k)
    n_labels = len(model.label_names_)
    return best_and_reaching(ranked, first, least, len(texts), n_labels, options.max_k).above(least)


def explanations(
    model: Method, document: str, labels: Sequence[str] | None, k: int, terms: int | None
) -> list[dict[str, Any]]:
    """Explanations of one document as plain values, with the positions of words if it is a text."""
    if not (can(model, "explain") or can(model, "pixels")):
        check_explains(model, 1)
    count = terms if terms is not None or can(model, "pixels") else 10
    found = model.explain(document, None if labels is None else list(labels), k=k, terms=count)
    results = [one.to_dict() for one in found]
    if not can(model, "pixels"):
        from labelwise.model.explanation import term_spans

        spans = term_spans(model, document, [[term.name for term in one.terms] for one in found])
        for one, result, places in zip(found, results, spans, strict=True):
            result["spans"] = [
                [begin, end, term.contribution]
                for term, some in zip(one.terms, places, strict=True)
                for begin, end in some
            ]
    return results


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
