"""Where independent work runs: in this process (`HERE`), in processes of this machine, or on a Ray cluster.

A *task* is a function at the top level of a module, called with a value that all tasks share and an item of its own.
Large results are files with checksums. A task may run twice, after a worker has died or when its files cannot be read,
so it has to write the same files again, and nothing that others could take for complete. Results never depend on the
executor; what a task gets is all that its result depends on.
"""

from __future__ import annotations

import copy
import hashlib
import io
import logging
import multiprocessing
import os
import pickle
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from labelwise import __version__
from labelwise.errors import ConfigError, DataError, LabelwiseError, MissingDependencyError, did_you_mean
from labelwise.io.atomic import replacing
from labelwise.runtime.device import requested_device, using_device
from labelwise.runtime.threads import available_threads, using_threads

log = logging.getLogger("labelwise")

Item = TypeVar("Item")
Result = TypeVar("Result")

RETRIES = 3
"""How often a task runs again after its worker has died, or when its files cannot be read."""
MAPPED_BYTES = 1 << 20
"""Shared values with at least so many bytes in arrays are written to a file."""
ALIGNED = 64
"""Arrays begin at multiples of so many bytes in that file."""
FILES_AT_ONCE = 8
"""Files of shared values that a worker keeps mapped."""
TOKEN = "token"
"""File in the folder for tasks, by which a worker sees that it is the folder of its driver."""
NOT_FROM_HERE = "-P"
"""Option of Python: `-m` and `-c` look for modules in the working directory first, before the standard library."""


class LostTaskError(LabelwiseError):
    """A task was lost again and again, with its worker or with its files."""


# --- shared values: their arrays in one file that workers map, the rest as an argument ---


