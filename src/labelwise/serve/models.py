"""The served models: loaded in the background, replaced when their folders change."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from labelwise.errors import LabelwiseError
from labelwise.serve.batching import Batcher
from labelwise.serve.gate import STARTED, Counters
from labelwise.serve.loading import (
    IMAGE,
    LoadedModel,
    Stamp,
    folder_stamp,
    load_model,
)
from labelwise.serve.logs import event, log
from labelwise.serve.schemas import Problem, not_found
from labelwise.serve.settings import Settings

T = TypeVar("T")
LOADING_RETRY = 2
"""Seconds after which to ask again for a model that is being loaded."""


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """The result of a function in a thread that the end of the server does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await future


class ServedModel:
    """A model folder, and the model that answers at the moment."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.loaded: LoadedModel | None = None
        self.batcher: Batcher | None = None
        self.failed: Stamp | None = None
        """The state of the folder that could not be loaded."""

    @property
    def reads_images(self) -> bool:
        """Whether it is known to read images."""
        return self.loaded is not None and self.loaded.reads == IMAGE

    def current(self) -> LoadedModel:
        """The model for the next batch; the batcher exists only after the first was loaded."""
        assert self.loaded is not None
        return self.loaded


class ServedModels:
    """All models of a server."""

    def __init__(self, settings: Settings, counters: Counters, on_failure: Callable[[Exception], None]) -> None:
        self.settings, self.counters, self.on_failure = settings, counters, on_failure
        self.models = {name: ServedModel(name, path) for name, path in settings.models.items()}
        self._tasks: list[asyncio.Task] = []
        self._loaded_once = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return all(one.loaded is not None for one in self.models.values())

    @property
    def states(self) -> Mapping[str, str]:
        """`ready` or `loading` of each model."""
        return {name: "loading" if one.loaded is None else "ready" for name, one in self.models.items()}

    def find(self, name: str, what: str = "model") -> tuple[Batcher, LoadedModel]:
        """A model that is ready, or a Problem."""
        one = self.models.get(name)
        if one is None:
            texts = what == "project"  # Annif's read nothing else
            names = [one for one, served in self.models.items() if not (texts and served.reads_images)]
            raise not_found(what, name, names)
        if one.loaded is None or one.batcher is None:
            raise Problem(503, "loading", f"the {what} '{name}' is being loaded", retry_after=LOADING_RETRY)
        return one.batcher, one.loaded

    async def start(self) -> None:
        """Begin to load, and then to watch the folders.

        A single process answers meanwhile that it is loading. One of several accepts nothing before it has loaded: the
        others answer while it is started again.
        """
        self._tasks.append(asyncio.create_task(self._load_and_watch()))
        if self.settings.workers > 1:
            await self._loaded_once.wait()

    async def stop(self) -> None:
        """Stop watching, and end the threads."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.models.values():
            if one.batcher is not None:
                one.batcher.stop()

    async def _load_and_watch(self) -> None:
        for one in self.models.values():
            try:
                await self._load(one)
            except (LabelwiseError, OSError) as error:
                self.on_failure(error)
                return
            except Exception as error:
                log.exception("a model cannot be loaded")
                self.on_failure(error)
                return
        self.counters.set("labelwise_ready_workers", 1)
        if self.counters.total("labelwise_ready_workers") >= self.settings.workers:
            self.counters.set(STARTED, 1)
        event("ready", models=len(self.models))
        self._loaded_once.set()
        while self.settings.reload:
            await asyncio.sleep(self.settings.reload)
            for one in self.models.values():
                await self._load_again_if_changed(one)

    async def _load(self, one: ServedModel) -> None:
        loaded = await in_daemon_thread(lambda: load_model(one.path))
        one.loaded = loaded  # batches that are being computed keep the model they began with
        if one.batcher is None:
            one.batcher = Batcher(one.name, self.settings, self.counters, one.current)
        self.counters.add("labelwise_model_loads_total", model=one.name, result="ok")
        fields: dict[str, Any] = {"model": one.name, "method": loaded.model.name, "seconds": round(loaded.seconds, 2)}
        event("model loaded", **fields)

    async def _load_again_if_changed(self, one: ServedModel) -> None:
        try:
            stamp = await asyncio.to_thread(folder_stamp, one.path)
        except (LabelwiseError, OSError):
            return  # in the middle of a replacement, or removed: the loaded model keeps answering
        if one.loaded is None or stamp in (one.loaded.stamp, one.failed):
            return
        try:
            await self._load(one)
            one.failed = None
        except Exception as error:  # whatever a damaged folder causes: the loaded model keeps answering
            one.failed = stamp
            self.counters.add("labelwise_model_loads_total", model=one.name, result="error")
            event(
                "a changed model cannot be loaded; the old one stays", logging.ERROR, model=one.name, error=str(error)
            )
