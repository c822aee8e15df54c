"""The type of each field of a sample, and why. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from rivertwice.definition import MOST_PARTS, PART, value_at
from rivertwice.local import sample as times
from rivertwice.local.read_file import field_name
from rivertwice.local.sample import CLOUD_EVENTS, RecordSample

CERTAIN, LIKELY, GUESS, UNKNOWN = "certain", "likely", "a guess", "unknown"
COLUMN = re.compile(r"^[a-z][a-z0-9_]{0,63}\Z")
MOST_DECIMALS = 6
"""Numbers with more digits after the point are measurements, not amounts: they become doubles."""
BIGINT_END = 2**63
RESERVED = {"window", "window_start", "window_end"}
"""Names that every result with windows has."""


@dataclass(frozen=True)
class FieldGuess:
    """What a sample shows about one field.

    Attributes:
        name: as the records have it.
        kind: the SQL type; None: the field is not taken.
        unit: of a `timestamp` whose value is a number since 1970; None: it is a text.
        why: from what the type was concluded, or why the field is not taken and what to do.
        seen: records in which it has a value.
        largest: the largest share of one value among `seen`.
        example: one value, as JSON.
        form: the form of a time that no definition reads; None: it has none.
    """

    name: str
    kind: str | None
    unit: str | None
    why: str
    sure: str
    seen: int
    total: int
    distinct: int
    largest: float
    example: str
    form: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every record has a value."""
        return self.seen == self.total


def guess_fields(
    values: Sequence[Mapping[str, Any]], known: Mapping[str, str], *, names_are_given: bool = True
) -> list[FieldGuess]:
    """Return the fields in the order in which they first come.

    Args:
        known: field to type, as a schema gives it; these are not guessed.
        names_are_given: whether the records exist under these names, so that other names cannot be chosen.
    """
    names = dict.fromkeys(name for value in values for name in value)
    return [_guess(name, values, known.get(name), given=names_are_given) for name in names]


def _guess(name: str, values: Sequence[Mapping[str, Any]], known: str | None, *, given: bool) -> FieldGuess:
    present = [value[name] for value in values if value.get(name) is not None]
    texts = [json.dumps(value, default=str, sort_keys=True, ensure_ascii=False) for value in present]
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    kind, unit, why, sure, form = _judge(name, present, known)
    if kind is not None and (not COLUMN.match(name) or name in RESERVED):
        kind, unit, form = None, None, None
        why = _name_refusal(name, given=given)
        sure = CERTAIN
    return FieldGuess(
        name=name,
        kind=kind,
        unit=unit,
        why=why,
        sure=sure,
        seen=len(present),
        total=len(values),
        distinct=len(counts),
        largest=max(counts.values(), default=0) / max(len(present), 1),
        example=next(iter(texts), "null")[:60],
        form=form,
    )


def _name_refusal(name: str, *, given: bool) -> str:
    if name in RESERVED:
        return f"{name} is a name of the result's window, so a field cannot have it"
    where = "let the producer send it under such a name" if given else "rename the column"
    return f"names of columns are a-z, 0-9 and _, and begin with a letter (at most 64); {where} if it is needed"


_Verdict = tuple[str | None, str | None, str, str, str | None]


def _judge(name: str, present: Sequence[Any], known: str | None) -> _Verdict:
    if known is not None:
        return known, None, "the schema in the registry says so", CERTAIN, None
    if not present:
        return (
            None,
            None,
            "it is null in every record of the sample, so its type is not known; declare it if it is used",
            UNKNOWN,
            None,
        )
    shapes = {_shape(value) for value in present}
    if shapes & {"object", "array"}:
        return _nested(name, present, shapes)
    if shapes == {"boolean"}:
        return "boolean", None, f"true or false in {len(present)} records", LIKELY, None
    if shapes == {"integer"}:
        return _whole(name, present)
    if shapes <= {"integer", "number"}:
        return _fraction(name, present)
    if shapes == {"string"}:
        return _text(present)
    mixed = " and ".join(sorted(shapes))
    return "string", None, f"values are {mixed}; a string field takes the text of each", GUESS, None


