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
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import cache, partial
from json.encoder import encode_basestring_ascii
from typing import Any

JSON = "json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_REACH = {"int": 2**31, "bigint": 2**63}
_WIDE = Context(prec=80)  # no digit of the longest decimal is lost before it is compared
_TAKEN = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":"))
_parse = json.JSONDecoder().raw_decode


class FoldValueError(ValueError):
    """A value that does not have its declared type; the message names it and what to do."""


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


class Fields:
    """Declared names with their types: an event's, a state's or a row's. Prepared once, used for every event.

    What most values need is done here; a value of an unusual type goes through `settle`, with the same result.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        """Prepare the names and types, in their order."""
        self._names = list(types)
        self._known = frozenset(types)
        self._text = ", ".join(types)
        self._readers = [(name, _reader(kind)) for name, kind in types.items() if kind not in _AS_JSON]
        self._settlers = [(name, _settler(name, kind)) for name, kind in types.items()]
        self._writers = [(name, f"{json.dumps(name)}:", _writer(kind)) for name, kind in types.items()]
        self._savers = [(name, f"{json.dumps(name)}:", *_saver(name, kind)) for name, kind in types.items()]

    def parse(self, text: str) -> dict[str, Any]:
        """Return the JSON values that `dump`, or Spark's `to_json`, wrote; a name that is missing is null."""
        values: dict[str, Any] = _parse(text)[0]
        return values if list(values) == self._names else {name: values.get(name) for name in self._names}

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Convert parsed values in place to those that `fold` sees; return them."""
        for name, read in self._readers:
            value = values[name]
            if value is not None:
                values[name] = read(value)
        return values

    def load(self, text: str) -> dict[str, Any]:
        """Return the values of a text, as `fold` sees them."""
        return self.read(self.parse(text))

    def settle(self, what: str, values: Any) -> dict[str, Any]:
        """Return a dict of exactly the declared names; a name that `fold` left out is null.

        Raises:
            FoldValueError: it is no dict, has an undeclared name, or a value does not fit its type.
        """
        get = self._require_known(what, values).get
        return {name: None if (value := get(name)) is None else take(value) for name, take in self._settlers}

    def dump(self, values: Mapping[str, Any]) -> str:
        """Return settled values as JSON: the same text for the same values."""
        parts = [
            prefix + ("null" if (value := values[name]) is None else write(value))
            for name, prefix, write in self._writers
        ]
        return "{" + ",".join(parts) + "}"

    def save(self, what: str, values: Any) -> str:
        """Return what `dump` makes of what `settle` makes of the values.

        Raises:
            FoldValueError: as `settle`.
        """
        get = self._require_known(what, values).get
        parts = [
            prefix + ("null" if (value := get(name)) is None else write(take(value)))
            for name, prefix, take, write in self._savers
        ]
        return "{" + ",".join(parts) + "}"

    def _require_known(self, what: str, values: Any) -> dict[str, Any]:
        if not isinstance(values, dict):
            message = f"the {what} is {type(values).__name__}, not a dict of {self._text}; return a dict"
            raise FoldValueError(message)
        if not values.keys() <= self._known:
            unknown = next(name for name in values if name not in self._known)
            message = f"the {what} has {unknown!r}, which is not declared; declare it, or use one of {self._text}"
            raise FoldValueError(message)
        return values


def prepare_fields(types: Mapping[str, str]) -> Fields:
    """Return the fields of these types, in their order; prepared once in a process, for a worker is asked once for each bucket."""
    return _prepared(tuple(types.items()))


@cache
def _prepared(types: tuple[tuple[str, str], ...]) -> Fields:
    return Fields(dict(types))


_AS_JSON = frozenset({"string", "boolean", "int", "bigint", JSON})
"""Types whose value in Python is the one in JSON."""


def _reader(kind: str) -> Callable[[Any], Any]:
    if kind == "timestamp":
        return _read_timestamp
    return float if kind == "double" else Decimal


def _read_timestamp(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _writer(kind: str) -> Callable[[Any], str]:
    """Return the function that writes a settled value of a type as JSON."""
    if kind in ("int", "bigint"):
        return repr
    if kind.startswith("decimal"):
        return _quoted
    return _WRITERS[kind]


def _quoted(value: Decimal) -> str:
    return f'"{value}"'


_WRITERS: dict[str, Callable[[Any], str]] = {
    "string": encode_basestring_ascii,
    "boolean": lambda value: "true" if value else "false",
    "double": lambda value: f'"{value!r}"',
    "timestamp": lambda value: repr((value - _EPOCH) // _MICRO),
    JSON: json.JSONEncoder(separators=(",", ":")).encode,
}


def _settler(name: str, kind: str) -> Callable[[Any], Any]:
    """Return the function that does what `settle` does with a value that is not null, quickly for the usual ones."""
    slow = partial(settle, name, kind)
    if kind.startswith("decimal"):
        return _decimal_settler(kind, slow)
    if kind in _REACH:
        reach = _REACH[kind]
        return lambda value: value if type(value) is int and -reach <= value < reach else slow(value)
    if kind == "timestamp":
        return lambda value: (
            value if type(value) is datetime and value.tzinfo is UTC and not value.fold else slow(value)
        )
    plain = {"string": str, "boolean": bool, "double": float}.get(kind)
    return slow if plain is None else lambda value: value if type(value) is plain else slow(value)


def _decimal_settler(kind: str, slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    precision, scale = _precision(kind)
    quantum, digits = Decimal(1).scaleb(-scale), precision - scale

    def take(value: Any) -> Any:
        usual = type(value) is Decimal and value and value.same_quantum(quantum) and value.adjusted() < digits
        return value if usual else slow(value)

    return take


def _saver(name: str, kind: str) -> tuple[Callable[[Any], Any], Callable[[Any], str]]:
    """Return a settler and its writer; of `json` the first gives the text, which need not be read to be written again."""
    if kind == JSON:
        return partial(_json_text, name), str
    return _settler(name, kind), _writer(kind)


def _settle_json(name: str, value: Any) -> Any:
    return json.loads(_json_text(name, value))


def _json_text(name: str, value: Any) -> str:
    try:
        return _TAKEN.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{name} is no JSON ({error}); use dict, list, str, bool, int, float and None"
        raise FoldValueError(message) from None


def _settle_decimal(name: str, kind: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong(name, kind, value)
    precision, scale = _precision(kind)
    try:
        rounded = Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    except InvalidOperation:
        raise _wrong(name, kind, value) from None
    if rounded != value or rounded.adjusted() >= precision - scale:
        raise _wrong(name, kind, value)
    return rounded or abs(rounded)  # zero has one form


def _precision(kind: str) -> tuple[int, int]:
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _wrong(name: str, kind: str, value: Any) -> FoldValueError:
    text = repr(value)
    return FoldValueError(
        f"{name} is {text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__}), which is no {kind} without loss; "
        "convert or round it in fold"
    )
