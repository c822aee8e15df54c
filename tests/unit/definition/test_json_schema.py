"""One JSON Schema within another: what is called so holds for every document, and what users do to schemas is told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rivertwice.core.errors import DefinitionError
from rivertwice.definition.avro import Compatibility, rule_findings
from rivertwice.definition.json_schema import document_findings, parse_json_schema

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CLOSED = {**OPEN, "additionalProperties": False}


def with_b(base: dict[str, Any], kind: Any, *, required: bool = False) -> dict[str, Any]:
    return {
        **base,
        "properties": {**base["properties"], "b": {"type": kind}},
        "required": ["a", "b"] if required else ["a"],
    }


ALL: set[Compatibility] = {"none", "backward", "forward", "full"}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], set[Compatibility]]] = {
    "notes only": (OPEN, {**OPEN, "title": "A", "description": "b", "$comment": "c"}, ALL),
    "a field that may be there, closed": (CLOSED, with_b(CLOSED, "string"), {"none", "backward"}),
    "a field that may be there, open: anything could stand there": (OPEN, with_b(OPEN, "string"), {"none", "forward"}),
    "a field that must be there": (CLOSED, with_b(CLOSED, "string", required=True), {"none"}),
    "a required field that may be absent": (OPEN, {**OPEN, "required": []}, {"none", "backward"}),
    "closed": (OPEN, CLOSED, {"none", "forward"}),
    "a wider number": (OPEN, {**OPEN, "properties": {"a": {"type": "number"}}}, {"none", "backward"}),
    "null beside it": (OPEN, {**OPEN, "properties": {"a": {"type": ["integer", "null"]}}}, {"none", "backward"}),
    "another type": (OPEN, {**OPEN, "properties": {"a": {"type": "string"}}}, {"none"}),
    "a value more": ({"enum": [1, 2]}, {"enum": [1, 2, 3]}, {"none", "backward"}),
    "true is not 1": ({"enum": [1]}, {"enum": [True]}, {"none"}),
    "a tighter bound": (
        {"type": "integer", "minimum": 1},
        {"type": "integer", "exclusiveMinimum": 1},
        {"none", "forward"},
    ),
    "another format": (
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "date"},
        {"none"},
    ),
    "the same choice, spelt elsewhere": (
        {"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "string"}}},
        {"anyOf": [{"type": "string"}]},
        ALL,
    ),
    "a choice by the same name of something else": (
        {"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "string"}}},
        {"anyOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "integer"}}},
        {"none"},
    ),
    "a name like a keyword's": (
        {"type": "object", "properties": {"title": {"type": "string"}, "$defs": {"type": "string"}}},
        {"type": "object", "properties": {"title": {"type": "integer"}, "$defs": {"type": "integer"}}},
        {"none"},
    ),
    "items behind others": (
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "integer"}},
        {"none"},
    ),
    "a pattern of names may cover it": (
        {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"none"},
    ),
}


@pytest.mark.proves("howto-schemas.md#the-registry")
@pytest.mark.parametrize("name", CHANGES)
def test_each_rule_accepts_what_it_says_and_nothing_else(name: str) -> None:
    old, new, accepted = CHANGES[name]
    parsed = [parse_json_schema(json.dumps(each), name) for each in (old, new)]
    found = {rule for rule in ALL if not rule_findings(rule, parsed[1], {1: parsed[0]}, document_findings)}
    assert found == accepted


@pytest.mark.proves("howto-schemas.md#the-registry")
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "https://elsewhere/x"}, "leads out"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}}, "contains itself"),
        ({"$ref": "#/$defs/y"}, "leads to nothing"),
        ({"$ref": "#/$defs/x", "minimum": 1, "$defs": {"x": True}}, "demands beside it"),
        ({"$dynamicRef": "#x"}, "changes what references mean"),
        ({"properties": {"a": {"$id": "x"}}}, "changes what references mean"),
        ({"type": "nothing"}, "nothing"),
        ({"exclusiveMinimum": True}, "True"),
        ([], r"\[\]"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_reason(schema: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        parse_json_schema(json.dumps(schema), "it")


def test_what_grows_without_end_is_refused() -> None:
    parts = {f"x{n}": {"anyOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 4} for n in range(12)} | {"x12": True}
    with pytest.raises(DefinitionError, match="5000 parts"):
        parse_json_schema(json.dumps({"$ref": "#/$defs/x0", "$defs": parts}), "it")
    deep: Any = True
    for _ in range(40):
        deep = {"items": deep}
    with pytest.raises(DefinitionError, match="32 levels"):
        parse_json_schema(json.dumps(deep), "it")


NAMES = st.sampled_from(["a", "b", "ab"])
NUMBERS = st.sampled_from([-1, 0, 1, 1.5, 2])
COUNTS = st.integers(0, 2)
LEAVES = st.sampled_from([None, True, False, -1, 0, 1, 1.5, 2, "", "a", "b", "ab"])
PARTS = st.sampled_from(
    [True, False, {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"const": 1}, {"const": True}]
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
ANY = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(LEAVES, min_size=1, max_size=3),
    "const": LEAVES,
    "not": PARTS,
    "anyOf": st.lists(PARTS, min_size=1, max_size=2),
    "if": PARTS,
    "then": PARTS,
}
GROUPS: list[tuple[dict[str, st.SearchStrategy[Any]], st.SearchStrategy[Any]]] = [
    (
        {
            "properties": st.dictionaries(NAMES, PARTS, min_size=1, max_size=2),
            "required": st.lists(NAMES, min_size=1, max_size=2, unique=True),
            "additionalProperties": PARTS,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), PARTS, min_size=1, max_size=1),
            "propertyNames": st.sampled_from([{"maxLength": 1}, {"const": "a"}]),
            "minProperties": COUNTS,
            "maxProperties": COUNTS,
        },
        st.dictionaries(NAMES, LEAVES, max_size=3),
    ),
    (
        {
            "items": PARTS,
            "prefixItems": st.lists(PARTS, min_size=1, max_size=2),
            "contains": PARTS,
            "minContains": COUNTS,
            "uniqueItems": st.booleans(),
            "minItems": COUNTS,
            "maxItems": COUNTS,
        },
        st.lists(LEAVES, max_size=3),
    ),
    (
        {
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "exclusiveMinimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "multipleOf": st.sampled_from([1, 2]),
            "minLength": COUNTS,
            "maxLength": COUNTS,
            "pattern": st.sampled_from(["^a", "b$"]),
        },
        LEAVES,
    ),
]


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """A schema, another that differs from it in a keyword or two, and documents of the type they speak of."""
    group, documents = draw(st.sampled_from(GROUPS))
    known = {**group, **ANY}
    names = draw(st.lists(st.sampled_from(sorted(group)), min_size=1, max_size=3, unique=True))
    names += draw(st.lists(st.sampled_from(sorted(ANY)), max_size=1))
    writer = {name: draw(known[name]) for name in names}
    reader = dict(writer)
    for name in draw(st.lists(st.sampled_from([*names, *sorted(known)]), min_size=1, max_size=2, unique=True)):
        if name in reader and draw(st.booleans()):
            del reader[name]
        else:
            reader[name] = draw(known[name])
    values = draw(st.lists(documents | LEAVES, min_size=5, max_size=20))
    return (reader, writer, values) if draw(st.booleans()) else (writer, reader, values)


@settings(max_examples=400)
@given(case=neighbours())
def test_no_document_shows_a_yes_to_be_wrong(case: tuple[dict[str, Any], dict[str, Any], list[Any]]) -> None:
    *pair, values = case
    reader, writer = (parse_json_schema(json.dumps(each), "it") for each in pair)
    if not document_findings(reader, writer):
        ours, theirs = (Draft202012Validator(each) for each in pair)
        for value in values:
            assert not theirs.is_valid(value) or ours.is_valid(value), value
