"""Load on the HTTP service: requests per second and latency at 1 to 256 connections, with and without micro-batching.

Needs `wrk` (Debian: apt-get install wrk) and the extra `serve`. Raw texts are sent, one per request, over loopback;
server and load generator share the machine. Also: memory over many requests, and what happens under overload. Another
server with Annif's API is measured by the same requests with --annif URL (its address with /v1/projects/ID/suggest).

    python benchmarks/serve_load.py MODEL TEXTS [--seconds 20] [--requests 100000] [--output results/serve_load]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from itertools import islice
from pathlib import Path
from urllib.parse import urlencode

from labelwise.data.stream import text_lines

CONNECTIONS = (1, 16, 64, 256)
RESULTS = Path(__file__).parent / "results" / "serve_load"
LATENCIES = {"p50": "50.000", "p90": "90.000", "p99": "99.000"}
SCRIPT = """
local bodies = {}
for line in io.lines(%(file)s) do bodies[#bodies + 1] = line end
local index, thread_number = 0, 0
function setup(thread) thread:set("offset", thread_number); thread_number = thread_number + 1 end
function init() index = offset * 37; counts = {} end
function request()
  index = index %% #bodies + 1
  return wrk.format("POST", nil, {["Content-Type"] = %(type)s}, bodies[index])
end
function response(status) local key = tostring(status); counts[key] = (counts[key] or 0) + 1; all = ""
  for name, count in pairs(counts) do all = all .. name .. "=" .. count .. " " end
end
local threads = {}
local old = setup
function setup(thread) old(thread); threads[#threads + 1] = thread end
function done(summary, latency)
  for _, thread in ipairs(threads) do io.write("statuses " .. (thread:get("all") or "") .. "\\n") end
  for _, p in ipairs({50, 90, 99}) do
    io.write(string.format("latency %%.3f %%.3f\\n", p, latency:percentile(p) / 1000))
  end
  io.write(string.format("requests %%d seconds %%.6f\\n", summary.requests, summary.duration / 1e6))
  local errors = summary.errors
  io.write(string.format("errors %%d %%d %%d\\n", errors.connect, errors.read + errors.write, errors.timeout))
end
"""


class Server:
    """`labelwise serve` in a process of its own."""

    def __init__(self, model: str, *options: str) -> None:
        command = [sys.executable, "-m", "labelwise", "serve", f"model={model}", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.address = next(
            json.loads(line)["address"] for line in self.process.stderr if '"message": "listening"' in line
        )
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self.drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=self.log)
        while self.get("/ready") is None:
            time.sleep(0.1)

    def get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.address + path, timeout=30) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            return None

    def memory(self) -> float:
        """Resident megabytes of the process, without pages of files, which the system may drop."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))

    def cpu_seconds(self) -> float:
        """Of the process and its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ticks = 0
        for process in (self.process.pid, *children):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.drain.wait(60)
        self.log.close()


def run_wrk(url: str, bodies: list[str], kind: str, connections: int, seconds: float) -> dict:
    """One measurement by wrk."""
    with tempfile.TemporaryDirectory() as folder:
        file, script = Path(folder) / "bodies", Path(folder) / "load.lua"
        file.write_text("\n".join(bodies) + "\n", encoding="utf-8")
        script.write_text(SCRIPT % {"file": json.dumps(str(file)), "type": json.dumps(kind)})
        threads = 1 if connections == 1 else 2
        shape = [f"-t{threads}", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "60s"]
        command = ["wrk", *shape, "-s", str(script), url]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    statuses: dict[str, int] = {}
    for name, count in re.findall(r"(\d+)=(\d+)", " ".join(re.findall(r"^statuses (.*)$", out, re.M))):
        statuses[name] = statuses.get(name, 0) + int(count)
    count, duration = re.search(r"^requests (\d+) seconds ([\d.]+)$", out, re.M).groups()
    latencies = dict(re.findall(r"^latency ([\d.]+) ([\d.]+)$", out, re.M))
    connect, broken, late = map(int, re.search(r"^errors (\d+) (\d+) (\d+)$", out, re.M).groups())
    return {
        "connections": connections, "requests_per_second": round(int(count) / float(duration), 1),
        "answered_per_second": round(statuses.get("200", 0) / float(duration), 1),
        **{f"{name}_ms": float(latencies[key]) for name, key in LATENCIES.items()},
        "statuses": statuses, "connection_errors": connect + broken, "timeouts": late,
    }  # fmt: skip


def show(title: str, found: dict) -> None:
    print(
        f"{title:<28} {found['connections']:>4} connections {found['answered_per_second']:>9,.1f} answers/s"
        f"  p50 {found['p50_ms']:>8.2f} ms  p99 {found['p99_ms']:>8.2f} ms  {found['statuses']}", flush=True,
    )  # fmt: skip


def page(results: dict) -> str:
    """The results as Markdown."""
    lines = [
        "# Load on the HTTP service", "",
        f"`benchmarks/serve_load.py`: {results['texts']:,} texts of {results['characters']:,.0f} characters on average,"
        f" one per request, {results['seconds']:g} s per row, wrk and server on the same {os.cpu_count()} cores (load "
        f"average before: {results['load_before']:.1f}).", "",
        "| | connections | answers/s | p50 ms | p90 ms | p99 ms | server's CPU ms per answer | other statuses |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for title, rows in results.items():
        if title == "overload" or (isinstance(rows, list) and rows and "p50_ms" in rows[0]):
            lines += [_row(title.replace("_", " "), row) for row in ([rows] if title == "overload" else rows)]
    ends = (results["memory"][0], results["memory"][-1])
    memory = " and ".join(f"{one['anonymous_mb']:,.1f} MB after {one['requests']:,}" for one in ends)
    lines += ["", f"Memory of the server without mapped files: {memory} requests.", ""]
    if not results["overload"]["healthy_afterwards"]:
        lines += ["**The server did not answer after the overload.**", ""]
    return "\n".join(lines)


def _row(title: str, row: dict) -> str:
    answered = row["statuses"].get("200", 0)
    cpu = f"{1000 * row['server_cpu_seconds'] / answered:.2f}" if answered and "server_cpu_seconds" in row else ""
    others = ", ".join(f"{name}: {count:,}" for name, count in sorted(row["statuses"].items()) if name != "200")
    times = " | ".join(f"{row[name]:,.2f}" for name in ("p50_ms", "p90_ms", "p99_ms"))
    return f"| {title} | {row['connections']} | {row['answered_per_second']:,.1f} | {times} | {cpu} | {others} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", help="file of texts, one per line; may be compressed")
    parser.add_argument("--limit", type=int, default=2000, help="texts to send, again and again")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--requests", type=int, default=100_000, help="requests of the measurement of memory")
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="numbers of worker processes to measure")
    parser.add_argument("--annif", help="URL of another server's suggest, measured by the same texts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="results, without .json and .md")
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed (Debian: apt-get install wrk)")
    texts = [line.strip() for _, line in islice(text_lines(given.texts), given.limit)]
    bodies = [json.dumps({"text": text}) for text in texts]
    forms = [urlencode({"text": text}) for text in texts]
    results: dict = {"texts": len(texts), "characters": sum(map(len, texts)) / len(texts), "seconds": given.seconds}
    results["load_before"] = os.getloadavg()[0]

    def measure(title: str, *options: str) -> list[dict]:
        server = Server(given.model, "--no-log-requests", *options)
        try:
            run_wrk(f"{server.address}/v1/models/model/predict", bodies, "application/json", 4, 1)
            rows = []
            for connections in given.connections:
                before = server.cpu_seconds()
                url = f"{server.address}/v1/models/model/predict"
                rows.append(run_wrk(url, bodies, "application/json", connections, given.seconds))
                rows[-1]["server_cpu_seconds"] = round(server.cpu_seconds() - before, 2)
                show(title, rows[-1])
            return rows
        finally:
            server.end()

    for workers in given.workers:
        of = f", {workers} workers" if workers > 1 else ""
        results[f"micro-batching{of}"] = measure(f"micro-batching{of}", "--workers", str(workers))
        results[f"one at a time{of}"] = measure(f"one at a time{of}", "--workers", str(workers), "--batch", "1")

    server = Server(given.model, "--no-log-requests")
    try:
        url = f"{server.address}/v1/projects/model/suggest"
        kind = "application/x-www-form-urlencoded"
        rows = [run_wrk(url, forms, kind, one, given.seconds) for one in given.connections]
        results["annif_api"] = rows
        for row in rows:
            show("Annif's API", row)
        if given.annif:
            results["annif"] = [run_wrk(given.annif, forms, kind, one, given.seconds) for one in given.connections]
            for row in results["annif"]:
                show("Annif", row)
        memory, done, path = [], 0, f"{server.address}/v1/models/model/predict"
        while done < given.requests:
            found = run_wrk(path, bodies, "application/json", 64, min(given.seconds, 5))
            done += sum(found["statuses"].values())
            if not found["statuses"]:
                sys.exit("the server does not answer any more")
            memory.append({"requests": done, "anonymous_mb": round(server.memory(), 1)})
            print(f"{done:>9,} requests: {memory[-1]['anonymous_mb']:,.1f} MB of own memory", flush=True)
        results["memory"] = memory
    finally:
        server.end()

    server = Server(given.model, "--no-log-requests", "--queue", "32", "--max-documents", "8", "--batch", "8")
    try:
        found = run_wrk(f"{server.address}/v1/models/model/predict", bodies, "application/json", 256, given.seconds)
        show("overload, queue of 32", found)
        results["overload"] = {**found, "healthy_afterwards": server.get("/health") is not None}
    finally:
        server.end()
    given.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
