"""A definition guessed from a sample, with the reason of each part. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from rivertwice.errors import RequestError
from rivertwice.nearest import did_you_mean
from rivertwice.pipeline.durations import format_duration
from rivertwice.scaffold import choose, timing
from rivertwice.scaffold.fields import CERTAIN, GUESS, LIKELY, UNKNOWN, FieldGuess, guess_fields
from rivertwice.scaffold.flatten import flatten
from rivertwice.scaffold.measures import Measure, choose_measures, parse_measures
from rivertwice.scaffold.sample import Sample
from rivertwice.scaffold.times import as_instant

YAML, SQL = "pipeline.yaml", "transform.sql"
ASKED = "asked for on the command line"


@dataclass(frozen=True)
class Wishes:
    """What a person says instead of the guess; None and empty: guess it.

    Attributes:
        event_time: a field.
        keys: fields.
        window, watermark: durations.
        columns: `FIELD`, or `FIELD:sum`, `FIELD:mean`, `FIELD:min`, `FIELD:max`.
    """

    event_time: str | None = None
    keys: tuple[str, ...] = ()
    window: timedelta | None = None
    watermark: timedelta | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One part of the guess.

    Attributes:
        what: the part.
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
        name: of the pipeline.
        view: what the SQL calls the topic.
        fields: all fields of the sample; those without a type are not declared.
        event_time: None: no field can be it, and the definition has a gap.
        keys: fields.
        measures: the columns beside the count.
        count_column: its name.
        required: fields that must have a value.
        timed: whether window and watermark were measured.
        findings: the reasons, in the order in which they are shown.
    """

    name: str
    view: str
    sample: Sample
    fields: tuple[FieldGuess, ...]
    event_time: FieldGuess | None
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    count_column: str
    window: timedelta
    watermark: timedelta
    max_future: timedelta
    required: tuple[str, ...]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def declared(self) -> list[FieldGuess]:
        """The fields that the definition declares."""
        return [each for each in self.fields if each.kind is not None]

    @property
    def gaps(self) -> list[str]:
        """What a person has to write before the pipeline can run."""
        return [] if self.event_time is not None else ["event_time"]


def make_guess(name: str, sample: Sample, wishes: Wishes) -> Guess:
    """Return the definition that a sample suggests.

    Raises:
        RequestError: a wish names a field that the sample does not have, or that cannot be what it is wished to be.
    """
    sample = flatten(sample)
    fields = tuple(
        guess_fields(
            [record.value for record in sample.records],
            sample.encoding.types,
            names_are_given=not sample.is_file,
        )
    )
    _require_fields(fields, sample, wishes)
    event, event_finding = choose.choose_event_time(fields, sample, wishes.event_time)
    timed = _timed(sample, event)
    keys, key_findings = choose.choose_keys(fields, sample, event, wishes.keys)
    asked = parse_measures(wishes.columns, fields)
    measures = asked or choose_measures(fields, event, keys)
    cells = {tuple(record.value.get(key) for key in keys) for record in sample.records}
    length = timing.choose_length(timed, len(cells))
    delay = (
        timing.choose_delay(timed)
        if timed
        else timing.Chosen(timing.USUAL_DELAY, "there is no event time to measure it by", measured=False)
    )
    future = timing.choose_future(timed)
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
    return Guess(**{**guess.__dict__, "findings": tuple(findings)})


def view_name(topic: str) -> str:
    """Return the name of a view for a topic: a-z, 0-9 and _."""
    name = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")[:60]
    return name if name[:1].isalpha() else f"t_{name}".rstrip("_")


def _timed(sample: Sample, event: FieldGuess | None) -> list[timing.TimedRecord]:
    if event is None:
        return []
    pairs = ((record, as_instant(record.value.get(event.name), event.unit)) for record in sample.records)
    return [
        timing.TimedRecord(record.partition, record.stretch, record.offset, instant, record.stamped)
        for record, instant in pairs
        if instant is not None
    ]


def _require_fields(fields: Sequence[FieldGuess], sample: Sample, wishes: Wishes) -> None:
    names = {each.name for each in fields}
    options = (("--event-time", [wishes.event_time] if wishes.event_time else []), ("--key", wishes.keys))
    for option, asked in options:
        for name in asked:
            if name not in names:
                message = f"{option} {name}: no record of {sample.origin} has such a field, so nothing was written; {did_you_mean(name, names)}"
                raise RequestError(message)


def _field_findings(guess: Guess) -> list[Finding]:
    where = f"{YAML}: sources.{guess.view}.schema"
    findings = []
    for each in guess.fields:
        share = "" if each.complete else f"; no value in {each.total - each.seen} of {each.total} records"
        value = "not taken" if each.kind is None else each.kind
        path = guess.sample.paths.get(each.name)
        share += "" if path is None or each.kind is None else f"; read from {path}"
        findings.append(Finding(f"field {each.name}", value, each.why + share, each.sure, where))
    return findings


def _duration(what: str, value: timedelta, chosen: timing.Chosen, *, asked: bool, where: str) -> Finding:
    if asked:
        return Finding(what, format_duration(value), ASKED, CERTAIN, where)
    return Finding(what, format_duration(value), chosen.why, LIKELY if chosen.measured else GUESS, where)


def _measure_findings(guess: Guess, *, asked: bool) -> list[Finding]:
    where = f"{SQL}, and {YAML}: columns"
    count = Finding(
        "column " + guess.count_column,
        "count(*)",
        "counts the records of a row; the balance is computed from it",
        CERTAIN,
        where,
    )
    if not guess.measures:
        none = Finding(
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
            Finding(f"column {each.column}", each.text, ASKED if asked else each.why, sure, where)
            for each in guess.measures
        ),
    ]


def _required_finding(guess: Guess) -> Finding:
    named = ", ".join(guess.required) or "none"
    total = len(guess.sample.records)
    why = f"keys and figures that have a value in all {total} records; a record without one becomes a dead letter (the event time is required anyway)"
    return Finding("required", named, why, GUESS, f"{YAML}: sources.{guess.view}.required")


def _sample_findings(guess: Guess) -> list[Finding]:
    sample = guess.sample
    held = "" if sample.held is None else f" of {sample.held}"
    skipped = "".join(f"; {count} left out: {reason}" for reason, count in sample.skipped.items())
    why = f"{len(sample.records)}{held} records of {sample.origin} were looked at{skipped}"
    partitions = Finding("partitions", str(sample.partitions), "the topic is made with it" if sample.is_file else "the topic has it", LIKELY if sample.is_file else CERTAIN, f"{YAML}: sources.{guess.view}.partitions")  # fmt: skip
    return [partitions, Finding("sample", f"{len(sample.records)} records", why, CERTAIN, "init --records")]
