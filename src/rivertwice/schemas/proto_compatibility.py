"""Can one Protobuf message read records of another? By the rules of the wire: a number keeps its type and its meaning.

Source: protobuf.dev, "Updating a message type" and "Proto best practices". Some changes are valid on the wire but change the meaning
(an int32 for a sint32, a field that moves into another's number); they are refused too.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from rivertwice.schemas.proto_schema import ProtoSchema

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
