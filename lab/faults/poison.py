"""Records that lab_sums cannot accept, one maker per way to be wrong; wider than the flights' list in `flights.poison`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rivertwice.core.instants import from_ms, to_iso

Fields = Mapping[str, Any]
_LAB = (("schema-id", b"lab-1"),)


@dataclass(frozen=True)
class Poison:
    """A record's key, value and headers."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = _LAB


@dataclass(frozen=True)
class PoisonKind:
    """One way to be wrong.

    Attributes:
        name: what is wrong.
        make: makes the value from a good record's fields.
        headers: headers of the record.
        null_key: the record has no key.
    """

    name: str
    make: Callable[[Fields], bytes | None]
    headers: tuple[tuple[str, bytes], ...] = _LAB
    null_key: bool = False


def _text(fields: Fields) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _with(**changed: Any) -> Callable[[Fields], bytes]:
    return lambda fields: _text({**fields, **changed})


def _raw_amount(literal: str) -> Callable[[Fields], bytes]:
    def make(fields: Fields) -> bytes:
        return _text({**fields, "amount": "@"}).replace(b'"@"', literal.encode())

    return make


def _raw_field(name: str, literal: str) -> Callable[[Fields], bytes]:
    return lambda fields: _text({**fields, name: "@"}).replace(b'"@"', literal.encode())


def _without(name: str) -> Callable[[Fields], bytes]:
    return lambda fields: _text({key: value for key, value in fields.items() if key != name})


POISON: tuple[PoisonKind, ...] = (
    PoisonKind("tombstone", lambda fields: None),
    PoisonKind("zero length", lambda fields: b""),
    PoisonKind("cut short", lambda fields: _text(fields)[: len(_text(fields)) // 2]),
    PoisonKind("array around the object", lambda fields: b"[" + _text(fields) + b"]"),
    PoisonKind("scalar", lambda fields: b"17"),
    PoisonKind("two objects", lambda fields: _text(fields) * 2),
    PoisonKind("byte order mark", lambda fields: b"\xef\xbb\xbf" + _text(fields)),
    PoisonKind("no UTF-8", lambda fields: _text(fields).replace(b'"k', b'"\xff\xfe')),
    PoisonKind("NaN", _raw_amount("NaN")),
    PoisonKind("Infinity", _raw_amount("-Infinity")),
    PoisonKind("minus zero", _raw_amount("-0.0")),
    PoisonKind("fraction", _raw_amount("1.5")),
    PoisonKind("huge integer", _raw_amount("1" + "0" * 30)),
    PoisonKind("number as text", _with(amount="12")),
    PoisonKind("boolean for a number", _with(amount=True)),
    PoisonKind("time that is none", _with(at="2026-02-30T25:00:00Z")),
    PoisonKind("time without a zone", _with(at="2026-01-01T00:00:00")),
    PoisonKind("time as a number", _with(at=1_767_225_600_000)),
    PoisonKind("no time", _without("at")),
    PoisonKind("no id", _without("id")),
    PoisonKind("null amount", _with(amount=None)),
    PoisonKind("null key", _with(k=None), null_key=True),
    PoisonKind("key against the rule", _with(k="K-1; DROP")),
    PoisonKind("amount out of range", _with(amount=10**12)),
    PoisonKind("the SQL throws", _with(amount=777_777)),
    PoisonKind("unknown schema", _text, headers=(("schema-id", b"lab-99"),)),
    PoisonKind("too long", lambda fields: _text({**fields, "pad": "x" * 5_000})),
    PoisonKind("nested too deep", _raw_field("deep", "[" * 1_500 + "]" * 1_500)),
    PoisonKind("far ahead", lambda fields: _text({**fields, "at": to_iso(from_ms(4_102_444_800_000))})),
    PoisonKind("before the first year", _with(at="0000-12-31T23:59:59Z")),
)


def make_poison(kind: PoisonKind, fields: Fields) -> Poison:
    """Return one poison record modelled on a good record's fields."""
    key = None if kind.null_key else str(fields["k"]).encode()
    return Poison(key, kind.make(fields), kind.headers)
