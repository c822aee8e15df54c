"""Delivered records and positions as JSON. Format 1; docs/formats.md describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from rivertwice.core import LedgerError, to_iso
from rivertwice.definition import RowsMode
from rivertwice.deliver.model import WITHDRAW, DeliveredColumns, DeliveredRecord, Position, RowOrigin, StepPart

FORMAT = 1
PART_FORMAT = 2
"""Format of a position inside a step: a release that does not know it must not deliver the step once more."""
ROWS = "rows"
VERSION = "version"
PART = "part"


def plain(value: Any) -> Any:
    """Return a value as a plain JSON value without loss of a digit.

    Decimals, and numbers that JSON cannot represent, are texts; instants are ISO 8601; bytes are hexadecimal.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, datetime):
        return to_iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    message = f"a {type(value).__name__} cannot be delivered; use a scalar result column"
    raise TypeError(message)


def encode(value: Any) -> str:
    """Return JSON without spaces, in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def key_text(shape: DeliveredColumns, values: Sequence[Any]) -> str:
    """Return the key of a row: pipeline, window (not with `rows: newest`) and keys; equal exactly for equal keys, in every version.

    Args:
        values: the row's values, in the shape's order.
    """
    plain_values = [plain(value) for value in values[: 2 + len(shape.keys)]]
    keys = dict(zip(shape.keys, plain_values[2:], strict=True))
    if shape.newest is not None:
        return encode({"pipeline": shape.pipeline, "keys": keys})
    return encode({"pipeline": shape.pipeline, "window": plain_values[:2], "keys": keys})


def key_start(pipeline: str) -> str:
    """Return the text with which all keys of a pipeline begin."""
    return encode({"pipeline": pipeline})[:-1] + ","


def values_of(shape: DeliveredColumns, body: Mapping[str, Any]) -> list[Any] | None:
    """Return the plain values of a record's value, in the shape's order; None for a withdrawal."""
    if body["op"] == WITHDRAW:
        return None
    keys, others = body["keys"], body["values"]
    return [*body["window"], *(keys.get(name) for name in shape.keys), *(others.get(name) for name in shape.others)]


def value_text(shape: DeliveredColumns, record: DeliveredRecord, after: Position) -> str:
    """Return a record's value.

    Args:
        record: the record; one that is withdrawn may have other columns.
    """
    shape = record.columns or shape
    plain_values = [plain(value) for value in record.values]
    body = {
        "format": FORMAT,
        "op": record.op,
        "pipeline": shape.pipeline,
        "window": plain_values[:2],
        "window_start": plain_values[0],
        "window_end": plain_values[1],
        "keys": dict(zip(shape.keys, plain_values[2:], strict=False)),
        "values": None if record.op == WITHDRAW else _others(shape, record.values),
        "from": address_json(record.address) or None,
        "replaces": None
        if record.old is None
        else {**address_json(record.replaces), "values": _others(shape, record.old)},
        "at": {
            "timeline": after.timeline,
            "batch": after.batch,
            "sequence": after.seq,
            "step": after.number,
            **({VERSION: after.version} if after.version else {}),
        },
    }
    return encode(body)


def _others(shape: DeliveredColumns, values: Sequence[Any]) -> dict[str, Any]:
    skipped = 2 + len(shape.keys)
    return {name: plain(value) for name, value in zip(shape.others, values[skipped:], strict=True)}


def address_json(address: RowOrigin | None) -> dict[str, str | int | None]:
    """Return the origin of a row; empty for no address."""
    if address is None:
        return {}
    if address.backfill is not None:
        return {"backfill": address.backfill}
    return {"timeline": address.timeline, "batch": address.batch}


def position_to_json(position: Position, **more: Any) -> str:
    """Return a position as it is stored in a sink, sorted, so that equal positions have equal texts, in every release."""
    number = FORMAT if position.part is None else PART_FORMAT
    return json.dumps({"format": number, **plain_position(position), **more}, separators=(",", ":"), sort_keys=True)


def plain_position(position: Position) -> dict[str, Any]:
    """Return a position as plain data, without what is empty."""
    values = {name: value for name, value in asdict(position).items() if name not in (VERSION, PART) or value}
    part = position.part
    return values if part is None else {**values, PART: {**asdict(part), "to": plain_position(part.to)}}


def position_of(values: Mapping[str, Any]) -> Position:
    """Return the position that `plain_position` made plain."""
    part = values.get(PART)
    if part is None:
        return Position(**values)
    return Position(**{**values, PART: StepPart(**{**part, "to": position_of(part["to"])})})


def row_selection(shape: DeliveredColumns) -> dict[str, str]:
    """Return the values that are stored beside a position if not all rows are delivered."""
    return {} if shape.newest is None else {ROWS: RowsMode.NEWEST}


def check_rows(shape: DeliveredColumns, more: Mapping[str, Any], sink: str) -> None:
    """Refuse to continue if other rows were delivered before: they have other keys, so the new rows would not replace them.

    Raises:
        LedgerError: the sink was filled with all rows and is asked for the newest, or the reverse.
    """
    held, asked = more.get(ROWS, RowsMode.ALL), row_selection(shape).get(ROWS, RowsMode.ALL)
    if held != asked:
        message = (
            f"sink {sink} of {shape.pipeline} was filled with rows: {held}, and the definition says rows: {asked} now; what it holds "
            f"would stay beside the new rows; deliver all with `rivertwice deliver run {shape.pipeline} --sink {sink} "
            "--again`, or put the definition back"
        )
        raise LedgerError(message)


def position_held(stored: str | bytes | None, shape: DeliveredColumns, sink: str) -> Position | None:
    """Return the position that a sink stored, None if it has none; its rows must be of the kind that is asked for now.

    Raises:
        LedgerError: it has another format, or the sink was filled with other rows.
    """
    if not stored:
        return None
    position, more = position_from_json(stored)
    check_rows(shape, more, sink)
    return position


def position_from_json(text: str | bytes) -> tuple[Position, Mapping[str, Any]]:
    """Return a stored position, and the values beside it.

    Raises:
        LedgerError: it has another format.
    """
    data: dict[str, Any] = json.loads(text)
    if data.pop("format", None) not in (FORMAT, PART_FORMAT):
        message = f"a delivery position of an unknown format was found ({str(text)[:200]}); only the formats {FORMAT} and {PART_FORMAT} are known"
        raise LedgerError(message)
    names = {field.name for field in fields(Position)} & data.keys()
    return position_of({name: data.pop(name) for name in names}), data
