"""The hot loops, one file a kernel; `reference.py` holds a plain twin of each for the tests."""

from pathlib import Path

from labelwise.kernels.stale_cache import drop_stale_kernels

drop_stale_kernels(Path(__file__).parent)
