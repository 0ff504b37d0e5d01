"""Extreme values of every field of model and data folders: a sound result or one of our errors, never a crash.

Cases run in a worker process; where one ends it, the next worker resumes behind it. A sample runs with the suite,
`make fuzz` runs many more.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from conformance.planted import planted
from conformance.small import small_and_short
from forking import run_forked
from fuzz.extreme_worker import try_cases
from fuzz.extremes import Case, cases_of, sampled
from labelwise.data.dataset import Dataset
from labelwise.data.write import write
from labelwise.registry import METHODS, method_class

CASES = int(os.environ.get("LABELWISE_FUZZ_CASES", "0"))
TARGETS = [*(f"model-{name}" for name in METHODS), "data-native", "data-pecos"]
SAMPLE = 6
LONGEST = 7200.0


def make(target: str, folder: Path) -> Path:
    """A small sound folder."""
    kind, _, name = target.partition("-")
    if kind == "data":
        data = planted("features", n_documents=6, n_labels=8)
        texts = planted("texts", n_documents=6, n_labels=8).texts
        folder.mkdir(parents=True)
        both = Dataset(data.labels, texts=texts, features=data.features)
        write(both, folder / ("Y.trn.npz" if name == "pecos" else "train"), name)
        return folder
    method = method_class(name)
    data = planted(method.inputs[0], n_documents=60, n_labels=12)
    model = method(**small_and_short(name)).fit(data)
    model.calibrate(data, k=5)
    model.save(folder)
    return folder


def run(cases: list[tuple[Path, Case]]) -> Counter:
    """Try all cases, each of a sound folder; faults are collected to the end."""
    outcomes: Counter = Counter()
    faults: list[str] = []
    done = 0
    while done < len(cases):
        ended = run_forked(partial(try_cases, cases, done), timeout=LONGEST)
        for line in ended.out.splitlines():
            number, _, found = line.partition(" ")
            if found != "begins":
                done = int(number) + 1
                outcomes[cases[int(number)][0].name, found.split(":")[0]] += 1
                faults += [_shown(cases[int(number)], found)] if found.startswith("FAULT") else []
        if done < len(cases):
            assert f"{done} begins" in ended.out, ended.err[-3000:]
            faults.append(_shown(cases[done], f"ended with {ended.code}: {ended.err[-300:]}"))
            done += 1
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:40])
    return outcomes


def _shown(case: tuple[Path, Case], found: str) -> str:
    return f"{case[0].name} {case[1]}: {found}"[:600]


def try_extremes(targets: list[str], count: int, seed: str, tmp_path: Path) -> None:
    cases = []
    for target in targets:
        good = make(target, tmp_path / target)
        cases += [(good, case) for case in sampled(cases_of(good), count, random.Random(f"{seed}-{target}"))]
    outcomes = run(cases)
    print(dict(outcomes))
    for target in targets if count > SAMPLE else ():  # few cases may all have the same outcome
        assert outcomes[target, "used"] > 0
        assert outcomes[target, "refused"] > 0
    assert {outcome for _, outcome in outcomes} >= {"used", "refused"}


def test_sample_of_extremes(tmp_path):
    try_extremes(TARGETS, SAMPLE, "1", tmp_path)


@pytest.mark.fuzz
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("target", TARGETS)
def test_extremes(target, tmp_path):
    try_extremes([target], -(-CASES // len(TARGETS)) or 1000, str(random.SystemRandom().randrange(2**32)), tmp_path)
