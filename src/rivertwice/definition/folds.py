"""Folds in a definition: what it may contain, values of its state, and how its function is called. Pure."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation, localcontext
from functools import cache, partial
from json.encoder import encode_basestring_ascii
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from rivertwice.core import FoldError, Row, nearest

if TYPE_CHECKING:
    from rivertwice.definition.model import DefinitionFile
    from rivertwice.definition.source import Source


# Values of a fold's events, state and rows, as Python has them and as JSON carries them, by SQL type. Pure.
#
# Values that `fold` returns are converted to the declared types after every event. So a state is the same whether it stayed
# in this process (a recompute) or was written and read again between two batches (the stream).
#
# | type | in Python | in JSON |
# |---|---|---|
# | string, boolean, int, bigint | str, bool, int | the same |
# | double | float | its text |
# | decimal(P,S) | Decimal with S digits after the point | its text |
# | timestamp | aware datetime in UTC, whole microseconds | microseconds since 1970 |
# | json (of a state only) | dict, list, str, bool, int, float, None | the same, names sorted |

JSON = "json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_REACH = {"int": 2**31, "bigint": 2**63}
_WIDE = Context(prec=80)  # no digit of the longest decimal is lost before it is compared
_TAKEN = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":"))
_parse = json.JSONDecoder().raw_decode


class FoldValueError(ValueError):
    """A value that does not have its declared type; the message names it and what to do."""


def coerce_value(name: str, kind: str, value: Any) -> Any:
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

    What most values need is done here; a value of an unusual type goes through `coerce_value`, with the same result.
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

    def parse(self, text: str) -> Row:
        """Return the JSON values that `dump`, or Spark's `to_json`, wrote; a name that is missing is null."""
        values: dict[str, Any] = _parse(text)[0]
        return values if list(values) == self._names else {name: values.get(name) for name in self._names}

    def read(self, values: dict[str, Any]) -> Row:
        """Convert parsed values in place to those that `fold` sees; return them."""
        for name, read in self._readers:
            value = values[name]
            if value is not None:
                values[name] = read(value)
        return values

    def load(self, text: str) -> Row:
        """Return the values of a text, as `fold` sees them."""
        return self.read(self.parse(text))

    def settle(self, what: str, values: Any) -> Row:
        """Return a dict of exactly the declared names; a name that `fold` left out is null.

        Raises:
            FoldValueError: it is not a dict, has an undeclared name, or a value does not fit its type.
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
        """Return what `dump` makes of what `coerce_value` makes of the values.

        Raises:
            FoldValueError: as `coerce_value`.
        """
        get = self._require_known(what, values).get
        parts = [
            prefix + ("null" if (value := get(name)) is None else write(take(value)))
            for name, prefix, take, write in self._savers
        ]
        return "{" + ",".join(parts) + "}"

    def _require_known(self, what: str, values: Any) -> Row:
        if not isinstance(values, dict):
            message = f"the {what} is {type(values).__name__}, not a dict of {self._text}; return a dict"
            raise FoldValueError(message)
        if not values.keys() <= self._known:
            unknown = next(name for name in values if name not in self._known)
            message = f"the {what} has {unknown!r}, which is not declared; declare it, or use one of {self._text}"
            raise FoldValueError(message)
        return values


def prepare_fields(types: Mapping[str, str]) -> Fields:
    """Return the fields of these types, in their order; prepared once in a process, because a worker is asked once for each bucket."""
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
    """Return the function that does what `coerce_value` does with a value that is not null, quickly for the usual ones."""
    slow = partial(coerce_value, name, kind)
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
        message = f"{name} is not valid JSON ({error}); use dict, list, str, bool, int, float and None"
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
        f"{name} is {text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__}), which does not fit {kind} without loss; "
        "convert or round it in fold"
    )


# Run a fold, one event after the other: the same code in the stream's workers and in every recompute. Pure except for the user's code.
#
# `fold.py` is run from the text that the definition holds, which is the bundle's; no file is read. Before each event the
# state is built again from its JSON, so a failed call leaves no change in it.

ERROR = "error"
"""The result column for the error that a fold raised; without this column the stream stops at the record."""
SOURCE_MARK = "_source"
"""The field that names an event's source, if there are several sources."""
PARTITION_SHIFT = 44
_CONTEXT = Context(prec=76)  # twice the longest decimal: no sum or product of two loses a digit
_MOST_TEXT = 500
_PLACE = re.compile(r"0x[0-9a-f]+")

