"""A definition guessed from a sample, with the reason of each part. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from rivertwice.core import EPOCH, RequestError, did_you_mean
from rivertwice.definition import format_duration
from rivertwice.local.changes import TableGuess, guess_table
from rivertwice.local.fields import (
    CERTAIN,
    COLUMN,
    GUESS,
    LIKELY,
    UNKNOWN,
    FieldGuess,
    flatten,
    guess_fields,
    open_cloud_events,
)
from rivertwice.local.sample import ISO, RecordSample, as_instant, is_time_name, name_score, words_of

# Event time and keys, chosen among the fields of a sample. Pure.

HEARTBEAT = "is_heartbeat"
"""The field by which a guessed definition knows a heartbeat."""
_EVENT_WHERE = "pipeline.yaml: event_time, and window() in transform.sql"
_KEY_WHERE = "pipeline.yaml: keys, and GROUP BY in transform.sql"
MOST_ABSENT = 0.2
"""Share of records without a value from which a field is not guessed to be the event time."""
CLEAR = 20
"""So much better must the first candidate be than the second, to be more than a guess."""
MOST_KEYS = 1_000
EVEN = 0.9
_KEY_WORDS = {"id", "key", "code", "name", "type", "kind", "category", "region", "zone", "city", "country", "state", "station", "device",
              "sensor", "user", "customer", "account", "store", "shop", "product", "sku", "channel", "status", "line", "machine", "host", "service"}  # fmt: skip
_KEY_TYPES = ("string", "bigint", "boolean")


def choose_event_time(
    fields: Sequence[FieldGuess], sample: RecordSample, asked: str | None
) -> tuple[FieldGuess | None, GuessReason]:
    """Return the event time, and why it is that one; None if no field can be it.

    Raises:
        RequestError: the field that was asked for holds no time.
    """
    times = [each for each in fields if each.kind == "timestamp"]
    if asked is not None:
        chosen = next((each for each in times if each.name == asked), None)
        if chosen is None:
            raise RequestError(_no_time(next(each for each in fields if each.name == asked), times))
        return chosen, GuessReason("event time", _read(chosen), "asked for on the command line", CERTAIN, _EVENT_WHERE)
    usable = [each for each in times if each.total - each.seen <= MOST_ABSENT * each.total]
    given = next((each for each in usable if each.name == sample.event_time), None)
    if given is not None:
        why = f"the envelope ({sample.envelope}) says when the event happened"
        return given, GuessReason("event time", _read(given), why, CERTAIN, _EVENT_WHERE)
    ranked = sorted(usable, key=lambda each: -_event_score(each, sample))
    if not ranked:
        return None, GuessReason("event time", None, _gap(fields), UNKNOWN, _EVENT_WHERE)
    first = ranked[0]
    others = ", ".join(each.name for each in ranked[1:])
    clear = len(ranked) == 1 or _event_score(first, sample) - _event_score(ranked[1], sample) >= CLEAR
    why = f"it holds {'a time in every record' if first.complete else 'a time in most records'}"
    why += f", and its name fits better than {others}" if others else ", and no other field does"
    absent = "" if first.complete else f"; {first.total - first.seen} records without it would be dead letters"
    return first, GuessReason("event time", _read(first), why + absent, LIKELY if clear else GUESS, _EVENT_WHERE)


def _read(each: FieldGuess) -> str:
    words = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
    return f"{each.name} ({ISO if each.unit is None else f'{words[each.unit]} since 1970'})"


def _event_score(each: FieldGuess, sample: RecordSample) -> float:
    """Return how likely a field is the event time, from its name and its values."""
    score = float(name_score(each.name)) - 100 * (1 - each.seen / max(each.total, 1))
    if each.distinct < 2 < each.total:
        score -= 50
    for record in sample.records[:50]:
        instant = as_instant(record.value.get(each.name), each.unit)
        if instant is not None and record.stamped is not None and (instant - record.stamped).total_seconds() > 86_400:
            return score - 40
    return score


def _gap(fields: Sequence[FieldGuess]) -> str:
    near = [each for each in fields if each.form is not None]
    if near:
        listed = "; ".join(f"{each.name} holds {each.form}" for each in near)
        return f"{listed}: a definition reads {ISO}, or whole seconds, milliseconds or microseconds since 1970; let the producer send one of them, then write event_time"
    partly = [each for each in fields if each.kind == "timestamp"]
    if partly:
        listed = ", ".join(f"{each.name} (no value in {each.total - each.seen} of {each.total})" for each in partly)
        return f"{listed}: a record without its event time is a dead letter, so it was not taken; write event_time if that is right"
    return f"no field looks like a time ({ISO}, or a number since 1970): write event_time"


def _no_time(each: FieldGuess, times: Sequence[FieldGuess]) -> str:
    usable = f"; {did_you_mean(each.name, [one.name for one in times])}" if times else ""
    return (
        f"--event-time {each.name}: its values ({each.example}) are not a time that a definition can read, which is {ISO} or whole seconds, "
        f"milliseconds or microseconds since 1970{usable}"
    )


def choose_keys(
    fields: Sequence[FieldGuess], sample: RecordSample, event: FieldGuess | None, asked: Sequence[str]
) -> tuple[tuple[str, ...], list[GuessReason]]:
    """Return the keys, and why.

    Raises:
        RequestError: a field that was asked for cannot be a key.
    """
    by_name = {each.name: each for each in fields}
    for name in asked:
        if by_name[name].kind is None or by_name[name].kind == "double" or by_name[name] is event:
            why = "it is the event time" if by_name[name] is event else by_name[name].why
            message = f"--key {name}: a key must be a field with a type, not a double, and not the event time ({why})"
            raise RequestError(message)
    if asked:
        return tuple(asked), [
            GuessReason("keys", ", ".join(asked), "asked for on the command line", CERTAIN, _KEY_WHERE)
        ]
    same = kafka_key_field(fields, sample)
    candidates = [each for each in fields if each is not event and _can_be_key(each, is_kafka_key=each.name == same)]
    if not candidates:
        why = "no field divides the records into groups (few values, each often): all records of a window make one row"
        return (), [GuessReason("keys", "none", why, GUESS, _KEY_WHERE)]
    best = max(candidates, key=lambda each: _key_score(each, same))
    why = f"{best.distinct} values in {best.seen} records, the most frequent {best.largest:.0%}"
    if best.name == same:
        why += "; it is the Kafka key, so all records of a value are in one partition, in order"
    elif same is None:
        why += "; the Kafka key is not a field of the records" if any(record.key for record in sample.records) else ""
    return (best.name,), [GuessReason("keys", best.name, why, LIKELY if best.name == same else GUESS, _KEY_WHERE)]


def kafka_key_field(fields: Sequence[FieldGuess], sample: RecordSample) -> str | None:
    """Return the field whose text is the Kafka key of every record; None if there is none."""
    keyed = [record for record in sample.records if record.key is not None]
    if len(keyed) < len(sample.records) or not keyed:
        return None
    for each in fields:
        if (
            each.kind in ("string", "bigint")
            and each.complete
            and all(str(record.value[each.name]) == record.key for record in keyed)
        ):
            return each.name
    return None


def _can_be_key(each: FieldGuess, *, is_kafka_key: bool) -> bool:
    if each.kind not in _KEY_TYPES or each.form is not None or each.distinct < 2:
        return False
    if each.kind == "bigint" and not is_kafka_key and not words_of(each.name) & _KEY_WORDS:
        return False
    most = each.seen / (2 if is_kafka_key else 5)
    return each.distinct <= min(most, MOST_KEYS) and each.seen >= 0.8 * each.total and each.largest <= EVEN


def _key_score(each: FieldGuess, kafka_key: str | None) -> float:
    score = 100.0 if each.name == kafka_key else 0.0
    score += 30 if words_of(each.name) & _KEY_WORDS else 0
    score += 10 if each.complete else 0
    score += {"string": 10, "bigint": 5, "boolean": 0}[each.kind or "boolean"]
    return score - 20 * each.largest


# Result columns beside the count: exact sums, means, smallest and largest values. Pure.

FUNCTIONS = ("sum", "mean", "min", "max")
SUM_DIGITS, MOST_DIGITS = 28, 18
MEAN_DECIMALS = 4
_COUNTED = {"id", "code", "zip", "postcode", "year", "month", "day", "hour", "port", "version", "lat", "lon", "lng", "latitude", "longitude",
            "number", "no", "lsn", "scn", "xid", "txid", "gtid", "pos", "position", "seq", "sequence", "offset", "partition", "phone", "x", "y", "index", "pid", "major", "minor", "firmware", "build", "serial"}  # fmt: skip
_AMOUNTS = {"amount", "price", "total", "value", "duration", "distance", "quantity", "count", "cost", "fare", "fee", "bytes", "size", "weight",
            "latency", "delay", "seconds", "ms", "km", "meters", "kwh", "revenue", "tip", "energy", "wh", "usage", "consumption", "volume", "tax",
            "discount", "units", "betrag", "preis", "menge", "summe", "umsatz", "montant", "importe"}  # fmt: skip
_LEVELS = {"temperature", "temp", "celsius", "fahrenheit", "humidity", "pressure", "speed", "velocity", "power", "watt", "watts", "voltage", "current",
           "level", "load", "cpu", "balance", "score", "rating", "rate", "ratio", "share", "percent", "percentage", "pct", "vat", "age", "altitude", "fill"}  # fmt: skip
"""Words of what is measured, not counted: a sum of it means nothing."""
_EXACT = Context(prec=76, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Measure:
    """A result column.

    Attributes:
        function: one of FUNCTIONS.
        kind: the field's type.
    """

    field: str
    function: str
    kind: str
    why: str = ""

    @property
    def column(self) -> str:
        """The column's name."""
        return f"{self.field}_{self.function}"

    @property
    def text(self) -> str:
        """The column in words."""
        return f"{self.function} of {self.field}"

    @property
    def scale(self) -> int:
        """Digits after the point of a sum."""
        return int(self.kind.partition(",")[2].rstrip(")")) if self.kind.startswith("decimal") else 0

    def expression(self, quoted: str) -> str:
        """Return the expression, exact whatever the order of the rows.

        Args:
            quoted: the field as SQL writes it.
        """
        if self.function in ("min", "max"):
            return f"{self.function}({quoted})"
        # A bigint is added as a decimal: a sum of bigints that overflows stops the stream.
        added = quoted if self.kind.startswith("decimal") else f"CAST({quoted} AS DECIMAL(20, 0))"
        total = f"CAST(sum({added}) AS DECIMAL({SUM_DIGITS}, {self.scale}))"
        if self.function == "sum":
            return total
        mean = f"{total} / nullif(CAST(count({quoted}) AS DECIMAL(10, 0)), 0)"
        return f"CAST({mean} AS DECIMAL({SUM_DIGITS}, {self.scale + MEAN_DECIMALS}))"

    def compute(self, values: Sequence[Any]) -> Any:
        """Return the column over values that are not null, as the SQL has to give it; None without values."""
        if not values:
            return None
        if self.function in ("min", "max"):
            return (min if self.function == "min" else max)(values)
        total = sum((self._rounded(value, self.scale) for value in values), Decimal(0))
        if self.function == "sum":
            return total
        return self._rounded(_EXACT.divide(total, Decimal(len(values))), self.scale + MEAN_DECIMALS)

    @staticmethod
    def _rounded(value: Any, decimals: int) -> Decimal:
        return Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP, context=_EXACT)


