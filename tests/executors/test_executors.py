"""What every executor does: order, shared values, errors, and tasks that run again after their worker was killed."""

import os
import queue
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from executors import tasks
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.executors.base import LOCAL, RETRIES, LostTaskError, executor
from labelwise.executors.launcher import Launcher
from labelwise.executors.shared import INLINE_BYTES, pack
from labelwise.executors.task import Terms, run_task
from labelwise.runtime.threads import using_threads

RETRIES_OF_RAY = "RAY_task_oom_retries"


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with Launcher("processes", workers=2).opened(tmp_path_factory.mktemp("tasks") / "folder") as opened:
        yield opened


@pytest.fixture(params=["local", "processes"])
def either(request):
    return LOCAL if request.param == "local" else request.getfixturevalue("processes")


@pytest.mark.parametrize("count", [3, INLINE_BYTES])
def test_results_are_in_order_and_shared_arrays_arrive(either, count):
    shared = either.share({"rows": np.arange(count, dtype=np.float64), "text": "a"})
    total = float(np.arange(count, dtype=np.float64).sum())
    assert list(either.map(tasks.scaled_sum, [3, 1, 2], shared)) == [3 * total, total, 2 * total]
    shared.remove()
    assert either.folder is None or [path.name for path in either.folder.iterdir()] == ["token"]


def test_items_of_a_stream_are_taken_as_they_are_needed(either):
    taken = []

    def stream():
        for number in range(100):
            taken.append(number)
            yield number

    results = either.map(tasks.print_and_return, stream())
    assert next(results) == 0
    assert len(taken) <= 2 * either.slots
    results.close()


@pytest.mark.parametrize(
    ("kind", "type_", "message"),
    [
        ("data", DataError, "x.csv:7: bad row"),
        ("package", LabelwiseError, "'labelwise\\[nn\\]'"),
        ("bug", ZeroDivisionError, "a bug"),
    ],
)
def test_the_error_of_a_task_is_raised(either, kind, type_, message):
    with pytest.raises(type_, match=message):
        list(either.map(tasks.fail, [1, 2, 3], either.share(kind)))


def test_a_task_whose_worker_is_killed_runs_again(processes, tmp_path, caplog):
    assert list(processes.map(tasks.die_once, range(4), processes.share(str(tmp_path)))) == [0, 1, 4, 9]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "0.txt": "x", "1.txt": "xx", "2.txt": "x", "3.txt": "x",
    }  # fmt: skip
    assert "SIGKILL" in caplog.text


def test_a_task_that_always_kills_its_worker_is_an_error(processes):
    with pytest.raises(LostTaskError, match=r"lost 4 times.*SIGKILL"):
        list(processes.map(tasks.die_always, [1]))
    assert list(processes.map(tasks.print_and_return, [5])) == [5]


def test_workers_are_processes_with_the_threads_of_a_task_and_end_with_the_block(tmp_path):
    before = executor()
    with Launcher("processes", workers=2, task_cpus=3).opened(tmp_path / "folder") as opened:
        assert executor() is opened
        numbers, threads = zip(*opened.map(tasks.about_itself, range(4)), strict=True)
        assert os.getpid() not in numbers
        assert set(threads) == {3}
        slow = opened.map(tasks.wait_and_return, [0, 600])
        assert next(slow) == 0
    assert executor() is before
    assert not (tmp_path / "folder").exists()
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{number}") for number in numbers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{number}") for number in numbers)


def test_what_a_killed_command_has_left_is_removed(tmp_path):
    for name in ("local", "processes"):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "old.shared").write_bytes(b"x")
        with Launcher(name).opened(tmp_path / "folder"):
            assert not (tmp_path / "folder" / "old.shared").exists()
        assert not (tmp_path / "folder").exists()


def test_a_worker_of_another_version_or_without_the_folder_is_refused(tmp_path):
    (tmp_path / "token").write_text("one")
    terms = Terms.of_driver(1, tmp_path, "one")
    terms.check()
    with pytest.raises(ConfigError, match="file system that all nodes share"):
        Terms.of_driver(1, tmp_path, "other").check()
    with pytest.raises(ConfigError, match="file system that all nodes share"):
        Terms.of_driver(1, tmp_path / "missing", "one").check()
    with pytest.raises(ConfigError, match="install the same version"):
        Terms("labelwise 0.0.1", 1, "cpu", tmp_path, "one").check()


def test_a_shared_file_that_is_not_the_one_written_is_refused(tmp_path):
    packed = pack(np.zeros(INLINE_BYTES), tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="not all of them"):
        packed.open()


