"""Tries changed folders one after the other, in a process of its own, because a case may crash it.

It prints a line before and after each case, so that whoever started it knows where to resume.
"""

from __future__ import annotations

import resource
import shutil
import signal
import traceback
from pathlib import Path

import numpy as np

SECONDS = 20
MEMORY = 3 << 30


def outcome(good: Path, work: Path, case, use) -> str:
    from fuzz.extremes import apply
    from labelwise.errors import LabelwiseError

    shutil.copytree(good, work)
    apply(case, work)
    signal.alarm(SECONDS)
    try:
        return use(work)
    except LabelwiseError as error:
        return "refused" if str(work) in str(error) else f"FAULT: the message does not name the folder: {error}"
    except BaseException as error:  # a panic of Rust code is no Exception
        return f"FAULT: {type(error).__name__}: {error} {traceback.format_exc().splitlines()[-3:]}"
    finally:
        signal.alarm(0)
        shutil.rmtree(work)


def predict(work: Path) -> str:
    import labelwise as lw

    model = lw.load(work)
    from conformance.planted import planted

    data = planted(model.input_, n_documents=20, n_labels=12)
    top = model.predict(data, k=3)
    filled = top.ids != -1
    if not np.isfinite(top.scores[filled]).all():
        return "FAULT: scores are not finite"
    if not filled[:, 0].any():
        return "FAULT: nothing is predicted"
    return "used"


def read(work: Path) -> str:
    import labelwise as lw
    from labelwise.data.describe import statistics

    inside = list(work.iterdir())
    data = lw.read(inside[0] if len(inside) == 1 else work)
    statistics(data)
    for part in (data.labels, data.features):
        if part is not None and not np.isfinite(getattr(part, "data", part)).all():
            return "FAULT: numbers are not finite"
    return "used"


def late(*_):
    raise TimeoutError(f"no answer after {SECONDS} s")


def try_cases(cases: list, first: int) -> None:
    """Try the cases from `first` on."""
    import labelwise as lw

    lw.set_threads(1)
    uses = {good: predict if (good / "config.json").exists() else read for good, _ in cases[first:]}
    for good, use in uses.items():
        use(good)  # compiles and imports what is needed
    signal.signal(signal.SIGALRM, late)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for number, (good, case) in enumerate(cases[first:], first):
        print(f"{number} begins", flush=True)
        print(number, outcome(good, good.parent / "work", case, uses[good]).replace("\n", " "), flush=True)
