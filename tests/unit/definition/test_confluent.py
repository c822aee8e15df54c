"""The Confluent protocol over a real HTTP server on loopback; answers are data, and strange ones are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from homes.orders import REGISTERED
from homes.project import REPOSITORY
from rivertwice.core.errors import ConfigError, RequestError, RivertwiceError, ServiceError
from rivertwice.definition.confluent import ConfluentRegistry, RegistryLogin
from rivertwice.definition.schema_registry import URL_ENV, open_registry

V1, V2 = ((REGISTERED / "orders-value" / f"{number}.avsc").read_text() for number in (1, 2))
ANSWERS: dict[str, Any] = {
    "/subjects": ["orders-value"],
    "/subjects/orders-value/versions": [2, 1],
    "/subjects/orders-value/versions/1": {"subject": "orders-value", "version": 1, "id": 71, "schema": V1},
    "/subjects/orders-value/versions/2": {
        "subject": "orders-value",
        "version": 2,
        "id": 72,
        "schema": V2,
        "schemaType": "AVRO",
    },
    "/config": {"compatibilityLevel": "FULL_TRANSITIVE"},
    "/schemas/ids/72": {"schema": V2},
}


class Handler(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, Any]] = {}
    seen: ClassVar[list[tuple[str, str, str | None]]] = []

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        self.seen.append((self.command, self.path, self.headers.get("Authorization")))
        found = self.answers.get(self.path.partition("?")[0], (404, {"error_code": 40401, "message": "not found"}))
        status, body = found if isinstance(found, tuple) else (200, found)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/schemas/ids/72")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Fresh", (Handler,), {"answers": dict(ANSWERS), "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()
        thread.join()


def test_versions_ids_rule_and_schema_are_read(server: Any) -> None:
    registry = open_registry(REPOSITORY, {URL_ENV: server[0]})
    assert registry.subjects() == ["orders-value"]
    assert [(each.version, each.id, each.text) for each in registry.versions("orders-value")] == [
        (1, 71, V1),
        (2, 72, V2),
    ]
    assert (registry.rule("orders-value"), registry.by_id(72).text) == ("full", V2)
    assert registry.versions("other") == []


def test_credentials_come_from_the_environment_and_are_in_no_message(server: Any) -> None:
    env = {
        URL_ENV: server[0],
        "RIVERTWICE_SCHEMA_REGISTRY_USER": "u",
        "RIVERTWICE_SCHEMA_REGISTRY_PASSWORD": "canary-7",
    }
    registry = open_registry(REPOSITORY, env)
    server[1].answers["/subjects"] = (401, {"message": "no"})
    with pytest.raises(RequestError) as refused:
        registry.subjects()
    assert server[1].seen[0][2] == "Basic dTpjYW5hcnktNw=="
    assert "canary-7" not in str(refused.value)
    assert "canary-7" not in registry.place


@pytest.mark.proves("howto-schemas.md#the-registry")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "h:8081",
        "http://u:p@h",
        "http://",
        "https://h/?x=1",
        "http://h/#x",
        "http://[::1",
        "http://h:99999999",
        "http://h\x00",
    ],
    ids=str,
)
def test_an_address_that_is_none_or_carries_secrets_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ConfluentRegistry(url)
    assert "u:p" not in str(refused.value)


@pytest.mark.proves("howto-schemas.md#the-registry")
def test_a_password_does_not_travel_unprotected() -> None:
    with pytest.raises(ConfigError, match="use https"):
        ConfluentRegistry("http://registry.example", RegistryLogin("u", "p"))


STRANGE: dict[str, tuple[str, Any]] = {
    "no JSON": ("/subjects/orders-value/versions", b"<html>"),
    "thousands of levels": ("/subjects/orders-value/versions", b"[" * 100_000),
    "versions that are names": ("/subjects/orders-value/versions", ["../../etc/passwd"]),
    "a version that is true": ("/subjects/orders-value/versions", [True]),
    "another subject": (
        "/subjects/orders-value/versions/1",
        {**ANSWERS["/subjects/orders-value/versions/1"], "subject": "../x"},
    ),
    "an id that is a path": (
        "/subjects/orders-value/versions/1",
        {**ANSWERS["/subjects/orders-value/versions/1"], "id": "../x"},
    ),
    "an id beyond four bytes": (
        "/subjects/orders-value/versions/1",
        {**ANSWERS["/subjects/orders-value/versions/1"], "id": 2**40},
    ),
    "a schema that is an object": (
        "/subjects/orders-value/versions/1",
        {**ANSWERS["/subjects/orders-value/versions/1"], "schema": {}},
    ),
    "references": (
        "/subjects/orders-value/versions/1",
        {**ANSWERS["/subjects/orders-value/versions/1"], "references": [{"name": "x"}]},
    ),
    "Protobuf": (
        "/subjects/orders-value/versions/1",
        {**ANSWERS["/subjects/orders-value/versions/1"], "schemaType": "PROTOBUF"},
    ),
    "two megabytes": ("/subjects/orders-value/versions", b"[" + b"1," * 1_000_000 + b"1]"),
    "a redirect": ("/subjects/orders-value/versions", (302, b"")),
    "a broken server": ("/subjects/orders-value/versions", (500, b"x")),
}


@pytest.mark.proves("howto-schemas.md#the-registry", "security.md#security")
@pytest.mark.parametrize("name", list(STRANGE))
def test_a_strange_answer_is_refused_in_words(server: Any, name: str) -> None:
    path, answer = STRANGE[name]
    server[1].answers[path] = answer
    with pytest.raises(RivertwiceError):
        open_registry(REPOSITORY, {URL_ENV: server[0]}).versions("orders-value")
    assert ("GET", "/schemas/ids/72", None) not in server[1].seen


def test_nobody_there_is_said_and_may_be_tried_again() -> None:
    with pytest.raises(ServiceError, match="did not answer") as refused:
        ConfluentRegistry("http://127.0.0.1:1").subjects()
    assert refused.value.retryable


def test_an_incompatible_schema_is_not_even_sent(server: Any) -> None:
    broken = json.loads(V2)
    broken["fields"][0]["type"] = "int"
    with pytest.raises(RequestError, match="breaks its rule 'full'"):
        open_registry(REPOSITORY, {URL_ENV: server[0]}).register("orders-value", "avro", json.dumps(broken), None)
    assert [method for method, _, _ in server[1].seen if method == "POST"] == []


def test_a_schema_that_may_follow_is_sent_and_found_again(server: Any) -> None:
    server[1].answers["/subjects/orders-value/versions"] = [1, 2]
    made = open_registry(REPOSITORY, {URL_ENV: server[0]}).register("orders-value", "avro", V2, None)
    assert (made.version, made.id) == (2, 72)
