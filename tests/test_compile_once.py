"""The locks of the test run's own workers: one compiles, the other waits, and nobody waits for ever."""

import threading

import pytest

import compile_once
from compile_once import CompileLocks

pytest.importorskip("fcntl")


def test_a_second_worker_waits_for_the_file_of_the_first(tmp_path):
    one, other, path = CompileLocks(tmp_path), CompileLocks(tmp_path), tmp_path / "kernel.nbc"
    one.before_compiling(path)
    waiting = threading.Thread(target=other.before_compiling, args=(path,))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    path.touch()
    one.release(path)
    waiting.join(10)
    assert not waiting.is_alive()
    assert not other._held, "it reads the file"


def test_a_kernel_that_is_never_written_is_waited_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_once, "MAX_WAIT", 0.2)
    one, other, path = CompileLocks(tmp_path), CompileLocks(tmp_path), tmp_path / "kernel.nbc"
    one.before_compiling(path)
    one.before_compiling(path)  # for other types of arguments, or again
    other.before_compiling(path)
    assert not other._held
    one.release(path)
    other.before_compiling(path)
    assert list(other._held) == [path]


def test_without_locks_everybody_compiles(tmp_path):
    locks = CompileLocks(tmp_path / "removed")
    locks.before_compiling(tmp_path / "kernel.nbc")
    assert not locks._held