@dataclass(frozen=True)
class Shared:
    """A value for many tasks; it may be part of another one."""

    value: Any
    """Pickled without its arrays, if they are in a file."""
    path: Path | None = None
    sizes: tuple[int, ...] = ()
    """Bytes of the arrays in the file."""

    def open(self) -> Any:
        """The value, with read-only arrays if they are in a file."""
        return self.value if self.path is None else pickle.loads(self.value, buffers=_mapped(self.path, self.sizes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Delete its file, if it has one."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


class _Pickler(pickle.Pickler):
    """Leaves the contents of all arrays to its caller, also of those that are mapped or not contiguous."""

    PROTOCOL = 5

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.memmap) or (isinstance(value, np.ndarray) and not value.flags.forc):
            return np.asarray(value, order="C").__reduce_ex__(self.PROTOCOL)
        return NotImplemented


def shared_value(value: Any, folder: Path | None) -> Shared:
    """Write the arrays of a value to a new file in the folder, if they are large."""
    if folder is None:
        return Shared(value)
    rest, arrays = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(rest, _Pickler.PROTOCOL, buffer_callback=arrays.append).dump(value)
    sizes = tuple(array.raw().nbytes for array in arrays)
    if sum(sizes) < MAPPED_BYTES:
        return Shared(value)
    path = folder / f"{secrets.token_hex(16)}.arrays"
    with replacing(path, binary=True, follow=False) as file:
        for array, size in zip(arrays, sizes, strict=True):
            file.write(array.raw())
            file.write(bytes(-size % ALIGNED))
    return Shared(rest.getvalue(), path, sizes)


@lru_cache(FILES_AT_ONCE)
def _mapped(path: Path, sizes: tuple[int, ...]) -> list[np.ndarray]:
    ends = list(accumulate(size + -size % ALIGNED for size in sizes))
    try:
        if path.stat().st_size != ends[-1]:
            raise DataError("a worker sees other contents than were written, or not all of them", path)
        content = np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise DataError(f"cannot be read by a worker: {error.strerror or error}", path) from None
    return [content[begin : begin + size] for begin, size in zip([0, *ends], sizes, strict=False)]


# --- how a task runs ---


@dataclass(frozen=True)
class Terms:
    """What a driver expects of its workers.

    Parameters
    ----------
    version
        Of labelwise and Python, with a hash of the source code.
    threads, device
        Threads of a task, and the device that networks compute on.
    folder, token
        The shared folder, and what the driver has written into it.
    directory
        The driver's working directory, from which relative paths in configs are read.
    """

    version: str
    threads: int
    device: str
    folder: Path | None = None
    token: str = ""
    directory: Path = Path()

    def check(self) -> None:
        """Raise in a worker that does not fit."""
        where, found = f"the worker on {socket.gethostname()} (process {os.getpid()})", None
        if own_version() != self.version:
            raise ConfigError(
                f"{where} runs {own_version()}, this process {self.version}: results could differ; install the same "
                "version of labelwise and Python on all nodes"
            )
        if self.folder is None:
            return
        with suppress(OSError):
            found = (self.folder / TOKEN).read_text(encoding="ascii")
        if found != self.token:
            raise ConfigError(
                f"{where} does not see {self.folder}: the run folder must be on a file system that all nodes share, "
                "under the same path"
            )


@cache
def own_version() -> str:
    """The version of labelwise and of Python, with a hash of our source code: development versions share a number."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"labelwise {__version__} (code {digest.hexdigest()[:8]}, Python {platform.python_version()})"


@cache
def _accept(terms: Terms) -> None:
    terms.check()
    with suppress(OSError):  # workers of Ray begin in the directory of their node; it is not needed for absolute paths
        os.chdir(terms.directory)


def run_task(terms: Terms, function: Callable, shared: Shared | None, item: Any) -> tuple[Any, Exception | None]:
    """Run a task in this process, a worker: its result, or its error, which Ray would wrap if it was raised here."""
    try:
        _accept(terms)
        with using_threads(terms.threads), using_device(terms.device):
            return function(None if shared is None else shared.open(), item), None
    except Exception as error:
        is_ours, trace = isinstance(error, LabelwiseError), traceback.format_exc()
        try:
            copy.copy(error)  # from its arguments, as it will be made again in the other process
        except Exception:
            error = LabelwiseError(str(error)) if is_ours else RuntimeError(repr(error))
        if not is_ours:
            error.add_note(f"In a worker:\n{trace}")
        return None, error


class Tasks:
    """Tasks in this process: one after the other, each on all threads, as soon as its result is asked for.

    Attributes
    ----------
    slots
        How many tasks run at a time.
    shares_memory
        Whether tasks run in this process.
    folder
        Folder for files that only tasks need, removed at the end; None if tasks need none.
    """

    slots: int = 1
    shares_memory: bool = True
    folder: Path | None = None

    def share(self, value: Any) -> Shared:
        """A value for all tasks; use it in a `with` block, which removes its file."""
        return shared_value(value, self.folder)

    def map(
        self,
        function: Callable[[Any, Item], Result],
        items: Iterable[Item],
        shared: Shared | None = None,
        *,
        ordered: bool = False,
        read: Callable[[Item, Result], Any] | None = None,
    ) -> Iterator[tuple[Item, Any]]:
        """Each item with `function(shared value, item)`, as they are finished; `ordered`: in the order of the items.

        `read` reads here what a task has written, and replaces its result; None says that it cannot be read. Then, or
        if its worker died, the task runs again, `RETRIES` times before a `LostTaskError`. The first error of a task is
        raised. An iterator of items is read as they are needed, a few ahead.
        """
        source, again = enumerate(items), deque[tuple[int, Item]]()
        running: dict[Future, tuple[int, Item]] = {}
        found: dict[int, tuple[Item, Any]] = {}
        lost, following = Counter[int](), 0

        def run_again(task: tuple[int, Item], why: str) -> None:
            lost[task[0]] += 1
            if lost[task[0]] > RETRIES:
                raise LostTaskError(f"a task was lost {RETRIES + 1} times because {why}")
            again.append(task)

        try:
            while True:
                while again or len(running) + len(found) < self._ahead(items):
                    task = again.popleft() if again else next(source, None)
                    if task is None:
                        break
                    running[self._submit(function, shared, task[1])] = task
                if not running:
                    return
                wait(running, return_when=FIRST_COMPLETED)
                dead, reason = self._take_lost(running)
                for task in dead[: self.slots]:  # those that ran
                    run_again(task, f"its worker process ended, the last time with {reason}")
                again.extend(dead[self.slots :])
                for future in [one for one in running if one.done()]:
                    number, item = task = running.pop(future)
                    result, error = future.result()
                    if error is not None:
                        raise error
                    if read is not None and (result := read(item, result)) is None:
                        run_again(task, f"what it had written could not be read: {item}")
                    elif ordered:
                        found[number] = item, result
                    else:
                        yield item, result
                while following in found:
                    yield found.pop(following)
                    following += 1
        finally:
            for future in running:
                self._cancel(future)

    def start(self, command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int]) -> Any:
        """Start a Python command (the arguments after `python`) with its output in a file: a `Child`, or like one.

        Its standard input is a pipe that ends when the command has to. It inherits the files `keep`, where possible.
        """
        return start_process(command, output, environment, keep)

    def _ahead(self, items: Iterable) -> int:
        """How many items may be submitted whose results are not taken yet."""
        return self.slots

    def _submit(self, function: Callable, shared: Shared | None, item: Any) -> Future:
        done: Future = Future()
        done.set_result((function(None if shared is None else shared.open(), item), None))
        return done

    def _cancel(self, future: Future) -> None:
        future.cancel()

    def _take_lost(self, running: dict[Future, Any]) -> tuple[list[Any], str]:
        """Remove the tasks whose worker has died, in the order in which they were submitted; and how it has ended."""
        return [], ""


HERE = Tasks()

# --- processes of this machine ---


class Processes(Tasks):
    """`count` worker processes, each with so many threads. They start when there are tasks for them."""

    shares_memory = False

    def __init__(self, count: int, terms: Terms) -> None:
        self.slots, self.terms, self.folder = count, terms, terms.folder
        self._pool: ProcessPoolExecutor | None = None
        self._workers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                worker.kill()
        self._end_pool()

    def _ahead(self, items: Iterable) -> int:
        return 2 * self.slots

    def _submit(self, function: Callable, shared: Shared | None, item: Any) -> Future:
        with _inherited(self.terms.threads):  # a pool begins its processes when they are needed
            if self._pool is None:
                job: Any = copy.copy(SPAWN)
                job.Process = self._new_worker
                self._pool = ProcessPoolExecutor(self.slots, job, _begin_worker)
            try:
                return self._pool.submit(run_task, self.terms, function, shared, item)
            except BrokenProcessPool as error:  # a worker has died since the last result
                failed: Future = Future()
                failed.set_exception(error)
                return failed

    def _new_worker(self, *args: Any, **options: Any) -> Any:
        self._workers.append(SPAWN.Process(*args, **options))
        return self._workers[-1]

    def _take_lost(self, running: dict[Future, Any]) -> tuple[list[Any], str]:
        """A pool that has lost a worker gives up all its tasks; the next one begins another pool."""
        if not any(_has_lost_worker(future) for future in running):
            return [], ""
        workers, self._workers = self._workers, []
        self._end_pool()
        codes = [worker.exitcode for worker in workers if worker.exitcode] or [0]
        code = next((code for code in codes if code != -signal.SIGTERM), codes[0])  # the pool has ended the others so
        if code == 1:
            raise LostTaskError(
                "a worker process could not read its task, for the reason in its output: functions and classes of "
                "tasks must be in a module that it can import, not in a script"
            )
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        log.warning("a worker process ended (%s); its task runs again", reason)
        dead = [running.pop(future) for future in list(running) if _has_lost_worker(future)]
        return dead, f"{reason}; if memory is short, use fewer --workers"

    def _end_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _has_lost_worker(future: Future) -> bool:
    return future.done() and isinstance(future.exception(), BrokenProcessPool)


SPAWN = multiprocessing.get_context("spawn")


_start_lock = threading.Lock()


@contextmanager
def _inherited(threads: int) -> Iterator[None]:
    """Set what processes inherit that start inside the block.

    They do not import the script of this process, which would run again where it has no `if __name__ == "__main__"`;
    nor files of the working directory, which may be one of data. Ctrl-C is for this process, which then ends them.
    """
    script = vars(sys.modules["__main__"])
    changes = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(threads)}
    changes["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    mask = getattr(signal, "pthread_sigmask", None)
    with _start_lock:
        hidden = {name: script.pop(name) for name in ("__file__", "__spec__") if name in script}
        script["__spec__"] = None
        environment = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        blocked = None if mask is None else mask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            if mask is not None:
                mask(signal.SIG_SETMASK, blocked)
            for name, before in environment.items():
                if before is None:
                    del os.environ[name]
                else:
                    os.environ[name] = before
            script.update(hidden)


def _begin_worker() -> None:
    """In a new worker: it ends with its parent, whatever it is doing, and leaves standard output and Ctrl-C to it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(0)), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")


