"""How many of our files one `fit` goes through: what somebody has to read to follow a method.

    python tools/walks.py                       # all methods
    python tools/walks.py mach text_encoder     # exit code 1 if one goes through more files than its limit
    python tools/walks.py --check               # the four that have a limit; exit code 1 if one has become longer

Counted are distinct files of `src/labelwise` of which `fit` calls a function, on planted data with the parameters of
the conformance suite; files of compiled kernels too.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
os.environ["LABELWISE_THREADS"] = "2"  # one thread takes some other turns
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
SOURCE = str(ROOT / "src" / "labelwise") + "/"
LIMITS = {"text_encoder": 30, "mach": 25, "xr_transformer": 40, "attention_xml": 35}
"""What a reader should need at most."""
REACHED = {"text_encoder": 46, "mach": 36, "xr_transformer": 71, "attention_xml": 58}
"""What there is: `tests/test_structure.py` refuses more. Lower it when a walk gets shorter."""


def files_of_fit(name: str) -> list[str]:
    """The files that `fit` of a method executes, relative to the package."""
    from conformance.small import SMALL
    from labelwise.registry import method_class
    from labelwise.testing.subject import planted

    method = method_class(name)(**SMALL.get(name, {}))
    data = planted(method.fact("inputs")[0], n_documents=60, n_labels=12)
    method.fit(data)  # imports everything: bodies of classes and modules are no part of the walk
    seen: set[str] = set()

    def trace(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        method.fit(data)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(path.removeprefix(SOURCE) for path in seen if path.startswith(SOURCE))


def main(names: list[str]) -> int:
    """Print the number of files per method, with its limit; 1 if one is exceeded, with `--check` what was reached."""
    from labelwise.registry import METHODS

    checks = names == ["--check"]
    too_long, limits = 0, REACHED if checks else LIMITS
    for name in REACHED if checks else names or sorted(METHODS):
        files, limit = files_of_fit(name), limits.get(name)
        over = limit is not None and len(files) > limit
        too_long |= over
        print(f"{name}: {len(files)} files" + ("" if limit is None else f", at most {limit}"))
        if names or over:
            print("  " + "\n  ".join(files))
    return int(too_long)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
