"""The pinned schemas of a source, beside its definition: one reader schema, and the writer schemas by id.

`schemas/VIEW.avsc` is the reader: the fields that the pipeline sees. `schemas/VIEW-ID.avsc` is the writer of the records with schema
id ID. For Protobuf there is one file, `schemas/VIEW.protobuf.json`: a record identifies its fields by numbers. The files are part of
the bundle, so a recompute always decodes as the stream did, even if a registry has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from avro import schema as avro_schema

from rivertwice.core import DefinitionError
from rivertwice.definition.avro import AvroSchema, meaning_of, narrow, parse_avro, read_findings
from rivertwice.definition.pinned_files import FOLDER, file_name, proto_file_name, split_name
from rivertwice.definition.protobuf import ProtoSchema, describe_absent, parse_proto, proto_findings, type_findings

_PRIMITIVE = {
    "string": ("string",),
    "boolean": ("boolean",),
    "int": ("int", "bigint"),
    "long": ("bigint",),
    "float": ("double",),
    "double": ("double",),
}
_REFRESH = "run `rivertwice admin schema refresh PIPELINE`"


@dataclass(frozen=True)
class Pins:
    """The schemas with which one source is decoded.

    Attributes:
        reader: the reader schema, narrowed to the fields that the definition declares.
        writers: schema id to the writer schema of its records; empty: records have no id, and were written with the reader schema.
        writer: the whole reader schema, with which records without an id were written.
    """

    reader: AvroSchema
    writers: Mapping[int, AvroSchema]
    writer: AvroSchema


def parse_pins(files: Mapping[str, bytes], view: str, fields: Mapping[str, str], *, framed: bool, where: str) -> Pins:
    """Return the checked pins of the source `view`.

    Args:
        files: the definition's files, by relative path; only those under `schemas/` are read.
        fields: the definition's fields and their SQL types.
        framed: records name the id of their writer's schema.

    Raises:
        DefinitionError: a schema is missing, broken, or cannot give the fields; a writer's records cannot be read.
    """
    schemas: dict[int | None, AvroSchema] = {}
    for path in sorted(name for name in files if name.startswith(f"{FOLDER}/")):
        named, schema_id = split_name(path)
        if named != view:
            message = (
                f"{where}/{path} is for the source {named!r}, but the definition has {view!r}; rename or remove it"
            )
            raise DefinitionError(message)
        schemas[schema_id] = parse_avro(files[path], f"{where}/{path}")
    reader = schemas.pop(None, None)
    if reader is None or (framed and not schemas):
        lacking = file_name(view, None) if reader is None else f"{FOLDER}/{view}-ID.avsc"
        message = (
            f"{where}/{lacking} does not exist, so no Avro record could be decoded; {_REFRESH}, or write it yourself"
        )
        raise DefinitionError(message)
    if schemas and not framed:
        message = f"{where}/{FOLDER} holds writers, but framing is 'none': no record names its writer; remove them"
        raise DefinitionError(message)
    findings = field_findings(reader, fields)
    if findings:
        raise DefinitionError("\n".join(f"{where}/{file_name(view, None)}: {finding}" for finding in findings))
    narrowed = narrow(reader, fields)
    writers = {schema_id: schema for schema_id, schema in sorted(schemas.items(), key=str) if schema_id is not None}
    for schema_id, schema in sorted(writers.items()):
        refused = read_findings(narrowed, schema)
        if refused:
            message = (
                f"{where}/{file_name(view, schema_id)}: {refused[0]}; its records could not be decoded: give the reader's "
                "field a default or its old type, or remove the file, and its records are dead letters (schema_id)"
            )
            raise DefinitionError(message)
    return Pins(narrowed, dict(sorted(writers.items())), reader)


def parse_message(files: Mapping[str, bytes], view: str, fields: Mapping[str, str], *, where: str) -> ProtoSchema:
    """Return the checked Protobuf message of the source `view`.

    Raises:
        DefinitionError: it is missing, broken, or cannot give the fields.
    """
    path = proto_file_name(view)
    if path not in files:
        message = (
            f"{where}/{path} does not exist, so no Protobuf record could be decoded; compile the .proto file with `protoc "
            "--include_imports --descriptor_set_out=FILE` and run `rivertwice admin schema pin PIPELINE FILE`"
        )
        raise DefinitionError(message)
    schema = parse_proto(files[path], f"{where}/{path}")
    findings = proto_findings(schema, fields)
    if findings:
        raise DefinitionError("\n".join(f"{where}/{path}: {finding}" for finding in findings))
    return schema


def field_findings(reader: AvroSchema, fields: Mapping[str, str]) -> list[str]:
    """Return why the reader cannot give the definition's fields; empty if it can."""
    findings = []
    lowered = [str(field.name).lower() for field in reader.record.fields]
    for name, kind in fields.items():
        field = reader.field(name)
        if field is None:
            findings.append(describe_absent(name, "reader"))
            continue
        if lowered.count(name) > 1:
            findings.append(
                f"has fields that differ from {name!r} only in case, which SQL cannot tell apart; pin another"
            )
        findings += type_findings(name, kind, avro_sql_types(field.type), "reader")
    return findings


def field_types(schema: AvroSchema) -> dict[str, str]:
    """Return field to the SQL type that its Avro type is; fields that are not a single value are left out."""
    kinds = {str(field.name): avro_sql_types(field.type) for field in schema.record.fields}
    return {name: each[0] for name, each in kinds.items() if each}


def avro_sql_types(schema: avro_schema.Schema) -> tuple[str, ...]:
    """Return the SQL types that a field of this Avro type can be declared as; the first is its own."""
    if isinstance(schema, avro_schema.UnionSchema):
        branches = [branch for branch in schema.schemas if branch.type != "null"]
        return avro_sql_types(branches[0]) if len(branches) == 1 else ()
    meaning = meaning_of(schema)
    if meaning:
        if meaning["logicalType"] == "decimal":
            return (f"decimal({meaning['precision']},{meaning['scale']})",)
        return ("timestamp",) if meaning["logicalType"] in ("timestamp-millis", "timestamp-micros") else ()
    return ("string",) if schema.type == "enum" else _PRIMITIVE.get(schema.type, ())
