"""What lab_sums means, written a second time without its code: which record counts, where, and when it comes too late."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

WINDOW_MS = 10_000
DELAY_MS = 20_000
MAX_FUTURE_MS = 60_000
MAX_BYTES = 4_096
MAX_DEPTH = 1_000
LIMIT = 1_000_000
THROWS = 777_777
"""The amount on which its SQL throws."""
SCHEMAS = (b"lab-1", b"lab-2")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})")
_KEY = re.compile(r"[a-z][a-z0-9]{0,15}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """A record of the log as a plain consumer sees it."""

    partition: int
    offset: int
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]

    @property
    def address(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.partition, self.offset


@dataclass(frozen=True)
class Row:
    """What an accepted record contains."""

    event_ms: int
    key: str
    amount: int

    @property
    def window(self) -> int:
        """Start of its window."""
        return self.event_ms - self.event_ms % WINDOW_MS

    @property
    def excluded(self) -> bool:
        """Negative amounts take no part."""
        return self.amount < 0


class _RefusedError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_record(record: Record) -> Row | str:
    """Return the row of an accepted record, or the reason why it is a dead letter."""
    try:
        fields = _parse(record)
        row = _type(fields)
    except _RefusedError as refused:
        return refused.reason
    if not _KEY.fullmatch(row.key) or abs(row.amount) > LIMIT:
        return "rule"
    if row.event_ms - record.timestamp_ms > MAX_FUTURE_MS:
        return "future"
    if row.amount == THROWS:
        return "transform"
    return row


def _parse(record: Record) -> dict[str, Any]:
    value = record.value
    if value is None:
        raise _RefusedError("tombstone")
    if not value:
        raise _RefusedError("empty")
    if len(value) > MAX_BYTES:
        raise _RefusedError("size")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise _RefusedError("utf8") from None
    named = [content for name, content in record.headers if name == "schema-id"]
    if named and named[-1] not in SCHEMAS:
        raise _RefusedError("schema_id")
    if text.count("{") + text.count("[") > MAX_DEPTH:
        raise _RefusedError("json")
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        raise _RefusedError("json") from None
    if not isinstance(document, dict):
        raise _RefusedError("json")
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _type(fields: dict[str, Any]) -> Row:
    at, amount, key = fields.get("at"), fields.get("amount"), fields.get("k")
    event = _instant(at)
    if amount is not None and (type(amount) is not int or not -(2**63) <= amount < 2**63):
        raise _RefusedError("schema")
    if fields.get("id") is None or event is None or amount is None or key is None:
        raise _RefusedError("missing")
    return Row(event // timedelta(milliseconds=1), key if isinstance(key, str) else json.dumps(key), amount)


def _instant(text: Any) -> timedelta | None:
    if text is None:
        return None
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise _RefusedError("schema")
    try:
        return datetime.fromisoformat(text) - _EPOCH
    except (ValueError, OverflowError):
        raise _RefusedError("schema") from None
