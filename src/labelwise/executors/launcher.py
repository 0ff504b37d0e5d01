"""`--launcher`: which executor a command uses. It decides where work is done, never what the result is."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.executors.base import LOCAL as LOCAL_EXECUTOR
from labelwise.executors.base import Executor, using_executor
from labelwise.runtime.threads import available_threads

LOCAL, PROCESSES, RAY = LAUNCHERS = ("local", "processes", "ray")


@dataclass(frozen=True)
class Launcher:
    """Where the work of a command runs.

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
        given = {
            "--address": self.address, "--workers": self.workers, "--task-cpus": self.task_cpus,
            "--task-gpus": self.task_gpus,
        }  # fmt: skip
        accepted = {LOCAL: (), PROCESSES: ("--workers", "--task-cpus"), RAY: tuple(given)}[self.name]
        for option, value in given.items():
            if value is not None and option not in accepted:
                needed = "--launcher ray" if option in ("--address", "--task-gpus") else "--launcher processes or ray"
                raise ConfigError(f"{option} needs {needed}")

    @property
    def is_local(self) -> bool:
        """Whether everything is done in this process."""
        return self.name == LOCAL

    @contextmanager
    def opened(self, folder: Path | None, task_cpus: int | None = None) -> Iterator[Executor]:
        """Use this launcher's executor inside the block.

        Files for tasks are in `folder`, which is created, and removed at the end; None for tasks that need none.
        `task_cpus` is for tasks whose number the user has not given.
        """
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)  # of a killed command
        if self.is_local:
            with using_executor(LOCAL_EXECUTOR) as executor:
                yield executor
            return
        token = secrets.token_hex(16)
        try:
            if folder is not None:
                folder = _new_folder(folder.absolute(), token)
            with self._executor(folder, token, self.task_cpus or task_cpus or 1) as executor, using_executor(executor):
                yield executor
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _executor(self, folder: Path | None, token: str, cpus: int):
        from labelwise.executors.task import Terms

        terms = Terms.of_driver(cpus, folder, token)
        if self.name == PROCESSES:
            from labelwise.executors.processes import Processes

            return Processes(self.workers or max(1, available_threads() // cpus), terms)
        from labelwise.executors.ray_tasks import RayTasks

        return RayTasks(terms, self.address, self.workers, self.task_gpus or 0)


def _new_folder(folder: Path, token: str) -> Path:
    from labelwise.executors.task import TOKEN

    try:
        folder.mkdir(parents=True)
        (folder / TOKEN).write_text(token, encoding="ascii")
    except OSError as error:
        raise DataError(f"the folder for tasks cannot be created: {error.strerror or error}", folder) from error
    return folder