def _shape(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, Decimal | float):
        return "number"
    return "string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array"


def _nested(name: str, present: Sequence[Any], shapes: set[str]) -> _Verdict:
    if shapes == {"object"}:
        inner = next((key for value in present for key in value), "x")
        why = (
            f"it is an object, and a field is one value; to use a part of it, declare `{name}: string` (the text of the object) and "
            f"write get_json_object({name}, '$.{inner}') in transform.sql"
        )
        return None, None, why, CERTAIN, None
    why = f"it is an array, and a field is one value; to use it, declare `{name}: string` and take parts by get_json_object({name}, '$[0]')"
    return None, None, why, CERTAIN, None


def _whole(name: str, present: Sequence[int]) -> _Verdict:
    unit = times.epoch_unit(name, present)
    if unit == times.NANOS:
        why = "whole numbers of nanoseconds since 1970, which no definition reads as a time; let the producer send microseconds, or ISO 8601"
        return "bigint", None, why, LIKELY, "nanoseconds since 1970"
    if unit is not None:
        words = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[unit]
        sure = LIKELY if times.is_time_name(name) else GUESS
        return (
            "timestamp",
            unit,
            f"whole numbers that are {words} since 1970 between 1985 and 2128 (`epochs: {{{name}: {unit}}}` reads them)",
            sure,
            None,
        )
    if any(not -BIGINT_END <= value < BIGINT_END for value in present):
        return "decimal(38,0)", None, "whole numbers beyond 64 bits", LIKELY, None
    return "bigint", None, "whole numbers; bigint, so that a larger one is not a dead letter", LIKELY, None


def _fraction(name: str, present: Sequence[Any]) -> _Verdict:
    numbers = [value if isinstance(value, Decimal) else Decimal(str(value)) for value in present]
    if times.is_fractional_epoch(name, present):
        why = "numbers that are seconds since 1970 with a fraction, which no definition reads as a time; let the producer send whole milliseconds"
        return "double", None, why, LIKELY, "seconds since 1970 with a fraction"
    decimals = max(max(0, -int(number.as_tuple().exponent)) for number in numbers)
    if decimals <= MOST_DECIMALS and all(abs(number) < 10 ** (18 - decimals) for number in numbers):
        scale = max(decimals, 2) if decimals else 2
        why = f"numbers of at most {decimals} decimals; decimal, because sums of doubles depend on their order; a record with more is a dead letter"
        return f"decimal(18,{scale})", None, why, LIKELY, None
    return (
        "double",
        None,
        f"numbers of up to {decimals} decimals: measurements; they are not summed, because sums of doubles are inexact",
        LIKELY,
        None,
    )


def _text(present: Sequence[str]) -> _Verdict:
    form = times.text_form(present)
    if form == times.ISO:
        return "timestamp", None, f"{times.ISO} in {len(present)} records, for instance {present[0]}", CERTAIN, None
    if form is not None:
        return (
            "string",
            None,
            f"{form} ({present[0]}), which no definition reads as a time: it must be {times.ISO}",
            LIKELY,
            form,
        )
    return "string", None, f"texts in {len(present)} records", LIKELY, None


# Records as fields: an object within a record becomes the fields it holds, and a name in capitals one that SQL can have. Pure.
#
# A definition reads such a field by its path (`paths` in `pipeline.yaml`), so that the producer changes nothing.

MOST_FIELDS = 300
"""Fields that are looked at; of a record with more (a map with a key for each customer, say) the rest stays an object."""


