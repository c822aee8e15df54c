"""Can one schema read the records of another? Uses Apache Avro's own checker, and adds what it leaves out: meanings.

Avro resolves an `int` into a `long`, and treats a timestamp in milliseconds and one in microseconds as the same `long`.
A record would then be wrong by a factor of a thousand, without an error: such a change is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

from avro import schema as avro_schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from rivertwice.schemas.avro_schema import AvroSchema

Parsed = TypeVar("Parsed")
Compatibility = Literal["none", "backward", "forward", "full"]
RULES: tuple[Compatibility, ...] = get_args(Compatibility)
_MEANINGS = ("date", "time-", "timestamp-", "local-timestamp-", "decimal", "duration")
_PROMOTED = {"int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"}}
_PROMOTED |= {"string": {"bytes"}, "bytes": {"string"}}


def read_findings(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Return why records of `writer` cannot be read as `reader`; empty if they can."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(reader.record, writer.record)
    if result.compatibility is not SchemaCompatibilityType.compatible:
        kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
        reasons, at = "; ".join(sorted(result.messages)), ", ".join(sorted(result.locations))
        return [f"{kinds} at {at}: {reasons}"]
    return _meaning_findings(reader.record, writer.record, "")


def rule_findings(
    rule: Compatibility, new: Parsed, old: Mapping[int, Parsed], read: Callable[[Parsed, Parsed], list[str]]
) -> list[str]:
    """Return how `new` breaks `rule`, given every earlier version of its subject by number.

    Every earlier version is compared, not only the last: the log has records of all of them.

    Args:
        rule: the rule to keep.
        new: the new schema.
        old: the earlier versions.
        read: takes reader and writer, and returns why the writer's records cannot be read.
    """
    findings = []
    for version, schema in sorted(old.items()):
        if rule in ("backward", "full"):
            findings += [f"cannot read version {version}: {reason}" for reason in read(new, schema)]
        if rule in ("forward", "full"):
            findings += [f"cannot be read by version {version}: {reason}" for reason in read(schema, new)]
    return findings


def _meaning_findings(reader: avro_schema.Schema, writer: avro_schema.Schema, path: str) -> list[str]:
    if isinstance(reader, avro_schema.UnionSchema) or isinstance(writer, avro_schema.UnionSchema):
        findings = []
        for branch in _branches(writer):
            fitting = [each for each in _branches(reader) if _same_kind(each, branch)]
            fitting = fitting or [each for each in _branches(reader) if each.type in _PROMOTED.get(branch.type, ())]
            findings += _meaning_findings(fitting[0], branch, path) if fitting else []
        return findings
    if isinstance(reader, avro_schema.RecordSchema) and isinstance(writer, avro_schema.RecordSchema):
        findings = []
        for field in reader.fields:
            names = (field.name, *(field.props.get("aliases") or ()))
            written = next((writer.fields_dict[name] for name in names if name in writer.fields_dict), None)
            findings += [] if written is None else _meaning_findings(field.type, written.type, f"{path}/{field.name}")
        return findings
    if isinstance(reader, avro_schema.ArraySchema) and isinstance(writer, avro_schema.ArraySchema):
        return _meaning_findings(reader.items, writer.items, f"{path}[]")
    if isinstance(reader, avro_schema.MapSchema) and isinstance(writer, avro_schema.MapSchema):
        return _meaning_findings(reader.values, writer.values, f"{path}{{}}")
    before, after = meaning_of(writer), meaning_of(reader)
    if before == after or _wider_decimal(before, after):
        return []
    meanings = [each.get("logicalType", "a plain value") for each in (before, after)]
    detail = f" {before} and {after}" if meanings[0] == meanings[1] else ""
    return [
        f"meaning changed at {path}: written as {meanings[0]}, read as {meanings[1]}{detail}, so values would be wrong"
    ]


def meaning_of(schema: avro_schema.Schema) -> dict[str, Any]:
    """Return the logical type that decides what a value means, with its parameters; empty for a plain value."""
    props: Mapping[str, Any] = getattr(schema, "props", {})
    logical = str(props.get("logicalType", ""))
    if not logical.startswith(_MEANINGS):
        return {}
    extra = {key: int(props.get(key) or 0) for key in ("precision", "scale")} if logical == "decimal" else {}
    return {"logicalType": logical, **extra}


def _wider_decimal(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    both = before.get("logicalType") == after.get("logicalType") == "decimal"
    return both and before["scale"] == after["scale"] and before["precision"] <= after["precision"]


def _branches(schema: avro_schema.Schema) -> list[avro_schema.Schema]:
    return list(schema.schemas) if isinstance(schema, avro_schema.UnionSchema) else [schema]


def _same_kind(first: avro_schema.Schema, second: avro_schema.Schema) -> bool:
    names = [each.name for each in (first, second) if isinstance(each, avro_schema.NamedSchema)]
    return bool(first.type == second.type and len(set(names)) <= 1)