def _is_number(kind: str | None) -> bool:
    """Say whether a type can be added without a loss: a decimal of more digits could overflow, which stops the stream."""
    if kind in ("bigint", "int", "double"):
        return True
    return (kind or "").startswith("decimal(") and int(
        (kind or "").removeprefix("decimal(").partition(",")[0]
    ) <= MOST_DIGITS


def functions_of(kind: str) -> tuple[str, ...]:
    """Return which functions are exact for a type."""
    return ("min", "max") if kind == "double" else FUNCTIONS


def choose_measures(fields: Sequence[FieldGuess], event: FieldGuess | None, keys: Sequence[str]) -> tuple[Measure, ...]:
    """Return sum and mean of the field that looks most like an amount; mean and largest of one that is a level; smallest and largest of a double."""
    candidates = [
        each
        for each in fields
        if _is_number(each.kind)
        and each is not event
        and each.name not in keys
        and not words_of(each.name) & _COUNTED
        and not is_time_name(each.name)
        and len(each.name) <= 58
        and each.distinct > 1
    ]
    if not candidates:
        return ()
    best = max(
        candidates,
        key=lambda each: (
            bool(words_of(each.name) & (_AMOUNTS | _LEVELS)),
            each.kind != "double",
            each.complete,
            each.distinct,  # a figure has many values, and a number that names something has few
        ),
    )
    kind = best.kind or ""
    level = words_of(best.name) & _LEVELS
    chosen = ("min", "max") if kind == "double" else ("mean", "max") if level else ("sum", "mean")
    why = (
        "a double: its sum would be inexact, its smallest and largest values are not"
        if kind == "double"
        else f"a {min(level)} is measured, not counted, so its sum would mean nothing; its mean is exact"
        if level
        else "numbers that look like an amount; added as decimals, which is exact"
    )
    return tuple(Measure(best.name, each, kind, why) for each in chosen)


