"""What clients do to connections: huge heads, answers that nobody reads, bodies that are not read, other protocols."""

import http.client
import json
import re
import socket
import time

import pytest

from serve.running import running_server, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")

PREDICT = "/v1/models/plain/predict"
POST = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
GET = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = json.dumps({"text": "cat", "k": 1}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@pytest.fixture(scope="module")
def port(plain_folder):
    with running_server({"plain": plain_folder}, max_request=10_000) as address:
        yield int(address.rpartition(":")[2])


def connected(port):
    return socket.create_connection(("localhost", port), timeout=60)


def answer(connection):
    """The status, the media type and the JSON of the next answer."""
    found = http.client.HTTPResponse(connection)
    found.begin()
    return found.status, found.getheader("content-type"), json.loads(found.read())


def send_all(connection, *parts):
    """Send until the server does not want to know more."""
    for part in parts:
        try:
            connection.sendall(part)
        except ConnectionError:
            return


def counted(port, status):
    connection = http.client.HTTPConnection("localhost", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf'labelwise_requests_total{{route="other",status="{status}"}} (\d+)', text)
    return int(found[1]) if found else 0


LINES = [b"X-Header: " + b"x" * 1000 + b"\r\n"] * 1000
HUGE = {
    "headers": [b"GET /health HTTP/1.1\r\nHost: localhost\r\n", *LINES],
    "one header": [b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Header: ", *[b"x" * 1000] * 1000],
    "at once": [b"".join([b"GET /health HTTP/1.1\r\nHost: localhost\r\n", *LINES[:80], b"\r\n"])],
    "address": [b"GET /", *[b"x" * 1000] * 1000],
}


@pytest.mark.parametrize("parts", HUGE.values(), ids=HUGE)
def test_the_head_of_a_request_is_bounded(port, parts):
    before = counted(port, 431)
    with connected(port) as connection:
        send_all(connection, *parts)
        status, kind, problem = answer(connection)
    assert (status, kind, problem["type"]) == (431, "application/problem+json", "urn:labelwise:problem:too-large")
    assert counted(port, 431) == before + 1


def test_heads_of_usual_size_are_accepted(port):
    with connected(port) as connection:
        connection.sendall(b"".join([POST, *LINES[:50], LENGTH, b"\r\n", BODY]))
        assert answer(connection)[0] == 200


def test_trailers_and_the_next_head_are_bounded(port):
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n"
    with connected(port) as connection:
        send_all(connection, chunked, *LINES)
        assert answer(connection)[0] == 431
    with connected(port) as connection:
        connection.sendall(POST + LENGTH + b"\r\n" + BODY)
        assert answer(connection)[0] == 200
        send_all(connection, b"GET /health HTTP/1.1\r\n", *LINES)
        assert answer(connection)[0] == 431


def test_what_is_no_request_gets_a_problem_and_is_counted(port):
    before = counted(port, 400)
    with connected(port) as connection:
        connection.sendall(b"\x16\x03\x01\x00\xa5 nonsense\r\n\r\n")
        assert answer(connection)[:2] == (400, "application/problem+json")
        assert connection.recv(10) == b""
    assert counted(port, 400) == before + 1
    with connected(port) as connection:  # answers come in the order of requests
        connection.sendall(POST + LENGTH + b"\r\n" + BODY + b"\x16\x03 nonsense\r\n\r\n")
        assert answer(connection)[0] == 200
        assert connection.recv(10) == b""
    with connected(port) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        assert answer(connection)[0] == 400


def test_head_is_answered_as_get_without_the_body(port):
    connection = http.client.HTTPConnection("localhost", port, timeout=60)
    for path in ("/", "/health", "/ready", "/v1/models", "/static/page.css", "/docs"):
        found = []
        for method in ("HEAD", "GET"):
            connection.request(method, path)
            response = connection.getresponse()
            found.append((response.status, response.getheader("content-length"), response.getheader("content-type")))
            assert bool(response.read()) == (method == "GET")
        assert found[0] == found[1]
        assert found[0][0] in (200, 404)
    connection.request("HEAD", PREDICT)
    assert connection.getresponse().status == 405
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_clients_that_send_too_much_get_the_answer(port, chunked):
    for _ in range(10):
        client = http.client.HTTPConnection("localhost", port, timeout=60)
        body = (b"x" * 100_000 for _ in range(200)) if chunked else b"x" * 20_000_000
        client.request("POST", PREDICT, body, {"Content-Type": "application/json"}, encode_chunked=chunked)
        refused = client.getresponse()
        assert (refused.status, json.load(refused)["type"]) == (413, "urn:labelwise:problem:too-large")
        client.close()


def test_a_client_that_sends_too_much_for_too_long_is_cut_off(port, monkeypatch):
    monkeypatch.setattr("labelwise.serve.lingering.SECONDS", 0.1)
    with connected(port) as connection:
        connection.sendall(POST + b"Content-Length: 999999999\r\n\r\n")
        assert answer(connection)[0] == 413
        assert connection.recv(10) == b""

        def is_closed():
            try:
                connection.sendall(b"x")
            except ConnectionError:
                return True
            return False

        wait_until(is_closed, 30)


def test_offers_of_another_protocol_are_ignored(port):
    """As Java's HttpClient makes them with each first request of a connection."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    for sizes in ((10_000,), (1,), (7, 10_000)):
        with connected(port) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for request in (POST + LENGTH + offer + b"\r\n" + BODY, POST + LENGTH + b"\r\n" + BODY):
                begin = 0
                while begin < len(request):
                    size = sizes[min(begin, len(sizes) - 1)]
                    connection.sendall(request[begin : begin + size])
                    begin += size
                status, _, found = answer(connection)
                assert (status, len(found["results"])) == (200, 1)
    with connected(port) as connection:
        chunks = b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
        connection.sendall(POST + offer + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + GET)
        assert answer(connection)[0] == 200
        assert answer(connection)[0] == 200
    with connected(port) as connection:
        connection.sendall(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(connection)[0] == 400


def test_clients_that_do_not_read_are_cut_off(plain_folder):
    with running_server({"plain": plain_folder}, max_connections=3, timeout=1.0) as address:
        port = int(address.rpartition(":")[2])

        def accepts():
            with connected(port) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return answer(connection)[0] == 200

        wait_until(accepts)
        held = [connected(port) for _ in range(3)]
        for one in held:
            one.sendall(GET * 600)
        assert not accepts()
        wait_until(accepts, 60)
        for one in held:
            one.close()


def test_answers_that_nobody_reads_are_counted_with_the_bodies(plain_folder, caplog):
    many = json.dumps({"documents": ["a"] * 1000, "k": 2}).encode()
    request = POST + b"Content-Length: %d\r\n\r\n" % len(many) + many
    with running_server({"plain": plain_folder}, max_request=50_000, max_bodies=60_000) as address:
        port = int(address.rpartition(":")[2])

        def status():
            with connected(port) as connection:
                connection.sendall(POST + LENGTH + b"\r\n" + BODY)
                return answer(connection)[0]

        with connected(port) as one:
            one.sendall(request)
            assert len(answer(one)[2]["results"]) == 1000
            one.sendall(request * 400)
            wait_until(lambda: status() == 503, 30)
        wait_until(lambda: status() == 200, 30)
    assert "a request failed" not in caplog.text


def test_clients_that_read_slowly_get_everything(plain_folder):
    with running_server({"plain": plain_folder}, timeout=3.0) as address:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        one.settimeout(60)
        one.connect(("127.0.0.1", int(address.rpartition(":")[2])))
        with one:
            one.sendall(GET * 1500)
            found, begin, received = 0, time.monotonic(), b""
            while found < 1500:
                received = received[-11:] + one.recv(65_536)
                found += len(re.findall(b"HTTP/1.1 200", received))
                if time.monotonic() - begin < 5:
                    time.sleep(0.02)
            assert time.monotonic() - begin > 4, "the rest was not there at once"
