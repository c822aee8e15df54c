"""Cases made of a sample's own records, with the rows that they have to give. Pure.

The rows are computed here by the rules that docs/definitions.md states, not by Spark: `rivertwice test` compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import yaml

from rivertwice.core import EPOCH, Row, to_iso
from rivertwice.local.guess import Guess, window_start
from rivertwice.local.sample import SampleRecord, as_instant

MOST_IN_WINDOW, MOST_CHARACTERS = 6, 2_000
_HEAD = (
    "Made by `rivertwice init` from records of {origin}.",
    "CHECK the rows under `expect` against what you know of these records: they are what the guessed definition should give,",
    "which need not be what you want. `rivertwice test {name}` runs this as a stream and as a batch.",
)


@dataclass(frozen=True)
class TimedSample:
    """A record that the definition accepts, with its event time."""

    record: SampleRecord
    event: datetime

    @property
    def id(self) -> str:
        """How a case names it: partition and offset."""
        return f"{self.record.partition}-{self.record.offset}"

    @property
    def at(self) -> datetime:
        """The record's timestamp; a file has none, so it is the event time."""
        return self.record.stamped or self.event


Batches = list[list[TimedSample]]


def make_cases(guess: Guess) -> dict[str, str]:
    """Return file name to text of the cases that the sample allows; none without an event time or an accepted record."""
    usable = accepted_records(guess)
    if not usable:
        return {}
    start = window_start(_densest(guess, usable).event, guess.window)
    inside = [each for each in usable if window_start(each.event, guess.window) == start][: MOST_IN_WINDOW + 1]
    after = [each for each in usable if each.event >= start + guess.window + guess.watermark and each not in inside][:2]
    first = [inside[:MOST_IN_WINDOW], *([[after[0]]] if after else [])]
    closing = (
        ", and the first record that closes it"
        if after
        else "; no record of the sample closes it, so the stream emits nothing"
    )
    texts = {"records_of_one_window.yaml": _text(guess, f"Records of one window{closing}.", first)}
    if len(after) == 2 and len(inside) > 1:
        late = [inside[:-1], [after[0]], [after[1]], [inside[-1]]]
        title = "The same window, but its last record comes when the watermark has passed the window's end: the stream drops it as late."
        texts["a_record_that_is_late.yaml"] = _text(guess, title, late)
    return texts


def accepted_records(guess: Guess) -> list[TimedSample]:
    """Return the records that the definition accepts and a person can read, in the order of the sample."""
    event = guess.event_time
    if event is None:
        return []
    usable = []
    for record in sorted(
        guess.sample.records, key=lambda each: (each.stretch, each.stamped or EPOCH, each.partition, each.offset)
    ):
        instant = as_instant(record.value.get(event.name), event.unit)
        if instant is None or any(record.value.get(name) is None for name in guess.required):
            continue
        timed = TimedSample(record, instant)
        if instant - timed.at <= guess.max_future and _is_readable(record.as_sent):
            usable.append(timed)
    return usable


