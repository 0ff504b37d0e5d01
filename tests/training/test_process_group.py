"""What ranks outside of the training loop share: results of rank 0, its failures, and the loss of a rank."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from forked_ranks import run_ranks
from torch.distributed import HashStore, TCPStore

from labelwise.errors import DataError, LabelwiseError
from labelwise.runtime import process_group
from labelwise.runtime.process_group import (
    is_restarted,
    leave_ranks,
    noticing_lost_ranks,
    on_rank_zero,
    rank,
)


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
        leave_ranks()
        assert on_rank_zero(lambda: number) == number

    codes, printed = run_ranks(work)
    assert codes == [0, 0], printed[-3000:]


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
    monkeypatch.setattr(process_group, "PATIENCE", timedelta(seconds=0.1))
    store = HashStore()
    store.set("rank 1", "one")
    with pytest.raises(LabelwiseError, match="rank 1 of 3 has not connected"):
        process_group._agree_on_keys(store)
    assert store.check(["answer to one"])


def test_a_rank_of_an_earlier_attempt_does_not_confirm_for_the_one_that_replaced_it(monkeypatch):
    """Its agent was killed, so that nothing has ended it: it still waits for an answer, and gets one."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=60))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(process_group, "PATIENCE", timedelta(seconds=60))
    store.set("rank 1", "old")
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(process_group._agree_on_keys, store)
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
        process_group._agree_on_keys(HashStore())
