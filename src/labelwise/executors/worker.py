"""A worker process: `python -m labelwise.executors.worker`, started by `processes.py`.

It reads tasks from standard input and writes outcomes to standard output, both as pickles with their length in front.
When the other end closes, because its driver ends or is killed, the worker exits, whatever it is doing.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import sys
import threading
from typing import IO, Any

HEADER = 8
"""Bytes of a message's length."""


def send(stream: IO[bytes], value: Any) -> None:
    """Write a message."""
    content = pickle.dumps(value, protocol=5)
    stream.write(len(content).to_bytes(HEADER, "little") + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read a message; EOFError at the end of the stream."""
    return pickle.loads(_read_message(stream))


def _read_message(stream: IO[bytes]) -> bytes:
    return _read(stream, int.from_bytes(_read(stream, HEADER), "little"))


def _read(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError
    return content


def _read_tasks(stream: IO[bytes], tasks: queue.SimpleQueue) -> None:
    while True:
        try:
            message = _read_message(stream)
        except (EOFError, OSError):
            os._exit(0)
        try:
            tasks.put(pickle.loads(message))
        except Exception as error:  # such as a function that this worker cannot import
            tasks.put(error)


def main() -> None:
    """Run tasks until the driver ends."""
    given, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a task prints must not get between the outcomes
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    tasks: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_read_tasks, args=(given, tasks), daemon=True).start()
    from labelwise.executors.task import Outcome, run_task

    while True:
        task = tasks.get()
        outcome = Outcome(None, task, repr(task)) if isinstance(task, Exception) else run_task(*task)
        try:
            try:
                send(answers, outcome)
            except (AttributeError, TypeError, pickle.PicklingError) as error:  # before anything is written
                send(answers, Outcome(None, TypeError(f"the result of a task cannot be sent: {error}")))
        except OSError:
            sys.exit(1)


if __name__ == "__main__":
    main()
