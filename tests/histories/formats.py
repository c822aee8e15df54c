"""Other formats for a definition of the random histories: the same fields in Avro, and in Protobuf."""

from __future__ import annotations

import json
from pathlib import Path

from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

from rivertwice.definition.pinned_files import proto_file_name
from rivertwice.definition.protobuf import compiled_proto

AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": "v", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "k", "type": "string"},  # last, so that a record ends with it, and `holds` finds it
    ],
}


def write_as_avro(folder: Path) -> None:
    """Let the one source of the definition in `folder` be Avro."""
    path = folder / "pipeline.yaml"
    path.write_text(
        path.read_text().replace("    schema: {", "    format: avro\n    framing: confluent\n    schema: {", 1)
    )
    (folder / "schemas").mkdir()
    for name in ("events.avsc", "events-7.avsc"):
        (folder / "schemas" / name).write_text(json.dumps(AVRO))


def write_as_protobuf(folder: Path) -> None:
    """Let it be Protobuf."""
    path = folder / "pipeline.yaml"
    path.write_text(path.read_text().replace("    schema: {", "    format: protobuf\n    schema: {", 1))
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="test", syntax="proto3")
    message = file.message_type.add(name="Event")
    for number, (name, kind) in enumerate({"v": "Int64Value", "at": "Timestamp", "k": None}.items(), 1):
        field = message.field.add(name=name, number=number, type="TYPE_MESSAGE" if kind else "TYPE_STRING")
        if kind:
            field.type_name = f".google.protobuf.{kind}"
    known = []
    for one in (timestamp_pb2, wrappers_pb2):
        known.append(descriptor_pb2.FileDescriptorProto())
        one.DESCRIPTOR.CopyToProto(known[-1])
        file.dependency.append(known[-1].name)
    compiled = descriptor_pb2.FileDescriptorSet(file=[*known, file]).SerializeToString()
    (folder / "schemas").mkdir()
    (folder / proto_file_name("events")).write_text(compiled_proto(compiled, None, "the test").text)


WRITTEN_AS = {"avro": write_as_avro, "protobuf": write_as_protobuf}