def parse_measures(asked: Sequence[str], fields: Sequence[FieldGuess]) -> tuple[Measure, ...]:
    """Return the columns that a person asked for.

    Raises:
        RequestError: one names no number of the sample, or a function that is not exact for it.
    """
    numbers = {each.name: each for each in fields if _is_number(each.kind)}
    measures: list[Measure] = []
    for text in asked:
        name, _, function = text.partition(":")
        if name not in numbers:
            message = f"--columns {text}: {name!r} is not a numeric field; {did_you_mean(name, numbers)}"
            raise RequestError(message)
        kind = numbers[name].kind or ""
        exact = functions_of(kind)
        if function and function not in exact:
            message = (
                f"--columns {text}: of {name}, a {kind}, a definition can have {', '.join(exact)}; "
                f"{did_you_mean(function, exact)}"
            )
            raise RequestError(message)
        wanted = (function,) if function else exact[:2]
        measures += [Measure(name, each, kind, "") for each in wanted]
    unique = tuple(dict.fromkeys(measures))
    for each in unique:
        if not COLUMN.match(each.column):
            message = f"--columns {each.field}: the column {each.column} would have more than 64 characters; write it yourself"
            raise RequestError(message)
    return unique


# Watermark delay and window length from the event times of a sample. Pure.

