"""One Protobuf message type, by what `protoc` compiled of it, and the SQL types that its fields can be declared as.

A record in Protobuf tells its fields by their numbers, so it needs no schema of its writer: one message type reads the records of every
version that gave no number another meaning (`proto_compatibility`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rivertwice.errors import DefinitionError
from rivertwice.schemas.avro_schema import MAX_BYTES

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
        """Where the message stands in its file, as Confluent's prefix tells it: 0 is the first, 1 and 0 the first inside the second."""
        path: list[int] = []
        here: Descriptor = self.descriptor
        while (outer := here.containing_type) is not None:
            path.insert(0, [one.full_name for one in outer.nested_types].index(here.full_name))
            here = outer
        tops = [one.name for one in _file_of(here).message_type]
        return (tops.index(here.name), *path)


def parse_proto(data: bytes | str, where: str) -> ProtoSchema:
    """Return the message type that the JSON text of a pinned or registered schema holds.

    Raises:
        DefinitionError: it is none, or is larger than a schema may be.
    """
    if len(data) > MAX_BYTES:
        message = f"{where} has {len(data)} bytes, more than the {MAX_BYTES} that a schema may have; shorten it"
        raise DefinitionError(message)
    try:
        value = json.loads(data)
        files, name = value["files"], value["message"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        message = f"{where} is no Protobuf schema ({type(error).__name__}: {str(error)[:200]}); make it with `rivertwice schema pin`"
        raise DefinitionError(message) from None
    found = _file_set(files, where)
    _find(found, str(name), where)
    return ProtoSchema(_text(found, str(name)), str(name))


def compiled_proto(data: bytes, name: str | None, where: str) -> ProtoSchema:
    """Return the message type `name` of what `protoc --include_imports --descriptor_set_out` wrote.

    Without a name it is the only message of the last file, which is the one that was compiled.

    Raises:
        DefinitionError: it is no such file, or has no such message.
    """
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError as error:
        message = f"{where} is not what protoc --descriptor_set_out writes ({str(error)[:200]}); compile the .proto file first"
        raise DefinitionError(message) from None
    last = files.file[-1] if files.file else descriptor_pb2.FileDescriptorProto()
    own = [".".join(filter(None, (last.package, one.name))) for one in last.message_type]
    if name is None and len(own) != 1:
        message = f"{where} has the messages {', '.join(own) or '(none)'}; say which one its records are with --message"
        raise DefinitionError(message)
    wanted = name or own[0]
    _find(files, wanted, where)
    text = _text(files, wanted)
    if len(text) > MAX_BYTES:
        message = f"{where} makes a schema of {len(text)} bytes, more than the {MAX_BYTES} allowed; leave out files that {wanted} does not need"
        raise DefinitionError(message)
    return ProtoSchema(text, wanted)


def proto_findings(schema: ProtoSchema, fields: Mapping[str, str]) -> list[str]:
    """Return why the message cannot give the definition's fields; empty if it can."""
    findings = []
    known = schema.descriptor.fields_by_name
    for name, kind in fields.items():
        field = known.get(name)
        if field is None:
            findings.append(
                f"has no field {name!r}, which the definition declares; remove it there, or pin a message that has it"
            )
            continue
        possible = sql_types(field)
        if kind not in possible:
            told = " or ".join(possible) or "no SQL type that a definition can declare"
            findings.append(
                f"field {name!r} can be {told}, but the definition says {kind}; declare that, or pin another"
            )
    return findings


def sql_types(field: FieldDescriptor) -> tuple[str, ...]:
    """Return the SQL types that a field can be declared as; the first is its own."""
    if field.is_repeated:
        return ()
    if field.message_type is not None:
        name = field.message_type.full_name
        return ("timestamp",) if name == TIMESTAMP else WRAPPERS.get(name, ())
    return _KINDS.get(field.type, ())


def narrow_kind(schema: ProtoSchema, name: str) -> str:
    """Return `enum`, `int` (32 bits) or `other`: what a field of the message can hold at most."""
    field = schema.descriptor.fields_by_name[name]
    if field.type == FieldDescriptor.TYPE_ENUM:
        return "enum"
    wrapped = field.message_type is not None and field.message_type.full_name in _NARROW_WRAPPERS
    return "int" if wrapped or field.type in _NARROW else "other"


@functools.lru_cache(maxsize=256)
def _descriptor(text: str) -> Descriptor:
    """Return the message type of a schema that was parsed once; a Python worker asks for it with every batch."""
    value = json.loads(text)
    return _find(_file_set(value["files"], "a pinned schema"), value["message"], "a pinned schema")


def _file_set(files: Any, where: str) -> descriptor_pb2.FileDescriptorSet:
    try:
        return cast(
            "descriptor_pb2.FileDescriptorSet",
            json_format.ParseDict(files, descriptor_pb2.FileDescriptorSet(), max_recursion_depth=32),
        )
    except (json_format.ParseError, RecursionError, TypeError, AttributeError) as error:
        message = f"{where} holds no FileDescriptorSet ({str(error)[:200]}); make it with `rivertwice schema pin`"
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
    """Return the canonical text: without comments and where they stood, which change nothing."""
    kept = descriptor_pb2.FileDescriptorSet()
    kept.CopyFrom(files)
    for file in kept.file:
        file.ClearField("source_code_info")
    value = {"files": json_format.MessageToDict(kept, preserving_proto_field_name=True), "message": name}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