FoldFunction = Callable[[dict[str, Any] | None, dict[str, Any]], Any]
Emitted = tuple[int, int, int, int, str]
"""Number of the source, event time in microseconds since 1970, place of the record, number of the row of its event, and the row as JSON."""


@dataclass(frozen=True)
class FoldSource:
    """What a worker needs to know about a source.

    Attributes:
        view: its name, which is `event["_source"]` if there are several sources. topic: for messages.
        event: field of an event to its type. event_time: the field that is its time.
        by: column of the state's key to the source's field.
    """

    view: str
    topic: str
    event: Mapping[str, str]
    event_time: str
    by: Mapping[str, str]


@dataclass(frozen=True)
class FoldSpec:
    """All that a worker needs.

    Attributes:
        text: the text of `fold.py`.
        sources: in the order in which a batch reads them; an event gives its source by its number in this order.
        state: field of the state to its type.
        rows: result column to its type, the state's key among them. at: the column that is the event's time.
    """

    name: str
    text: str
    sources: tuple[FoldSource, ...]
    state: Mapping[str, str]
    rows: Mapping[str, str]
    at: str


@functools.cache
def load_fold(text: str) -> FoldFunction:
    """Return the function `fold` of a text; a text is run once in a process."""
    name = f"rivertwice_fold_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(text, "fold.py", "exec"), module.__dict__)  # noqa: S102 (trusted code of the repository, checked)
    fold: FoldFunction = module.__dict__["fold"]
    return fold


class FoldRun:
    """Follows keys; keeps only the code between two events."""

    def __init__(self, spec: FoldSpec) -> None:
        """Run the text, once in a process."""
        self._spec = spec
        self._fold = load_fold(spec.text)
        self._events = [prepare_fields(source.event) for source in spec.sources]
        self._state, self._rows = prepare_fields(spec.state), prepare_fields(spec.rows)
        self._has_several_sources = len(spec.sources) > 1

    def step(
        self, state: str | None, event: str, partition: int, offset: int, source: int = 0
    ) -> tuple[str | None, list[Emitted]]:
        """Return the state after an event, and the event's rows.

        Args:
            state: the key's state as JSON, None if it has none.
            event: the event as JSON.
            source: number of the record's source.

        Raises:
            FoldError: fold.py raised, or returned what was not declared, and there is no column `error`.
        """
        spec, fold_source, read = self._spec, self._spec.sources[source], self._events[source]
        fields = read.parse(event)
        us: int = fields[fold_source.event_time]
        read.read(fields)
        filled = {name: fields[field] for name, field in fold_source.by.items()}
        filled[spec.at] = fields[fold_source.event_time]
        if self._has_several_sources:
            fields[SOURCE_MARK] = fold_source.view
        try:
            with localcontext(_CONTEXT):  # a copy: what the code changes of it ends with the event
                next_state, rows = self._called(None if state is None else self._state.load(state), fields, filled)
        except Exception as error:  # the user's code may raise any exception
            if ERROR not in spec.rows:
                raise FoldError(_stopped(spec.name, fold_source.topic, error, partition, offset)) from error
            row = dict.fromkeys(spec.rows) | filled | {ERROR: _error_text(error)}
            next_state, rows = state, [self._rows.dump(row)]
        record = partition << PARTITION_SHIFT | offset
        return next_state, [(source, us, record, number, row) for number, row in enumerate(rows)]

    def _called(
        self, state: dict[str, Any] | None, event: dict[str, Any], filled: Mapping[str, Any]
    ) -> tuple[str | None, list[str]]:
        result = self._fold(state, event)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], list | tuple):
            message = f"fold returned {type(result).__name__}, not (state or None, list of rows); return both"
            raise FoldValueError(message)
        after, rows = result
        next_state = None if after is None else self._state.save("state", after)
        return next_state, [self._rows.dump(self._row(row, filled)) for row in rows]

    def _row(self, row: Any, filled: Mapping[str, Any]) -> Row:
        settled = self._rows.settle("row", row)
        for name, value in filled.items():
            if name in row and settled[name] != value:
                message = (
                    f"the row's {name} is {settled[name]!r}, the event's is {value!r}; leave it out: it is filled in"
                )
                raise FoldValueError(message)
            settled[name] = value
        return settled


