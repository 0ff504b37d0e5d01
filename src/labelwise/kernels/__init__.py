"""The hot loops, one file a kernel; `reference.py` holds a plain twin of each for the tests."""

from pathlib import Path

from labelwise.kernels.cache_place import find_cache_place
from labelwise.kernels.stale_cache import drop_stale_kernels, stamp_of

drop_stale_kernels(Path(__file__).parent)
find_cache_place(Path(__file__).parent, stamp_of(Path(__file__).parent))