def flatten(sample: RecordSample, inside: tuple[str, ...] = ()) -> RecordSample:
    """Return the sample with a value for each field, and the path of each field that has another name in the records.

    Args:
        sample: the records.
        inside: names that lead to the object whose fields are taken, outermost first; empty: the record itself.
    """
    if sample.encoding.format != "json":
        return sample
    values = [record.value if not inside else value_at(record.value, inside) or {} for record in sample.records]
    found = {path: None for value in values for path in _leaves(value, inside)}
    first = len(inside) + 1
    mixed = {path[:depth] for path in found for depth in range(first, len(path)) if path[:depth] in found}
    inner = [
        path
        for path in found
        if len(path) == first or not any(path[:depth] in mixed for depth in range(first, len(path)))
    ]
    names = _named(inner[:MOST_FIELDS], len(inside))
    if all(path == (name,) for path, name in names.items()) and len(names) == len(found):
        return sample
    records = [
        replace(
            record,
            value={name: leaf for path, name in names.items() if (leaf := value_at(record.value, path)) is not None},
            sent=record.value,
        )
        for record in sample.records
    ]
    return replace(
        sample, records=records, paths={name: ".".join(path) for path, name in names.items() if path != (name,)}
    )


def _leaves(value: Mapping[str, Any], outer: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, each in value.items():
        path = (*outer, name)
        if isinstance(each, Mapping) and each and len(path) < MOST_PARTS and PART.match(name):
            yield from _leaves(each, path)
        else:
            yield path


def _named(paths: Sequence[tuple[str, ...]], outer: int) -> dict[tuple[str, ...], str]:
    """Return path to the name of its field; a path that cannot be read keeps its own text, which is refused as a name."""
    names: dict[tuple[str, ...], str] = {}
    for path in paths:
        inner = path[outer:]
        own = inner[0] if len(inner) == 1 and COLUMN.match(inner[0]) and inner[0] not in RESERVED else None
        if own is None and not all(PART.match(part) for part in path):
            names[path] = ".".join(inner)
            continue
        name = own or field_name("_".join(inner))
        if name in RESERVED or name in names.values():
            number = next(each for each in range(2, MOST_FIELDS + 2) if f"{name[:60]}_{each}" not in names.values())
            name = f"{name[:60]}_{number}"
        names[path] = name
    return names


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return a name for what an envelope says beside the fields of its record: the first of three that is not taken."""
    return next(each for each in (name, f"{name}_of_event", f"{name}_by_log") if each not in taken)


def open_cloud_events(sample: RecordSample) -> RecordSample | None:
    """Return the events within CloudEvents in JSON (structured mode): the fields of `data`, and what the envelope says of them; None if a record is none.

    `time` is the event time. Of the other attributes those are taken that tell events apart; `id` has another value in each.
    """
    if sample.encoding.format != "json" or not all(map(_is_cloud_event, (each.value for each in sample.records))):
        return None
    bodies = [body for record in sample.records if (body := record.value.get("data"))]
    if not bodies:
        return None
    has_schema = all("schema" in body and isinstance(body.get("payload"), Mapping) for body in bodies)
    opened = flatten(sample, ("data", "payload") if has_schema else ("data",))
    taken = set(opened.paths) | {name for record in opened.records for name in record.value}
    said = {
        name: {record.value.get(name) for record in sample.records} for name in ("time", "type", "source", "subject")
    }
    outer = {name: free_name(name, taken) for name, values in said.items() if name == "time" or len(values) > 1}
    records = [
        replace(
            record,
            value={
                **{field: record.as_sent[name] for name, field in outer.items() if name in record.as_sent},
                **record.value,
            },
        )
        for record in opened.records
    ]
    paths = {**{field: name for name, field in outer.items() if name != field}, **opened.paths}
    return replace(opened, records=records, paths=paths, envelope=CLOUD_EVENTS, event_time=outer["time"])


def _is_cloud_event(value: Mapping[str, Any]) -> bool:
    required = all(isinstance(value.get(name), str) for name in ("specversion", "id", "source", "type"))
    optional = all(isinstance(value.get(name), str | None) for name in ("time", "subject"))
    return required and optional and isinstance(value.get("data"), Mapping | None)
