"""Protobuf: a message type as `protoc` compiled it, its SQL types, its pin, compatibility of two types.

A record in Protobuf identifies its fields by numbers, so the writer's schema is not needed: one message type reads the records of every
version in which no number changed its meaning (`proto_compatibility`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rivertwice.core import DefinitionError
from rivertwice.definition.avro import require_size
from rivertwice.definition.pinned_files import MAX_BYTES

# Whether a pinned schema gives a field that the definition declares, in words that hold for every format. Pure.


def describe_absent(name: str, what: str) -> str:
    """Return the finding about a declared field that a schema lacks; `what` is the pinned thing: a reader or a message."""
    return f"has no field {name!r}, which the definition declares; remove it there, or pin a {what} that has it"


def type_findings(name: str, declared: str, possible: Sequence[str], what: str) -> list[str]:
    """Return why a field cannot have its declared type; empty if it can.

    Args:
        possible: the SQL types that a field of the schema's type can be declared as.
        what: the pinned thing: `reader` or `message`.
    """
    if declared in possible:
        return []
    options = " or ".join(possible) or "no SQL type that a definition can declare"
    return [f"field {name!r} can be {options}, but the definition says {declared}; declare that, or pin another {what}"]


TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = {
    f"google.protobuf.{name}Value": kinds
    for name, kinds in {
        "String": ("string",),
        "Bool": ("boolean",),
        "Int32": ("int", "bigint"),
        "UInt32": ("bigint",),
        "Int64": ("bigint",),
        "UInt64": ("decimal(20,0)",),
        "Float": ("double",),
        "Double": ("double",),
    }.items()
}
_KINDS: dict[int, tuple[str, ...]] = {
    FieldDescriptor.TYPE_STRING: ("string",),
    FieldDescriptor.TYPE_ENUM: ("string",),
    FieldDescriptor.TYPE_BOOL: ("boolean",),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32), ("int", "bigint")
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32), ("bigint",)),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64), ("bigint",)
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), ("decimal(20,0)",)),
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE), ("double",)),
}
_NARROW = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_SFIXED32,
}
_NARROW_WRAPPERS = {"google.protobuf.Int32Value", "google.protobuf.UInt32Value"}


@dataclass(frozen=True)
class ProtoSchema:
    """A message type with the files that it needs.

    Attributes:
        text: canonical JSON of `{"files": FileDescriptorSet, "message": full name}`.
        message: full name.
    """

    text: str
    message: str

    @property
    def descriptor(self) -> Descriptor:
        """The message type."""
        return _descriptor(self.text)

    @property
    def reader(self) -> type[Message]:
        """The class that reads its records."""
        return cast("type[Message]", message_factory.GetMessageClass(self.descriptor))

    @property
    def index_path(self) -> tuple[int, ...]:
        """The place of the message in its file, as in Confluent's prefix: 0 is the first, 1 and 0 the first inside the second."""
        path: list[int] = []
        inner: Descriptor = self.descriptor
        while (outer := inner.containing_type) is not None:
            path.insert(0, [nested.full_name for nested in outer.nested_types].index(inner.full_name))
            inner = outer
        tops = [descriptor.name for descriptor in _file_of(inner).message_type]
        return (tops.index(inner.name), *path)

    def narrow_kind(self, name: str) -> str:
        """Return `enum`, `int` (32 bits) or `other`: the range of a field of the message."""
        field = self.descriptor.fields_by_name[name]
        if field.type == FieldDescriptor.TYPE_ENUM:
            return "enum"
        wrapped = field.message_type is not None and field.message_type.full_name in _NARROW_WRAPPERS
        return "int" if wrapped or field.type in _NARROW else "other"


