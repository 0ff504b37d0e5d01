"""The page of `serve_load.py`."""

from __future__ import annotations

from typing import Any


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = results["rows"]
    lines = [
        "# Load on the HTTP service", "",
        f"`benchmarks/serve_load.py`, {results['machine']}. {results['texts']:,} raw texts of "
        f"{results['characters']:,.0f} characters on average, one per request, {results['seconds']:g} s per row; wrk "
        "and server share the cores. `one at a time` is the same server with `--batch 1`; `Annif's API` are our routes "
        "for Annif's clients, `Annif` is its own server with the omikuji backend (gunicorn, two workers), sent the "
        "same requests. Busy cores: those of other processes, in the second before the row.", "",
        "| | connections | answers/s | p50 ms | p90 ms | p99 ms | server's CPU ms per answer | busy cores "
        "| other statuses |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
        *(_row(title, row) for title, some in rows.items() for row in some),
        _row("overload, queue of 64", results["overload"]), "",
    ]  # fmt: skip
    for title, other, what in _pairs(rows):
        found = [
            f"{mine['answered_per_second'] / max(theirs['answered_per_second'], 1e-9):.1f} at {mine['connections']}"
            for mine, theirs in zip(rows[title], rows[other], strict=True)
        ]
        lines.append(f"- {what}: {', '.join(found)} connections.")
    ends = (results["memory"][0], results["memory"][-1])
    memory = " and ".join(f"{one['anonymous_mb']:,.1f} MB after {one['requests']:,}" for one in ends)
    lines.append(f"- Memory of the server without mapped files: {memory} requests.")
    after = results["overload"]["afterwards"]
    lines.append(
        f"- After the overload, one connection gets {after['answered_per_second']:,.1f} answers/s, p50 "
        f"{after['p50_ms']:.2f} ms, statuses {after['statuses']}."
    )
    return "\n".join([*lines, ""])


def _pairs(rows: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Rows to divide: which, by which, and what that is."""
    found = []
    for title in rows:
        kind, comma, workers = title.partition(", ")
        if kind == "micro-batching":
            other = f"one at a time{comma}{workers}"
            found.append((title, other, f"Times the answers of {other}"))
        elif kind == "Annif's API" and "Annif" in rows:
            found.append((title, "Annif", f"Times the answers of Annif's own server{comma}{workers}"))
    return found


def _row(title: str, row: dict[str, Any]) -> str:
    answered = row["statuses"].get("200", 0)
    cpu = f"{1000 * row['server_cpu_seconds'] / answered:.2f}" if answered and "server_cpu_seconds" in row else ""
    others = ", ".join(f"{name}: {count:,}" for name, count in sorted(row["statuses"].items()) if name != "200")
    others += f" {row['timeouts']:,} timeouts" if row["timeouts"] else ""
    others += f" {row['connection_errors']:,} broken connections" if row["connection_errors"] else ""
    times = " | ".join(f"{row[name]:,.2f}" for name in ("p50_ms", "p90_ms", "p99_ms"))
    numbers = f"{row['connections']} | {row['answered_per_second']:,.1f} | {times} | {cpu}"
    return f"| {title} | {numbers} | {row['busy_cores_before']:.1f} | {others.strip()} |"