LENGTHS = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 900, 3_600, 21_600, 86_400))
"""Lengths of windows that are suggested."""
DELAYS = tuple(
    timedelta(seconds=seconds)
    for seconds in (10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
)  # fmt: skip
"""Delays that are suggested."""
ENOUGH = 20
"""Records that a window of one key should hold, so that a figure over them means something."""
USUAL_LENGTH, USUAL_DELAY, USUAL_FUTURE = timedelta(hours=1), timedelta(minutes=1), timedelta(hours=1)


@dataclass(frozen=True)
class TimedRecord:
    """The times of one record of a sample.

    Attributes:
        stamped: the record's own timestamp; None: it comes from a file.
    """

    partition: int
    stretch: int
    offset: int
    event: datetime
    stamped: datetime | None


@dataclass(frozen=True)
class Chosen:
    """A duration and why it was chosen."""

    value: timedelta
    why: str
    measured: bool


def stretches(records: Sequence[TimedRecord]) -> dict[tuple[int, int], list[TimedRecord]]:
    """Return the records by (partition, stretch), in the order of the log."""
    groups: dict[tuple[int, int], list[TimedRecord]] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.stretch, each.offset)):
        groups.setdefault((record.partition, record.stretch), []).append(record)
    return groups


def largest_disorder(records: Sequence[TimedRecord]) -> tuple[timedelta, int]:
    """Return how far an event time is at most before that of an earlier record of the same stretch, and of how many records it is before."""
    widest, disordered = timedelta(0), 0
    for group in stretches(records).values():
        largest = group[0].event
        for record in group:
            widest = max(widest, largest - record.event)
            disordered += record.event < largest
            largest = max(largest, record.event)
    return widest, disordered


