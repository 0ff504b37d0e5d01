"""Compile the kernels that a fit or a prediction needs last in a second process, while it compiles those needed first.

Only where nothing is compiled yet: the second process makes small real calls of each stage, which leaves machine code
in the cache, and prints the name of each file before it compiles it. The first process reads what is there, waits for
a file that is being compiled, and compiles everything else itself. Without the second process it only takes longer.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.errors import ConfigError, LabelwiseError
from labelwise.io.atomic import lock_folder
from labelwise.kernels import jit
from labelwise.runtime.threads import threads

log = logging.getLogger("labelwise")
VARIABLE = "LABELWISE_COMPILE_AHEAD"
WAITING = "labelwise:wait"
"""Numba event around waiting for a kernel that is being compiled."""
MAX_WAIT = 60.0
"""Seconds to wait for a kernel before it is compiled here after all."""
FEW = 64
"""Documents, features and labels of the small calls."""

_second: _SecondProcess | None = None
_starting = threading.Lock()


def compile_ahead(stages: Sequence[str], precision: str = "float32") -> None:
    """Start compiling some of `STAGES` in a second process, those needed last first; at most once per process."""
    global _second
    with _starting:
        if _second is not None or os.environ.get(VARIABLE) == "0" or threads() < 2 or not _is_python(sys.executable):
            return
        missing = [stage for stage in stages if not jit.is_cached(kernel_of(stage))]
        if not missing:
            return
        try:
            _second = _SecondProcess([precision, *missing])
        except OSError as error:
            log.debug("kernels are not compiled ahead: %s", error)
            return
        jit.before_compiling = _second.wait_for
        atexit.register(_second.stop)


def _is_python(executable: str | None) -> bool:
    """Whether this is an interpreter that takes `-m`: not one built into a program."""
    return bool(executable) and "python" in Path(str(executable)).name.lower() and not getattr(sys, "frozen", False)


class _SecondProcess:
    """A process that compiles, and which file it makes now."""

    def __init__(self, arguments: list[str]) -> None:
        environment = {**os.environ, VARIABLE: "0", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        if jit.VARIABLE in environment:
            environment[jit.VARIABLE] = os.path.abspath(environment[jit.VARIABLE])
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._file = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "labelwise.linear.compile_ahead", *arguments],
            cwd=Path(__file__).parents[2],  # `-m` looks into the working folder first: not the user's
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        threading.Thread(target=self._follow, name="labelwise-compile-ahead", daemon=True).start()

    def wait_for(self, path: Path) -> None:
        """Wait while the file is being made; not at all for others, or in a fork of the process that has started it."""
        if os.getpid() != self._owner:
            return
        with self._changed:
            if self._file == path.name:
                from numba.core import event

                with event.trigger_event(WAITING):
                    self._changed.wait_for(lambda: self._file != path.name, MAX_WAIT)

    def stop(self) -> None:
        """End it, if it still runs."""
        if os.getpid() == self._owner and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def _follow(self) -> None:
        """Note which file is made, and that none is when the process has ended."""
        for line in self._process.stdout or ():
            self._note(line.strip())
        log.debug("compiling ahead ended with exit code %d", self._process.wait())
        self._note("")

    def _note(self, file: str) -> None:
        with self._changed:
            self._file = file
            self._changed.notify_all()


def _search(precision: str) -> None:
    from labelwise.linear.search import TreeSearch
    from labelwise.linear.trees import averaged
    from labelwise.linear.weights import ChunkedWeights, ChunkPart

    weights = np.arange(FEW), np.ones(FEW, np.int64), np.zeros(FEW, np.uint8), np.ones(FEW, np.float32)
    level = ChunkedWeights.joined([ChunkPart(*weights, np.zeros(FEW, np.float32))], FEW, np.array([0, FEW]))
    top = TreeSearch([level.stored_as(precision)], np.arange(FEW)).best(_few_documents(), beam=1, k=1)
    averaged([top, top], k=1, product=True)


def _words(_precision: str) -> None:
    from labelwise.features.tfidf import Tfidf, TfidfConfig

    Tfidf(TfidfConfig(hash_bits=8, idf=False)).rows(["a hash needs no vocabulary"])


def _solver(_precision: str) -> None:
    from labelwise.features.rows import FeatureRows
    from labelwise.labelspace.tree import LabelTree
    from labelwise.linear.settings import TrainingSettings
    from labelwise.linear.train import TrainingExamples, train_tree
    from labelwise.runtime.job import Job

    tree = LabelTree.from_bounds(np.arange(FEW), [np.arange(0, FEW + 1, 2)])  # small nodes, so that rows are copied
    examples = TrainingExamples(FeatureRows.of(_few_documents()))
    train_tree(examples, tree, tree.aggregate(_few_documents()), TrainingSettings(), Job())


def _few_documents() -> Any:
    """A number per document."""
    return sparse.csr_array(np.eye(FEW, dtype=np.float32))


STAGES: dict[str, Callable[[str], None]] = {"search": _search, "words": _words, "solver": _solver}
"""Each with a little data of the types that `linear_tree` has for texts."""


KERNELS = {"search": "search.descend", "words": "term_rows.look_up", "solver": "solver.solve_lanes"}
"""The kernel of each stage that takes longest to compile."""


def kernel_of(stage: str) -> Any:
    """That kernel."""
    module, name = KERNELS[stage].split(".")
    return getattr(import_module(f"labelwise.kernels.{module}"), name)


def _report(path: Path) -> None:
    sys.stdout.write(f"{path.name}\n")
    sys.stdout.flush()


def main(precision: str, *stages: str) -> None:
    """Compile some stages in this process, unless another does so already."""
    jit.before_compiling = _report
    folder = jit.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, busy=ConfigError("another process compiles ahead")):
        for stage in stages:
            STAGES[stage](precision)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LabelwiseError as error:
        sys.exit(str(error))
