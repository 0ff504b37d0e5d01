"""What a model computes for requests: predictions of many requests in one call, explanations one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.methods.base import Method
from labelwise.methods.label_filter import LabelFilter
from labelwise.methods.predictions import CALIBRATION_K, best_and_reaching, checked_limits, k_from_data
from labelwise.methods.top_words import check_explains, top_words
from labelwise.serve.answers import Ranked
from labelwise.serve.loading import LoadedModel
from labelwise.serve.problems import Problem
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK


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
    if not (model.explains or model.shows_pixels):
        check_explains(model, 1)
    count = terms if terms is not None or model.shows_pixels else 10
    found = model.explain(document, None if labels is None else list(labels), k=k, terms=count)
    results = [one.to_dict() for one in found]
    if not model.shows_pixels:
        from labelwise.methods.term_spans import term_spans

        spans = term_spans(model, document, [[term.name for term in one.terms] for one in found])
        for one, result, places in zip(found, results, spans, strict=True):
            result["spans"] = [
                [begin, end, term.contribution]
                for term, some in zip(one.terms, places, strict=True)
                for begin, end in some
            ]
    return results
