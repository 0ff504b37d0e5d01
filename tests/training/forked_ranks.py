"""Ranks as torchrun starts them, but forked from the test's process: they need not import everything again."""

import os
import socket
import tempfile
from collections.abc import Callable, Mapping

from forking import Forked
from labelwise.cli.main import main
from labelwise.runtime.threads import set_threads


def run_ranks(
    function: Callable[[int], object], ranks: int = 2, more: Mapping[str, str] | None = None
) -> tuple[list[int], str]:
    """Call `function(rank)` in as many processes; returns their exit codes and what they have printed.

    `more` are further variables of their environment.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "LABELWISE_DEVICE": "cpu",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), **(more or {}),
    }  # fmt: skip

    def rank(number: int) -> None:
        set_threads(1)
        function(number)

    with tempfile.TemporaryFile("w+b") as printed:
        started = []
        for number in range(ranks):
            env = {**os.environ, **common, "RANK": str(number), "LOCAL_RANK": str(number)}
            output = printed.fileno()
            started.append(Forked(lambda n=number: rank(n), stdout=output, stderr=output, env=env))
        codes = [one.wait() for one in started]
        printed.seek(0)
        return codes, printed.read().decode(errors="replace")


def run_command(*words: object, ranks: int = 2) -> str:
    """`labelwise WORDS` as ranks of torchrun, which must succeed; returns what it has printed."""
    codes, printed = run_ranks(lambda rank: main([str(word) for word in words]), ranks)
    assert codes == [0] * ranks, printed[-4000:]
    return printed
