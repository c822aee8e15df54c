"""The records of a number: what its batches read, which came late and which were refused, by the tables alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rivertwice.backfill import merge
from rivertwice.core import PipelineHome, Settings, from_ms, to_ms
from rivertwice.definition import Definition
from rivertwice.log import LakeHistory, Part
from rivertwice.read.explain_kinds import facts_of
from rivertwice.read.explain_model import DeadRecord, LakePart, LateRecord, OffsetRange, Published, Reads
from rivertwice.storage import Table, Where
from rivertwice.timeline import (
    BRIEF,
    MOST,
    CommittedBatches,
    DeadLetter,
    FirstLoad,
    LedgerRow,
    StoredKeys,
    commits_missing,
    from_table,
    newest_by_address,
    read_amendments,
    read_zones,
    select_valid,
)
from rivertwice.timeline import COLUMNS as LATE_COLUMNS

LOADED = "first load"


@dataclass(frozen=True)
class Late:
    """A late record as it is stored. Batch: (timeline, number)."""

    part: Part
    offset: int
    event_time: datetime
    watermark: datetime
    batch: tuple[str, int]


def read_batches(home: PipelineHome, committed: CommittedBatches, start: datetime, end: datetime) -> list[LedgerRow]:
    """Return the batches of the head's path that accepted records around a range of event time, in order; no other ledger row is read."""
    low, high = to_ms(start), to_ms(end)
    matching = Where.all(
        [Where("min_event_ms").is_between(-MOST, high - 1), Where("max_event_ms").is_between(low, MOST)]
    )
    stored = Table(home.tables.ledger).read(matching=matching)
    rows = {} if stored is None else {(row.timeline, row.batch): row for row in from_table(stored)}
    for row in commits_missing(home, StoredKeys(home)):
        if (
            row.min_event_ms is not None
            and row.max_event_ms is not None
            and row.min_event_ms < high
            and low <= row.max_event_ms
        ):
            rows[row.timeline, row.batch] = row
    return sorted((row for key, row in rows.items() if key in committed), key=lambda row: row.batch)


def gather_reads(
    rows: Sequence[LedgerRow], loaded: Iterable[tuple[str, int, tuple[int, int]]], low_ms: int, high_ms: int
) -> Reads:
    """Return what batches read that may hold a record of a range of event time. Pure.

    Args:
        rows: batches that accepted records around it, in order.
        loaded: topic, partition and offsets that a first load by batch took instead of the stream.
    """
    runs: dict[tuple[str, int], list[tuple[int, int]]] = {}
    names: list[str] = []
    for row in rows:
        topics = [topic for topic in row.end_offsets if _may_hold(row, topic, low_ms, high_ms)]
        for topic in topics:
            for partition, pair in row.ranges(topic).items():
                runs.setdefault((topic, partition), []).append(pair)
        names += [f"{row.timeline}/{row.batch}"] if topics else []
    for topic, partition, pair in loaded:
        runs.setdefault((topic, partition), []).append(pair)
    ranges = [
        OffsetRange(topic, partition, low, high)
        for (topic, partition), pairs in sorted(runs.items())
        for low, high in merge(pairs)
    ]
    return Reads(len(names), names[0] if names else None, names[-1] if names else None, tuple(ranges))


def _may_hold(row: LedgerRow, topic: str, low_ms: int, high_ms: int) -> bool:
    counts = row.by_topic.get(topic)
    if counts is None:
        return True
    least, most = counts.min_event_ms, counts.max_event_ms
    return least is not None and most is not None and least < high_ms and low_ms <= most


def read_loaded(home: PipelineHome, low_ms: int, high_ms: int) -> list[tuple[str, int, tuple[int, int]]]:
    """Return the offsets with records of a range of event time (epoch ms) that a first load by batch took instead of the stream."""
    load = FirstLoad.load(home)
    if load is None:
        return []
    return [
        (load.topic, zone.partition, (zone.start, zone.end))
        for zone in read_zones(home, load)
        if zone.min_event_ms is not None
        and zone.max_event_ms is not None
        and zone.min_event_ms < high_ms
        and low_ms <= zone.max_event_ms
    ]


def with_lake(settings: Settings, home: PipelineHome, reads: Reads, start_ms: int) -> Reads:
    """Return the reads with the files and rows of those that lie in a lake, and what is known of the window that starts at `start_ms`."""
    load = FirstLoad.load(home)
    if load is None or load.history is None:
        return reads
    history = LakeHistory.pinned(settings, load.topic, load.topic_id)
    parts = [
        LakePart(part.topic, part.partition, rows.start, rows.end, rows.file, rows.first_row, history.snapshot)
        for part in reads.ranges
        if history is not None and part.topic == load.topic
        for low, high in [history.ranges.get(part.partition, (0, 0))]
        if part.start < high and low < part.end
        for rows in history.rows_at(max(low, part.start), min(high, part.end))
    ]
    return replace(reads, lake=tuple(parts), proof=load.proof_of(start_ms) if parts else "")


