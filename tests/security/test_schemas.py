"""Schemas as attackers write them: names stay below their folder, sizes and depths have limits, answers are data."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homes.orders import REGISTERED, copy_orders, orders
from rivertwice.core.errors import ConfigError, DefinitionError, RequestError, RivertwiceError
from rivertwice.definition import pinned_files
from rivertwice.definition.avro import parse_avro
from rivertwice.definition.definition import load_definition
from rivertwice.definition.pinned_files import file_name, split_name
from rivertwice.definition.schema_folder import FORMAT, INDEX, FolderRegistry
from rivertwice.definition.schema_pins import field_findings
from rivertwice.definition.schema_refresh import plan_refresh
from rivertwice.definition.schema_registry import SchemaVersion, require_subject

NASTY = st.sampled_from(
    [
        "..",
        "../x",
        "/etc/passwd",
        "a/../b",
        "a\x00b",
        "file:x",
        "a\n",
        "",
        ".hidden",
        "a" * 129,
        "$(id)",
        "a;b",
        "ä",
        "-a",
        "a b",
    ]
)
PLAIN = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def record(kind: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": kind}]}


def nested(levels: int) -> dict[str, Any]:
    found: Any = "int"
    for level in range(levels):
        found = record(found, f"R{level}")
    return found


def doubled(levels: int) -> dict[str, Any]:
    """A kilobyte of text whose names, spelt out, are 2^levels parts."""
    found = record("int", "R0")
    for level in range(1, levels):
        twice = [{"name": "a", "type": found}, {"name": "b", "type": f"R{level - 1}"}]
        found = {"type": "record", "name": f"R{level}", "fields": twice}
    return found


@given(st.one_of(NASTY, st.text(max_size=140)))
def test_an_accepted_subject_is_one_folder_below_its_registry(text: str) -> None:
    try:
        subject = require_subject(text)
    except ConfigError:
        return
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", subject)
    assert (Path("/srv/schemas") / subject).resolve().parent == Path("/srv/schemas")


@given(st.one_of(NASTY, st.text(max_size=80), st.from_regex(r"schemas/[a-z0-9_.-]{0,40}", fullmatch=True)))
def test_an_accepted_pinned_file_is_the_one_its_parts_name(text: str) -> None:
    try:
        view, schema_id = split_name(text)
    except DefinitionError:
        return
    assert text in (file_name(view, schema_id), file_name(view, schema_id).removeprefix("schemas/"))


HARMFUL: dict[str, tuple[Any, str]] = {
    "itself inside": (record(["null", "R"]), "contains itself"),
    "itself in an array": (record({"type": "array", "items": "R"}), "contains itself"),
    "too deep": (nested(20), "nests deeper"),
    "names that double": (doubled(15), "more than 5000 parts"),
    "an array of nothing": (record({"type": "array", "items": "null"}), "take no bytes"),
    "an array of empty records": (
        record({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}),
        "take no bytes",
    ),
    "a huge fixed": (record({"type": "fixed", "name": "F", "size": 2**31 - 1}), "fixed of"),
}


@pytest.mark.parametrize("name", list(HARMFUL))
def test_a_schema_that_a_small_record_could_blow_up_is_refused(name: str) -> None:
    value, words = HARMFUL[name]
    with pytest.raises(DefinitionError, match=words):
        parse_avro(json.dumps(value), "x")


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 40_000,
        b" " * (pinned_files.MAX_BYTES + 1),
        b"\xff\xfe",
        json.dumps({**PLAIN, "x": "\ud800"}).encode(),
        b"9" * 5_000,
    ],
    ids=["levels of arrays", "levels of objects", "too long", "no UTF-8", "half a letter", "a long number"],
)
def test_a_text_that_breaks_a_parser_is_a_named_error(data: bytes) -> None:
    with contextlib.suppress(DefinitionError):
        parse_avro(data, "x")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["int", "record", "R", "null"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default", "logicalType", "precision", "scale", "namespace", "aliases"]), inner, max_size=5),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(JSON, JSON)
def test_whatever_json_a_schema_is_the_answer_is_a_schema_or_a_named_error(value: Any, default: Any) -> None:
    for each in (
        value,
        record(value),
        {**PLAIN, "fields": [{"name": "a", "type": "int", "default": default}, {"name": "b", "type": value}]},
    ):
        with contextlib.suppress(DefinitionError):
            field_findings(parse_avro(json.dumps(each), "x"), {"a": "int", "b": "string"})


@pytest.mark.proves("security.md#security")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    subject=st.text(max_size=30),
    number=st.integers(),
    schema_id=st.integers(),
    text=st.one_of(st.just(json.dumps(PLAIN)), st.text(max_size=30)),
)
def test_no_path_ever_comes_from_a_registrys_answer(subject: str, number: int, schema_id: int, text: str) -> None:
    view, source = orders().source
    kept = (REGISTERED / "orders-value" / "2.avsc").read_text()
    versions = [
        SchemaVersion("orders-value", 1, 7, "avro", kept),
        SchemaVersion(subject, number, schema_id, "avro", text),
    ]
    with contextlib.suppress(RivertwiceError):
        plan = plan_refresh("orders-value", view, source.schema_, {}, versions, framed=True)
        assert set(plan.write) <= {"schemas/orders.avsc", "schemas/orders-7.avsc", f"schemas/orders-{schema_id}.avsc"}


@pytest.mark.parametrize("line", [
    {"subject": "../../x", "id": 1, "version": 1, "kind": "avro"}, {"subject": "s", "id": 1, "version": "../1", "kind": "avro"},
    {"subject": "s", "id": 1, "version": 1, "kind": "../x"}, {"subject": "s", "rule": "any"}, {"subject": "s", "id": True, "version": 1, "kind": "avro"},
], ids=str)  # fmt: skip
def test_an_index_that_names_another_place_is_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"format": FORMAT, "sha256": "0", **line}))
    with pytest.raises(ConfigError, match="not an entry of format"):
        FolderRegistry(tmp_path).subjects()


@pytest.mark.proves("failure-modes.md#schemas")
def test_an_index_of_another_format_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"format": FORMAT + 1, "subject": "s", "rule": "none"}))
    with pytest.raises(ConfigError, match="restore the file"):
        FolderRegistry(tmp_path).subjects()


def test_a_subject_that_leads_elsewhere_by_a_link_is_not_followed(tmp_path: Path) -> None:
    kept = FolderRegistry(tmp_path / "schemas")
    kept.register("s", "avro", json.dumps(PLAIN), None)
    target = tmp_path / "schemas" / "s" / "1.avsc"
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="a link"):
        kept.versions("s")


def test_more_schemas_than_a_definition_may_pin_are_refused(tmp_path: Path) -> None:
    folder = copy_orders(tmp_path)
    for number in range(10, 10 + pinned_files.MAX_WRITERS):
        (folder / "schemas" / f"orders-{number}.avsc").write_text(json.dumps(PLAIN))
    with pytest.raises(DefinitionError, match="more than 200"):
        load_definition(folder)


@pytest.mark.proves("howto-schemas.md#the-registry")
@pytest.mark.parametrize(
    "new", ['{"if": true, "then": false}', '{"$ref": "https://elsewhere/x"}', '{"$dynamicRef": "#a"}']
)
def test_what_nothing_can_be_proved_of_passes_no_rule(tmp_path: Path, new: str) -> None:
    registry = FolderRegistry(tmp_path)
    registry.register("s", "json", "{}", "full")
    with pytest.raises((RequestError, DefinitionError), match="be compared"):
        registry.register("s", "json", new, None)
    assert [each.version for each in registry.versions("s")] == [1]
