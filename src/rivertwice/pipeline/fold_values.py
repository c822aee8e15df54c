"""Values of a fold's events, state and rows, as Python has them and as JSON carries them, by SQL type. Pure.

Values that `fold` returns are converted to the declared types after every event. So a state is the same whether it stayed
in this process (a recompute) or was written and read again between two batches (the stream).

| type | in Python | in JSON |
|---|---|---|
| string, boolean, int, bigint | str, bool, int | the same |
| double | float | its text |
| decimal(P,S) | Decimal with S digits after the point | its text |
| timestamp | aware datetime in UTC, whole microseconds | microseconds since 1970 |
| json (of a state only) | dict, list, str, bool, int, float, None | the same, names sorted |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

JSON = "json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_REACH = {"int": 2**31, "bigint": 2**63}


class FoldValueError(ValueError):
    """A value that does not have its declared type; the message names it and what to do."""


def from_json(kind: str, value: Any) -> Any:
    """Return a value of a type as `fold` sees it, from its JSON form."""
    if value is None:
        return None
    if kind == "timestamp":
        return _EPOCH + timedelta(microseconds=value)
    if kind == "double":
        return float(value)
    return Decimal(value) if kind.startswith("decimal") else value


def to_json(kind: str, value: Any) -> Any:
    """Return the JSON form of a value that `settle` has converted to its type."""
    if value is None:
        return None
    if kind == "timestamp":
        return (value - _EPOCH) // _MICRO
    if kind == "double":
        return repr(value)
    return str(value) if kind.startswith("decimal") else value


def settle(name: str, kind: str, value: Any) -> Any:
    """Return a value that `fold` gave, in the form of its type.

    Raises:
        FoldValueError: the value has another type, or would lose digits.
    """
    if value is None:
        return None
    if kind == JSON:
        return _settle_json(name, value)
    if kind.startswith("decimal"):
        return _settle_decimal(name, kind, value)
    if kind in _REACH and isinstance(value, int) and not isinstance(value, bool):
        if not -_REACH[kind] <= value < _REACH[kind]:
            raise _wrong(name, kind, value)
        return int(value)
    if kind == "double" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(fold=0)
    plain = {"string": str, "boolean": bool}.get(kind)
    if plain is not None and isinstance(value, plain):
        return plain(value)
    raise _wrong(name, kind, value)


def settle_all(what: str, types: Mapping[str, str], values: Any) -> dict[str, Any]:
    """Return a dict of exactly the declared names; a name that `fold` left out is null.

    Raises:
        FoldValueError: it is no dict, has an undeclared name, or a value does not fit its type.
    """
    if not isinstance(values, dict):
        message = f"the {what} is {type(values).__name__}, not a dict of {', '.join(types)}; return a dict"
        raise FoldValueError(message)
    unknown = [name for name in values if name not in types]
    if unknown:
        message = f"the {what} has {unknown[0]!r}, which is not declared; declare it, or use one of {', '.join(types)}"
        raise FoldValueError(message)
    return {name: settle(name, kind, values.get(name)) for name, kind in types.items()}


def dump(types: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return settled values as JSON: the same text for the same values."""
    return json.dumps({name: to_json(kind, values[name]) for name, kind in types.items()}, separators=(",", ":"))


def load(types: Mapping[str, str], text: str) -> dict[str, Any]:
    """Return the values that `dump`, or Spark's `to_json`, wrote."""
    values = json.loads(text)
    return {name: from_json(kind, values.get(name)) for name, kind in types.items()}


def _settle_json(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{name} is no JSON ({error}); use dict, list, str, bool, int, float and None"
        raise FoldValueError(message) from None


def _settle_decimal(name: str, kind: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong(name, kind, value)
    precision, scale = (int(part) for part in kind[len("decimal(") : -1].split(","))
    with localcontext() as context:
        context.prec = 80
        try:
            rounded = Decimal(value).quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            raise _wrong(name, kind, value) from None
    if rounded != value or rounded.adjusted() >= precision - scale:
        raise _wrong(name, kind, value)
    return rounded or abs(rounded)  # zero has one form


def _wrong(name: str, kind: str, value: Any) -> FoldValueError:
    text = repr(value)
    return FoldValueError(
        f"{name} is {text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__}), which is no {kind} without loss; "
        "convert or round it in fold"
    )