def parse_proto(data: bytes | str, where: str) -> ProtoSchema:
    """Return the message type in the JSON text of a pinned or registered schema.

    Raises:
        DefinitionError: it is not a schema, or is too large.
    """
    require_size(data, where)
    try:
        value = json.loads(data)
        files, name = value["files"], value["message"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        message = f"{where} is not a Protobuf schema ({type(error).__name__}: {str(error)[:200]}); make it with `rivertwice admin schema pin`"
        raise DefinitionError(message) from None
    file_set = _file_set(files, where)
    _find(file_set, str(name), where)
    return ProtoSchema(_text(file_set, str(name)), str(name))


def compiled_proto(data: bytes, name: str | None, where: str) -> ProtoSchema:
    """Return the message type `name` in the output of `protoc --include_imports --descriptor_set_out`.

    Without a name it is the only message of the last file, which is the compiled file.

    Raises:
        DefinitionError: it is not such a file, or has no such message.
    """
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError as error:
        message = f"{where} is not what protoc --descriptor_set_out writes ({str(error)[:200]}); compile the .proto file first"
        raise DefinitionError(message) from None
    last = files.file[-1] if files.file else descriptor_pb2.FileDescriptorProto()
    names = [".".join(filter(None, (last.package, descriptor.name))) for descriptor in last.message_type]
    if name is None and len(names) != 1:
        message = (
            f"{where} has the messages {', '.join(names) or '(none)'}; say which one its records are with --message"
        )
        raise DefinitionError(message)
    full_name = name or names[0]
    _find(files, full_name, where)
    text = _text(files, full_name)
    if len(text) > MAX_BYTES:
        message = f"{where} makes a schema of {len(text)} bytes, more than the {MAX_BYTES} allowed; leave out files that {full_name} does not need"
        raise DefinitionError(message)
    return ProtoSchema(text, full_name)


def proto_findings(schema: ProtoSchema, fields: Mapping[str, str]) -> list[str]:
    """Return why the message cannot give the definition's fields; empty if it can."""
    findings = []
    known = schema.descriptor.fields_by_name
    for name, kind in fields.items():
        field = known.get(name)
        if field is None:
            findings.append(describe_absent(name, "message"))
        else:
            findings += type_findings(name, kind, proto_sql_types(field), "message")
    return findings


def proto_sql_types(field: FieldDescriptor) -> tuple[str, ...]:
    """Return the SQL types that a field can be declared as; the first is its own."""
    if field.is_repeated:
        return ()
    if field.message_type is not None:
        name = field.message_type.full_name
        return ("timestamp",) if name == TIMESTAMP else WRAPPERS.get(name, ())
    return _KINDS.get(field.type, ())


@functools.lru_cache(maxsize=256)
def _descriptor(text: str) -> Descriptor:
    """Return the message type of a schema, cached: a Python worker needs it in every batch."""
    value = json.loads(text)
    return _find(_file_set(value["files"], "a pinned schema"), value["message"], "a pinned schema")


def _file_set(files: Any, where: str) -> descriptor_pb2.FileDescriptorSet:
    try:
        return cast(
            "descriptor_pb2.FileDescriptorSet",
            json_format.ParseDict(files, descriptor_pb2.FileDescriptorSet(), max_recursion_depth=32),
        )
    except (json_format.ParseError, RecursionError, TypeError, AttributeError) as error:
        message = f"{where} holds no FileDescriptorSet ({str(error)[:200]}); make it with `rivertwice admin schema pin`"
        raise DefinitionError(message) from None


def _find(files: descriptor_pb2.FileDescriptorSet, name: str, where: str) -> Descriptor:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(name)
    except TypeError as error:
        message = f"{where} lacks a file or contradicts itself ({str(error)[:200]}); compile it with --include_imports"
        raise DefinitionError(message) from None
    except KeyError:
        message = f"{where} has no message {name[:200]!r}; name it with its package, for instance shop.Order"
        raise DefinitionError(message) from None


def _file_of(descriptor: Descriptor) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return file


def _text(files: descriptor_pb2.FileDescriptorSet, name: str) -> str:
    """Return the canonical text: without comments and source positions, which do not matter."""
    without_source = descriptor_pb2.FileDescriptorSet()
    without_source.CopyFrom(files)
    for file in without_source.file:
        file.ClearField("source_code_info")
    value = {"files": json_format.MessageToDict(without_source, preserving_proto_field_name=True), "message": name}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


# Can one Protobuf message read records of another? By the rules of the wire: a number keeps its type and its meaning.
#
# Source: protobuf.dev, "Updating a message type" and "Proto best practices". Some changes are valid on the wire but change the meaning
# (an int32 for a sint32, a field that moves into another's number); they are refused too.

# A writer's type to the wider types that read each of its values unchanged.
_WIDER: dict[int, set[int]] = {
    FieldDescriptor.TYPE_INT32: {FieldDescriptor.TYPE_INT64},
    FieldDescriptor.TYPE_UINT32: {FieldDescriptor.TYPE_UINT64},
    FieldDescriptor.TYPE_SINT32: {FieldDescriptor.TYPE_SINT64},
}


def read_proto_findings(reader: ProtoSchema, writer: ProtoSchema) -> list[str]:
    """Return why records of `writer` cannot be read as `reader`; empty if they can."""
    return _messages(reader.descriptor, writer.descriptor, "", frozenset())


def _messages(reader: Descriptor, writer: Descriptor, path: str, visited: frozenset[tuple[str, str]]) -> list[str]:
    pair = (reader.full_name, writer.full_name)
    if pair in visited:
        return []
    findings: list[str] = []
    wrote = {field.name: field for field in writer.fields}
    for field in reader.fields:
        before = writer.fields_by_number.get(field.number)
        where = f"{path}{field.name}"
        if before is None:
            moved = wrote.get(field.name)
            if moved is not None:
                findings.append(
                    f"{where} was number {moved.number} and is {field.number}: what was written would be absent"
                )
            elif field.is_required:
                findings.append(f"{where} is required, but was never written")
            continue
        findings += _fields(field, before, where, visited | {pair})
    return findings


def _fields(
    reader: FieldDescriptor, writer: FieldDescriptor, where: str, visited: frozenset[tuple[str, str]]
) -> list[str]:
    was = f"number {writer.number} was {writer.name}"
    if reader.name != writer.name:
        return [f"{was} and is {where}: take a new number for another field, and reserve the old one"]
    if reader.is_repeated != writer.is_repeated:
        return [f"{where} was {'' if writer.is_repeated else 'not '}repeated"]
    if reader.message_type is not None and writer.message_type is not None:
        return _messages(reader.message_type, writer.message_type, f"{where}.", visited)
    if reader.enum_type is not None and writer.enum_type is not None:
        return _enums(reader.enum_type, writer.enum_type, where)
    if reader.type != writer.type and reader.type not in _WIDER.get(writer.type, ()):
        return [f"{where} has another type, so its bytes would mean something else"]
    return []


def _enums(reader: EnumDescriptor, writer: EnumDescriptor, where: str) -> list[str]:
    missing = sorted(set(writer.values_by_number) - set(reader.values_by_number))
    renamed = sorted(
        number
        for number, value in writer.values_by_number.items()
        if number in reader.values_by_number and reader.values_by_number[number].name != value.name
    )
    findings = [f"{where} has no symbol for the number {number}, which could be written" for number in missing]
    return findings + [f"{where} calls the number {number} otherwise" for number in renamed]


# The changes of pinning a compiled Protobuf message, and the objections to it. Pure.


@dataclass(frozen=True)
class PinPlan:
    """The result of pinning.

    Attributes:
        message: full name. text: text of the file, formatted for reviews.
        findings: why it cannot be pinned: missing fields, or records of the pinned message that it could not read.
    """

    message: str
    text: str
    changed: bool
    findings: tuple[str, ...]


def plan_pin(data: bytes, message: str | None, fields: Mapping[str, str], before: bytes | None, where: str) -> PinPlan:
    """Return the result of pinning a message.

    Args:
        data: output of `protoc --include_imports --descriptor_set_out`.
        message: full name; None: the only message of the compiled file.
        fields: the definition's fields and their SQL types.
        before: the pinned file now.

    Raises:
        DefinitionError: it is not such a file, or has no such message.
    """
    new = compiled_proto(data, message, where)
    findings = proto_findings(new, fields)
    old = None if before is None else parse_proto(before, "what is pinned")
    if old is not None:
        findings += [
            f"cannot read the records that were pinned for before: {finding}"
            for finding in read_proto_findings(new, old)
        ]
    text = json.dumps(json.loads(new.text), sort_keys=True, indent=2) + "\n"
    return PinPlan(new.message, text, old is None or old.text != new.text, tuple(findings))
