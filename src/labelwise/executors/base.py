"""`Executor`: the one way in which work that shares nothing is distributed, and which one is in use.

A *task* is a function at the top level of a module, called with a value that all tasks share and an item of its own.
Tasks write large results as files with checksums and return small ones. A task may run twice, after a worker has died
or when its result was lost, so it has to write the same files again, and nothing that others could take for complete.
Results never depend on the executor; what a task gets is all that its result depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from labelwise.errors import ConfigError, LabelwiseError

Item = TypeVar("Item")
Result = TypeVar("Result")

RETRIES = 3
"""How often a task runs again after its worker has died, or when its files are damaged."""


class LostTaskError(LabelwiseError):
    """A task was lost again and again, with its worker or with its files."""


class Handle(Protocol):
    """A value that all tasks of a `map` get: in memory, or in a file that they map."""

    def open(self) -> Any:
        """The value."""
        ...

    def remove(self) -> None:
        """Delete its file, if it has one."""
        ...


class Command(Protocol):
    """A command that runs somewhere."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class Executor(Protocol):
    """Runs tasks; use it in a `with` block."""

    shares_memory: bool
    """Whether tasks run in this process, one after the other, each on all threads."""
    slots: int
    """How many tasks run at a time."""
    folder: Path | None
    """Folder for files that only tasks need; it is removed at the end. None if tasks share memory."""

    def share(self, value: Any) -> Handle:
        """A value for all tasks; its arrays are written to a file once, which tasks map."""
        ...

    def map(
        self, function: Callable[[Any, Item], Result], items: Iterable[Item], shared: Handle | None = None
    ) -> Iterator[Result]:
        """`function(shared value, item)` for all items; results in the order of the items.

        Items of a sequence are all submitted at once, those of an iterator as they are needed. The first error ends
        it. Tasks whose worker dies run again, `RETRIES` times; then a `LostTaskError` is raised.
        """
        ...

    def start(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int]
    ) -> Command:
        """Start a Python command (the arguments after `python`) with its output in a file.

        It gets a pipe as standard input, which ends when the command has to. `keep` are files that it inherits, where
        that is possible.
        """
        ...


class Held:
    """A value in the memory of this process."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def open(self) -> Any:
        """The value."""
        return self.value

    def remove(self) -> None:
        """Nothing: there is no file."""


class Local:
    """Tasks in this process: one after the other, each on all threads, as soon as its result is asked for."""

    shares_memory: bool = True
    slots: int = 1
    folder: Path | None = None

    def share(self, value: Any) -> Held:
        """The value itself."""
        return Held(value)

    def map(
        self, function: Callable[[Any, Item], Result], items: Iterable[Item], shared: Handle | None = None
    ) -> Iterator[Result]:
        """Results one by one, in order."""
        value = None if shared is None else shared.open()
        for item in items:
            yield function(value, item)

    def start(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int]
    ) -> Command:
        """A child process."""
        from labelwise.executors.commands import import_path, start_process

        return start_process(command, output, {**import_path(), **environment}, keep)


LOCAL = Local()
_current: Executor = LOCAL


def executor() -> Executor:
    """The executor in use: of the innermost `using_executor`, otherwise this process."""
    return _current


@contextmanager
def using_executor(chosen: Executor) -> Iterator[Executor]:
    """Distribute independent work by this executor inside the block."""
    global _current
    before, _current = _current, chosen
    try:
        yield chosen
    finally:
        _current = before


class Submitted(Protocol):
    """A task that was submitted."""

    def result(self) -> Any:
        """Wait for its result; raises what the task has raised."""
        ...

    def cancel(self) -> Any:
        """Forget it, whether it runs or not."""
        ...


def in_order(submit: Callable[[Item], Submitted], items: Iterable[Item], at_once: int | None) -> Iterator[Any]:
    """Submit items and yield their results in order; of an iterator at most `at_once` are submitted ahead."""
    pending: deque[Submitted] = deque()
    try:
        for item in items:
            pending.append(submit(item))
            if at_once is not None and not isinstance(items, Sized) and len(pending) >= at_once:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for task in pending:
            task.cancel()


def task_folder() -> Path:
    """The folder for files of tasks; an error where the executor has none, because its tasks share memory."""
    folder = _current.folder
    if folder is None:
        raise RuntimeError("tasks that share memory have no folder")
    return folder


def refuse_time_budget(what: str) -> None:
    """Raise where a time budget would divide work that runs at the same time elsewhere."""
    raise ConfigError(
        f"{what}: a time budget is for one process, which measures its own pace; leave out time_budget or --launcher"
    )