def choose_delay(records: Sequence[TimedRecord]) -> Chosen:
    """Return a watermark delay: twice the largest disorder of the sample, rounded up."""
    widest, disordered = largest_disorder(records)
    if not disordered:
        why = (
            f"no record of the sample ({len(records)}) comes after a later one of its partition; records of other partitions may, so it is "
            "not zero"
        )
        return Chosen(USUAL_DELAY, why, measured=False)
    value = next((delay for delay in DELAYS if delay >= 2 * widest), DELAYS[-1])
    why = f"{disordered} of {len(records)} records come after a later one of their partition, by at most {_rounded(widest)}; twice that, rounded up"
    if value < widest:
        why = (
            f"records come after a later one of their partition by up to {_rounded(widest)}: the log is not in the order of event time, and a "
            f"delay as long as that keeps windows open as long; `rivertwice docs howto-first-load` shows how to load a history"
        )
    return Chosen(value, why, measured=True)


def choose_future(records: Sequence[TimedRecord]) -> Chosen:
    """Return how far an event time may be after its record's timestamp."""
    ahead = [record.event - record.stamped for record in records if record.stamped is not None]
    widest = max(ahead, default=timedelta(0))
    if widest <= timedelta(0):
        return Chosen(USUAL_FUTURE, "no event time of the sample is after its record's timestamp", measured=False)
    value = max(next((delay for delay in DELAYS if delay >= 2 * widest), 2 * widest), USUAL_FUTURE)
    return Chosen(
        value,
        f"event times are up to {_rounded(widest)} after their record's timestamp; twice that, rounded up",
        measured=True,
    )


def choose_length(records: Sequence[TimedRecord], keys: int) -> Chosen:
    """Return the length of a window: the shortest usual one in which a key has enough records.

    Args:
        keys: how many values of the key the sample has.
    """
    rates: dict[int, list[float]] = {}
    for (partition, _), group in stretches(records).items():
        span = (max(each.event for each in group) - min(each.event for each in group)).total_seconds()
        if len(group) > 1 and span > 0:
            rates.setdefault(partition, []).append((len(group) - 1) / span)
    rate = sum(sum(each) / len(each) for each in rates.values()) / max(keys, 1)
    if not rate:
        return Chosen(USUAL_LENGTH, "the sample has too few records to show how dense they are", measured=False)
    value = next((length for length in LENGTHS if rate * length.total_seconds() >= ENOUGH), LENGTHS[-1])
    first, last = event_range(records)
    widest = next((length for length in reversed(LENGTHS) if length <= (last - first) / 3), LENGTHS[0])
    chosen = min(value, widest)
    why = f"about {rate * chosen.total_seconds():.3g} records of each key in {format_duration(chosen)}, as dense as the sample is"
    if chosen < value:
        why += "; a longer one would have more, but the sample would not fill three of them"
    return Chosen(chosen, why, measured=True)


