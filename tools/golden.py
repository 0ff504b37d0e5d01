"""Prove that a change of the code does not change what users get: compare this tree with a base commit on this machine.

    python tools/golden.py --base COMMIT             # exit code 1 and a list if anything differs
    python tools/golden.py --base COMMIT --groups linear commands --only "linear_tree/*" --keep-going

The base commit is checked out below build/golden, and all cases (`golden_cases.py`, `golden_commands.py`) run there
once: results are kept by commit and by the hash of the cases. Then they run in this tree: all arrays must have the same
bytes, and all texts the same characters.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "golden"
CASES = sorted(Path(__file__).parent.glob("golden_*"))
GROUPS = ("runs", "trees", "linear", "commands", "encoders", "words", "images", "extras")
"""Processes of their own, the longest first."""
TOLERANCES = {"ranks/*": 1e-6}
"""Cases whose numbers may differ a little from run to run: sums of two processes."""
ALLOWED: dict[str, tuple[float, str]] = {}
"""Cases (patterns) for which a looser rule holds for the present change: the largest difference, and the reason."""
MEANT: dict[str, str] = {r", `accelerate [^`]*`": "", r"\baccelerate, ": ""}
"""Texts that differ on purpose from those of the base, and what takes their place in both."""
FIXED = {
    "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1", "LABELWISE_THREADS": "1", "LABELWISE_COMPILE_AHEAD": "0", "LABELWISE_VECTORS": "off",
    "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC", "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


def run(tree: Path, out: Path, base: Path, groups: list[str], only: str, jobs: int) -> None:
    """All cases of some groups with the package of a tree; results go to `out`."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(KEPT / "kernels"), **FIXED, "PYTHONPATH": str(tree / "src")}
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30:  # thousands of small files, each written to disk
        env["TMPDIR"] = str(memory)
    out.mkdir(parents=True, exist_ok=True)

    def group(name: str) -> None:
        begin = time.monotonic()
        words = [
            "--tree", tree, "--out", out, "--base", base, "--group", name, "--only", only,
        ]  # fmt: skip
        command = [sys.executable, str(CASES[0].with_name("golden_cases.py")), *map(str, words)]
        with (out / f"{name}.log").open("wb") as log:
            code = subprocess.run(command, env=env, stdout=log, stderr=log).returncode
        print(f"  {name}: {time.monotonic() - begin:.0f} s", flush=True)
        if code:
            text = (out / f"{name}.log").read_text()[-3000:]
            sys.exit(f"the group {name} ended with code {code} in {tree}; {out / f'{name}.log'} ends with\n{text}")
        if only == "*":
            (out / f"{name}.done").touch()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(group, groups))


def results(out: Path, groups: list[str], only: str) -> dict[str, dict[str, Any]]:
    return {
        name: pickle.loads(path.read_bytes())
        for path in sorted((out / "facts").glob("*.pickle"))
        for group, name in [path.stem.replace("~", "/").split("/", 1)]
        if group in groups and fnmatch.fnmatch(name, only)
    }


def tolerance(case: str) -> float:
    rules = [limit for pattern, (limit, _) in ALLOWED.items() if fnmatch.fnmatch(case, pattern)]
    rules += [limit for pattern, limit in TOLERANCES.items() if fnmatch.fnmatch(case, pattern)]
    return max(rules, default=0.0)


def as_meant(leaf: Any) -> Any:
    """A text without what differs on purpose."""
    if isinstance(leaf, str):
        for pattern, text in MEANT.items():
            leaf = re.sub(pattern, text, leaf)
    return leaf


def difference(one: Any, other: Any, limit: float) -> str | None:
    """How two leaves of a result differ, in words."""
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        same = type(one) is type(other) and as_meant(one) == as_meant(other)
        return None if same else f"was {shown(one)}, is {shown(other)}"
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"was {one.dtype}{list(one.shape)}, is {other.dtype}{list(other.shape)}"
    if one.tobytes() == other.tobytes():
        return None
    if not np.issubdtype(one.dtype, np.number):
        return f"was {shown(one)}, is {shown(other)}"
    with np.errstate(invalid="ignore"):  # scores of empty places are infinite
        distance = np.abs(one.astype(np.float64) - other.astype(np.float64))
    if limit and np.nanmax(distance, initial=0) <= limit and np.array_equal(np.isnan(one), np.isnan(other)):
        return None
    changed = int((one != other).sum())
    return f"{changed:,} of {one.size:,} numbers differ, the largest difference is {np.nanmax(distance, initial=0):.3g}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def compare(old: dict[str, dict], new: dict[str, dict], keep_going: bool) -> int:
    """Print differences; the number of cases that have some."""
    bad = 0
    for case in sorted(old.keys() | new.keys()):
        one, other = ({k: v for k, v in side.get(case, {}).items() if k != "seconds"} for side in (old, new))
        if case not in old or case not in new:
            found = [f"the case is only in {'this tree' if case in new else 'the base'}"]
        else:
            found = [f"BROKEN: {one['BROKEN']}"] if one.get("BROKEN") and one == other else []
            for key in [*one, *(key for key in other if key not in one)]:
                if key not in one or key not in other:
                    found.append(
                        f"{key}: only in {'the base' if key in one else 'this tree'}: {shown((one | other)[key])}"
                    )
                elif (how := difference(one[key], other[key], tolerance(case))) is not None:
                    found.append(f"{key}: {how}")
        if found:
            bad += 1
            more = [] if keep_going or len(found) <= 4 else [f"... {len(found) - 4} further differences"]
            print(f"DIFFERENT {case}", *(found if keep_going else found[:4]), *more, sep="\n    ")
            if bad == 20 and not keep_going:
                print("... there may be more: --keep-going lists all")
                break
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="what the working tree is compared with")
    parser.add_argument("--check", action="store_true", help="compare (what happens without it as well)")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="only cases whose name matches, such as 'mach/*'"
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="only these groups of cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep-going", action="store_true", help="list all differences")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to check; not given: this one")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="also print the cases that took longest")
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", f"{options.base}^{{commit}}"], text=True).strip()
    kept = KEPT / commit[:12]
    if not (kept / "tree").exists():
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", kept / "tree", commit], check=True)
    base = kept / hashlib.sha256(b"".join(path.read_bytes() for path in CASES)).hexdigest()[:12]
    missing = [name for name in options.groups if not (base / f"{name}.done").exists()]
    if missing:
        print(f"the base {commit[:8]}, once:", flush=True)
        run(kept / "tree", base, base, missing, "*", options.jobs)
    now = KEPT / f"working-{os.getpid()}"
    try:
        print("this tree:", flush=True)
        run(options.tree.resolve(), now, base, options.groups, options.only, options.jobs)
        old, new = (results(out, options.groups, options.only) for out in (base, now))
    finally:
        shutil.rmtree(now, ignore_errors=True)
    bad = compare(old, new, options.keep_going)
    slowest = sorted(new, key=lambda case: -new[case]["seconds"])[: options.slowest]
    print(*(f"{new[case]['seconds']:6.1f} s  {case}" for case in slowest), sep="\n")
    leaves = sum(len(found) for found in new.values())
    print(f"{len(new):,} cases with {leaves:,} arrays and texts: {f'{bad} differ' if bad else 'no difference'}")
    sys.exit(1 if bad or not new else 0)


if __name__ == "__main__":
    main()
