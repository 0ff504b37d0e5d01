"""Runs the service: one process, or several worker processes on one socket."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from labelwise.errors import ConfigError
from labelwise.runtime.threads import threads
from labelwise.serve.app import create_app
from labelwise.serve.gate import ApiKeys
from labelwise.serve.loading import load_model
from labelwise.serve.logs import event, set_up_logs
from labelwise.serve.protocol import protocol_factory
from labelwise.serve.settings import SETTINGS_VARIABLE, Settings, settings_from_environment

BACKLOG = 2048
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STABLE_SECONDS, LONGEST_PAUSE = 120.0, 60.0
"""Restarts of workers within so many seconds are counted together, and the longest pause between two."""


def serve(settings: Settings) -> None:
    """Listen until SIGTERM or Ctrl-C; requests that have begun are answered before it ends."""
    set_up_logs(settings.log_format)
    keys = ApiKeys.of(settings)  # errors in them are reported before anything is loaded
    settings = settings.model_copy(update={"key_hashes": tuple(one.hex() for one in keys.hashes)})
    with listening_socket(settings) as listening:
        host, port = listening.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if not settings.is_loopback and not keys:
            event("no API keys: everybody who can reach this machine can use the models", logging.WARNING)
        event("listening", address=address, workers=settings.workers, models=list(settings.models))
        if settings.workers == 1:
            _serve_here(settings, listening)
        else:
            _serve_in_workers(settings, listening)
    event("stopped")


def worker_app() -> ASGIApp:
    """The application of a worker process."""
    settings = settings_from_environment()
    set_up_logs(settings.log_format)

    end_with_parent(settings)
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:  # uvicorn's handlers wait until the models are loaded
        signal.signal(number, lambda *_: os._exit(0))

    def handle_signals() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def stop(error: Exception) -> None:
        event("a model cannot be loaded", logging.ERROR, error=str(error))
        os._exit(1)  # no connection was accepted yet

    return create_app(settings, stop, handle_signals)


def end_with_parent(settings: Settings) -> None:
    """Stop this worker if its parent is killed, and remove the file that the parent would have removed."""
    parent = multiprocessing.parent_process()
    if parent is None or settings.counters is None:
        return
    counters = Path(settings.counters)

    def wait() -> None:
        parent.join()
        with contextlib.suppress(OSError):  # another worker removes it too
            counters.unlink()
            counters.parent.rmdir()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


class Server(uvicorn.Server):
    """A server that ends normally after SIGTERM or Ctrl-C, instead of raising the signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals until the server has stopped."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at once if it is asked for again."""
        if not self.should_exit:
            event("stopping", signal=signal.Signals(sig).name)
        super().handle_exit(sig, frame)


def make_server(settings: Settings, failures: list[Exception]) -> Server:
    """A server of one process; it stops if a model cannot be loaded at the start, and adds the error to `failures`."""

    def stop(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    server = Server(uvicorn.Config(create_app(settings, stop), **_options(settings)))
    return server


def _serve_here(settings: Settings, listening: socket.socket) -> None:
    failures: list[Exception] = []
    make_server(settings, failures).run([listening])
    if failures:
        raise failures[0]


def _serve_in_workers(settings: Settings, listening: socket.socket) -> None:
    """Load once here, so that errors are reported and kernels compiled once; then start the workers."""
    for path in settings.models.values():
        load_model(path)
    with tempfile.TemporaryDirectory(prefix="labelwise-") as folder:
        counters = Path(folder) / "counters"
        counters.touch()
        shared = settings.model_copy(update={"counters": str(counters)})
        os.environ[SETTINGS_VARIABLE] = shared.model_dump_json()
        os.environ.setdefault("LABELWISE_THREADS", str(max(1, threads() // settings.workers)))
        config = uvicorn.Config(
            "labelwise.serve.server:worker_app", factory=True, workers=settings.workers,
            timeout_worker_healthcheck=60, **_options(settings),
        )  # fmt: skip
        Workers(config, sockets=[listening]).run()


class Workers(Multiprocess):
    """Worker processes; one that dies is started again, after a pause if that happens often."""

    failures, restarted, resume = 0, 0.0, 0.0

    def terminate_all(self) -> None:
        """Ask the workers to answer what has begun and to end."""
        event("stopping")
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Start what has died, unless it is too early."""
        if time.monotonic() < self.resume:
            return
        before = [one.pid for one in self.processes]
        super().keep_subprocess_alive()
        if before == [one.pid for one in self.processes]:
            return
        now = time.monotonic()
        self.failures = self.failures + 1 if now - self.restarted < STABLE_SECONDS else 1
        self.restarted, pause = now, restart_pause(self.failures)
        self.resume = now + pause
        event("a worker has died and is started again", logging.ERROR, failures=self.failures, pause=pause)


def restart_pause(failures: int) -> float:
    """Seconds without another restart after so many in a row: 1, 2, 4 ... 60."""
    return min(2.0 ** min(failures - 1, 30), LONGEST_PAUSE)


def _options(settings: Settings) -> dict[str, Any]:
    return {
        "http": protocol_factory(settings.max_connections, settings.timeout), "ws": "none", "lifespan": "on",
        "log_config": None, "access_log": False, "server_header": False, "proxy_headers": False,
        "timeout_keep_alive": 20, "backlog": BACKLOG,
        "timeout_graceful_shutdown": max(1, round(settings.timeout)),
    }  # fmt: skip


def listening_socket(settings: Settings) -> socket.socket:
    """The socket of an address and port, or an error that says what to do."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {settings.host}: {error.strerror or error}") from None
    family, _, _, _, address = found[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"{settings.host}:{settings.port}: {reason}; --port chooses another port, 0 any free one"
        ) from None
