"""A schema registry and a token endpoint on loopback: the protocol's answers as data, and logins that are really checked."""

from __future__ import annotations

import base64
import json
import secrets
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit


@dataclass
class TokenServer:
    """Gives tokens to one client; each is good for some uses.

    Attributes:
        url: of the endpoint. issued: tokens that it gave. refused: how often it refused.
    """

    client: str
    secret: str
    scope: str
    url: str = ""
    issued: list[str] = field(default_factory=list)
    refused: int = 0

    def token(self) -> str:
        """Return a new token."""
        return secrets.token_urlsafe(16)

    def answer(self, login: str | None, form: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Return what the endpoint answers to a request for a token, as OAuth 2 says."""
        given = base64.b64encode(f"{self.client}:{self.secret}".encode()).decode()
        if login != f"Basic {given}":
            self.refused += 1
            return 401, {"error": "invalid_client"}
        if form.get("grant_type") != ["client_credentials"] or form.get("scope", [""]) != [self.scope]:
            self.refused += 1
            return 400, {"error": "invalid_scope"}
        self.issued.append(self.token())
        return 200, {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": 300}


@dataclass
class RegistryServer:
    """A registry.

    Attributes:
        subjects: subject to its versions, oldest first: what the registry answers, without subject and version.
        compiled: (subject, version) to the compiled Protobuf file, for `format=serialized`.
        tokens: whose tokens alone are let in; None lets everybody in.
        seen: (path, login) of each request.
    """

    subjects: dict[str, list[dict[str, Any]]]
    compiled: dict[tuple[str, int], bytes] = field(default_factory=dict)
    tokens: TokenServer | None = None
    url: str = ""
    seen: list[tuple[str, str | None]] = field(default_factory=list)

    def answer(self, path: str, query: Mapping[str, list[str]], login: str | None) -> tuple[int, Any]:
        """Return what the registry answers."""
        self.seen.append((path, login))
        if self.tokens is not None and login not in {f"Bearer {token}" for token in self.tokens.issued}:
            return 401, {"error_code": 401, "message": "who is there?"}
        parts = path.strip("/").split("/")
        if parts == ["subjects"]:
            return 200, sorted(self.subjects)
        if parts[0] == "config":
            return (200, {"compatibilityLevel": "BACKWARD"}) if len(parts) == 1 else (404, {"error_code": 40408})
        if parts[:2] == ["schemas", "ids"]:
            found = [one for versions in self.subjects.values() for one in versions if one["id"] == int(parts[2])]
            return (200, found[0]) if found else (404, {"error_code": 40403})
        versions = self.subjects.get(parts[1])
        if versions is None:
            return 404, {"error_code": 40401}
        if len(parts) == 3:
            return 200, list(range(1, len(versions) + 1))
        number = int(parts[3])
        answer = {**versions[number - 1], "subject": parts[1], "version": number}
        if query.get("format") == ["serialized"]:
            answer["schema"] = base64.b64encode(self.compiled[parts[1], number]).decode()
        return 200, answer


class _Handler(BaseHTTPRequestHandler):
    registry: ClassVar[RegistryServer | None] = None
    tokens: ClassVar[TokenServer | None] = None

    def do_GET(self) -> None:
        assert self.registry is not None
        parts = urlsplit(self.path)
        self._send(*self.registry.answer(parts.path, parse_qs(parts.query), self.headers.get("Authorization")))

    def do_POST(self) -> None:
        assert self.tokens is not None
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self._send(*self.tokens.answer(self.headers.get("Authorization"), form))

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serve(server: RegistryServer | TokenServer, certificates: Path | None = None) -> Iterator[str]:
    """Let a server answer for the block, and yield its address; with certificates only over TLS to clients that show one."""
    is_registry = isinstance(server, RegistryServer)
    handler = type("Own", (_Handler,), {"registry": server if is_registry else None, "tokens": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        if certificates is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
            context.load_cert_chain(certificates / "server.pem")
            context.verify_mode = ssl.CERT_REQUIRED
            running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        server.url = f"{'http' if certificates is None else 'https'}://127.0.0.1:{running.server_port}"
        try:
            yield server.url
        finally:
            running.shutdown()
            thread.join()