def read_late(
    home: PipelineHome, definition: Definition, committed: CommittedBatches, start: datetime, end: datetime
) -> list[tuple[Late, Mapping[str, Any]]]:
    """Return the late rows that the stream stored of a window, with their fields; empty if its late policy keeps none."""
    if not definition.late.keeps_rows:
        return []
    low, high = to_ms(start), to_ms(start) + 1
    if not facts_of(definition).has_known_starts:
        low, high = low - definition.window.length // timedelta(milliseconds=1), to_ms(end)
    columns = ["_timeline", "_batch", *LATE_COLUMNS]
    rows = Table(home.tables.late_rows).read(columns=columns, matching=Where("window_start").is_within([(low, high)]))
    found = []
    for row in [] if rows is None else rows.to_pylist():
        batch = (row["_timeline"], row["_batch"])
        if batch in committed:
            part = Part(row["topic"], row["partition"])
            late = Late(part, row["offset"], row["event_time"], row["late_watermark"], batch)
            found.append((late, json.loads(row["fields"])))
    return found


def late_of_causes(causes: Iterable[Mapping[str, Any]], committed: CommittedBatches) -> list[Late]:
    """Return the late records that a reconcile named, from its stored causes. Pure."""
    timelines = dict(zip(committed.table["batch"].to_pylist(), committed.table["timeline"].to_pylist(), strict=True))
    return [
        Late(
            Part(cause["topic"], cause["partition"]),
            cause["offset"],
            cause["event_time"],
            from_ms(cause["late_watermark_ms"]),
            (timelines.get(cause["batch"], ""), cause["batch"]),
        )
        for cause in causes
        if cause["cause"] == "late" and cause["topic"] is not None and cause["late_watermark_ms"] is not None
    ]


def describe_late(
    records: Iterable[Late], committed: CommittedBatches, end: datetime, published: Published | None
) -> list[LateRecord]:
    """Return late records, each address once, in the order of the log. Pure."""
    by_place = {(late.part, late.offset): late for late in records}
    described = []
    for (part, offset), late in sorted(by_place.items()):
        is_on_path = late.batch in committed
        described.append(
            LateRecord(
                place=f"{part.topic}/{part.partition}@{offset}",
                event_time=late.event_time,
                watermark=late.watermark,
                late_s=(late.watermark - end).total_seconds(),
                batch=f"{late.batch[0]}/{late.batch[1]}" if is_on_path else None,
                read_at=committed.committed_at(late.batch) if is_on_path else None,
                is_served=published is not None and published.counts(part, offset),
            )
        )
    return described


def read_dead(home: PipelineHome, committed: CommittedBatches, reads: Reads) -> list[DeadLetter]:
    """Return the dead letters among some offsets, in the order of the log; other files of the table are not read."""
    if not reads.ranges:
        return []
    first, last = min(part.start for part in reads.ranges), max(part.end for part in reads.ranges) - 1
    rows = Table(home.tables.dead_letters).read(columns=BRIEF, matching=Where("offset").is_between(first, last))
    if rows is None or not rows.num_rows:
        return []
    letters = select_valid(rows.to_pylist(), committed, newest_by_address(read_amendments(home)))
    return [
        letter for letter in letters if reads.has(Part(letter.topic, letter.address.partition), letter.address.offset)
    ]


def describe_dead(letters: Iterable[DeadLetter], of_row: Mapping[str, bool]) -> list[DeadRecord]:
    """Return dead letters with what was decided about them, those of the row first. Pure.

    Args:
        letters: in the order of the log.
        of_row: place to whether the record, as it was amended, belongs to the row; others are not known.
    """
    described = []
    for letter in letters:
        place = f"{letter.topic}/{letter.address.partition}@{letter.address.offset}"
        decision = letter.amendment
        described.append(
            DeadRecord(
                place=place,
                reason=letter.reason,
                detail=letter.detail,
                batch=f"{letter.timeline}/{letter.batch}",
                state=letter.state,
                amendment=None if decision is None else decision.seq,
                decided_at=None if decision is None else decision.created_at,
                why=None if decision is None else decision.why,
                is_of_row=of_row.get(place),
            )
        )
    return sorted(described, key=lambda record: record.is_of_row is not True)
