"""Schemas that refer to others, read through Confluent's client: what is pinned needs no registry; and logins by token and certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from jsonschema import Draft202012Validator

from rivertwice.core.errors import ConfigError, RequestError, ServiceError
from rivertwice.definition.avro import parse_avro
from rivertwice.definition.confluent import ConfluentRegistry, RegistryLogin
from rivertwice.definition.json_schema import parse_json_schema
from rivertwice.definition.protobuf import compiled_proto, proto_findings
from rivertwice.definition.schema_registry import URL_ENV, open_registry
from servers.schema_registry import RegistryServer, TokenServer, serve
from servers.secure_kafka import make_files

MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [
        {"name": "cents", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["EUR", "USD"]}},
    ],
}
LINE = {
    "type": "record",
    "name": "Line",
    "namespace": "shop.lines",
    "fields": [{"name": "price", "type": "shop.Money"}, {"name": "count", "type": "int", "default": 1}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total", "type": "Money"},
        {"name": "lines", "type": {"type": "array", "items": "shop.lines.Line"}},
        {"name": "refund", "type": ["null", "shop.Money"], "default": None},
    ],
}


def refers(**references: tuple[str, int]) -> list[dict[str, Any]]:
    return [
        {"name": name.replace("__", "."), "subject": of, "version": number} for name, (of, number) in references.items()
    ]


def registered(schema: Any, number: int, references: Any = (), kind: str = "AVRO") -> dict[str, Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return {"id": number, "schema": text, "schemaType": kind, "references": list(references)}


def avro_server() -> RegistryServer:
    money = {"shop__Money": ("money", 1)}
    return RegistryServer(
        {
            "money": [registered(MONEY, 1)],
            "line": [registered(LINE, 2, refers(**money))],
            "order": [registered(ORDER, 3, refers(shop__lines__Line=("line", 1), **money))],
        }
    )


def test_an_avro_schema_is_given_with_all_that_it_refers_to() -> None:
    with serve(avro_server()) as url:
        registry = open_registry(Path(), {URL_ENV: url})
        (version,) = registry.versions("order")
        assert registry.by_id(3).text == version.text
    schema = parse_avro(version.text, "order")
    whole = {**ORDER, "fields": [*ORDER["fields"]]}
    whole["fields"][1] = {"name": "total", "type": MONEY}
    whole["fields"][2] = {"name": "lines", "type": {"type": "array", "items": LINE}}
    assert schema.record == parse_avro(json.dumps(whole), "whole").record


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda server: server.subjects.pop("line"), "refused .*/subjects/line/versions/1 with 404"),
        (lambda server: server.subjects["line"].__setitem__(0, registered("{}", 2)), "do not make a valid schema"),
        (
            lambda server: server.subjects["order"][0].update(references=refers(shop__Money=("money", 1))),
            "do not make a valid schema",
        ),
        (
            lambda server: server.subjects["money"][0].update(references=refers(shop__lines__Line=("line", 1))),
            "deeper than 16 levels",
        ),
        (
            lambda server: (
                server.subjects["money"].append(registered(MONEY, 9)),
                server.subjects["line"][0].update(references=refers(shop__Money=("money", 2))),
            ),
            "in two versions",
        ),
    ],
    ids=["one is gone", "one is not a schema", "one is not named", "in a circle", "two versions"],
)
def test_references_that_make_no_schema_are_refused_by_name(change: Any, said: str) -> None:
    server = avro_server()
    change(server)
    with serve(server) as url, pytest.raises(RequestError, match=said):
        ConfluentRegistry(url).versions("order")


def test_a_json_schema_holds_what_it_refers_to() -> None:
    money = {"$id": "https://shop/money.json", "type": "object", "properties": {"cents": {"$ref": "#/$defs/n"}}}
    money["$defs"] = {"n": {"type": "integer"}}
    line = {"type": "object", "properties": {"price": {"$ref": "money.json"}, "most": {"$ref": "money.json#/$defs/n"}}}
    order = {"type": "object", "properties": {"lines": {"type": "array", "items": {"$ref": "line.json"}}}}
    server = RegistryServer(
        {
            "money": [registered(money, 1, kind="JSON")],
            "line": [registered(line, 2, [{"name": "money.json", "subject": "money", "version": 1}], "JSON")],
            "order": [registered(order, 3, [{"name": "line.json", "subject": "line", "version": 1}], "JSON")],
        }
    )
    with serve(server) as url:
        (version,) = ConfluentRegistry(url).versions("order")
    parse_json_schema(version.text, "order")
    validator = Draft202012Validator(json.loads(version.text))
    assert validator.is_valid({"lines": [{"price": {"cents": 5}, "most": 7}]})
    assert not validator.is_valid({"lines": [{"price": {"cents": "5"}}]})
    assert not validator.is_valid({"lines": [{"most": "7"}]})


def proto_file(package: str, name: str, fields: dict[str, tuple[int, str | None]], imports: list[str]) -> bytes:
    """Return a compiled file of one message; a field is a 64-bit number, or of another message."""
    file = descriptor_pb2.FileDescriptorProto(name="default", package=package, syntax="proto3", dependency=imports)
    message = file.message_type.add(name=name)
    for field_name, (number, kind) in fields.items():
        field = message.field.add(name=field_name, number=number, label=1, type=3 if kind is None else 11)
        if kind is not None:
            field.type_name = kind
    return file.SerializeToString()


def test_a_protobuf_subject_is_compiled_with_its_imports() -> None:
    order = {"id": (1, None), "at": (2, ".google.protobuf.Timestamp"), "total": (3, ".shop.Money")}
    server = RegistryServer(
        {
            "money": [registered("", 1, kind="PROTOBUF")],
            "order": [
                registered("", 2, kind="PROTOBUF"),
                registered("", 3, [{"name": "shop/money.proto", "subject": "money", "version": 1}], "PROTOBUF"),
            ],
        },
        {
            ("money", 1): proto_file("shop", "Money", {"cents": (1, None)}, []),
            ("order", 1): proto_file("shop", "Order", {"id": (1, None)}, []),
            ("order", 2): proto_file("shop", "Order", order, ["google/protobuf/timestamp.proto", "shop/money.proto"]),
        },
    )
    with serve(server) as url:
        registry = ConfluentRegistry(url)
        schema = compiled_proto(registry.compiled("order"), None, "order")
        assert proto_findings(schema, {"id": "bigint", "at": "timestamp"}) == []
        assert proto_findings(compiled_proto(registry.compiled("order", 1), None, "order"), {"at": "timestamp"}) != []
        with pytest.raises(RequestError, match="pin PIPELINE --subject"):
            registry.versions("order")
        server.subjects["order"][1]["references"] = []
        registry = ConfluentRegistry(url)
        with pytest.raises(RequestError, match=r"shop/money\.proto is imported but is not among its references"):
            registry.compiled("order")


def test_a_registry_that_wants_tokens_gets_them_and_nobody_else_is_let_in() -> None:
    tokens = TokenServer("river", "canary-9", "registry")
    server = avro_server()
    server.tokens = tokens
    with serve(tokens) as endpoint, serve(server) as url:
        env = {
            URL_ENV: url,
            f"{URL_ENV}_USER": "river",
            f"{URL_ENV}_PASSWORD": "canary-9",
            f"{URL_ENV}_TOKEN_ENDPOINT": f"{endpoint}/token",
            f"{URL_ENV}_SCOPE": "registry",
        }
        assert open_registry(Path(), env).subjects() == ["line", "money", "order"]
        assert server.seen[-1] == ("/subjects", f"Bearer {tokens.issued[0]}")
        with pytest.raises(ServiceError, match="no token came") as refused:
            open_registry(Path(), {**env, f"{URL_ENV}_PASSWORD": "canary-8"}).subjects()
        assert "canary" not in str(refused.value)
        with pytest.raises(ServiceError, match="no token came"):
            open_registry(Path(), {**env, f"{URL_ENV}_SCOPE": "other"}).subjects()
        with pytest.raises(RequestError, match="401"):
            open_registry(Path(), {URL_ENV: url}).subjects()
        assert len(tokens.issued) == 1
        assert tokens.refused >= 2


def test_a_registry_over_tls_is_shown_a_certificate(tmp_path: Path) -> None:
    files = make_files(tmp_path / "tls")
    with serve(avro_server(), files) as url:
        shown = RegistryLogin(ca=files / "ca.pem", certificate=files / "client.pem")
        assert ConfluentRegistry(url, shown).subjects() == ["line", "money", "order"]
        for login in (RegistryLogin(ca=files / "ca.pem"), RegistryLogin(certificate=files / "client.pem")):
            with pytest.raises(ServiceError, match="did not answer"):
                ConfluentRegistry(url, login).subjects()
        with pytest.raises(ConfigError, match="cannot be set up"):
            ConfluentRegistry(url, RegistryLogin(ca=files / "absent.pem"))


@pytest.mark.proves("howto-schemas.md#the-registry")
@pytest.mark.parametrize(
    ("login", "said"),
    [
        (RegistryLogin("u", "p", token_endpoint="http://login/token"), "the secret would travel unprotected"),
        (RegistryLogin("u", "p", token_endpoint="https://u:p@login/token"), "carries a user or password"),
        (RegistryLogin("u", "p", token_endpoint="login"), "TOKEN_ENDPOINT is not an http"),
        (RegistryLogin("u", token_endpoint="https://login/token"), "no token can be asked for"),
        (RegistryLogin("u", "p", scope="registry"), "SCOPE cannot be used without"),
        (RegistryLogin("u:v", "p"), "USER cannot be used without"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_logins_that_contradict_themselves_are_refused(login: RegistryLogin, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConfluentRegistry("https://registry:8081", login)
