"""Load on the HTTP service: requests per second and latency at 1 to 256 connections, with and without micro-batching.

Needs `wrk` (Debian: apt-get install wrk) and the extra `serve`. Raw texts are sent, one per request, over loopback;
server and load generator share the machine. Also: memory over many requests, and what happens under overload.

With --annif FOLDER, Annif's own server is measured by the same requests: FOLDER has `projects.cfg`, the trained project
of --annif-project and a virtual environment `venv` with Annif and gunicorn, which is started as Annif's tutorial
recommends for production, with two workers.

    python benchmarks/serve_load.py MODEL TEXTS [--seconds 20] [--requests 100000] [--annif FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import islice
from pathlib import Path
from urllib.parse import urlencode

from labelwise.data.stream import text_lines
from peers.driving import busy_cores, machine
from serve_load_page import page

CONNECTIONS = (1, 16, 64, 256)
RESULTS = Path(__file__).parent / "results" / "serve_load"
PREDICT, SUGGEST = "/v1/models/model/predict", "/v1/projects/model/suggest"
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
    """A server in a process of its own, with its workers."""

    def __init__(self, command: list[str], folder: str | None = None) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, cwd=folder)

    @classmethod
    def labelwise(cls, model: str, *options: str) -> Server:
        """`labelwise serve`, with its models loaded."""
        port = free_port()
        command = [sys.executable, "-m", "labelwise", "serve", f"model={model}", "--port", str(port), *options]
        server = cls([*command, "--no-log-requests"])
        server.address = f"http://127.0.0.1:{port}"
        server.wait("/ready")
        return server

    @classmethod
    def annif(cls, folder: str) -> Server:
        """Annif under gunicorn."""
        port = free_port()
        server = cls([
            f"{folder}/venv/bin/gunicorn", "annif:create_app()", "--bind", f"127.0.0.1:{port}", "--timeout", "600",
            "--workers", "2", "--worker-class", "uvicorn.workers.UvicornWorker",
        ], folder)  # fmt: skip
        server.address = f"http://127.0.0.1:{port}"
        server.wait("/v1/projects")
        return server

    def wait(self, path: str) -> None:
        """Wait until a path is answered with 200."""
        while not self.answers(path):
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"the server has ended: {self.log.read()[-2000:]}")
            time.sleep(0.1)

    def answers(self, path: str) -> bool:
        """Whether a path is answered with 200."""
        try:
            with urllib.request.urlopen(self.address + path, timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False

    def processes(self) -> list[int]:
        """The process and its children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def memory(self) -> float:
        """Resident megabytes of all processes, without pages of files, which the system may drop."""
        lines = [line for one in self.processes() for line in Path(f"/proc/{one}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))

    def cpu_seconds(self) -> float:
        """Of all processes."""
        ticks = 0
        for process in self.processes():
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Stop it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


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


class Load:
    """The requests, and how they are measured."""

    def __init__(self, texts: list[str], seconds: float, connections: list[int]) -> None:
        self.bodies = [json.dumps({"text": text}) for text in texts]
        self.forms = [urlencode({"text": text}) for text in texts]
        self.seconds, self.connections = seconds, connections

    def send(self, server: Server, path: str, connections: int, seconds: float) -> dict:
        """One run of wrk; paths of Annif's API get forms, others JSON."""
        form = path.endswith("suggest")
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        return run_wrk(server.address + path, self.forms if form else self.bodies, kind, connections, seconds)

    def rows(self, title: str, server: Server, path: str, warm_up: float = 1) -> list[dict]:
        """A row per number of connections; the server ends afterwards."""
        try:
            self.send(server, path, 4, warm_up)
            found = []
            for connections in self.connections:
                busy, before = busy_cores(), server.cpu_seconds()
                row = self.send(server, path, connections, self.seconds)
                found.append({**row, "server_cpu_seconds": round(server.cpu_seconds() - before, 2),
                              "busy_cores_before": round(busy, 2)})  # fmt: skip
                show(title, found[-1])
            return found
        finally:
            server.end()

    def memory(self, server: Server, requests: int) -> list[dict]:
        """Own memory of the server as requests are answered."""
        try:
            found, done = [], 0
            while done < requests:
                answered = self.send(server, PREDICT, 64, min(self.seconds, 5))["statuses"].get("200", 0)
                if not answered:
                    sys.exit("the server does not answer any more")
                done += answered
                found.append({"requests": done, "anonymous_mb": round(server.memory(), 1)})
                print(f"{done:>9,} requests: {found[-1]['anonymous_mb']:,.1f} MB of own memory", flush=True)
            return found
        finally:
            server.end()

    def overload(self, server: Server) -> dict:
        """256 connections and a queue that is much shorter, and one connection afterwards."""
        try:
            self.send(server, PREDICT, 4, 1)
            busy = busy_cores()
            found = self.send(server, PREDICT, 256, self.seconds)
            afterwards = self.send(server, PREDICT, 1, 2)
            show("overload, queue of 64", found)
            show("afterwards", afterwards)
            return {**found, "busy_cores_before": round(busy, 2), "afterwards": afterwards}
        finally:
            server.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", help="file of texts, one per line; may be compressed")
    parser.add_argument("--limit", type=int, default=2000, help="texts to send, again and again")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--requests", type=int, default=100_000, help="requests of the measurement of memory")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of worker processes to measure")
    parser.add_argument("--annif", metavar="FOLDER", help="folder of Annif, measured by the same texts")
    parser.add_argument("--annif-project", default="eurlex-omikuji")
    parser.add_argument("--output", type=Path, default=RESULTS, help="results, without .json and .md")
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed (Debian: apt-get install wrk)")
    texts = [line.strip() for _, line in islice(text_lines(given.texts), given.limit)]
    load = Load(texts, given.seconds, given.connections)
    start = Server.labelwise
    results: dict = {
        "machine": machine(), "texts": len(texts), "characters": sum(map(len, texts)) / len(texts),
        "seconds": given.seconds, "rows": {},
    }  # fmt: skip
    rows = results["rows"]
    for workers in given.workers:
        of = f", {workers} workers" if workers > 1 else ""
        several = ("--workers", str(workers))
        for title, options in ((f"micro-batching{of}", several), (f"one at a time{of}", (*several, "--batch", "1"))):
            rows[title] = load.rows(title, start(given.model, *options), PREDICT)
        rows[f"Annif's API{of}"] = load.rows(f"Annif's API{of}", start(given.model, *several), SUGGEST)
    if given.annif:
        path = f"/v1/projects/{given.annif_project}/suggest"
        rows["Annif"] = load.rows("Annif", Server.annif(given.annif), path, warm_up=10)
    results["memory"] = load.memory(start(given.model), given.requests)
    small = ("--queue", "64", "--max-documents", "64")
    results["overload"] = load.overload(start(given.model, *small))
    given.output.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
