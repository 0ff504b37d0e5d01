"""A small web server for tests that can cut connections, stall, lie and redirect."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from labelwise.data.catalogue import DownloadLimits

HASTY = DownloadLimits(timeout=0.4, attempts=3, pause=0.01)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


class FaultyServer:
    """Serves `answers[path]`: a function of the request, or a list of them of which each is used once."""

    def __init__(self):
        self.answers = {}
        self.requests = []
        self.stop = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.close_connection = True
                outer.requests.append((self.path, dict(self.headers)))
                answer = outer.answers.get(self.path.partition("?")[0], status(404))
                if isinstance(answer, list):
                    answer = answer.pop(0) if len(answer) > 1 else answer[0]
                with contextlib.suppress(OSError):
                    answer(self)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.stopped = self.stop
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def paths(self):
        return [path for path, _ in self.requests]


def _send(request, code, body, headers, length=None):
    request.send_response(code)
    for name, value in headers.items():
        request.send_header(name, value)
    if length is not False:
        request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)
    request.wfile.flush()


def status(code, **headers):
    """An answer without content."""
    return lambda request: _send(request, code, b"", {k.replace("_", "-"): v for k, v in headers.items()})


def whole(content, kind="application/octet-stream", etag=None, length=None):
    """The whole file, whatever range was asked for."""
    extra = {"ETag": etag} if etag else {}
    return lambda request: _send(request, 200, content, {"Content-Type": kind, **extra}, length)


def ranged(content, etag='"one"', cut=None, obeys_if_range=True):
    """The file with ranges as they should be; `cut` ends the connection after so many bytes of the answer."""

    def answer(request):
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        condition = request.headers.get("If-Range")
        start = int(wanted[1]) if wanted and (not obeys_if_range or condition in (None, etag)) else 0
        if start >= len(content):
            return status(416)(request)
        headers = {"Content-Type": "application/gzip", **({"ETag": etag} if etag else {})}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        _send(request, 206 if start else 200, body[:cut], headers, len(body))
        return None

    return answer


def silent(request):
    """Never answers."""
    request.server.stopped.wait(20)


def trickling(request):
    """Sends one byte now and then, for ever."""
    _send(request, 200, b"", {"Content-Type": "application/gzip"}, 10**9)
    while not request.server.stopped.is_set():
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(0.03)


def endless(request):
    """Sends without saying how much it will be."""
    _send(request, 200, b"", {"Content-Type": "application/gzip"}, False)
    while not request.server.stopped.is_set():
        request.wfile.write(b"x" * 65536)


def redirect(target):
    return status(302, Location=target)
