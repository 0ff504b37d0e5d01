"""A Ray cluster of two nodes on this machine; one is killed while it trains, and the model is the same."""

import json
import os
import threading
import time

import numpy as np
import pytest

import labelwise as lw
from cli.commands import labelwise
from labelwise.errors import ConfigError, DataError
from labelwise.runtime.tasks import Launcher, LostTaskError
from labelwise.testing.subject import planted_texts
from runtime import task_functions as tasks
from runtime.launched import MODELS, model_files, same_files, trained, write_config
from sweep.planted import plant, write_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ray = pytest.importorskip("ray")

SLOW_TREE = {**MODELS["linear_tree"], "trees": 3}
SLOW_MACH = {**MODELS["mach"], "repetitions": 6}


def patiently(start, attempts: int = 5):
    """Start a node of Ray, which gives up by itself after 30 seconds: too few on a busy machine."""
    for attempt in range(attempts):
        try:
            return start()
        except Exception as error:
            if "timed out" not in str(error) or attempt + 1 == attempts:
                raise
    return None


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    folders = [os.path.dirname(os.path.dirname(__file__)), os.path.dirname(os.path.dirname(lw.__file__))]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *([before] if before else [])])
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default, which on a busy machine takes minutes
    started = patiently(
        lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    )
    yield started
    ray.shutdown()
    started.shutdown()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


@pytest.fixture
def two_nodes(cluster):
    node = patiently(lambda: cluster.add_node(num_cpus=1))
    cluster.wait_for_nodes()
    yield cluster, node
    if node in cluster.worker_nodes:
        cluster.remove_node(node, allow_graceful=False)


def options(cluster) -> tuple[str, ...]:
    return "--launcher", "ray", "--address", cluster.address


def test_order_shared_values_and_errors(two_nodes, tmp_path):
    with Launcher("ray", cluster_address(two_nodes)).opened(tmp_path / "folder") as opened:
        assert opened.slots == 2
        for count in (3, 1 << 20):
            with opened.share({"rows": np.arange(count, dtype=np.float64)}) as shared:
                total = float(np.arange(count, dtype=np.float64).sum())
                found = opened.map(tasks.scaled_sum, [3, 1, 2], shared, ordered=True)
                assert list(found) == [(3, 3 * total), (1, total), (2, 2 * total)]
        large = opened.share({"rows": np.ones(4), "words": [str(number) for number in range(1 << 18)]})
        assert list(opened.map(tasks.scaled_sum, iter([1, 2]), large, ordered=True)) == [(1, 4), (2, 8)]
        with pytest.raises(DataError, match=r"x\.csv:7: bad row"):
            list(opened.map(tasks.fail, [1, 2, 3], opened.share("data")))
        found = opened.map(tasks.die_once, range(4), opened.share(str(tmp_path)))
        assert sorted(found) == [(0, 0), (1, 1), (2, 4), (3, 9)]
        assert (tmp_path / "1.txt").read_text() == "xx"
        with pytest.raises(LostTaskError, match="after 3 retries"):
            list(opened.map(tasks.die_always, [1]))
        with pytest.raises(LostTaskError, match="FileNotFoundError: not for a worker"):
            list(opened.map(tasks.print_and_return, [tasks.Unreadable()]))
        (tmp_path / "folder" / "token").write_text("another")
        with pytest.raises(ConfigError, match="file system that all nodes share"):
            list(opened.map(tasks.about_itself, range(8)))
    assert not (tmp_path / "folder").exists()


def cluster_address(two_nodes) -> str:
    return two_nodes[0].address


def test_tasks_that_no_node_can_run_are_refused(two_nodes, tmp_path):
    with pytest.raises(ConfigError, match="--task-cpus 64: no node of the cluster has so many, the largest has 1"):
        Launcher("ray", cluster_address(two_nodes), task_cpus=64).opened(tmp_path / "folder").__enter__()


def test_a_task_that_has_no_memory_runs_again_three_times(cluster, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("RAY_memory_usage_threshold", "0.001")  # the machine uses more than that
        patch.setenv("RAY_memory_monitor_refresh_ms", "1000")
        node = patiently(lambda: cluster.add_node(num_cpus=2))
    cluster.wait_for_nodes()
    try:
        with (
            Launcher("ray", cluster.address, task_cpus=2).opened(tmp_path / "folder") as opened,
            pytest.raises(LostTaskError, match=r"ran out of memory, after 3 retries: .*a larger --task-cpus"),
        ):
            list(opened.map(tasks.wait_long, [1], opened.share(str(tmp_path))))
    finally:
        cluster.remove_node(node, allow_graceful=False)
    starts = tmp_path / "1.txt"  # not written by those that end before they begin
    assert not starts.exists() or len(starts.read_text()) <= 4


@pytest.mark.parametrize("model", [SLOW_TREE, SLOW_MACH], ids=["linear_tree", "mach"])
def test_a_node_is_killed_in_the_middle_of_training(model, two_nodes, tmp_path):
    cluster, node = two_nodes
    alone = trained(tmp_path, model, "alone")
    checkpoints = tmp_path / "launched" / "checkpoints"
    killed = threading.Event()

    def kill() -> None:
        """As soon as the first task has written its result."""
        while not any(checkpoints.glob("weights-*/chunks-*")) and not any(checkpoints.glob("repetition/0*")):
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        killed.set()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    labelwise("train", write_config(tmp_path, model, "launched"), *options(cluster))
    thread.join(60)
    assert killed.is_set()
    assert same_files(alone, model_files(tmp_path / "launched" / "model"))


def test_an_ensemble_predictions_and_a_sweep(two_nodes, tmp_path):
    cluster, _ = two_nodes
    model = MODELS["ensemble"]
    assert same_files(trained(tmp_path, model, "alone"), trained(tmp_path, model, "launched", *options(cluster)))
    lw.write(planted_texts(3000, 16, seed=3), tmp_path / "new.jsonl")
    for name, words in (("a.csv", ()), ("b.csv", options(cluster))):
        labelwise("predict", tmp_path / "alone", tmp_path / "new.jsonl", "-o", tmp_path / name, *words)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    plant(tmp_path / "data")
    rows = []
    for name, words in (("one", ()), ("two", options(cluster))):
        study = write_study(tmp_path, folder=str(tmp_path / name), parallel=2)
        labelwise("sweep", study, *words)
        found = json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
        rows.append([{**row, "seconds": None} for row in found["rows"]])
    assert rows[0] == rows[1]
