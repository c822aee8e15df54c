"""Event time and keys, chosen among the fields of a sample. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivertwice.errors import RequestError
from rivertwice.nearest import did_you_mean
from rivertwice.scaffold.fields import CERTAIN, GUESS, LIKELY, UNKNOWN, FieldGuess
from rivertwice.scaffold.sample import Sample
from rivertwice.scaffold.times import ISO, as_instant, name_score, words_of

if TYPE_CHECKING:
    from rivertwice.scaffold.guess import Finding

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
    fields: Sequence[FieldGuess], sample: Sample, asked: str | None
) -> tuple[FieldGuess | None, Finding]:
    """Return the event time, and why it is that one; None if no field can be it.

    Raises:
        RequestError: the field that was asked for holds no time.
    """
    from rivertwice.scaffold.guess import Finding

    times = [each for each in fields if each.kind == "timestamp"]
    if asked is not None:
        chosen = next((each for each in times if each.name == asked), None)
        if chosen is None:
            raise RequestError(_no_time(next(each for each in fields if each.name == asked), times))
        return chosen, Finding("event time", _read(chosen), "asked for on the command line", CERTAIN, _EVENT_WHERE)
    usable = [each for each in times if each.total - each.seen <= MOST_ABSENT * each.total]
    ranked = sorted(usable, key=lambda each: -_event_score(each, sample))
    if not ranked:
        return None, Finding("event time", None, _gap(fields), UNKNOWN, _EVENT_WHERE)
    first = ranked[0]
    others = ", ".join(each.name for each in ranked[1:])
    clear = len(ranked) == 1 or _event_score(first, sample) - _event_score(ranked[1], sample) >= CLEAR
    why = f"it holds {'a time in every record' if first.complete else 'a time in most records'}"
    why += f", and its name fits better than {others}" if others else ", and no other field does"
    absent = "" if first.complete else f"; {first.total - first.seen} records without it would be dead letters"
    return first, Finding("event time", _read(first), why + absent, LIKELY if clear else GUESS, _EVENT_WHERE)


def _read(each: FieldGuess) -> str:
    words = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
    return f"{each.name} ({ISO if each.unit is None else f'{words[each.unit]} since 1970'})"


def _event_score(each: FieldGuess, sample: Sample) -> float:
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
        f"--event-time {each.name}: its values ({each.example}) are no time that a definition reads, which is {ISO} or whole seconds, "
        f"milliseconds or microseconds since 1970, so nothing was written{usable}"
    )


def choose_keys(
    fields: Sequence[FieldGuess], sample: Sample, event: FieldGuess | None, asked: Sequence[str]
) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the keys, and why.

    Raises:
        RequestError: a field that was asked for cannot be a key.
    """
    from rivertwice.scaffold.guess import Finding

    by_name = {each.name: each for each in fields}
    for name in asked:
        if by_name[name].kind is None or by_name[name].kind == "double" or by_name[name] is event:
            why = "it is the event time" if by_name[name] is event else by_name[name].why
            message = f"--key {name}: a key must be a field with a type, no double, and not the event time ({why}), so nothing was written"
            raise RequestError(message)
    if asked:
        return tuple(asked), [Finding("keys", ", ".join(asked), "asked for on the command line", CERTAIN, _KEY_WHERE)]
    same = kafka_key_field(fields, sample)
    candidates = [each for each in fields if each is not event and _can_be_key(each, is_kafka_key=each.name == same)]
    if not candidates:
        why = "no field divides the records into groups (few values, each often): all records of a window make one row"
        return (), [Finding("keys", "none", why, GUESS, _KEY_WHERE)]
    best = max(candidates, key=lambda each: _key_score(each, same))
    why = f"{best.distinct} values in {best.seen} records, the most frequent {best.largest:.0%}"
    if best.name == same:
        why += "; it is the Kafka key, so all records of a value are in one partition, in order"
    elif same is None:
        why += "; the Kafka key is no field of the records" if any(record.key for record in sample.records) else ""
    return (best.name,), [Finding("keys", best.name, why, LIKELY if best.name == same else GUESS, _KEY_WHERE)]


def kafka_key_field(fields: Sequence[FieldGuess], sample: Sample) -> str | None:
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