def _error_text(error: Exception) -> str:
    return _PLACE.sub("0x", f"{type(error).__name__}: {error}")[:_MOST_TEXT]


def _stopped(name: str, topic: str, error: Exception, partition: int, offset: int) -> str:
    return (
        f"fold.py of {name} failed on the record {topic}/{partition}@{offset} with {_error_text(error)}; nothing of its batch "
        f"was committed, and the stream cannot go past it; give the result a column `{ERROR}` (string) to have such records as "
        f"rows, or write a rule that makes them dead letters; then `rivertwice upgrade {name} --new-version --yes`, or `rivertwice "
        f"start {name}` if no batch is committed yet"
    )


NO_WATERMARK = timedelta(days=3_660_000)
"""A delay that is longer than any event time: the watermark stays at zero, and no record is late."""
SQL_TYPE = re.compile(
    r"^(string|boolean|int|bigint|double|timestamp|decimal\(([1-9]|[12][0-9]|3[0-8]),([0-9]|[12][0-9]|3[0-8])\))$"
)
_TYPES = ("string", "boolean", "int", "bigint", "double", "timestamp", "decimal(18,2)")
_OTHER_TYPES = {
    **dict.fromkeys(("text", "varchar", "char", "str"), "string"),
    **dict.fromkeys(("integer", "smallint", "int32"), "int"),
    **dict.fromkeys(("long", "int64"), "bigint"),
    **dict.fromkeys(("float", "real", "float64"), "double"),
    **dict.fromkeys(("date", "datetime", "time"), "timestamp"),
    **dict.fromkeys(("number", "numeric", "decimal"), "decimal(18,2)"),
    "bool": "boolean",
}


def sql_type(value: str) -> str:
    """Return a type of a field or column, unchanged.

    Raises:
        ValueError: it is not a type.
    """
    if not SQL_TYPE.match(value):
        known = _OTHER_TYPES.get(value.lower()) or nearest(value, _TYPES)
        message = (
            f"{value[:80]!r} is not a valid field type; use string, boolean, int, bigint, double, timestamp or decimal(P,S)"
        ) + ("" if known is None else f"; did you mean {known}?")
        raise ValueError(message)
    return value


def _state_type(value: str) -> str:
    if value != JSON and not SQL_TYPE.match(value):
        message = f"{value[:80]!r} is not a valid state type; use one of a field's types, or json for a list or a dict"
        raise ValueError(message)
    return value


StateType = Annotated[str, AfterValidator(_state_type)]


def find_fold_conflict(definition: DefinitionFile) -> str | None:
    """Return which part of a definition conflicts with a fold; None if no part does."""
    for view, source in definition.sources.items():
        if source.is_table:
            return f"source {view!r} has role: table, which is for intervals: a fold takes each of its records as an event; remove role and table_keys"
        if source.has_watermark:
            return f"source {view!r} has a watermark, but no record of a fold waits or is late; remove it"
    if definition.count_column is not None:
        return (
            f"count_column is {definition.count_column!r}, but rows of a fold are identified by their record; remove it"
        )
    return _key_conflict(definition) or _type_conflict(definition) or _order_conflict(definition)


def find_stray_fold_part(definition: DefinitionFile) -> str | None:
    """Return which part of a definition that is not a fold belongs to folds, or which source lacks a watermark; else None."""
    given = [name for name in ("by", "state", "types", "deleted") if getattr(definition, name)]
    for name in (*given, *({"order"} & definition.model_fields_set)):
        return f"{name} is for folds; remove it, or give window: {{fold: 1 day, at: COLUMN}} and a fold.py"
    if "fold_buckets" in definition.stream.model_fields_set:
        return "stream.fold_buckets is for folds, which alone keep states in buckets; remove it"
    return next(filter(None, itertools.starmap(_source_conflict, definition.sources.items())), None)


