"""Tasks of the tests: workers import this module."""

import importlib
import os
import signal
import time
from pathlib import Path

from labelwise.errors import DataError, MissingDependencyError
from labelwise.runtime.threads import threads


def scaled_sum(shared, item):
    return float(shared["rows"].sum()) * item


def about_itself(shared, item):
    return os.getpid(), threads(), os.environ.get("OMP_NUM_THREADS")


def working_directory(shared, item):
    return os.getcwd()


def return_a_function(shared, item):
    return lambda: item


def fail(shared, item):
    if item == 2:
        raise {"data": DataError("bad row", "x.csv", 7), "package": MissingDependencyError("torch", "nn", "mach"),
               "bug": ZeroDivisionError("a bug")}[shared]  # fmt: skip
    return item


def file_of(shared, name):
    return importlib.import_module(name).__file__


def die_once(folder, item):
    """The first attempt at item 1 is killed, after it has written its file."""
    path = Path(folder) / f"{item}.txt"
    before = path.read_text() if path.exists() else ""
    path.write_text(before + "x")
    if item == 1 and not before:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def die_once_on_bytes(folder, item):
    return round(die_once(folder, item[-1]) ** 0.5)


def write(folder, name):
    """Each attempt adds one character."""
    with (Path(folder) / name).open("a") as file:
        file.write("x")
    return name


def die_always(folder, item):
    if folder is not None:
        write(folder, f"{item}.txt")
    os.kill(os.getpid(), signal.SIGKILL)


def wait_and_return(shared, item):
    time.sleep(item)
    return item


def print_and_return(shared, item):
    print("a line on standard output", flush=True)
    return item


def wait_long(folder, item):
    """Notes that it has begun, and waits to be killed."""
    with (Path(folder) / f"{item}.txt").open("a") as file:
        file.write("x")
    time.sleep(600)


class Unreadable:
    """Can be sent, and raises an error where it arrives."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise FileNotFoundError("not for a worker")
