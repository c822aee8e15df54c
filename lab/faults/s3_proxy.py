"""A proxy in front of an S3 server that answers some requests wrongly, as a test asks. Loopback only, for tests.

It forwards a request as it came, the Host header included, so that signatures stay valid. It matters whether
the server has seen the request: an answer that is lost after the server acted is not the same as a request that never
arrived.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

Kind = Literal[
    "error_500",  # 500 InternalError; the server sees nothing
    "slow_down",  # 503 SlowDown; the server sees nothing
    "forbidden",  # 403 AccessDenied; the server sees nothing
    "expired",  # 400 ExpiredToken, as S3 says it; the server sees nothing
    "unauthenticated",  # 401 AuthenticationFailed, as Azure and Google say it; the server sees nothing
    "ok_with_error",  # 200, and an error in the body; the server sees nothing
    "reset_request",  # half of the request's body is read, then the connection is reset; the server sees nothing
    "drop_after",  # the server acts; the connection is closed without an answer
    "hang_after",  # the server acts; no answer comes for a while, then the connection is closed
    "reset_answer",  # the server acts; half of the answer's body is sent, then the connection is reset
    "stale_list",  # the answer that the same listing had the last time
]
_ERRORS = {
    "error_500": (500, "InternalError", "We encountered an internal error. Please try again."),
    "slow_down": (503, "SlowDown", "Please reduce your request rate."),
    "forbidden": (403, "AccessDenied", "Access Denied"),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "unauthenticated": (401, "AuthenticationFailed", "The credentials are not valid, or no longer."),
    "ok_with_error": (200, "InternalError", "We encountered an internal error. Please try again."),
}
_HOP = {"connection", "keep-alive", "transfer-encoding", "proxy-connection"}


@dataclass
class Fault:
    """What to do to which requests.

    Attributes:
        kind: see `Kind`.
        method: method of the requests it meets; None meets all.
        key: regular expression, searched in `bucket/key?query`, decoded.
        times: how many requests it meets; None never ends.
        hang_s: seconds without an answer, for `hang_after`.
    """

    kind: Kind
    method: str | None = None
    key: str = ""
    times: int | None = 1
    hang_s: float = 2.0


@dataclass(frozen=True)
class Seen:
    """One request as the proxy saw it; `status` is None where no answer was sent."""

    method: str
    path: str
    fault: Kind | None
    status: int | None


@dataclass
class S3Proxy:
    """A running proxy; `fail` sets what it breaks, `seen` lists what happened."""

    endpoint: str
    target: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    listings: dict[str, tuple[int, list[tuple[str, str]], bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, *faults: Fault) -> None:
        """Add faults; the first that fits a request meets it."""
        with self.lock:
            self.faults.extend(faults)

    def heal(self) -> None:
        """Break nothing from now on."""
        with self.lock:
            self.faults.clear()

    def met(self, kind: Kind | None = None) -> list[Seen]:
        """Return the requests that a fault met."""
        return [request for request in self.seen if request.fault is not None and kind in (None, request.fault)]

    def select(self, method: str, path: str) -> Fault | None:
        """Return the fault that meets a request, counting it down."""
        text = unquote(path.lstrip("/"))
        with self.lock:
            for fault in self.faults:
                fits = fault.method in (None, method) and re.search(fault.key, text)
                if not fits or (fault.kind == "stale_list" and path not in self.listings):
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times == 0:
                        self.faults.remove(fault)
                return fault
        return None


@contextmanager
def s3_proxy(target: str) -> Iterator[S3Proxy]:
    """Run a proxy in front of the server at `target` (`http://host:port`)."""
    server = _Server(("127.0.0.1", 0), _Handler)
    proxy = S3Proxy(f"http://127.0.0.1:{server.server_address[1]}", target)
    server.proxy = proxy
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    proxy: S3Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore it: a client that goes away is what the proxy is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        fault = proxy.select(self.command, self.path)
        kind = fault.kind if fault else None
        length = int(self.headers.get("Content-Length") or 0)
        if kind == "reset_request":
            self.rfile.read(length // 2)
            self._note(kind, None)
            self._reset()
            return
        body = self.rfile.read(length)
        if kind in _ERRORS:
            self._refuse(kind)
            return
        status, headers, data = self._forward(body)
        listing = self.command == "GET" and "list-type=2" in self.path
        if kind == "stale_list":
            status, headers, data = proxy.listings[self.path]
        elif listing:
            proxy.listings[self.path] = (status, headers, data)
        if fault is not None and kind in ("drop_after", "hang_after"):
            self._note(kind, None)
            if kind == "hang_after":
                time.sleep(fault.hang_s)
            self._reset()
            return
        self._note(kind, status)
        self._answer(status, headers, data[: len(data) // 2] if kind == "reset_answer" else data, len(data))
        if kind == "reset_answer":
            self.wfile.flush()
            time.sleep(0.05)  # a reset overtakes what is still on its way
            self._reset()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 (the library's names)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        address = urlsplit(self.server.proxy.target)
        connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {*_HOP, "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _refuse(self, kind: Kind) -> None:
        status, code, text = _ERRORS[kind]
        data = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
        self._note(kind, status)
        self._answer(status, [("Content-Type", "application/xml")], data.encode(), len(data))

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP and (name.lower() != "content-length" or self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _note(self, kind: Kind | None, status: int | None) -> None:
        with self.server.proxy.lock:
            self.server.proxy.seen.append(Seen(self.command, unquote(self.path), kind, status))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's name)
        """Log nothing; `seen` has all requests."""
