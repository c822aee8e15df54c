"""Answers of registries and receivers are read up to a limit, packed or not, and no address of theirs is logged."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner

from rivertwice.cli.main import cli
from rivertwice.core.waits import Deadline
from running.waiting import wait_for

MIB = 1 << 20


class Server(ThreadingHTTPServer):
    """Answers every request with `body`, packed as `encoding` says."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.encoding = ""
        self.body = b"{}"
        self.times = 1
        self.asked: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        return  # the client hangs up in the middle of a large answer


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.headers["Accept-Encoding"])
        self.send_response(200)
        if self.server.encoding:
            self.send_header("Content-Encoding", self.server.encoding)
        self.send_header("Content-Length", str(len(self.server.body) * self.server.times))
        self.end_headers()
        for _ in range(self.server.times):
            self.wfile.write(self.server.body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def peak_mib(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `work` returns, and the most memory that Python held meanwhile."""
    tracemalloc.start()
    try:
        found = work()
        return found, tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


@pytest.mark.proves("howto-schemas.md#the-registry", "security.md#security")
@pytest.mark.parametrize(
    ("encoding", "body", "times", "said"),
    [
        ("", b" " * MIB, 64, "more than 1048576 bytes"),
        ("gzip", gzip.compress(b" " * 64 * MIB), 1, "more than 1048576 bytes"),
        ("zstd", zstandard.compress(b" " * 64 * MIB), 1, "packed as 'zstd'"),
        ("gzip", b"no gzip", 1, "cannot be unpacked"),
    ],
)
def test_a_registrys_large_answer_is_refused_and_never_held(
    server: Server, tmp_path: Path, encoding: str, body: bytes, times: int, said: str
) -> None:
    server.encoding, server.body, server.times = encoding, body, times
    env = {"RIVERTWICE_SCHEMA_REGISTRY": server.url, "RIVERTWICE_PROJECT": str(tmp_path)}
    found, peak = peak_mib(lambda: CliRunner().invoke(cli, ["admin", "schema", "list"], env=env))
    assert (found.exit_code, said in found.stderr) == (1, True), found.output
    assert peak < 16
    assert server.asked == ["identity"]


def test_a_registry_s_packed_answer_is_read_within_the_limit(server: Server, tmp_path: Path) -> None:
    server.encoding, server.body = "gzip", gzip.compress(json.dumps([]).encode())
    env = {"RIVERTWICE_SCHEMA_REGISTRY": server.url, "RIVERTWICE_PROJECT": str(tmp_path)}
    found = CliRunner().invoke(cli, ["--output", "json", "admin", "schema", "list"], env=env)
    assert (found.exit_code, json.loads(found.stdout)) == (0, [])


def try_routes(tmp_path: Path, url: str, *options: str) -> Any:
    """Send a message to the receiver of alerts at an address."""
    env = {"RIVERTWICE_ALERT_WEBHOOK": url, "RIVERTWICE_PROJECT": str(tmp_path)}
    return CliRunner().invoke(cli, [*options, "alerts", "test"], env=env)


def test_a_receivers_large_answer_is_not_held_and_repeats_no_request(server: Server, tmp_path: Path) -> None:
    server.body, server.times = b" " * MIB, 64
    found, peak = peak_mib(lambda: try_routes(tmp_path, f"{server.url}/secret-canary"))
    assert (found.exit_code, len(server.asked)) == (0, 1), found.output
    assert peak < 16


def test_no_log_names_the_address_of_a_receiver_at_whatever_level(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        caplog.at_level(logging.DEBUG, "httpx"),
        caplog.at_level(logging.DEBUG, "httpcore"),
    ):
        try_routes(tmp_path, f"{server.url}/secret-canary?token=secret-canary")
    assert "HTTP Request: POST http://127.0.0.1/(hidden)" in caplog.text
    assert "secret-canary" not in caplog.text


@pytest.mark.parametrize("url", ["http://[secret-canary", "http://x:secret-canary/", "ftp://secret-canary", "secret\n"])
def test_an_address_that_is_none_is_refused_without_showing_it(tmp_path: Path, url: str) -> None:
    found = try_routes(tmp_path, url, "--debug")
    assert found.exit_code == 1
    assert "RIVERTWICE_ALERT_WEBHOOK holds no http or https address" in found.output
    assert "secret" not in found.output


@pytest.fixture
def slow_headers() -> Iterator[str]:
    """The address of a server that takes a request, and then sends a byte of an endless header ten times a second."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            for _ in Deadline.after(60).polls(0.1):
                if ended.is_set():
                    return
                connection.sendall(b"x")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    ended.set()
    listener.close()


def test_the_time_for_an_answer_counts_from_the_connection_on(
    slow_headers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.core.web.ANSWER_S", 0.5)
    monkeypatch.setattr("rivertwice.definition.confluent.ANSWER_S", 0.5)
    env = {"RIVERTWICE_ALERT_WEBHOOK": slow_headers, "RIVERTWICE_SCHEMA_REGISTRY": slow_headers}
    for words, said in (
        (["alerts", "test"], "no answer (ReadTimeout)"),
        (["admin", "schema", "list"], "the answer was not complete"),
    ):
        began = time.monotonic()
        found = CliRunner().invoke(cli, words, env={**env, "RIVERTWICE_PROJECT": str(tmp_path)})
        assert time.monotonic() - began < 20
        assert (found.exit_code, said in " ".join(found.output.split())) == (1, True), found.output
    wait_for("the end of the connections", lambda: not [t for t in threading.enumerate() if t.name == "request"], 10)
