"""A webhook receiver and a mail server on loopback, which keep what they took and can be told to refuse."""

from __future__ import annotations

import email
import email.policy
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

SECRET = "canary-hook-1f7c"


class Hook(ThreadingHTTPServer):
    """Takes POSTs; `answer` is the status it answers with, `hold_s` how long it waits before."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HookHandler)
        self.taken: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.asked = 0
        self.answer = 204
        self.refuse: Callable[[dict[str, Any]], bool] = lambda _: False
        self.hold_s = 0.0
        self.url = f"http://127.0.0.1:{self.server_port}/{SECRET}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def told(self) -> list[tuple[str, str]]:
        """Return kind and status of every message it took."""
        return [(one["kind"], one["status"]) for one in self.taken]


class _HookHandler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        time.sleep(self.server.hold_s)
        status = 400 if self.server.refuse(body) else self.server.answer
        if 200 <= status < 300:
            self.server.taken.append(body)
            self.server.keys.append(self.headers["Idempotency-Key"])
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks SMTP: EHLO, STARTTLS if it has a certificate, AUTH PLAIN, and takes mails."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, certificate: Path | None = None, *, wrapped: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _MailHandler)
        self.port = int(self.server_address[1])
        self.mails: list[EmailMessage] = []
        self.logins: list[str] = []
        self.commands: list[str] = []
        self.refuse = ""
        self.context: ssl.SSLContext | None = None
        self.wrapped = wrapped
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        return


class _MailHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = cast("MailServer", self.server)
        if server.wrapped:
            self._encrypt()
        self._say("220 test")
        while line := self.rfile.readline().decode().strip():
            server.commands.append(line)
            verb = line.split()[0].upper()
            if verb == "EHLO":
                offers = ["STARTTLS"] if server.context and not isinstance(self.connection, ssl.SSLSocket) else []
                self._say("250-test", *(f"250-{one}" for one in offers), "250 AUTH PLAIN")
            elif verb == "STARTTLS":
                self._say("220 go on")
                self._encrypt()
            elif verb == "AUTH":
                server.logins.append(line.split()[2])
                self._say("235 welcome")
            elif verb == "DATA":
                self._data(server)
            elif verb == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 fine")

    def _data(self, server: MailServer) -> None:
        self._say("354 go on")
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b"."))
        if server.refuse:
            self._say(server.refuse)
            return
        parsed = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        server.mails.append(parsed)
        self._say("250 taken")

    def _encrypt(self) -> None:
        context = cast("MailServer", self.server).context
        assert context is not None
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")

    def _say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())
        self.wfile.flush()