def _rounded(value: timedelta) -> str:
    return format_duration(value - value % timedelta(seconds=1) if value >= timedelta(seconds=10) else value)


def window_start(event: datetime, window: timedelta) -> datetime:
    """Return the start of the window that an event belongs to: a multiple of its length from the epoch, as Spark's `window` has it."""
    return event - (event - EPOCH) % window


def event_range(records: Sequence[TimedRecord]) -> tuple[datetime, datetime]:
    """Return the first and the last event time of at least one record."""
    events = [record.event for record in records]
    return min(events), max(events)


YAML, SQL = "pipeline.yaml", "transform.sql"
ASKED = "asked for on the command line"


@dataclass(frozen=True)
class Overrides:
    """What a person says instead of the guess; None and empty: guess it.

    Attributes:
        event_time: a field.
        window, watermark: durations.
        columns: `FIELD`, or `FIELD:sum`, `FIELD:mean`, `FIELD:min`, `FIELD:max`.
    """

    event_time: str | None = None
    keys: tuple[str, ...] = ()
    window: timedelta | None = None
    watermark: timedelta | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuessReason:
    """One part of the guess.

    Attributes:
        value: what was chosen; None: not known, and the file has a gap.
        why: from what it was concluded, or what to do.
        sure: `certain`, `likely`, `a guess`, `unknown`.
        where: in which file and place to change it.
    """

    what: str
    value: str | None
    why: str
    sure: str
    where: str


@dataclass(frozen=True)
class Guess:
    """A definition and the reasons of its parts.

    Attributes:
        view: what the SQL calls the topic.
        fields: all fields of the sample; those without a type are not declared.
        event_time: None: no field can be it, and the definition has a gap.
        measures: the columns beside the count.
        required: fields that must have a value.
        table: the records are change events, and the definition is the fold that keeps this table; None: they are not.
        findings: the reasons, in the order in which they are shown.
    """

    name: str
    view: str
    sample: RecordSample
    fields: tuple[FieldGuess, ...]
    event_time: FieldGuess | None
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    count_column: str
    window: timedelta
    watermark: timedelta
    max_future: timedelta
    required: tuple[str, ...]
    table: TableGuess | None = None
    findings: tuple[GuessReason, ...] = field(default=())

    @property
    def declared(self) -> list[FieldGuess]:
        """The fields that the definition declares."""
        return [each for each in self.fields if each.kind is not None]

    @property
    def has_heartbeat(self) -> bool:
        """Whether the definition declares heartbeats: for windows over a file, after whose last record nothing comes that closes them."""
        is_free = all(each.name != HEARTBEAT for each in self.fields)
        return self.table is None and self.sample.is_file and self.sample.encoding.format == "json" and is_free

    @property
    def gaps(self) -> list[str]:
        """What a person has to write before the pipeline can run."""
        return [] if self.event_time is not None or self.table is not None else ["event_time"]