def _source_conflict(view: str, source: Source) -> str | None:
    if source.is_table:
        return None
    for name in ("tombstones", "envelope"):
        if name in source.model_fields_set:
            return f"{name} of source {view!r} is for folds and tables: a transform cannot see the outcome of a record; remove it"
    if source.has_watermark:
        return None
    return f"source {view!r} has no watermark; declare how far it stays behind, for instance '10 minutes'"


def _key_conflict(definition: DefinitionFile) -> str | None:
    if not definition.by:
        return "a fold needs by: the fields of the source whose values share a state; name them"
    foreign = [view for views in _named_views(definition) for view in views if view not in definition.sources]
    if foreign:
        return f"by names a field of {foreign[0]!r}, but the sources are {list(definition.sources)}; name one of them"
    of_source = functools.partial(_by_conflict, definition)
    conflict = next(filter(None, itertools.starmap(of_source, definition.sources.items())), None)
    if conflict:
        return conflict
    absent = [name for name in definition.by if name not in definition.keys]
    if absent:
        return f"by names {absent[0]!r}, which is not among keys {definition.keys}; add it, so that a row names its key"
    return (
        None if definition.state else "a fold needs state: the names and types of what it keeps of a key; declare them"
    )


def _named_views(definition: DefinitionFile) -> Iterable[Iterable[str]]:
    return definition.by.values() if isinstance(definition.by, dict) else ()


def _by_conflict(definition: DefinitionFile, view: str, source: Source) -> str | None:
    """Return why the fields of one source cannot be the state's key, or None."""
    where = f" of source {view!r}" if definition.has_several_sources else ""
    fields = definition.by_fields(view)
    for name in fields.values():
        kind = source.schema_.get(name)
        if kind in (None, "double") or name not in source.required_fields:
            problem = "not a field" if kind is None else f"a {kind}" if kind == "double" else "not required"
            return f"by names {name!r}{where}, which is {problem}; the state's key is made of required fields that are not doubles"
    if source.tombstones == "delete" and not set(fields.values()) <= set(source.key_fields):
        return (
            f"tombstones{where} are deletes and have nothing but {', '.join(source.key_fields)}, but the state's key is "
            f"{list(fields.values())}; give by fields that the Kafka key names, or let it name more (key_field)"
        )
    return None


def _type_conflict(definition: DefinitionFile) -> str | None:
    columns = [*definition.keys, *definition.columns]
    unknown = [name for name in definition.types if name not in columns]
    if unknown:
        return f"types names {unknown[0]!r}, which is neither a key nor a column; add it to the result, or correct it"
    missing = [name for name in columns if name not in definition.types and name not in definition.by]
    if missing:
        return f"{missing[0]!r} has no type; add it to types: every key and column needs one, except those of by"
    for view, source in definition.sources.items():
        for name, field in definition.by_fields(view).items():
            kind, had = definition.row_types[name], source.schema_[field]
            if name in definition.types and kind != had:
                return f"types gives {name!r} another type than the source, which fills it in; remove it from types"
            if kind != had:
                return (
                    f"the state's key {name!r} is {kind} in source {definition.source[0]!r} and {had} in {view!r}, where it would be "
                    "another key; give both fields one type"
                )
    at = definition.window.at
    if at not in columns or definition.row_types[at] != "timestamp":
        return f"window.at {at!r} is not a key or column of type timestamp; it holds the event's time: add it, or correct it"
    for special, needed in ((ERROR, "string"), (definition.deleted, "boolean")):
        if special in definition.columns and definition.types[special] != needed:
            return f"column {special!r} is {definition.types[special]}; it must be {needed}"
    if definition.deleted is not None and definition.deleted not in definition.columns:
        return f"deleted {definition.deleted!r} is not a column; name the boolean column that marks a key as deleted"
    return None


def _order_conflict(definition: DefinitionFile) -> str | None:
    if definition.order == "read":
        return None
    if not definition.compare:
        return "order: any is what a reconcile checks, but compare is false; remove one of them"
    if definition.window.at in definition.keys:
        return (
            f"order: any declares that the newest row of a key does not depend on the order, but the keys hold {definition.window.at!r}, the "
            "time of an event, so each event has its own key; make it a column"
        )
    return None
