"""The shared thread pool. Kernels release the GIL, so Python threads use all cores.

Numba's own ``parallel=True`` is never used: its OpenMP layer kills forked children and its fallback layer aborts when
two threads of a server call it at once.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from labelwise.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

_chosen: int | None = None
_pool: ThreadPoolExecutor | None = None
_pool_key: tuple[int, int] | None = None
_pool_lock = threading.Lock()
_thread_state = threading.local()


def threads() -> int:
    """Threads in use: what `set_threads` or LABELWISE_THREADS sets, otherwise all cores this process may use.

    Processes of torchrun on one machine divide its cores among them.
    """
    return available_threads() if _chosen is None else _chosen


def available_threads() -> int:
    """Threads that all processes together may have, whatever `set_threads` sets for this one."""
    given = os.environ.get("LABELWISE_THREADS")
    if given is not None:
        if not given.isdigit() or int(given) < 1:
            raise ConfigError(f"LABELWISE_THREADS is '{given}'; a number of threads, 1 or more, is needed")
        return int(given)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = int(min(cores, cpu_quota()))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, cores // max(1, int(ranks))) if ranks.isdecimal() else cores


@cache
def cpu_quota(root: Path = Path("/")) -> float:
    """CPUs that the control group of this process may use, at least 1, rounded up; infinite without a limit.

    Containers are limited by it (`--cpus 2`), and the number of cores says nothing of that.
    """
    return min((_cpus_of(*group) for group in control_groups("cpu", root)), default=math.inf)


def control_groups(controller: str, root: Path = Path("/")) -> list[tuple[Path, bool]]:
    """Folders of the control groups of this process and of those above them, and whether each is of version 1."""
    found = []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            inside = top / path.lstrip("/")
            folders = (folder for folder in (inside, *inside.parents) if folder.is_relative_to(top))
            found += [(folder, bool(controllers)) for folder in folders]
    return found


def _cpus_of(group: Path, is_version_1: bool) -> float:
    """The CPUs that one control group allows; infinite if it says nothing."""
    with suppress(OSError, ValueError):
        if is_version_1:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text(encoding="ascii").strip() for name in ("quota", "period")
            )
        else:
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        if quota not in ("max", "-1"):
            return max(1, math.ceil(int(quota) / int(period)))
    return math.inf


def set_threads(count: int | None) -> None:
    """Use this many threads from now on; None restores the default."""
    global _chosen
    if count is not None and count < 1:
        raise ConfigError(f"threads must be 1 or more, got {count}")
    _chosen = count


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Use another number of threads inside a `with` block."""
    before = _chosen
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def thread_pool() -> ThreadPoolExecutor:
    """The shared pool; a new one after a fork or when the number of threads changed.

    The old pool is not shut down: other threads may be about to submit work to it. It ends when it is unused.
    """
    global _pool, _pool_key
    with _pool_lock:
        key = (os.getpid(), threads())
        if _pool is None or _pool_key != key:
            _pool = ThreadPoolExecutor(key[1], thread_name_prefix="labelwise", initializer=_mark_thread)
            _pool_key = key
        return _pool


def _mark_thread() -> None:
    _thread_state.in_pool = True


def _runs_inline() -> bool:
    """Whether to run in the calling thread: one thread only, or a thread of the pool, where waiting could deadlock."""
    return threads() == 1 or getattr(_thread_state, "in_pool", False)


def _new_lock_after_fork() -> None:
    global _pool_lock
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock_after_fork)


def run_all(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Map `work` over the items in the pool; results in the order of the items. The first error is raised."""
    todo = list(items)
    if _runs_inline() or len(todo) <= 1:
        return [work(item) for item in todo]
    futures = [thread_pool().submit(work, item) for item in todo]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def run_stream(work: Callable[[Item], Result], items: Iterable[Item], ahead: int = 2) -> Iterator[Result]:
    """Like `run_all` for a stream: results in order, at most threads + ahead items in memory."""
    if _runs_inline():
        yield from map(work, items)
        return
    pending: list[Future[Result]] = []
    try:
        for item in items:
            pending.append(thread_pool().submit(work, item))
            if len(pending) >= threads() + ahead:
                yield pending.pop(0).result()
        while pending:
            yield pending.pop(0).result()
    finally:
        for future in pending:
            future.cancel()


def ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """Split 0..count into at most `parts` contiguous ranges of nearly equal size, none empty."""
    parts = max(1, min(parts, count))
    edges = [count * part // parts for part in range(parts + 1)]
    return list(pairwise(edges)) if count else []
