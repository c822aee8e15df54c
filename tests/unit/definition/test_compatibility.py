"""What may follow what: Avro's rules by Avro's own checker, and the changes of meaning it lets pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rivertwice.core.errors import DefinitionError
from rivertwice.definition.avro import AvroSchema, Compatibility, narrow, parse_avro, read_findings, rule_findings

MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def schema(*fields: Any, **more: Any) -> AvroSchema:
    listed = [
        {"name": field[0], "type": field[1], **({"default": field[2]} if len(field) > 2 else {})} for field in fields
    ]
    return parse_avro(json.dumps({"type": "record", "name": "R", "fields": listed, **more}), "test")


def money(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


BASE = schema(("a", "int"))
# name: (new schema, rules that accept it after BASE)
CHANGES: dict[str, tuple[AvroSchema, set[Compatibility]]] = {
    "nothing": (BASE, {"none", "backward", "forward", "full"}),
    "a field with a default": (schema(("a", "int"), ("b", "string", "x")), {"none", "backward", "forward", "full"}),
    "a field without one": (schema(("a", "int"), ("b", "string")), {"none", "forward"}),
    "a field less": (schema(("c", "int", 0)), {"none", "backward"}),
    "a wider number": (schema(("a", "long")), {"none", "backward"}),
    "another type": (schema(("a", "string")), {"none"}),
    "a null beside it": (schema(("a", ["null", "int"])), {"none", "backward"}),
}


@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name in CHANGES for rule in ("none", "backward", "forward", "full")]
)
def test_each_rule_accepts_what_it_says_and_nothing_else(name: str, rule: Compatibility) -> None:
    new, accepted = CHANGES[name]
    assert (rule_findings(rule, new, {1: BASE}, read_findings) == []) == (rule in accepted)


def test_every_earlier_version_is_asked_and_not_only_the_last() -> None:
    first, second, third = schema(("a", "int")), schema(("a", "int"), ("b", "int", 0)), schema(("b", "int"))
    assert rule_findings("backward", third, {2: second}, read_findings) == []
    found = rule_findings("backward", third, {1: first, 2: second}, read_findings)
    assert [said.split(":")[0] for said in found] == ["cannot read version 1"]


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (MICROS, MILLIS),
        (MILLIS, MICROS),
        ("long", MICROS),
        (MICROS, "long"),
        (["null", MICROS], MILLIS),
        (MICROS, ["null", MILLIS]),
        (MICROS, "int"),
        (money(10, 2), money(10, 3)),
        (money(9, 2), money(10, 2)),
        ({"type": "array", "items": MICROS}, {"type": "array", "items": MILLIS}),
        ({"type": "map", "values": MICROS}, {"type": "map", "values": "long"}),
        ({"type": "record", "name": "I", "fields": [{"name": "x", "type": MICROS}]},) * 1
        + ({"type": "record", "name": "I", "fields": [{"name": "x", "type": MILLIS}]},),
    ],
    ids=str,
)
def test_a_changed_meaning_is_a_break_though_the_bytes_would_read(reader: Any, writer: Any) -> None:
    assert read_findings(schema(("a", reader)), schema(("a", writer)))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (money(12, 2), money(10, 2)),
        (["null", MICROS], MICROS),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ("double", "long"),
    ],
    ids=str,
)
def test_what_keeps_its_meaning_is_none(reader: Any, writer: Any) -> None:
    assert read_findings(schema(("a", reader)), schema(("a", writer))) == []


def test_a_renamed_field_is_found_by_its_alias_and_its_meaning_is_compared() -> None:
    fields = [{"name": "at_time", "aliases": ["atTime"], "type": MICROS}]
    reader = parse_avro(json.dumps({"type": "record", "name": "R", "fields": fields}), "test")
    assert read_findings(reader, schema(("atTime", MICROS))) == []
    assert read_findings(reader, schema(("atTime", MILLIS)))


def test_narrowing_keeps_the_fields_their_defaults_and_the_types_they_name() -> None:
    kind = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
    whole = schema(
        ("k", kind),
        ("x", {"type": "array", "items": "R2" if False else "int"}),
        ("l", ["null", "Kind"], None),
        namespace="n",
    )
    kept = json.loads(narrow(whole, {"l"}).text)
    assert [field["name"] for field in kept["fields"]] == ["l"]
    assert kept["fields"][0]["type"][1]["symbols"] == ["A", "B"]
    assert (kept["fields"][0]["default"], kept["namespace"]) == (None, "n")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"string"', '{"type": "record"}', '{"type": "record", "name": "R", "fields": 1}', "null"]
)
def test_what_is_no_schema_of_a_record_is_refused_in_words(text: str) -> None:
    with pytest.raises(DefinitionError, match="test"):
        parse_avro(text, "test")
