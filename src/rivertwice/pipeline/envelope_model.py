"""Change events and tombstones: the settings of a source for them. Pure; `envelope` decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.pipeline.source_model import Source

DELETED = "_deleted"
OP = "_op"
TS_MS = "ts_ms"
_KEY_TYPES = ("string", "int", "bigint")


def marks_of(source: Source) -> dict[str, str]:
    """Return the columns that decoding adds to the fields of a source: name to type."""
    marks = {} if source.envelope == "none" else {OP: "string"}
    return {**marks, DELETED: "boolean"} if source.tombstones == "delete" else marks


def find_envelope_conflict(source: Source) -> str | None:
    """Return which settings of a source for envelope and tombstones conflict, or None."""
    if source.envelope != "none" and (source.format != "json" or source.framing != "none"):
        return "envelope: debezium is built for plain JSON (its JsonConverter); leave out format and framing, or the envelope"
    if (source.tombstones == "delete") != (source.key_field is not None):
        return "key_field is given exactly with tombstones: delete; write both or neither"
    if source.key_field == []:
        return "key_field is empty, so a tombstone would name nothing; name the fields of the Kafka key"
    for name in source.key_fields:
        kind = source.schema_.get(name)
        if kind not in _KEY_TYPES or name not in source.required_fields:
            actual = "no field" if kind is None else f"of type {kind}" if kind not in _KEY_TYPES else "not required"
            return f"key_field {name!r} is {actual}; it must be a required field of type {', '.join(_KEY_TYPES)}"
    return None
