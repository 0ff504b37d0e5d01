import gc
import os
import threading
import time

import pytest

from labelwise.errors import ConfigError
from labelwise.runtime import threads as parallel
from labelwise.runtime.threads import available_threads, cpu_quota


def test_results_keep_the_order_of_the_items():
    with parallel.using_threads(4):
        assert parallel.run_all(lambda x: (time.sleep(0.01 * (5 - x)), x)[1], range(5)) == list(range(5))
        assert list(parallel.run_stream(lambda x: x * x, range(50))) == [x * x for x in range(50)]


def test_a_stream_holds_few_items_at_once():
    taken = []

    def source():
        for i in range(100):
            taken.append(i)
            yield i

    with parallel.using_threads(2):
        stream = parallel.run_stream(lambda x: x, source(), ahead=1)
        assert next(stream) == 0
        assert len(taken) <= 4
        stream.close()


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_error_is_raised(count):
    def work(x):
        if x == 2:
            raise KeyError(x)
        return x

    with parallel.using_threads(count):
        with pytest.raises(KeyError):
            parallel.run_all(work, range(5))
        with pytest.raises(KeyError):
            list(parallel.run_stream(work, range(5)))


def test_threads_are_really_used():
    with parallel.using_threads(2):
        barrier = threading.Barrier(2, timeout=10)
        parallel.run_all(lambda _: barrier.wait(), range(2))


def test_a_forked_child_gets_a_pool_of_its_own():
    with parallel.using_threads(2):
        parallel.run_all(lambda x: x, range(4))
        child = os.fork()
        if child == 0:
            os._exit(0 if parallel.run_all(lambda x: x + 1, range(4)) == [1, 2, 3, 4] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("LABELWISE_THREADS", "3")
    assert parallel.threads() == 3
    monkeypatch.setenv("LABELWISE_THREADS", "many")
    with pytest.raises(ConfigError, match="LABELWISE_THREADS"):
        parallel.threads()
    with pytest.raises(ConfigError, match="1 or more"):
        parallel.set_threads(0)


@pytest.mark.parametrize(("count", "parts"), [(0, 3), (1, 3), (10, 3), (10, 10), (7, 100)])
def test_ranges_cover_everything_once(count, parts):
    cut = parallel.ranges(count, parts)
    assert [i for a, b in cut for i in range(a, b)] == list(range(count))
    assert all(a < b for a, b in cut)
    assert len(cut) <= parts


def test_work_inside_work_does_not_wait_for_itself():
    with parallel.using_threads(2):
        found = parallel.run_all(lambda x: parallel.run_all(lambda y: x * y, range(4)), range(4))
    assert found == [[x * y for y in range(4)] for x in range(4)]


def test_the_number_of_threads_may_change_while_others_compute():
    failures, stop = [], threading.Event()

    def compute():
        while not stop.is_set():
            try:
                assert parallel.run_all(lambda x: x + 1, range(8)) == list(range(1, 9))
                assert list(parallel.run_stream(lambda x: x + 1, range(8))) == list(range(1, 9))
            except Exception as error:
                failures.append(error)
                return

    workers = [threading.Thread(target=compute) for _ in range(3)]
    with parallel.using_threads(2):
        for worker in workers:
            worker.start()
        for number in range(300):
            with parallel.using_threads(2 + number % 3):
                parallel.run_all(lambda x: x, range(4))
        stop.set()
        for worker in workers:
            worker.join(30)
    assert failures == []


def test_a_pool_that_is_not_used_any_more_ends():
    with parallel.using_threads(7):
        parallel.run_all(lambda x: time.sleep(0.01), range(20))
    with parallel.using_threads(2):
        parallel.run_all(lambda x: x, range(4))
        gc.collect()
        for _ in range(100):
            count = sum(thread.name.startswith("labelwise_") for thread in threading.enumerate())
            if count <= 2:
                return
            time.sleep(0.05)
    pytest.fail(f"{count} threads of pools are left")


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/docker/a", {"docker/a/cpu.max": "250000 100000"}, 3),
        ("0::/docker/a", {"docker/a/cpu.max": "max 100000", "docker/cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("4:cpu,cpuacct:/a\n3:memory:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, float("inf")),
        ("0::/a", {}, float("inf")),
        ("damaged", {}, float("inf")),
    ],
)
def test_quotas_of_containers_count(tmp_path, group, files, expected):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(group)
    for name, text in files.items():
        path = tmp_path / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cpu_quota(tmp_path) == expected


def test_no_more_threads_than_the_quota(monkeypatch):
    monkeypatch.delenv("LABELWISE_THREADS", raising=False)
    monkeypatch.setattr("labelwise.runtime.threads.cpu_quota", lambda: 1)
    assert available_threads() == 1
