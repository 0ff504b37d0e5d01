"""Memory that this process can still allocate: what the system has free, or less if a container sets a limit."""

from __future__ import annotations

from pathlib import Path

NO_LIMIT = 1 << 60
"""Control groups without a limit report a number at least this large."""


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping or being killed; None where the system does not report it."""
    available = [free for free in (_of_system(root), *_of_groups(root)) if free is not None]
    return max(0, min(available)) if available else None


def _of_system(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_groups(root: Path) -> list[int]:
    """Free bytes in each control group of this process, for cgroups v1 and v2."""
    available = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        group = Path(path.lstrip("/"))
        for folder in (base / group, *(base / above for above in group.parents)):
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and used is not None and limit < NO_LIMIT:
                available.append(limit - used + _file_cache(folder / "memory.stat"))
    return available


def _file_cache(path: Path) -> int:
    """Bytes of the page cache, which the system reclaims when needed; with those of groups below, if listed."""
    listed = dict(line.split(" ", 1) for line in _text(path).splitlines() if " " in line)
    amounts = (listed.get(f"total_{name}", listed.get(name, "")) for name in ("inactive_file", "active_file"))
    return sum(int(amount) for amount in amounts if amount.isdigit())


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
