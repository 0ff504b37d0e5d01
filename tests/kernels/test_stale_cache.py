"""Kernels that call kernels of other files are compiled anew when those change."""

import subprocess
import sys

from labelwise.kernels.stale_cache import drop_stale_kernels

CALLEE = "from numba import njit\n\n@njit(cache=True)\ndef number():\n    return {}\n"
CALLER = (
    "from numba import njit\nfrom made.callee import number\n\n@njit(cache=True)\ndef asked():\n    return number()\n"
)
PACKAGE = """
from pathlib import Path
from labelwise.kernels.stale_cache import drop_stale_kernels
drop_stale_kernels(Path(__file__).parent)
"""


def answer(folder):
    command = [sys.executable, "-c", "from made.caller import asked; print(asked())"]
    return int(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def test_a_changed_callee_is_noticed(tmp_path):
    package = tmp_path / "made"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "caller.py").write_text(CALLER)
    (package / "callee.py").write_text(CALLEE.format(1))
    assert answer(tmp_path) == 1
    assert list((package / "__pycache__").glob("*.nbc")), "nothing was kept, so nothing is tested"
    (package / "callee.py").write_text(CALLEE.format(22))
    assert answer(tmp_path) == 22


def test_nothing_is_dropped_while_sources_stay(tmp_path):
    (tmp_path / "kernel.py").write_text("")
    assert drop_stale_kernels(tmp_path)
    (tmp_path / "__pycache__" / "kernel.1.nbc").write_bytes(b"")
    assert not drop_stale_kernels(tmp_path)
    assert (tmp_path / "__pycache__" / "kernel.1.nbc").exists()
    (tmp_path / "kernel.py").write_text("# longer")
    assert drop_stale_kernels(tmp_path)
    assert not (tmp_path / "__pycache__" / "kernel.1.nbc").exists()
