"""Every neural method through torchrun itself: the weights of one process, also after `kill -9` of a rank."""

import json
import re
from pathlib import Path

import pytest
from torchrun_cases import MODELS, SHARDED, difference, one_process, torchrun, torchrun_on_two_nodes, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CASES = {**{name: (name, {}, False) for name in MODELS}, **{name: (*case, True) for name, case in SHARDED.items()}}
ROUNDING = 2e-5
"""Largest difference of a weight: sums in another order, over some tens of steps."""
KILLED = Path(__file__).with_name("killed_rank.py")


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """The arguments of a training, and the run of one process."""
    method, changes, divided = CASES[request.param]
    folder = tmp_path_factory.mktemp("torchrun")
    config = write_config(folder, method, **changes)
    alone = one_process("train", config, "--set", f"run.folder={folder / 'alone'}")
    assert alone.returncode == 0, alone.stderr
    return config, ["--set", "model.training.shard_head=true"] if divided else [], folder


def results(run):
    return json.loads((run / "results.json").read_text())["evaluation"]["values"]


def check(folder, name, record_property):
    found = difference(folder / "alone", folder / name)
    record_property(name, found)
    print(f"{name}: largest difference of a weight {found:.1e}")
    assert found <= ROUNDING
    assert results(folder / name) == pytest.approx(results(folder / "alone"))


def test_two_ranks_give_the_weights_of_one_process(case, record_property):
    config, options, folder = case
    done = torchrun("-m", "labelwise", "train", config, *options, "--set", f"run.folder={folder / 'two'}")
    assert done.returncode == 0, done.stderr[-3000:]
    check(folder, "two", record_property)


def test_a_killed_rank_is_restarted_and_nothing_is_lost(case, record_property):
    config, options, folder = case
    done = torchrun(KILLED, "train", config, *options, "--set", f"run.folder={folder / 'killed'}", restarts=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"resuming after step \d+", done.stderr), done.stderr[-3000:]
    check(folder, "killed", record_property)


def test_one_process_resumes_what_two_ranks_began(case, record_property):
    config, options, folder = case
    done = torchrun(KILLED, "train", config, *options, "--set", f"run.folder={folder / 'fewer'}")
    assert done.returncode != 0
    resumed = one_process("train", config, "--set", f"run.folder={folder / 'fewer'}")
    assert resumed.returncode == 0, resumed.stderr
    assert re.search(r"resuming after step \d+", resumed.stderr), resumed.stderr
    check(folder, "fewer", record_property)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_killed_rank_of_the_second_node_is_restarted_and_nothing_is_lost(force, tmp_path, record_property):
    """Each node counts its own restarts: of the ranks that resume, one has a count of 0."""
    config = write_config(tmp_path, "text_encoder")
    alone = one_process("train", config, "--set", f"run.folder={tmp_path / 'alone'}")
    assert alone.returncode == 0, alone.stderr
    words = (KILLED, "train", config, *force, "--set", f"run.folder={tmp_path / 'nodes'}")
    variables = [
        {"LABELWISE_TEST_KILLED": str(tmp_path / "killed"), "LABELWISE_TEST_NODE": node} for node in ("", "killed")
    ]
    nodes = torchrun_on_two_nodes(tmp_path, *words, restarts=2, more=variables)
    printed = "".join(text for _, text in nodes)
    assert [code for code, _ in nodes] == [0, 0], printed[-5000:]
    assert re.search(r"resuming after step \d+", printed), printed[-5000:]
    check(tmp_path, "nodes", record_property)
