"""The settings of a source for the format of its records and their schema ids. Pure."""

from __future__ import annotations

import re

from rivertwice.schemas.pinned_files import MAX_ID

_NUMBER = re.compile(r"^[1-9][0-9]{0,9}\Z")


def format_finding(kind: str, framing: str, schema_ids: list[str], *, optional: bool) -> str | None:
    """Return the conflict between a source's format, framing and schema ids, with the remedy; None if there is none."""
    if framing == "none":
        return None
    if kind == "avro" and (schema_ids or optional):
        return (
            "schema_ids and schema_id_optional do not go with framed Avro: the ids are those of the files "
            "schemas/VIEW-ID.avsc, and a record without an id cannot be decoded; remove both"
        )
    if kind == "protobuf" and optional:
        return (
            "schema_id_optional does not go with framed Protobuf: without the prefix it is unknown whether the list of "
            "message indexes is there; remove it"
        )
    wrong = [each for each in schema_ids if not _NUMBER.match(each) or int(each) > MAX_ID]
    if wrong:
        return f"schema_ids holds {wrong[0][:40]!r}; with framing confluent ids are whole numbers from 1 to {MAX_ID}"
    return None
