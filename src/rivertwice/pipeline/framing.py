"""Confluent's prefix before a value: byte 0 and the schema's id in four bytes. None of these expressions can throw."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F

from rivertwice.pipeline.source_model import Source

Case = tuple[Column, str, Column]
"""Condition, reason and detail of a refusal."""
PREFIX_BYTES = 5
_MOST = 2**31 - 1


def payload(source: Source) -> Column:
    """Return the value without its prefix; NULL if a required prefix is missing."""
    value = F.col("_value")
    if source.framing == "none":
        return value
    inner = F.when(_is_prefixed(), F.substring(value, PREFIX_BYTES + 1, _MOST))
    return inner.otherwise(value) if source.schema_id_optional else inner


def carries(schema_id: int) -> Column:
    """Say whether a value's prefix names this schema."""
    return F.substring("_value", 1, PREFIX_BYTES) == F.lit(bytearray(b"\x00" + schema_id.to_bytes(4, "big")))


def framing_cases(source: Source, ids: Collection[int]) -> list[Case]:
    """Return the refusals that depend on the prefix; without `ids` every id is accepted."""
    if source.framing == "none":
        return []
    absent: Case = (~_is_prefixed(), "framing", F.lit("the value does not begin with byte 0 and a 4-byte schema id"))
    cases = [] if source.schema_id_optional else [absent]
    if ids:
        number = F.conv(F.hex(F.substring("_value", 2, 4)), 16, 10)
        known = F.substring("_value", 1, PREFIX_BYTES).isin([b"\x00" + each.to_bytes(4, "big") for each in ids])
        cases.append((_is_prefixed() & ~known, "schema_id", F.concat(F.lit("schema id "), number)))
    return cases


def _is_prefixed() -> Column:
    return (F.octet_length("_value") >= PREFIX_BYTES) & (F.substring("_value", 1, 1) == F.lit(bytearray(b"\x00")))