# --- a Ray cluster ---


class RayTasks(Tasks):
    """Tasks on a Ray cluster. Ray runs a task again when its worker or its node dies.

    Parameters
    ----------
    terms
        What workers must fulfil; each task reserves as many CPUs as it has threads.
    address
        Of a running cluster; None: what RAY_ADDRESS names, otherwise one is started on this machine.
    at_once
        Maximum number of tasks submitted at a time; None: all of a list, and Ray runs as many as fit.
    gpus
        GPUs that each task reserves.
    """

    shares_memory = False

    def __init__(self, terms: Terms, address: str | None, at_once: int | None, gpus: float) -> None:
        self.terms, self.folder, self.at_once, self.gpus = terms, terms.folder, at_once, gpus
        self.address = address
        self._references: dict[Future, Any] = {}

    def __enter__(self) -> Self:
        # `max_retries` does not count the tasks that Ray's memory monitor kills; this process counts them, also on a
        # cluster that runs already
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
        try:
            import ray
        except ImportError:
            raise MissingDependencyError("ray", "ray", "--launcher ray") from None
        self._ray, self._connects = ray, not ray.is_initialized()
        if self._connects:
            self._connect()
        try:
            self.slots = self._check_resources()
        except BaseException:
            self.__exit__()
            raise
        options = {"num_cpus": self.terms.threads, "num_gpus": self.gpus, "max_retries": RETRIES}
        self._task = ray.remote(run_task).options(**options, retry_exceptions=False, scheduling_strategy="SPREAD")
        return self

    def _connect(self) -> None:
        wanted = self.address or os.environ.get("RAY_ADDRESS")
        own = {} if wanted or self.at_once is None else {"num_cpus": self.at_once * self.terms.threads}
        # without an address it would join a cluster of others on this machine; the variable it reads itself
        given = {"address": self.address} if wanted else {"address": "local", "include_dashboard": False}
        try:
            self._ray.init(**given, **own, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ConfigError(
                f"--launcher ray: no connection to the cluster ({wanted or 'a new one on this machine'}): {reason}; "
                "`ray start --head` starts one, and --address host:port names another"
            ) from None

    def _check_resources(self) -> int:
        """How many tasks fit into the cluster; an error if no node can run one, which Ray would wait for."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for name, option, needed in (("CPU", "--task-cpus", self.terms.threads), ("GPU", "--task-gpus", self.gpus)):
            most = max((node.get(name, 0) for node in nodes), default=0)
            if needed > most:
                raise ConfigError(f"{option} {needed:g}: no node of the cluster has so many, the largest has {most:g}")
        fitting = sum(int(node.get("CPU", 0) // self.terms.threads) for node in nodes)
        log.info("Ray cluster: %d nodes, %d tasks of %d CPUs at a time", len(nodes), fitting, self.terms.threads)
        return max(1, min(fitting, self.at_once or fitting))

    def __exit__(self, *_details: object) -> None:
        if self._connects:
            self._ray.shutdown()

    def map(self, function: Any, items: Any, shared: Any = None, **how: Any) -> Iterator[tuple[Any, Any]]:
        """Run tasks on the cluster; a node fetches the shared value once, not with every task."""
        try:
            yield from super().map(function, items, self._ray.put(shared), **how)
        except self._ray.exceptions.RayError as error:
            raise _lost(error) from None

    def _ahead(self, items: Iterable) -> int:
        return self.at_once or (len(items) if isinstance(items, Sized) else 2 * self.slots)

    def _submit(self, function: Callable, shared: Any, item: Any) -> Future:
        reference = self._task.remote(self.terms, function, shared, item)
        future = reference.future()
        self._references[future] = reference
        future.add_done_callback(self._references.pop)
        return future

    def _cancel(self, future: Future) -> None:
        with suppress(Exception):  # it has ended, or the cluster is gone
            self._ray.cancel(self._references[future], force=True)

    def start(self, command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int]) -> Any:
        """A process on some node, which ends with its task. Files to keep open cannot be passed to other machines."""
        line = tuple(command), output.absolute(), dict(environment)
        return CommandOnCluster(self, self._submit(run_command, None, line))


def _lost(error: BaseException) -> LostTaskError:
    """The error of a task that Ray has given up."""
    kind, lines = type(error).__name__, [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = lines[-1 if kind.startswith("RayTaskError") else 0] if lines else kind
    if kind == "OutOfMemoryError":
        return LostTaskError(
            f"a task on the Ray cluster ran out of memory, after {RETRIES} retries: {shown}; with a larger --task-cpus "
            "(in sweeps `threads`) fewer tasks share the memory of a node"
        )
    return LostTaskError(
        f"a task on the Ray cluster was lost, after {RETRIES} retries if its node died: {kind}: {shown}"
    )


class CommandOnCluster:
    """A command on a node of a Ray cluster."""

    def __init__(self, tasks: RayTasks, future: Future) -> None:
        self.tasks, self.future = tasks, future

    def poll(self) -> int | None:
        """Its exit code; None while it runs or waits."""
        if not self.future.done():
            return None
        if (error := self.future.exception()) is not None:
            raise _lost(error)
        code, error = self.future.result()
        if error is not None:
            raise error
        return code

    def stop(self) -> None:
        """End its worker, and the command with it."""
        self.tasks._cancel(self.future)


# --- commands in processes of their own, which end when the process that started them does: trials of sweeps ---


class Child:
    """A child process; closing its standard input ends it."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code = self.process.poll()
        if code is not None:
            self._close()
        return code

    def stop(self) -> None:
        """Close its standard input, which is enough unless it hangs."""
        self._close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _close(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def start_process(
    command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int] = ()
) -> Child:
    """Start `python COMMAND` with this Python; `environment` is added to that of this process.

    It imports from where this process does, but nothing from the working directory, which may be one of data.
    """
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, NOT_FROM_HERE, *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,
            pass_fds=tuple(keep) if os.name == "posix" else (),
        )
    return Child(process)


