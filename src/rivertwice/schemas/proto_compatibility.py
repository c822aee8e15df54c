"""May records of one Protobuf message be read by another? By the rules of the wire: a number keeps its type and its meaning.

Source: protobuf.dev, "Updating a message type" and "Proto best practices". Where the wire alone would let a value pass that means something else
(an int32 for a sint32, a field that moves into another's number), it is refused.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from rivertwice.schemas.proto_schema import ProtoSchema

# A writer's type to the wider ones that read every one of its values as it was.
_WIDER: dict[int, set[int]] = {
    FieldDescriptor.TYPE_INT32: {FieldDescriptor.TYPE_INT64},
    FieldDescriptor.TYPE_UINT32: {FieldDescriptor.TYPE_UINT64},
    FieldDescriptor.TYPE_SINT32: {FieldDescriptor.TYPE_SINT64},
}


def read_proto_findings(reader: ProtoSchema, writer: ProtoSchema) -> list[str]:
    """Return why records of `writer` cannot be read as `reader`; empty if they can."""
    return _messages(reader.descriptor, writer.descriptor, "", frozenset())


def _messages(reader: Descriptor, writer: Descriptor, path: str, seen: frozenset[tuple[str, str]]) -> list[str]:
    pair = (reader.full_name, writer.full_name)
    if pair in seen:
        return []
    found: list[str] = []
    wrote = {field.name: field for field in writer.fields}
    for field in reader.fields:
        before = writer.fields_by_number.get(field.number)
        where = f"{path}{field.name}"
        if before is None:
            moved = wrote.get(field.name)
            if moved is not None:
                found.append(
                    f"{where} was number {moved.number} and is {field.number}: what was written would be absent"
                )
            elif field.is_required:
                found.append(f"{where} is required, but was never written")
            continue
        found += _fields(field, before, where, seen | {pair})
    return found


def _fields(
    reader: FieldDescriptor, writer: FieldDescriptor, where: str, seen: frozenset[tuple[str, str]]
) -> list[str]:
    was = f"number {writer.number} was {writer.name}"
    if reader.name != writer.name:
        return [f"{was} and is {where}: take a new number for another field, and reserve the old one"]
    if reader.is_repeated != writer.is_repeated:
        return [f"{where} was {'' if writer.is_repeated else 'not '}repeated"]
    if reader.message_type is not None and writer.message_type is not None:
        return _messages(reader.message_type, writer.message_type, f"{where}.", seen)
    if reader.enum_type is not None and writer.enum_type is not None:
        return _enums(reader.enum_type, writer.enum_type, where)
    if reader.type != writer.type and reader.type not in _WIDER.get(writer.type, ()):
        return [f"{where} has another type, so its bytes would mean something else"]
    return []


def _enums(reader: EnumDescriptor, writer: EnumDescriptor, where: str) -> list[str]:
    gone = sorted(set(writer.values_by_number) - set(reader.values_by_number))
    other = sorted(
        number
        for number, value in writer.values_by_number.items()
        if number in reader.values_by_number and reader.values_by_number[number].name != value.name
    )
    found = [f"{where} has no symbol for the number {number}, which could be written" for number in gone]
    return found + [f"{where} calls the number {number} otherwise" for number in other]
