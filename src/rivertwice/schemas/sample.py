"""Decode a few Avro records in Python, to look at them. Pipelines decode with Spark."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

from avro.errors import AvroException
from avro.io import BinaryDecoder, DatumReader

from rivertwice.instants import to_iso
from rivertwice.schemas.avro_schema import AvroSchema


def decode_avro(schema: AvroSchema, body: bytes) -> dict[str, Any] | None:
    """Return a record's fields, instants as ISO 8601; None if the bytes are no record of the schema."""
    try:
        value = DatumReader(schema.record).read(BinaryDecoder(io.BytesIO(body)))
    except (AvroException, ValueError, OverflowError, EOFError, IndexError, TypeError):
        return None
    if not isinstance(value, dict):
        return None
    return {name: to_iso(each) if isinstance(each, datetime) else each for name, each in value.items()}
