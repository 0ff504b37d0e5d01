"""What every executor does: results, shared values, errors, and tasks that run again after their worker was killed."""

import os
import queue
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.runtime.tasks import (
    HERE,
    MAPPED_BYTES,
    RETRIES,
    Launcher,
    LostTaskError,
    Shared,
    Terms,
    own_version,
    run_task,
    shared_value,
)
from labelwise.runtime.threads import using_threads
from labelwise.testing.subject import planted_texts
from runtime import task_functions as tasks

RETRIES_OF_RAY = "RAY_task_oom_retries"


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with Launcher("processes", workers=2).opened(tmp_path_factory.mktemp("tasks") / "folder") as opened:
        yield opened


@pytest.fixture(params=["here", "processes"])
def either(request):
    return HERE if request.param == "here" else request.getfixturevalue("processes")


def results(mapped):
    return [result for _, result in mapped]


def wait_for_end(numbers):
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{number}") for number in numbers) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(os.path.exists(f"/proc/{number}") for number in numbers)


@pytest.mark.parametrize("count", [3, MAPPED_BYTES // 8])
def test_results_come_with_their_items_and_shared_arrays_arrive(either, count):
    total = float(np.arange(count, dtype=np.float64).sum())
    with either.share({"rows": np.arange(count, dtype=np.float64), "text": "a"}) as shared:
        assert list(either.map(tasks.scaled_sum, [3, 1, 2], shared, ordered=True)) == [
            (3, 3 * total), (1, total), (2, 2 * total),
        ]  # fmt: skip
        assert sorted(either.map(tasks.scaled_sum, [3, 1, 2], shared)) == [(1, total), (2, 2 * total), (3, 3 * total)]
    assert either.folder is None or [path.name for path in either.folder.iterdir()] == ["token"]


def test_without_an_order_no_result_waits_for_a_slow_one(processes):
    assert results(processes.map(tasks.wait_and_return, [1.0, 0.0, 0.0])) == [0.0, 0.0, 1.0]
    assert results(processes.map(tasks.wait_and_return, [0.5, 0.0, 0.0], ordered=True)) == [0.5, 0.0, 0.0]


def test_items_of_a_stream_are_taken_as_they_are_needed(either):
    taken = []

    def stream():
        for number in range(100):
            taken.append(number)
            yield number

    mapped = either.map(tasks.print_and_return, stream(), ordered=True)
    assert next(mapped) == (0, 0)
    assert len(taken) <= 2 * either.slots
    mapped.close()


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
    found = list(processes.map(tasks.die_once, range(9), processes.share(str(tmp_path)), ordered=True))
    assert found == [(number, number**2) for number in range(9)]
    assert (tmp_path / "1.txt").read_text() == "xx"
    # only tasks that ran at the same time ran again
    assert sorted(len(path.read_text()) for path in tmp_path.iterdir())[:7] == [1] * 7
    assert "SIGKILL" in caplog.text


def test_a_worker_that_is_killed_while_a_large_item_is_sent_loses_nothing(processes, tmp_path):
    items = [bytes(1 << 22) + bytes([number]) for number in range(6)]
    shared = processes.share(str(tmp_path))
    assert results(processes.map(tasks.die_once_on_bytes, items, shared, ordered=True)) == list(range(6))


def test_a_task_that_always_kills_its_worker_is_an_error(processes, tmp_path):
    with pytest.raises(LostTaskError, match=r"lost 4 times.*SIGKILL"):
        list(processes.map(tasks.die_always, [1], processes.share(str(tmp_path))))
    assert (tmp_path / "1.txt").read_text() == "x" * (RETRIES + 1)
    assert results(processes.map(tasks.print_and_return, [5])) == [5]


def test_what_cannot_be_read_runs_again_three_times(either, tmp_path):
    def read(item, path):
        content = (tmp_path / path).read_text()
        return content if len(content) >= needed else None

    for needed in (3, RETRIES + 1):
        mapped = either.map(tasks.write, [f"{needed}.txt"], either.share(str(tmp_path)), read=read)
        assert results(mapped) == ["x" * needed]
    needed = RETRIES + 2
    with pytest.raises(LostTaskError, match=r"lost 4 times because what it had written could not be read: a\.txt"):
        list(either.map(tasks.write, ["a.txt"], either.share(str(tmp_path)), read=read))


def test_workers_are_processes_with_the_threads_of_a_task_and_end_with_the_block(tmp_path):
    with Launcher("processes", workers=2, task_cpus=3).opened(tmp_path / "folder") as opened:
        numbers, threads, variables = zip(*results(opened.map(tasks.about_itself, range(4))), strict=True)
        assert os.getpid() not in numbers
        assert set(threads) == {3}
        assert set(variables) == {"3"}
        slow = opened.map(tasks.wait_and_return, [0, 600])
        assert next(slow) == (0, 0)
    assert not (tmp_path / "folder").exists()
    assert wait_for_end(numbers)


SCRIPT = """
import os, sys
from pathlib import Path
import labelwise as lw
from labelwise.runtime.job import Job
from labelwise.runtime.tasks import Launcher
from labelwise.testing.subject import planted_texts
from runtime import task_functions as tasks

here = Path({folder!r})
with (here / "starts.txt").open("a") as file:
    file.write("x")
with Launcher("processes", workers=2).opened(here / "tasks") as opened:
    print(*[number for _, (number, _, _) in opened.map(tasks.about_itself, range(4))], flush=True)
    model = lw.LinearTree(trees=1, leaf_size=2).fit(planted_texts(60, 8), job=Job(tasks=opened))
    {then}
"""


def started(tmp_path, then, **options):
    (tmp_path / "train.py").write_text(SCRIPT.format(folder=str(tmp_path), then=then))
    path = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *map(os.path.abspath, sys.path)])
    return subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, **options,
    )  # fmt: skip