def run_command(_shared: Any, line: tuple[tuple[str, ...], Path, dict[str, str]]) -> int:
    """A task: run a command on the worker's machine; returns its exit code. It ends with the worker."""
    started = start_process(*line)
    try:
        return started.process.wait()
    finally:
        started.stop()


# --- `--launcher`: which executor a command uses ---

LOCAL, PROCESSES, RAY = LAUNCHERS = ("local", "processes", "ray")


@dataclass(frozen=True)
class Launcher:
    """Where the work of a command runs; it never decides what the result is.

    Parameters
    ----------
    name
        `local` (this process, on all its threads), `processes` (of this machine) or `ray`.
    address
        Of a Ray cluster.
    workers
        Tasks at a time; None: as many as there are cores, or as fit into the cluster.
    task_cpus
        CPUs and threads of a task; None: 1, or what a command gives.
    task_gpus
        GPUs of a task, which Ray reserves.
    """

    name: str = LOCAL
    address: str | None = None
    workers: int | None = None
    task_cpus: int | None = None
    task_gpus: float | None = None

    def __post_init__(self) -> None:
        if self.name not in LAUNCHERS:
            raise ConfigError(f"--launcher {self.name}: {did_you_mean(self.name, LAUNCHERS)}")
        both, ray = (PROCESSES, RAY), (RAY,)
        for option, accepted in (("address", ray), ("workers", both), ("task_cpus", both), ("task_gpus", ray)):
            if getattr(self, option) is not None and self.name not in accepted:
                raise ConfigError(f"--{option.replace('_', '-')} needs --launcher {' or '.join(accepted)}")

    @property
    def is_local(self) -> bool:
        """Whether everything is done in this process."""
        return self.name == LOCAL

    @contextmanager
    def opened(self, folder: Path | None, task_cpus: int | None = None) -> Iterator[Tasks]:
        """This launcher's executor, for as long as the block lasts.

        Files for tasks are in `folder`, which is created, and removed at the end; None for tasks that need none.
        `task_cpus` is for tasks whose number the user has not given.
        """
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # of a killed command
        if self.is_local:
            yield HERE
            return
        token, cpus = secrets.token_hex(16), self.task_cpus or task_cpus or 1
        try:
            if folder is not None:
                folder = folder.absolute()
                try:
                    folder.mkdir(parents=True)
                    (folder / TOKEN).write_text(token, encoding="ascii")
                except OSError as error:
                    raise DataError(
                        f"the folder for tasks cannot be created: {error.strerror or error}", folder
                    ) from error
            terms = Terms(own_version(), cpus, requested_device(), folder, token, Path.cwd())
            with (
                Processes(self.workers or max(1, available_threads() // cpus), terms)
                if self.name == PROCESSES
                else RayTasks(terms, self.address, self.workers, self.task_gpus or 0)
            ) as tasks:
                yield tasks
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