def make_guess(name: str, sample: RecordSample, wishes: Overrides) -> Guess:
    """Return the definition that a sample suggests.

    Raises:
        RequestError: a wish names a field that the sample does not have, or that cannot be what it is wished to be.
    """
    table = guess_table(sample)
    if table is not None:
        return _of_table(name, table, wishes)
    sample = open_cloud_events(sample) or flatten(sample)
    fields = tuple(
        guess_fields(
            [record.value for record in sample.records],
            sample.encoding.types,
            names_are_given=not sample.is_file,
        )
    )
    _require_fields(fields, sample, wishes)
    event, event_finding = choose_event_time(fields, sample, wishes.event_time)
    timed = timed_records(sample, event)
    keys, key_findings = choose_keys(fields, sample, event, wishes.keys)
    asked = parse_measures(wishes.columns, fields)
    measures = asked or choose_measures(fields, event, keys)
    cells = {tuple(record.value.get(key) for key in keys) for record in sample.records}
    length = choose_length(timed, len(cells))
    delay = (
        choose_delay(timed) if timed else Chosen(USUAL_DELAY, "there is no event time to measure it by", measured=False)
    )
    future = choose_future(timed)
    taken = {*keys, *(each.column for each in measures)}
    count_column = next(each for each in ("records", "record_count", "number_of_records") if each not in taken)
    required = tuple(
        each.name
        for each in fields
        if each.kind and each.complete and each.name in {*keys, *(one.field for one in measures)}
    )
    guess = Guess(
        name=name,
        view=view_name(sample.topic),
        sample=sample,
        fields=fields,
        event_time=event,
        keys=keys,
        measures=measures,
        count_column=count_column,
        window=wishes.window or length.value,
        watermark=wishes.watermark if wishes.watermark is not None else delay.value,
        max_future=future.value,
        required=required,
    )
    findings = [
        *_envelope_findings(guess),
        *_field_findings(guess),
        event_finding,
        *key_findings,
        _duration(
            "window",
            guess.window,
            length,
            asked=wishes.window is not None,
            where=f"{YAML}: window.size, and window() in {SQL}",
        ),
        _duration(
            "watermark",
            guess.watermark,
            delay,
            asked=wishes.watermark is not None,
            where=f"{YAML}: sources.{guess.view}.watermark",
        ),
        _duration(
            "max_future", guess.max_future, future, asked=False, where=f"{YAML}: sources.{guess.view}.max_future"
        ),
        *_measure_findings(guess, asked=bool(asked)),
        _required_finding(guess),
        *_sample_findings(guess),
    ]
    return replace(guess, findings=tuple(findings))


def _of_table(name: str, table: TableGuess, wishes: Overrides) -> Guess:
    sample, connector, event = table.sample, table.connector, table.event_time
    if wishes != Overrides():
        message = f"{sample.origin} holds change events of a table ({connector.name}), so the definition is a fold that keeps it: leave out --event-time, --key, --window, --watermark and --columns"
        raise RequestError(message)
    guess = Guess(
        name=name,
        view=view_name(sample.topic),
        sample=sample,
        fields=table.fields,
        event_time=event,
        keys=table.keys,
        measures=(),
        count_column="records",
        window=timedelta(days=1),
        watermark=USUAL_DELAY,
        max_future=USUAL_FUTURE,
        required=table.keys,
        table=table,
    )
    kind = GuessReason("table", "a fold of change events", connector.why, CERTAIN, YAML)
    why = f"no field of the table: when {connector.name} wrote the event"
    time = GuessReason("event time", _read(event), why, CERTAIN, f"{YAML}: event_time")
    keys = GuessReason(
        "keys", ", ".join(table.keys), table.why, table.sure, f"{YAML}: keys, by, required and key_field"
    )
    no_case = GuessReason(
        "case",
        None,
        "a guess writes none for a fold: make one of real records by `rivertwice test NAME --from-log` when the stream has read some",
        UNKNOWN,
        "cases/",
    )
    return replace(guess, findings=(kind, *_field_findings(guess), time, keys, no_case, *_sample_findings(guess)))


def view_name(topic: str) -> str:
    """Return the name of a view for a topic: a-z, 0-9 and _."""
    name = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")[:60]
    return name if name[:1].isalpha() else f"t_{name}".rstrip("_")


def timed_records(sample: RecordSample, event: FieldGuess | None) -> list[TimedRecord]:
    """Return the times of the records that have an event time."""
    if event is None:
        return []
    pairs = ((record, as_instant(record.value.get(event.name), event.unit)) for record in sample.records)
    return [
        TimedRecord(record.partition, record.stretch, record.offset, instant, record.stamped)
        for record, instant in pairs
        if instant is not None
    ]


def _require_fields(fields: Sequence[FieldGuess], sample: RecordSample, wishes: Overrides) -> None:
    names = {each.name for each in fields}
    options = (("--event-time", [wishes.event_time] if wishes.event_time else []), ("--key", wishes.keys))
    for option, asked in options:
        for name in asked:
            if name not in names:
                message = f"{option} {name}: no record of {sample.origin} has such a field; {did_you_mean(name, names)}"
                raise RequestError(message)


