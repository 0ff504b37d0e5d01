"""Tasks on a Ray cluster. Ray runs a task again when its worker or its node dies; `--launcher ray` chooses this."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from labelwise.errors import ConfigError, MissingDependencyError
from labelwise.executors.base import (
    RETRIES,
    Item,
    LostTaskError,
    Result,
    in_order,
)
from labelwise.executors.commands import CommandLine, run_command
from labelwise.executors.shared import INLINE_BYTES, Shared, is_open, pack
from labelwise.executors.task import Terms, run_task

log = logging.getLogger("labelwise")


class RayTasks:
    """Tasks that Ray schedules.

    Parameters
    ----------
    terms
        What workers must fulfil; each task reserves as many CPUs as it has threads.
    address
        Of a running cluster; None: what RAY_ADDRESS names, otherwise one is started on this machine.
    at_once
        Maximum number of tasks submitted at a time; None: all, and Ray runs as many as fit.
    gpus
        GPUs that each task reserves.
    """

    shares_memory: bool = False

    def __init__(self, terms: Terms, address: str | None, at_once: int | None, gpus: float) -> None:
        self.terms, self.folder, self.at_once, self.gpus = terms, terms.folder, at_once, gpus
        self.address = address
        self.slots = 1
        self._connected = False

    def __enter__(self) -> Self:
        # `max_retries` does not count the tasks that Ray's memory monitor kills; this process counts them, also on a
        # cluster that runs already
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
        try:
            import ray
        except ImportError:
            raise MissingDependencyError("ray", "ray", "--launcher ray") from None
        if not ray.is_initialized():
            self._connect(ray)
        try:
            self.slots = self._check_resources(ray)
        except BaseException:
            self.__exit__()
            raise
        options = {"num_cpus": self.terms.threads, "num_gpus": self.gpus, "max_retries": RETRIES}
        self._task = ray.remote(run_task).options(**options, retry_exceptions=False, scheduling_strategy="SPREAD")
        return self

    def _connect(self, ray: Any) -> None:
        from_environment = os.environ.get("RAY_ADDRESS")
        started = self.address is None and not from_environment
        own = {"num_cpus": self.at_once * self.terms.threads} if started and self.at_once is not None else {}
        try:
            ray.init(
                address="local" if started else self.address,  # None would join a cluster of others on this machine
                include_dashboard=False if started else None,
                logging_level=logging.WARNING,
                **own,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            wanted = self.address or from_environment or "a new one on this machine"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ConfigError(
                f"--launcher ray: no connection to the cluster ({wanted}): {reason}; `ray start --head` starts one, "
                "and --address host:port names another"
            ) from None
        self._connected = True

    def _check_resources(self, ray: Any) -> int:
        """How many tasks fit into the cluster; an error if no node can run one, which Ray would wait for."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for name, option, needed in (("CPU", "--task-cpus", self.terms.threads), ("GPU", "--task-gpus", self.gpus)):
            most = max((node.get(name, 0) for node in nodes), default=0)
            if needed > most:
                raise ConfigError(f"{option} {needed:g}: no node of the cluster has so many, the largest has {most:g}")
        fitting = sum(int(node.get("CPU", 0) // self.terms.threads) for node in nodes)
        log.info("Ray cluster: %d nodes, %d tasks of %d CPUs at a time", len(nodes), fitting, self.terms.threads)
        return max(1, min(fitting, self.at_once or fitting))

    def __exit__(self, *_details: object) -> None:
        if self._connected:
            import ray

            ray.shutdown()
            self._connected = False

    def share(self, value: Any) -> Shared | InObjectStore:
        """Write the arrays of a value to the shared folder; what remains is sent with the tasks if it is small."""
        packed = pack(value, self.folder)
        return packed if packed.message_bytes < INLINE_BYTES else InObjectStore(packed)

    def map(
        self, function: Callable[[Any, Item], Result], items: Iterable[Item], shared: Any = None
    ) -> Iterator[Result]:
        """Run tasks on the cluster; see `Executor.map`."""
        submit = self._task.remote
        limit = self.at_once or 2 * self.slots
        if self.at_once is not None:
            items = iter(items)  # of a sequence too, only so many at a time
        return in_order(lambda item: _Submitted(submit(self.terms, function, shared, item)), items, limit)

    def start(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str], keep: Sequence[int]
    ) -> RayCommand:
        """A process on some node, which ends with its task. Files to keep open cannot be passed to other machines."""
        line = CommandLine(tuple(command), output.absolute(), dict(environment))
        return RayCommand(self._task.remote(self.terms, run_command, None, line))


class InObjectStore:
    """A shared value in Ray's object store: a worker fetches it once, not with every task."""

    def __init__(self, packed: Shared) -> None:
        import ray

        self.token, self.path = packed.token, packed.path
        self.reference = ray.put(packed)

    def open(self) -> Any:
        """The value."""
        import ray

        return is_open(self.token) or ray.get(self.reference).open()

    def remove(self) -> None:
        """Delete the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class _Submitted:
    """A task of Ray."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def result(self) -> Any:
        """Wait for it; a task that Ray has given up is a `LostTaskError`."""
        import ray

        try:
            return ray.get(self.reference).result()
        except ray.exceptions.RayError as error:
            raise LostTaskError(_reason(error)) from None

    def cancel(self) -> None:
        """Stop it, also if it runs."""
        import ray

        with suppress(Exception):  # the cluster may be gone
            ray.cancel(self.reference, force=True)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = lines[-1] if type(error).__name__ == "RayTaskError" else lines[0] if lines else type(error).__name__
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"a task on the Ray cluster ran out of memory, after {RETRIES} retries: {shown}; with a larger --task-cpus "
            "(in sweeps `threads`) fewer tasks share the memory of a node"
        )
    return (
        f"a task on the Ray cluster was lost, after {RETRIES} retries if its node died: {type(error).__name__}: {shown}"
    )


class RayCommand:
    """A command on a node of the cluster."""

    def __init__(self, reference: Any) -> None:
        self.task = _Submitted(reference)

    def poll(self) -> int | None:
        """Its exit code; None while it runs or waits."""
        import ray

        ready, _ = ray.wait([self.task.reference], timeout=0)
        return self.task.result() if ready else None

    def stop(self) -> None:
        """End its worker, and the command with it."""
        self.task.cancel()