def _is_readable(value: Mapping[str, Any]) -> bool:
    """Say whether a value can be in a case: short, and without halves of characters, which no file can hold."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return len(text) <= MOST_CHARACTERS and not any("\ud800" <= each <= "\udfff" for each in text)


def _densest(guess: Guess, usable: Sequence[TimedSample]) -> TimedSample:
    """Return the first record of the window that has most of the records.

    One that two later records close is better; the earlier one is better if two have as many.
    """
    counts: dict[datetime, int] = {}
    for each in usable:
        start = window_start(each.event, guess.window)
        counts[start] = counts.get(start, 0) + 1
    last = sorted(each.event for each in usable)[-2:][0]
    closes = {start: start + guess.window + guess.watermark <= last for start in counts}
    best = max(
        counts,
        key=lambda start: (closes[start], min(counts[start], MOST_IN_WINDOW + 1), -(start - EPOCH).total_seconds()),
    )
    return next(each for each in usable if window_start(each.event, guess.window) == best)


def expected_results(guess: Guess, batches: Batches) -> dict[str, Any]:
    """Return what a case of these micro-batches has to give.

    A micro-batch drops a record if its window ended at or before the watermark of the batch before it. A window is emitted when the
    watermark has reached its end; a last batch without records runs with the watermark of all records.
    """
    marks = [EPOCH, EPOCH]  # the late filter's watermark of each batch, then that of the batch after the last
    for batch in batches:
        marks.append(max(marks[-1], max(_whole_ms(each.event) for each in batch) - guess.watermark))
    kept: list[TimedSample] = []
    late: list[TimedSample] = []
    for mark, batch in zip(marks, batches, strict=False):
        for each in batch:
            is_late = window_start(each.event, guess.window) + guess.window <= mark
            (late if is_late else kept).append(each)
    closed = [row for row in _rows(guess, kept) if row[1] <= marks[-1]]
    everything = [each for batch in batches for each in batch]
    return {
        "batch": [row for row, _ in _rows(guess, everything)],
        "stream": [row for row, _ in closed],
        "late": [each.id for each in late],
        "dead": {},
    }


def _whole_ms(instant: datetime) -> datetime:
    return instant - (instant - EPOCH) % timedelta(milliseconds=1)


def _rows(guess: Guess, records: Sequence[TimedSample]) -> list[tuple[Row, datetime]]:
    """Return each row with its window's end, by window and key."""
    groups: dict[tuple[datetime, tuple[str, ...]], list[TimedSample]] = {}
    for each in records:
        cell = tuple(json.dumps(each.record.value.get(key), default=str) for key in guess.keys)
        groups.setdefault((window_start(each.event, guess.window), cell), []).append(each)
    rows = []
    for (start, _), members in sorted(groups.items(), key=lambda item: item[0]):
        value = members[0].record.value
        row = {
            "window_start": to_iso(start),
            "window_end": to_iso(start + guess.window),
            **{key: _key_value(guess, key, value.get(key)) for key in guess.keys},
            guess.count_column: len(members),
        }
        for measure in guess.measures:
            values = [
                each.record.value[measure.field] for each in members if each.record.value.get(measure.field) is not None
            ]
            row[measure.column] = _plain(measure.compute(values))
        rows.append(({name: each for name, each in row.items() if not isinstance(each, Decimal)}, start + guess.window))
    return rows


def _key_value(guess: Guess, key: str, value: Any) -> Any:
    """Return a key as the result has it: a string field takes the text of other values."""
    kind, unit = next((each.kind, each.unit) for each in guess.fields if each.name == key)
    if kind == "timestamp":
        instant = as_instant(value, unit)
        return None if instant is None else to_iso(instant)
    return value if kind != "string" or value is None or isinstance(value, str) else json.dumps(value, default=str)


def _plain(value: Any) -> Any:
    """Return a figure as YAML writes it; a decimal that a float would change stays one, and is left out of the row."""
    if not isinstance(value, Decimal):
        return value
    plain = int(value) if value == value.to_integral_value() else float(value)
    return plain if Decimal(str(plain)) == value else value


def _event(guess: Guess, each: TimedSample) -> Row:
    event: dict[str, Any] = {"id": each.id, "at": to_iso(each.at)}
    if each.record.key is not None:
        event["key"] = each.record.key
    if guess.sample.encoding.format == "avro":
        return {**event, "value": {name: _avro_value(value) for name, value in each.record.value.items()}}
    plain = json.loads(json.dumps(each.record.as_sent, default=_json))
    return (
        {**event, "value": plain}
        if _is_same(plain, each.record.as_sent)
        else {**event, "raw": json.dumps(each.record.as_sent, default=_json)}
    )


def _avro_value(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value


def _json(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


def _is_same(plain: Any, value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_same(plain[name], each) for name, each in value.items())
    if isinstance(value, list):
        return all(_is_same(one, other) for one, other in zip(plain, value, strict=True))
    return Decimal(str(plain)) == value if isinstance(value, Decimal) else bool(plain == value)


def _text(guess: Guess, title: str, batches: Batches) -> str:
    body = {
        "description": title,
        "batches": [[_event(guess, each) for each in batch] for batch in batches],
        "expect": expected_results(guess, batches),
    }
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)
    head = "".join(f"# {line.format(origin=guess.sample.origin, name=guess.name)}\n" for line in _HEAD)
    return head + text
