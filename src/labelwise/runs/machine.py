"""The machine and the package versions that results were measured with."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from labelwise.registry import installed_versions
from labelwise.runtime.device import requested_device
from labelwise.runtime.threads import threads

PACKAGES = ("numpy", "scipy", "numba", "torch", "transformers")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system and versions, as plain data."""
    versions = installed_versions(PACKAGES)
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": threads(),
        "device": requested_device(),
        "memory_bytes": _memory(),
        "python": versions.pop("python"),
        "platform": platform.platform(),
        "packages": versions,
    }


def peak_memory() -> int | None:
    """Peak memory of this process in bytes; None where the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