def _envelope_findings(guess: Guess) -> list[GuessReason]:
    sample = guess.sample
    if sample.envelope is None:
        return []
    where = f"{YAML}: sources.{guess.view}.paths"
    why = "every record has specversion, id, source, type and data; the fields are those of data"
    found = [GuessReason("envelope", sample.envelope, why, CERTAIN, where)]
    if any(path.startswith(("data.after.", "data.payload.after.")) for path in sample.paths.values()):
        change = "data holds change events of a table: let the connector write JSON without CloudEvents (value.converter=org.apache.kafka.connect.json.JsonConverter), and init writes the fold that keeps the table"
        found.append(GuessReason("table", None, change, UNKNOWN, "the connector"))
    return found


def _field_findings(guess: Guess) -> list[GuessReason]:
    where = f"{YAML}: sources.{guess.view}.schema"
    findings = []
    for each in guess.fields:
        share = "" if each.complete else f"; no value in {each.total - each.seen} of {each.total} records"
        value = "not taken" if each.kind is None else each.kind
        path = guess.sample.paths.get(each.name)
        share += "" if path is None or each.kind is None else f"; read from {path}"
        findings.append(GuessReason(f"field {each.name}", value, each.why + share, each.sure, where))
    return findings


def _duration(what: str, value: timedelta, chosen: Chosen, *, asked: bool, where: str) -> GuessReason:
    if asked:
        return GuessReason(what, format_duration(value), ASKED, CERTAIN, where)
    return GuessReason(what, format_duration(value), chosen.why, LIKELY if chosen.measured else GUESS, where)


def _measure_findings(guess: Guess, *, asked: bool) -> list[GuessReason]:
    where = f"{SQL}, and {YAML}: columns"
    count = GuessReason(
        "column " + guess.count_column,
        "count(*)",
        "counts the records of a row; the balance is computed from it",
        CERTAIN,
        where,
    )
    if not guess.measures:
        none = GuessReason(
            "other columns",
            None,
            "no field looks like a figure to add up; write columns as you need them",
            UNKNOWN,
            where,
        )
        return [count, none]
    sure = CERTAIN if asked else GUESS
    return [
        count,
        *(
            GuessReason(f"column {each.column}", each.text, ASKED if asked else each.why, sure, where)
            for each in guess.measures
        ),
    ]


def _required_finding(guess: Guess) -> GuessReason:
    named = ", ".join(guess.required) or "none"
    total = len(guess.sample.records)
    why = f"keys and figures that have a value in all {total} records; a record without one becomes a dead letter (the event time is required anyway)"
    return GuessReason("required", named, why, GUESS, f"{YAML}: sources.{guess.view}.required")


def _sample_findings(guess: Guess) -> list[GuessReason]:
    sample = guess.sample
    held = "" if sample.held is None else f" of {sample.held}"
    skipped = "".join(f"; {count} left out: {reason}" for reason, count in sample.skipped.items())
    why = f"{len(sample.records)}{held} records of {sample.origin} were looked at{skipped}"
    read_as = [
        GuessReason(
            "file",
            line,
            "sniffed from its content",
            LIKELY if number == 0 else UNKNOWN,
            "--delimiter, --decimal, --time-format, --encoding",
        )
        for number, line in enumerate(sample.read_as)
    ]
    partitions = GuessReason("partitions", str(sample.partitions), "the topic is made with it" if sample.is_file else "the topic has it", LIKELY if sample.is_file else CERTAIN, f"{YAML}: sources.{guess.view}.partitions")  # fmt: skip
    return [
        *read_as,
        partitions,
        GuessReason("sample", f"{len(sample.records)} records", why, CERTAIN, "init --records"),
    ]