def test_a_script_without_a_guard_trains_once(tmp_path):
    """The start method of the workers imports the script that starts them again, unless that is prevented."""
    process = started(tmp_path, "print(len(model.label_names_))")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split()[-1] == "8"
    assert (tmp_path / "starts.txt").read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_whatever_they_do(number, tmp_path):
    process = started(tmp_path, f"list(opened.map(tasks.wait_long, [1, 2], opened.share({str(tmp_path)!r})))")
    workers = process.stdout.readline().split()
    while not all((tmp_path / f"{item}.txt").exists() for item in (1, 2)):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)  # as Ctrl-C does
    _, err = process.communicate(timeout=60)
    assert process.returncode == -number
    assert wait_for_end(workers)
    assert err.count("Traceback") == (number == signal.SIGINT)  # of the script alone


def test_what_a_killed_command_has_left_is_removed(tmp_path):
    for name in ("local", "processes"):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "old.safetensors").write_bytes(b"x")
        with Launcher(name).opened(tmp_path / "folder"):
            assert not (tmp_path / "folder" / "old.safetensors").exists()
        assert not (tmp_path / "folder").exists()


def test_a_worker_of_another_version_or_without_the_folder_is_refused(tmp_path):
    (tmp_path / "token").write_text("one")
    Terms(own_version(), 1, "cpu", tmp_path, "one").check()
    for folder, token in ((tmp_path, "other"), (tmp_path / "missing", "one")):
        with pytest.raises(ConfigError, match="file system that all nodes share"):
            Terms(own_version(), 1, "cpu", folder, token).check()
    with pytest.raises(ConfigError, match="install the same version"):
        Terms("labelwise 0.0.1", 1, "cpu", tmp_path, "one").check()


def test_a_shared_file_that_is_not_the_one_written_is_refused(tmp_path):
    for damage, message in ((lambda path: path.write_bytes(path.read_bytes()[:-1]), "not all of them"),
                            (os.unlink, "cannot be read by a worker")):  # fmt: skip
        shared = shared_value(np.zeros(MAPPED_BYTES), tmp_path)
        damage(shared.path)
        with pytest.raises(DataError, match=message):
            shared.open()


def test_arrays_of_any_value_are_mapped_and_not_copied_into_arguments(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float64, (MAPPED_BYTES,))
    rows[:] = 2
    data = planted_texts(50, 6)
    words = np.array(["a", "b"], object)
    inner = Shared({"own": np.arange(3)})
    value = {
        "rows": rows,
        "every": rows[::2],
        "some": (rows[5:10], [data, words]),
        "data": data,
        "inner": inner,
        "labels": data.labels,
    }
    shared = shared_value(value, tmp_path)
    assert len(__import__("pickle").dumps(shared)) < 20_000
    opened = shared.open()
    assert type(opened["rows"]) is np.ndarray
    assert not opened["rows"].flags.writeable
    assert opened["rows"].sum() == opened["every"].sum() * 2 == 2 * MAPPED_BYTES
    np.testing.assert_array_equal(opened["some"][0], [2] * 5)
    assert opened["some"][1][1].tolist() == ["a", "b"]
    assert opened["inner"].open()["own"].tolist() == [0, 1, 2]
    for found in (opened["data"], opened["some"][1][0]):
        assert isinstance(found, Dataset)
        assert found.texts == data.texts
        assert found.label_names == data.label_names
        assert (found.labels != data.labels).nnz == 0
    assert opened["labels"].has_canonical_format
    assert rows.flags.writeable
    assert isinstance(value["data"].labels.data, np.ndarray)  # the value itself is as it was
    assert shared_value({"rows": np.zeros(3)}, tmp_path).path is None  # small


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


def test_what_cannot_be_sent_is_not_a_lost_worker(processes):
    with pytest.raises(AttributeError, match="local object"):
        list(processes.map(tasks.return_a_function, [1]))
    with pytest.raises(AttributeError, match="local object"):
        list(processes.map(tasks.print_and_return, [lambda: 1]))
    assert results(processes.map(tasks.print_and_return, [1])) == [1]


def test_a_task_that_a_worker_cannot_read_is_an_error_at_once(tmp_path, capfd):
    """The function, or what it is called with, may not exist where the worker is."""
    with Launcher("processes", workers=1).opened(tmp_path / "folder") as opened:
        with pytest.raises(LostTaskError, match="could not read its task, for the reason in its output"):
            list(opened.map(tasks.print_and_return, [tasks.Unreadable()]))
        assert capfd.readouterr().err.count("FileNotFoundError: not for a worker") == 1
        assert results(opened.map(tasks.print_and_return, [1])) == [1]


def test_relative_paths_mean_the_same_in_a_worker_of_another_directory(tmp_path, monkeypatch):
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path / "node")
    terms = Terms(own_version(), 1, "auto", None, "relative paths", tmp_path)
    assert run_task(terms, tasks.working_directory, None, 0) == (str(tmp_path), None)


@pytest.fixture
def given_to_ray(monkeypatch):
    """What Ray is given when it starts or joins a cluster; Ray itself is a stand-in with one node of four CPUs."""
    given = {}

    def init(**options):
        given.clear()
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
    for name in ("queue", "pickle", "socket", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_the_user.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("elsewhere")  # as by PYTHONPATH
    with Launcher("processes", workers=1).opened(tmp_path / "folder") as opened:
        assert results(opened.map(tasks.file_of, ["queue", "of_the_user"], ordered=True)) == [
            queue.__file__, str(tmp_path / "elsewhere" / "of_the_user.py"),
        ]  # fmt: skip
        assert "PYTHONSAFEPATH" not in os.environ
        for place in (HERE, opened):
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
