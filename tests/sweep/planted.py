"""Tiny data in which words give labels away, and studies on it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml

from forking import Forked
from labelwise.runtime import tasks
from labelwise.tuning.trial import main


def plant(folder: Path, documents: int = 120, valid: bool = True) -> Path:
    """A folder of text and label lines: word wN stands for label lN."""
    folder.mkdir()
    draw = random.Random(0)
    for part, number in [("train", documents), *([("valid", 40)] if valid else []), ("test", 40)]:
        chosen = [draw.sample(range(8), 2) for _ in range(number)]
        texts = [" ".join(f"w{c}" for c in cs) + f" noise{draw.randrange(9)}" for cs in chosen]
        (folder / f"{part}_texts.txt").write_text("\n".join(texts) + "\n")
        (folder / f"{part}_labels.txt").write_text("\n".join(" ".join(f"l{c}" for c in cs) for cs in chosen) + "\n")
    return folder


def write_study(place: Path, **changes) -> Path:
    """A study file on planted data, with keys changed or added."""
    values = {
        "run": {
            "data": {"path": str(place / "data")},
            "model": {"method": "linear_tree", "trees": 1},
            "calibrate": {"enabled": False},
            "evaluate": {"metrics": ["P@1"], "bootstrap": 0, "examples": 0, "k": 2},
        },
        "search": {"kind": "grid"},
        "vary": {"model.leaf_size": [2, 4]},
        "folder": str(place / "sweep"),
        "threads": 2,
        "report": False,
        **changes,
    }
    path = place / "study.yml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def fork_trials(monkeypatch) -> None:
    """Let sweeps of this process fork their trials, which then need no seconds to import everything again."""
    names = ("PIPE", "STDOUT", "TimeoutExpired")
    stand_in = SimpleNamespace(Popen=_forked_trial, **{name: getattr(subprocess, name) for name in names})
    monkeypatch.setattr(tasks, "subprocess", stand_in)


def _forked_trial(command, stdin, stdout, stderr, env, start_new_session, pass_fds):
    if command[:4] != [sys.executable, "-P", "-m", "labelwise.tuning.trial"]:
        options = {"env": env, "start_new_session": start_new_session, "pass_fds": pass_fds}
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, **options)
    output = stdout.fileno()
    return Forked(lambda: main(command[4:]), stdin, output, output, env, pass_fds)
