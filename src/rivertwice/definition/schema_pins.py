"""The pinned schemas of a source, beside its definition: one reader schema, and the writer schemas by id.

`schemas/VIEW.avsc` is the reader: the fields that the pipeline sees. `schemas/VIEW-ID.avsc` is the writer of the records with schema
id ID. For Protobuf there is one file, `schemas/VIEW.protobuf.json`: a record identifies its fields by numbers. The files are part of
the bundle, so a recompute always decodes as the stream did, even if a registry has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from avro import schema as avro_schema

from rivertwice.core.errors import DefinitionError, RequestError
from rivertwice.definition.avro import AvroSchema, meaning_of, narrow, parse_avro, read_findings
from rivertwice.definition.pinned_files import FOLDER, file_name, proto_file_name, split_name
from rivertwice.definition.protobuf import ProtoSchema, describe_absent, parse_proto, proto_findings, type_findings
from rivertwice.definition.schema_registry import SchemaVersion

_PRIMITIVE = {
    "string": ("string",),
    "boolean": ("boolean",),
    "int": ("int", "bigint"),
    "long": ("bigint",),
    "float": ("double",),
    "double": ("double",),
}
_REFRESH = "run `rivertwice schema refresh PIPELINE`"


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
        view: the source's name.
        fields: the definition's fields and their SQL types.
        framed: records name the id of their writer's schema.
        where: the definition, for messages.

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
            "--include_imports --descriptor_set_out=FILE` and run `rivertwice schema pin PIPELINE FILE`"
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
    """Return field to the SQL type that its Avro type is; fields that are no single value are left out."""
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


# The versions in a registry that a pipeline has not pinned: new ids, and ids whose records could not be decoded. Pure.


@dataclass(frozen=True)
class Refused:
    """A version that is not pinned, with the reason: its records become dead letters."""

    version: int
    id: int
    because: str


@dataclass(frozen=True)
class RefreshPlan:
    """The changes that a refresh would write.

    Attributes:
        subject: the subject of the versions.
        write: pinned file to text; empty: no file changes.
        known: ids that are pinned already, and stay.
        new: ids that the refresh pins.
        refused: versions whose records could not be decoded.
        gone: pinned ids that the registry no longer has; they stay, because the log may hold their records.
    """

    subject: str
    write: Mapping[str, str]
    known: tuple[int, ...]
    new: tuple[int, ...]
    refused: tuple[Refused, ...]
    gone: tuple[int, ...]


def plan_refresh(
    subject: str,
    view: str,
    fields: Mapping[str, str],
    pinned: Mapping[str, bytes],
    versions: Sequence[SchemaVersion],
    *,
    framed: bool,
    reader_version: int | None = None,
) -> RefreshPlan:
    """Return which of the subject's versions to pin.

    The reader does not change: a newly registered version must not change what a pipeline sees. Without a reader, or with
    `reader_version`, it is taken from the versions: the newest that has all the definition's fields.

    Args:
        subject: the subject.
        view: the source's name.
        fields: the definition's fields and their SQL types.
        pinned: the pinned files now.
        versions: the subject's versions.
        framed: records name their schema's id; else only the reader is pinned.
        reader_version: version that becomes the reader.

    Raises:
        RequestError: the subject has no version that can be the reader, or no Avro version.
    """
    if not versions or any(each.kind != "avro" for each in versions):
        problem = f"{versions[0].kind} schemas" if versions else "no version"
        message = (
            f"{subject} has {problem}, so no Avro can be decoded by it; check `subject`, or register a schema first"
        )
        raise RequestError(message)
    parsed = {each.version: parse_avro(each.text, f"{subject} version {each.version}") for each in versions}
    write: dict[str, str] = {}
    reader_file = file_name(view, None)
    if reader_version is None and reader_file in pinned:
        reader = parse_avro(pinned[reader_file], reader_file)
    else:
        number = _reader_version(subject, parsed, fields, reader_version)
        reader = parsed[number]
        write[reader_file] = _pretty(next(each.text for each in versions if each.version == number))
    narrowed = narrow(reader, fields)
    old = {known_id: path for path in pinned if (known_id := split_name(path)[1]) is not None}
    refused, new = [], []
    for each in versions if framed else ():
        because = _against(narrowed, parsed[each.version], pinned.get(old.get(each.id, "")))
        if because:
            refused.append(Refused(each.version, each.id, because))
        elif each.id not in old:
            new.append(each.id)
            write[file_name(view, each.id)] = _pretty(each.text)
    ids = {each.id for each in versions}
    known = tuple(sorted(old))
    changed = {path: text for path, text in write.items() if pinned.get(path) != text.encode()}
    return RefreshPlan(
        subject, changed, known, tuple(new), tuple(refused), tuple(number for number in known if number not in ids)
    )


def _reader_version(
    subject: str, parsed: Mapping[int, AvroSchema], fields: Mapping[str, str], version: int | None
) -> int:
    if version is not None and version not in parsed:
        message = f"{subject} has no version {version}; it has {sorted(parsed)}: choose one of them as the reader"
        raise RequestError(message)
    order = sorted(parsed, reverse=True) if version is None else [version]
    findings = {number: field_findings(parsed[number], fields) for number in order}
    fitting = [number for number in order if not findings[number]]
    if not fitting:
        message = (
            f"version {order[0]} of {subject} cannot be the reader: it {findings[order[0]][0]}; `rivertwice schema show "
            f"{subject}` shows its fields, and {FOLDER}/ may hold a reader written by hand (with aliases and defaults)"
        )
        raise RequestError(message)
    return fitting[0]


def _against(reader: AvroSchema, writer: AvroSchema, pinned: bytes | None) -> str | None:
    if pinned is not None and parse_avro(pinned, "the pinned schema").text != writer.text:
        return "its id is pinned with another schema: two registries, or one that was set up again; records cannot be told apart"
    findings = read_findings(reader, writer)
    return findings[0] if findings else None


def _pretty(text: str) -> str:
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
