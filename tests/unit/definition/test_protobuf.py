"""Protobuf: what protoc compiled is pinned, any bytes give values or a reason, and a number never changes its meaning."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2, json_format, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from homes.project import EXAMPLES, make_project, replace_text
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.avro import parse_avro
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.pinned_files import proto_file_name
from rivertwice.definition.protobuf import (
    ProtoSchema,
    compiled_proto,
    parse_proto,
    plan_pin,
    proto_findings,
    proto_sql_types,
    read_proto_findings,
)
from rivertwice.definition.protobuf_read import DETAIL, REASON, ProtoReader, encode_proto, indexes_of
from rivertwice.definition.schema_pins import field_findings, parse_message

NAMES = [name.removeprefix("TYPE_") for name in vars(FieldDescriptor) if name.startswith("TYPE_")]
NUMBERS = [
    name for name in NAMES if name not in ("STRING", "BYTES", "BOOL", "GROUP", "MESSAGE", "ENUM", "FLOAT", "DOUBLE")
]
Field = tuple[str, int, str]
"""Name, number, type: of Protobuf's own, or `.package.Message`."""


def compiled(*fields: Field, repeated: str = "", enum: dict[str, int] | None = None, comment: str = "") -> bytes:
    """What protoc would write of `message Customer {...} message Order {...}` in a file of its own."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Customer")
    message = file.message_type.add(name="Order")
    for name, number, kind in fields:
        label = "LABEL_REPEATED" if name == repeated else "LABEL_OPTIONAL"
        field = message.field.add(name=name, number=number, label=label)
        if kind.startswith("."):
            field.type_name = kind
            field.type = FieldDescriptor.TYPE_ENUM if kind == ".shop.State" else FieldDescriptor.TYPE_MESSAGE
        else:
            field.type = getattr(FieldDescriptor, f"TYPE_{kind}")
    if enum is not None:
        made = file.enum_type.add(name="State")
        for symbol, number in enum.items():
            made.value.add(name=symbol, number=number)
    if comment:
        file.source_code_info.location.add(leading_comments=comment)
    known = []
    for one in (timestamp_pb2, wrappers_pb2):
        known.append(descriptor_pb2.FileDescriptorProto())
        one.DESCRIPTOR.CopyToProto(known[-1])
        file.dependency.append(known[-1].name)
    return descriptor_pb2.FileDescriptorSet(file=[*known, file]).SerializeToString()


def order(*fields: Field, **more: Any) -> ProtoSchema:
    return compiled_proto(compiled(*fields, **more), "shop.Order", "order.protoset")


def read(schema: ProtoSchema, fields: dict[str, str], *values: bytes | None, framed: bool = False) -> list[Any]:
    return ProtoReader(schema, fields, framed).read(values).to_pylist()


AT = ".google.protobuf.Timestamp"
STATES = {"UNKNOWN": 0, "PLACED": 1}


def test_what_is_pinned_is_json_that_comments_do_not_change() -> None:
    schema = order(("id", 1, "STRING"))
    assert order(("id", 1, "STRING"), comment="the order's own") == schema
    assert parse_proto(json.dumps(json.loads(schema.text), indent=2), "orders.protobuf.json") == schema
    assert schema.index_path == (1,)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("STRING", ("string",)), ("BOOL", ("boolean",)), ("INT32", ("int", "bigint")), ("SINT32", ("int", "bigint")),
        ("UINT32", ("bigint",)), ("FIXED32", ("bigint",)), ("INT64", ("bigint",)), ("UINT64", ("decimal(20,0)",)),
        ("FLOAT", ("double",)), ("DOUBLE", ("double",)), ("BYTES", ()), (AT, ("timestamp",)), (".shop.Customer", ()),
        (".google.protobuf.StringValue", ("string",)), (".google.protobuf.UInt64Value", ("decimal(20,0)",)),
        (".google.protobuf.Int32Value", ("int", "bigint")), (".google.protobuf.BytesValue", ()), (".shop.State", ("string",)),
    ],
)  # fmt: skip
def test_each_type_can_be_declared_as_what_holds_all_its_values(kind: str, told: tuple[str, ...]) -> None:
    schema = order(("v", 1, kind), enum=STATES)
    assert proto_sql_types(schema.descriptor.fields_by_name["v"]) == told
    assert proto_sql_types(order(("v", 1, kind), enum=STATES, repeated="v").descriptor.fields_by_name["v"]) == ()


@pytest.mark.parametrize(
    ("data", "message", "said"),
    [
        (compiled(("id", 1, "STRING")), None, "has the messages shop.Customer, shop.Order; say which one"),
        (compiled(("id", 1, "STRING")), "shop.Orders", "has no message 'shop.Orders'"),
        (b"syntax = proto3;", "shop.Order", "is not what protoc --descriptor_set_out writes"),
        (compiled(("id", 1, ".shop.Nowhere")), "shop.Order", "lacks a file or contradicts itself"),
        (compiled(*((f"f{n}", n, "STRING") for n in range(1, 4000))), "shop.Order", "more than the 262144"),
    ],
)
def test_what_is_no_message_is_refused_with_what_to_do(data: bytes, message: str | None, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        compiled_proto(data, message, "order.protoset")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"file": [{"nane": 1}]}, "message": "x"}'])
def test_a_pinned_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match="schema pin"):
        parse_proto(text, "orders.protobuf.json")


def test_a_source_without_its_message_or_with_other_fields_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"orders\.protobuf\.json does not exist"):
        parse_message({}, "orders", {"id": "string"}, where="p")
    data = order(("id", 1, "STRING")).text.encode()
    with pytest.raises(DefinitionError, match="field 'id' can be string, but the definition says bigint") as caught:
        parse_message({"schemas/orders.protobuf.json": data}, "orders", {"id": "bigint", "at": "timestamp"}, where="p")
    assert "has no field 'at'" in str(caught.value)


def test_avro_and_protobuf_name_a_missing_field_and_a_wrong_type_alike() -> None:
    declared = {"id": "bigint", "number": "string", "at": "timestamp"}
    fields = [{"name": "id", "type": "string"}, {"name": "number", "type": "int"}]
    avro = parse_avro(json.dumps({"type": "record", "name": "Order", "fields": fields}), "orders.avsc")
    findings = [
        "field 'id' can be string, but the definition says bigint; declare that, or pin another reader",
        "field 'number' can be int or bigint, but the definition says string; declare that, or pin another reader",
        "has no field 'at', which the definition declares; remove it there, or pin a reader that has it",
    ]
    assert field_findings(avro, declared) == findings
    message = order(("id", 1, "STRING"), ("number", 2, "INT32"))
    assert proto_findings(message, declared) == [finding.replace("reader", "message") for finding in findings]


INSTANTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 (bounds have no zone)
FIELDS = {
    "id": "string",
    "at": "timestamp",
    "n": "bigint",
    "u": "decimal(20,0)",
    "x": "double",
    "b": "boolean",
    "s": "string",
    "w": "int",
}
WHOLE = order(
    ("id", 1, "STRING"), ("at", 2, AT), ("n", 3, "SINT64"), ("u", 4, "UINT64"), ("x", 5, "DOUBLE"), ("b", 6, "BOOL"),
    ("s", 7, ".shop.State"), ("w", 8, ".google.protobuf.Int32Value"), enum=STATES,
)  # fmt: skip


@given(
    st.text(), INSTANTS, st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.sampled_from(list(STATES)),
    st.none() | st.integers(-(2**31), 2**31 - 1),
)  # fmt: skip
def test_every_value_is_read_as_it_was_written(
    id_: str, at: datetime, n: int, u: int, x: float, b: bool, s: str, w: int | None
) -> None:
    given_ = {"id": id_, "at": at, "n": n, "u": Decimal(u), "x": x, "b": b, "s": s, "w": w}
    (found,) = read(WHOLE, FIELDS, encode_proto(WHOLE, given_))
    assert found == {**given_, REASON: None, DETAIL: None}


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_give_values_or_a_reason_and_never_stop_the_batch(data: bytes, framed: bool) -> None:
    good = (indexes_of(WHOLE) if framed else b"") + encode_proto(WHOLE, {"id": "good"})
    first, none, last = read(WHOLE, FIELDS, data, None, good, framed=framed)
    assert none is None
    assert last["id"] == "good"
    assert first[REASON] in (None, "framing", "protobuf", "utf8", "schema")
    assert (first[REASON] is None) == (first[DETAIL] is None)
    if first[REASON]:
        assert {first[name] for name in FIELDS} == {None}


@given(st.binary(min_size=1, max_size=8), st.data())
def test_a_record_cut_off_within_a_field_is_none(tail: bytes, data: st.DataObject) -> None:
    whole = encode_proto(WHOLE, {"id": "an order"})
    (found,) = read(WHOLE, FIELDS, whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert found[REASON] == "protobuf"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x38\x07", "schema"),  # a state without a name
        (b"\x29" + b"\x00" * 6 + b"\xf0\x7f", "schema"),  # infinity
        (b"\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "protobuf"),
        (b"\x12\x06\x08\x80\xd8\x85\xe1\xbf", "protobuf"),
        (b"\x12\x02\x10\xff", "protobuf"),
        (b"\x12\x06\x10\xff\xff\xff\xff\x0f", "schema"),  # more nanoseconds than a second has
        (b"\x0a\x02\xff\xfe", "protobuf"),  # a text that is not UTF-8
    ],
)
def test_what_a_type_cannot_hold_has_its_reason(value: bytes, reason: str) -> None:
    (found,) = read(WHOLE, FIELDS, value)
    assert found[REASON] == reason


def test_absent_fields_are_null_where_messages_know_and_default_elsewhere() -> None:
    (found,) = read(WHOLE, FIELDS, encode_proto(WHOLE, {}))
    assert found == {
        "id": "",
        "at": None,
        "n": 0,
        "u": 0,
        "x": 0.0,
        "b": False,
        "s": "UNKNOWN",
        "w": None,
        REASON: None,
        DETAIL: None,
    }


@pytest.mark.parametrize(
    ("prefix", "accepted"),
    [
        ("0202", True),
        ("00", False),
        ("0200", False),
        ("0204", False),
        ("040202", False),
        ("", False),
        ("ffffffffff", False),
        ("80", False),
    ],
)
def test_only_indexes_that_name_the_message_are_taken(prefix: str, accepted: bool) -> None:
    schema = order(("id", 1, "STRING"))
    assert indexes_of(schema).hex() == "0202"
    (found,) = read(schema, {"id": "string"}, bytes.fromhex(prefix), framed=True)
    assert (found[REASON] is None) == accepted


def test_a_reader_that_has_read_goes_to_a_worker() -> None:
    reader = ProtoReader(WHOLE, FIELDS, framed=False)
    reader.read([b""])
    again: ProtoReader = pickle.loads(pickle.dumps(reader))
    assert again.read([encode_proto(WHOLE, {"n": 5})])[0]["n"].as_py() == 5
    assert isinstance(reader.arrow_type, pa.StructType)


BEFORE = (("id", 1, "STRING"), ("n", 2, "INT32"), ("s", 3, ".shop.State"))


@pytest.mark.proves("howto-schemas.md#protobuf")
@pytest.mark.parametrize(
    ("after", "said"),
    [
        (BEFORE, None),
        ((*BEFORE, ("more", 9, "STRING")), None),
        (BEFORE[:2], None),
        ((BEFORE[0], ("n", 2, "INT64"), BEFORE[2]), None),
        ((BEFORE[0], ("n", 2, "SINT32"), BEFORE[2]), "n has another type"),
        ((BEFORE[0], ("n", 2, "UINT32"), BEFORE[2]), "n has another type"),
        ((BEFORE[0], ("n", 4, "INT32"), BEFORE[2]), "n was number 2 and is 4"),
        ((("id", 2, "INT32"), ("n", 1, "STRING"), BEFORE[2]), "number 2 was n and is id"),
        ((BEFORE[0], BEFORE[1], ("s", 3, "INT32")), "s has another type"),
    ],
)
def test_a_number_keeps_its_meaning(after: tuple[Field, ...], said: str | None) -> None:
    findings = read_proto_findings(order(*after, enum=STATES), order(*BEFORE, enum=STATES))
    assert findings == [] if said is None else any(said in one for one in findings), findings


def test_a_symbol_that_goes_or_is_renamed_and_a_list_are_told() -> None:
    before = order(*BEFORE, enum=STATES)
    assert read_proto_findings(order(*BEFORE, enum={**STATES, "SENT": 2}), before) == []
    assert "no symbol for the number 1" in read_proto_findings(order(*BEFORE, enum={"UNKNOWN": 0}), before)[0]
    assert "calls the number 1 otherwise" in read_proto_findings(order(*BEFORE, enum={"UNKNOWN": 0, "X": 1}), before)[0]
    assert "was not repeated" in read_proto_findings(order(*BEFORE, enum=STATES, repeated="id"), before)[0]


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.integers(-(2**63), 2**64 - 1))
def test_numbers_that_may_follow_each_other_are_read_as_they_were_written(old: str, new: str, number: int) -> None:
    wrote, reads = order(("n", 1, old)), order(("n", 1, new))
    if read_proto_findings(reads, wrote):
        return
    try:
        data = encode_proto(wrote, {"n": number})
    except DefinitionError:
        return  # it is no such number
    kind = proto_sql_types(reads.descriptor.fields_by_name["n"])[-1]
    (found,) = read(reads, {"n": kind}, data)
    assert found["n"] == number


@pytest.fixture
def pin(tmp_path: Path) -> Any:
    """`rivertwice admin schema pin order_states` in a copy of the example that has nothing pinned yet."""
    settings = make_project(tmp_path, {"order_states": EXAMPLES / "order_states"})
    folder = settings.definitions / "order_states"
    shutil.rmtree(folder / "schemas")
    example = parse_proto((EXAMPLES / "order_states" / proto_file_name("orders")).read_bytes(), "it")
    files = json_format.ParseDict(json.loads(example.text)["files"], descriptor_pb2.FileDescriptorSet())

    def invoke(*arguments: str, change: Callable[[Any], object] = lambda _: None) -> tuple[int, Any, Path]:
        made = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
        change(made.file[-1].message_type[1])
        (tmp_path / "order.protoset").write_bytes(made.SerializeToString())
        options = ["--output", "json", "--project", str(settings.project), "--home", str(settings.home)]
        named = ["order_states", str(tmp_path / "order.protoset"), "--message", "shop.Order"]
        done = CliRunner().invoke(cli, [*options, "admin", "schema", "pin", *named, *arguments])
        return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr, folder

    return invoke


def test_the_command_pins_what_the_definition_then_decodes_by(pin: Any) -> None:
    code, value, folder = pin("--dry-run")
    assert (code, value["written"], (folder / "schemas").exists()) == (0, False, False)
    code, value, _ = pin()
    assert (code, value["message"], value["written"]) == (0, "shop.Order", True)
    assert load_definition(folder).source[1].message_type.message == "shop.Order"
    assert pin()[1]["written"] is False


@pytest.mark.proves("howto-schemas.md#protobuf")
def test_the_command_refuses_what_could_not_read_the_log(pin: Any) -> None:
    _, _, folder = pin()
    before = (folder / proto_file_name("orders")).read_bytes()

    def renumber(message: Any) -> None:
        message.field[2].number = 11

    code, value, _ = pin(change=renumber)
    assert code == 3
    assert "amount_cents was number 3 and is 11" in value["findings"][0]
    assert (folder / proto_file_name("orders")).read_bytes() == before


def test_another_message_is_another_way_to_decode(pin: Any) -> None:
    _, _, folder = pin()
    before = fingerprint_of(load_definition(folder))

    def widen(message: Any) -> None:
        message.field.add(name="more", number=12, type=FieldDescriptor.TYPE_STRING, label="LABEL_OPTIONAL")

    assert pin(change=widen)[1]["written"] is True
    after = fingerprint_of(load_definition(folder))
    assert (after.state, after.decode == before.decode) == (before.state, False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format: protobuf", "format: json", "is a Protobuf schema, but no source of that name says format: protobuf"),
        ("    schema_ids:", "    schema_id_optional: true\n    schema_ids:", "does not go with framed Protobuf"),
        ("window:", "fast: {topic: t, key: state}\nwindow:", "fast runs without Python"),
    ],
)
def test_what_does_not_go_with_protobuf_is_refused(pin: Any, old: str, new: str, said: str) -> None:
    _, _, folder = pin()
    replace_text(folder / "pipeline.yaml", old, new)
    with pytest.raises(DefinitionError, match=said):
        load_definition(folder)


def test_pinning_says_what_it_changes_and_refuses_what_cannot_read_the_log() -> None:
    first = plan_pin(compiled(*BEFORE[:2]), "shop.Order", {"id": "string"}, None, "order.protoset")
    assert (first.message, first.changed, first.findings) == ("shop.Order", True, ())
    pinned = first.text.encode()
    assert not plan_pin(compiled(*BEFORE[:2]), "shop.Order", {"id": "string"}, pinned, "order.protoset").changed
    moved = compiled(("id", 2, "STRING"))
    wrong = plan_pin(moved, "shop.Order", {"id": "string", "n": "int"}, pinned, "order.protoset").findings
    assert [one.split(",")[0] for one in wrong] == [
        "has no field 'n'",
        "cannot read the records that were pinned for before: number 2 was n and is id: take a new number for another field",
    ]
    assert proto_findings(parse_proto(pinned, "x"), {"id": "string"}) == []