def test_mapped_arrays_are_not_copied_into_the_message(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float64, (INLINE_BYTES,))
    rows[:] = 2
    packed = pack({"rows": rows, "some": rows[5:10]}, tmp_path)
    assert packed.message_bytes < 10_000
    opened = packed.open()
    assert type(opened["rows"]) is np.ndarray
    assert opened["rows"].sum() == 2 * INLINE_BYTES
    assert len(opened["some"]) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "rey"}, "did you mean 'ray'"),
        ({"workers": 2}, "--workers needs --launcher processes or ray"),
        ({"name": "processes", "address": "auto"}, "--address needs --launcher ray"),
        ({"name": "processes", "task_gpus": 1}, "--task-gpus needs --launcher ray"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Launcher(**options)


def test_a_result_that_cannot_be_sent_is_not_a_lost_worker(processes):
    with pytest.raises(TypeError, match="the result of a task cannot be sent"):
        list(processes.map(tasks.return_a_function, [1]))
    assert list(processes.map(tasks.print_and_return, [1])) == [1]


def test_relative_paths_mean_the_same_in_a_worker_of_another_directory(tmp_path, monkeypatch):
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    terms = Terms.of_driver(1, None, "relative paths")
    monkeypatch.chdir(tmp_path / "node")
    assert run_task(terms, tasks.working_directory, None, 0).result() == str(tmp_path)


@pytest.fixture
def given_to_ray(monkeypatch):
    """What Ray is given when it starts or joins a cluster; Ray itself is a stand-in with one node of four CPUs."""
    given = {}

    def init(**options):
        given.update(options, retries=os.environ.get(RETRIES_OF_RAY))

    ray = SimpleNamespace(
        init=init, is_initialized=lambda: False, shutdown=lambda: None,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}],
        remote=lambda function: SimpleNamespace(options=lambda **options: None),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(RETRIES_OF_RAY, "")
    monkeypatch.delenv(RETRIES_OF_RAY)  # restored by the line before
    return given


def test_ray_without_an_address_starts_a_cluster_and_joins_no_other(given_to_ray, monkeypatch):
    with Launcher("ray", workers=3, task_cpus=2).opened(None):
        assert given_to_ray["address"] == "local"
        assert given_to_ray["num_cpus"] == 6
    for address in ("head:6379", "auto"):
        with Launcher("ray", address).opened(None):
            assert given_to_ray["address"] == address
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with Launcher("ray").opened(None):
        assert given_to_ray["address"] is None  # Ray reads the variable


def test_tasks_that_ray_kills_for_their_memory_run_again_as_often_as_others(given_to_ray, monkeypatch):
    with Launcher("ray").opened(None):
        assert given_to_ray["retries"] == str(RETRIES)
    monkeypatch.setenv(RETRIES_OF_RAY, "7")
    with Launcher("ray").opened(None):
        assert given_to_ray["retries"] == "7"


def test_processes_import_nothing_from_the_working_directory(tmp_path, monkeypatch):
    """There may be any files next to the data, such as a queue.py."""
    (tmp_path / "queue.py").write_text("raise SystemExit(7)")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_the_user.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("elsewhere")  # as by PYTHONPATH
    with Launcher("processes", workers=1).opened(tmp_path / "folder") as opened:
        assert list(opened.map(tasks.file_of, ["queue", "of_the_user"])) == [
            queue.__file__, str(tmp_path / "elsewhere" / "of_the_user.py"),
        ]  # fmt: skip
        for place in (LOCAL, opened):
            command = place.start(["-c", "import queue, of_the_user, labelwise"], tmp_path / "output.txt", {}, ())
            assert command.process.wait() == 0, (tmp_path / "output.txt").read_text()
            command.stop()


def test_as_many_workers_as_fit_into_the_cores_with_the_threads_of_a_run(tmp_path, monkeypatch):
    """`run.threads` is the threads of this process and of a task; it does not limit the number of tasks."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: range(8), raising=False)
    monkeypatch.delenv("LABELWISE_THREADS", raising=False)
    for run_threads, slots in ((None, 8), (1, 8), (2, 4), (3, 2), (16, 1)):
        with using_threads(run_threads), Launcher("processes").opened(tmp_path / "folder", run_threads) as opened:
            assert opened.slots == slots
    monkeypatch.setenv("LABELWISE_THREADS", "4")
    with using_threads(2), Launcher("processes").opened(tmp_path / "folder", 2) as opened:
        assert opened.slots == 2


def test_a_worker_that_cannot_read_a_task_runs_the_next(tmp_path):
    """The function, or what it is called with, may not exist where the worker is."""
    with Launcher("processes", workers=1).opened(tmp_path / "folder") as opened:
        (number,) = opened.map(tasks.about_itself, [0])
        for error in (EOFError, FileNotFoundError, ImportError):
            with pytest.raises(error, match="not for a worker"):
                list(opened.map(tasks.wait_and_return, [tasks.Unreadable(error)]))
        assert list(opened.map(tasks.about_itself, [0])) == [number]  # the same process
