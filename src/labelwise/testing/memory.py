"""The memory of the whole process while something runs: what torch and kernels hold is no object of Python's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def resident_memory() -> Iterator[list[int]]:
    """How much larger the process is while something runs, looked at every other millisecond."""
    grown, ended = [0], threading.Event()

    def own() -> int:
        try:
            status = Path("/proc/self/status").read_text(encoding="ascii")
        except OSError:
            return 0  # not on this system
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    def watch() -> None:
        while not ended.wait(0.002):
            grown.append(own() - before)

    before = own()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        ended.set()
        watcher.join()
