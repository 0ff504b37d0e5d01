"""What ranks share: results of rank 0, its failures, the loss of a rank, weights and gradients."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, TCPStore

from labelwise.errors import DataError, LabelwiseError
from labelwise.runtime import ranks
from labelwise.runtime.ranks import (
    Ranks,
    is_restarted,
    noticing_lost_ranks,
    on_rank_zero,
    rank,
    work_alone,
)
from training.forked_ranks import run_ranks


def test_one_process_is_rank_zero():
    assert rank() == 0
    assert not is_restarted()
    assert on_rank_zero(lambda: 7) == 7


def test_all_ranks_get_what_rank_zero_makes_or_fail_with_it():
    def work(number):
        made = on_rank_zero(lambda: (rank(), on_rank_zero(lambda: "inner")))
        assert made == (0, "inner")

        def fail():
            raise DataError("no such thing")

        with pytest.raises(DataError if number == 0 else LabelwiseError, match=r"no such thing|rank 0 has failed"):
            on_rank_zero(fail)
        assert on_rank_zero(lambda: number) == 0
        work_alone(True)
        assert on_rank_zero(lambda: number) == number

    codes, printed = run_ranks(work)
    assert codes == [0, 0], printed[-3000:]


THREADS_AT_THE_END = """
from pathlib import Path
from labelwise.runtime.ranks import join_ranks
join_ranks()
import torch.distributed.nn
torch.distributed.destroy_process_group()
print(*(task.read_text() for task in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have names on Linux only")
def test_no_thread_of_the_connection_outlives_it():
    """One that needs Python after its end aborts the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LABELWISE_DEVICE": "cpu"}
    command = [sys.executable, "-c", THREADS_AT_THE_END]
    printed = subprocess.run(command, env={**os.environ, **ranks}, check=True, capture_output=True, text=True).stdout
    assert "python" in printed
    assert "gloo" not in printed


def test_a_lost_rank_is_reported_without_a_traceback(monkeypatch):
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"), noticing_lost_ranks():
        raise lost
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(LabelwiseError, match="another rank has ended"), noticing_lost_ranks():
        raise lost
    with pytest.raises(RuntimeError, match="something else"), noticing_lost_ranks():
        raise RuntimeError("something else")


def test_ranks_do_not_connect_to_those_of_an_earlier_attempt():
    """torchrun's own process keeps the store, with the addresses of an attempt's ranks, for the next attempt.

    Nothing in the environment differs: nodes that replace others count restarts from 0.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_torchrun = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def join(number, late):
        if number == late:
            time.sleep(1)  # the other rank has looked for it by now
        assert on_rank_zero(lambda: "joined") == "joined"
        os._exit(0)  # as if killed: nothing is deleted from the store

    for late in (None, 1, 0):
        codes, printed = run_ranks(partial(join, late=late), more=of_torchrun)
        assert codes == [0, 0], printed[-3000:]


def test_rank_0_names_the_rank_that_it_has_waited_for(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(seconds=0.1))
    store = HashStore()
    store.set("rank 1", "one")
    with pytest.raises(LabelwiseError, match="rank 1 of 3 has not connected"):
        ranks._agree_on_keys(store)
    assert store.check(["answer to one"])


def test_a_rank_of_an_earlier_attempt_does_not_confirm_for_the_one_that_replaced_it(monkeypatch):
    """Its agent was killed, so that nothing has ended it: it still waits for an answer, and gets one."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=60))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(seconds=60))
    store.set("rank 1", "old")
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(ranks._agree_on_keys, store)
        keys = store.get("answer to old").decode()
        store.set("rank 1", "new")
        for name in ("old", "1"):
            store.set(f"{keys} received by {name}", "")
        assert store.get("answer to new").decode() == keys
        store.set(f"{keys} received by new", "")
        assert zero.result() == keys


def test_a_rank_whose_agent_was_killed_ends(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(LabelwiseError, match="torchrun that has started this rank has ended"):
        ranks._agree_on_keys(HashStore())


class Parts(nn.Module):
    """Parameters that are used by every rank, by some and by none."""

    def __init__(self, number):
        super().__init__()
        for name, rows in (("by_all", 5), ("by_zero", 3), ("by_one", 2), ("large", 9), ("by_none", 2), ("divided", 2)):
            setattr(self, name, nn.Parameter(torch.full((rows, 2), float(number))))
        self.wide = nn.Parameter(torch.full((3,), float(number), dtype=torch.float64))
        self.table = nn.Embedding(6, 2, sparse=True)
        self.frozen = nn.Parameter(torch.full((2,), float(number)), requires_grad=False)
        self.register_buffer("running", torch.full((2,), number))


def test_gradients_are_averaged_whether_or_not_a_rank_has_them(monkeypatch):
    monkeypatch.setattr(ranks, "BUCKET_BYTES", 60)

    def work(number):
        parts, group = Parts(number), Ranks("float32")
        group.begin(parts, divided=["divided"])
        for name in ("by_all", "by_none", "frozen", "running", "wide"):
            assert torch.equal(getattr(parts, name), torch.zeros_like(getattr(parts, name))), name
        assert (parts.divided == number).all()
        loss = (parts.by_all.sum() + parts.large.sum() + parts.wide.sum()) * (number + 1)
        loss = loss + (parts.by_one if number else parts.by_zero).sum() * 8 + (number + 1) * parts.divided.sum()
        for rows in (([1, 4],), ([4, 2, 4],), ())[number]:
            loss = loss + parts.table(torch.tensor(rows)).sum()
        loss.backward()
        group.average_gradients()
        for name, expected in (
            ("by_all", 2.0),
            ("large", 2.0),
            ("wide", 2.0),
            ("by_zero", 8 / 3),
            ("by_one", 16 / 3),
        ):
            gradient = getattr(parts, name).grad
            assert torch.allclose(gradient, torch.full_like(gradient, expected)), name
        assert parts.by_none.grad is None
        assert parts.frozen.grad is None
        assert (parts.divided.grad == number + 1).all()
        gradient = parts.table.weight.grad.coalesce()
        assert gradient.indices().tolist() == [[1, 2, 4]]
        assert torch.allclose(gradient.values()[:, 0], torch.tensor([1.0, 1.0, 3.0]) / 3)
        assert group.mean(torch.tensor(float(number))) == 1.0
        assert group.broadcast_flags(number == 0, number == 1, any_rank=number == 2) == (True, False, True)
        assert [one["own"].tolist() for one in group.gather({"own": torch.tensor([number])})] == [[0], [1], [2]]
        sent = group.send({"a": torch.arange(3), "b": torch.ones(2)} if number == 0 else {})
        assert {name: tensor.tolist() for name, tensor in sent.items()} == {"a": [0, 1, 2], "b": [1.0, 1.0]}
        group.wait()

    codes, printed = run_ranks(work, ranks=3)
    assert codes == [0, 0, 0], printed[-3000:]
