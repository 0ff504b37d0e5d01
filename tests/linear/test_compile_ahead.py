"""Kernels compiled by a second process: found by the first, of the right types, and without effect otherwise."""

import os
import subprocess
import sys
import time

import pytest

from labelwise.linear import compile_ahead as ahead
from labelwise.runtime.threads import using_threads

SHARE = """
import sys, time
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.kernels.term_rows import look_up
from labelwise.linear import compile_ahead as ahead
from labelwise.runs.stopwatch import stopwatch
ahead.compile_ahead(["words"])
begin = time.monotonic()
while not ahead._second._file and ahead._second._process.poll() is None and time.monotonic() < begin + 300:
    time.sleep(0.01)
begin = time.perf_counter()
with stopwatch() as watch:
    Tfidf(TfidfConfig(hash_bits=8, idf=False)).rows(["two words"])
assert 0 < watch.compiling <= time.perf_counter() - begin
print(sum(look_up.stats.cache_hits.values()), sum(look_up.stats.cache_misses.values()))
"""
TYPES = """
import sys
import labelwise as lw
from labelwise.kernels import term_rows
from labelwise.kernels import search as averaging, solver as chunk_rows, solver as dual_descent, packing as feature_sets, packing as packed_rows, search as tree_search
from labelwise.linear.compile_ahead import STAGES
kernels = [
    term_rows.look_up, averaging.average, tree_search.descend, dual_descent.solve_lanes,
    feature_sets.choose_shapes, feature_sets.fill_sets, chunk_rows.gather_rows, chunk_rows.lane_targets,
    chunk_rows.count_kept, chunk_rows.write_kept, chunk_rows.merge_kept, packed_rows.split_rows, packed_rows.pack_rows,
]
for compile_stage in STAGES.values():
    compile_stage(sys.argv[2])
compiled = [kernel.signatures for kernel in kernels]
assert all(len(signatures) == 1 for signatures in compiled), compiled
texts = [f"word{i} word{i % 7} common" for i in range(60)]
model = lw.LinearTree(leaf_size=2, branching=4, precision=sys.argv[2]).fit(texts, [[f"l{i % 40}"] for i in range(60)])
model.predict(texts)
model.save(sys.argv[1])
lw.load(sys.argv[1]).predict(texts[0])
assert [kernel.signatures for kernel in kernels] == compiled
"""
LEAVE = """
from labelwise.linear import compile_ahead as ahead
ahead.compile_ahead(["search"])
print(ahead._second._process.pid)
"""


def run(code, *arguments, **environment):
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def cold(folder):
    return {"NUMBA_CACHE_DIR": str(folder), ahead.VARIABLE: "1", "LABELWISE_THREADS": "2"}


def test_a_kernel_that_the_second_process_compiles_is_waited_for_and_found(tmp_path):
    assert run(SHARE, **cold(tmp_path)) == ["1", "0"]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_stages_compile_the_types_of_a_fit_and_of_a_loaded_model(tmp_path, precision):
    run(TYPES, str(tmp_path / "model"), precision)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="looks for a process as POSIX has them")
def test_it_ends_with_the_process_that_has_started_it(tmp_path):
    (number,) = run(LEAVE, **cold(tmp_path))
    time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


@pytest.fixture
def started(monkeypatch):
    """The commands that would have been started; no kernel is compiled yet."""
    commands = []

    def popen(command, **_):
        commands.append(command)
        raise OSError("no process can be started")

    monkeypatch.setattr(ahead.subprocess, "Popen", popen)
    monkeypatch.setattr(ahead.jit, "is_cached", lambda kernel: False)
    monkeypatch.setattr(ahead, "_second", None)
    monkeypatch.delenv(ahead.VARIABLE, raising=False)
    return commands


def test_only_missing_stages_are_compiled_and_a_failure_has_no_effect(started, monkeypatch):
    hook = ahead.jit.before_compiling
    with using_threads(2):
        ahead.compile_ahead(["search", "words"], "int8")
        monkeypatch.setattr(ahead.jit, "is_cached", lambda kernel: kernel is ahead.kernel_of("search"))
        ahead.compile_ahead(["search", "words"])
    assert [command[3:] for command in started] == [["int8", "search", "words"], ["float32", "words"]]
    assert ahead._second is None
    assert ahead.jit.before_compiling is hook


def test_when_it_is_not_started(started, monkeypatch):
    with using_threads(1):
        ahead.compile_ahead(["search"])
    with using_threads(2):
        monkeypatch.setenv(ahead.VARIABLE, "0")
        ahead.compile_ahead(["search"])
        monkeypatch.delenv(ahead.VARIABLE)
        monkeypatch.setattr(sys, "executable", "/usr/bin/service")
        ahead.compile_ahead(["search"])
        monkeypatch.undo()
    assert started == []


def test_compiled_kernels_and_plain_functions_need_no_process():
    from labelwise.kernels.jit import is_cached, jit

    def plain():
        return 1

    assert is_cached(plain)
    assert not is_cached(jit(plain))
