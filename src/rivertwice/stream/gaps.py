"""Where a stream continues, and whether the log still has these records: checked before a start and after a failure."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from rivertwice.core import LogGapError, PipelineHome, RivertwiceError, Settings, to_ms
from rivertwice.definition import Definition
from rivertwice.log import (
    Gap,
    GapReason,
    StoredOffsets,
    archived_ranges,
    bound_event_time,
    find_gap,
    first_stamps,
    intersect,
    kafka,
)
from rivertwice.stream.begin import check_topics
from rivertwice.stream.checkpoint import last_number, moved_to, read_initial_offsets, read_planned, with_partitions
from rivertwice.timeline import LedgerRow, StreamLoad, Timeline, committed_batches, head, newest_batches, path_of

_log = logging.getLogger(__name__)
_MS = timedelta(milliseconds=1)


def next_offsets(checkpoint: Path, line: Timeline, topic: str) -> dict[int, int]:
    """Return where the stream continues to read: after the last batch that the checkpoint finished, else at its beginning.

    A batch that is committed but not finished is replayed, so its range counts as needed.
    """
    finished = last_number(checkpoint / "commits")
    planned = None if finished is None else read_planned(checkpoint, finished)
    if planned is not None:
        offsets = planned.end_offsets
    elif (checkpoint / "sources" / "0" / "0").exists():
        offsets = read_initial_offsets(checkpoint)
    else:
        offsets = line.genesis
    return {int(partition): int(offset) for partition, offset in offsets.get(topic, {}).items()}


def read_position(checkpoint: Path, line: Timeline, topics: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return where the next batch begins, as Spark's checkpoint holds it."""
    return {
        topic: {str(partition): offset for partition, offset in sorted(next_offsets(checkpoint, line, topic).items())}
        for topic in topics
    }


def is_loading(home: PipelineHome, line: Timeline, definition: Definition) -> bool:
    """Say whether the stream still loads the log as it was at its first start (`load_stage`)."""
    load = StreamLoad.load(home)
    return load is not None and not load.has_read(
        read_position(home.checkpoint(line.timeline), line, definition.topics)
    )


def observe_gaps(
    settings: Settings, home: PipelineHome, definition: Definition, line: Timeline, now: datetime
) -> list[Gap]:
    """Return the records that the stream needs next and Kafka no longer has: at most one gap per topic.

    Raises:
        LogGapError: a topic was deleted and created again.
        ServiceError: Kafka does not answer.
    """
    topics = definition.topics
    check_topics(line.topic_ids, {topic: kafka.topic_id(settings, topic) for topic in topics}, definition.name)
    gaps = [_observe_gap(settings, home, definition, topic, line, now) for topic in topics]
    return [gap for gap in gaps if gap is not None]


def _observe_gap(
    settings: Settings, home: PipelineHome, definition: Definition, topic: str, line: Timeline, now: datetime
) -> Gap | None:
    _, source = definition.by_topic[topic]
    begin = kafka.begin_offsets(settings, topic)
    position = dict.fromkeys(begin, 0) | next_offsets(home.checkpoint(line.timeline), line, topic)  # added: from 0
    finding = find_gap(position, begin, kafka.end_offsets(settings, topic))
    if finding is None:
        return None
    cause, ranges = finding
    archived = intersect(ranges, archived_ranges(settings, topic, line.topic_ids[topic]))
    if cause == GapReason.EXPIRED and archived == ranges and is_loading(home, line, definition):
        return None  # the driver reads them from the archive
    last = _last_finished(home, line)
    following = (
        first_stamps(settings, topic, {p: begin[p] for p in ranges if p in begin}) if cause == GapReason.EXPIRED else {}
    )
    return Gap(
        pipeline=definition.name,
        timeline=line.timeline,
        batch=None if last is None else last.batch,
        topic=topic,
        topic_id=line.topic_ids[topic],
        cause=cause,
        ranges=ranges,
        archived=archived,
        watermark_ms=0 if last is None else last.batch_watermark_ms,
        until_ms=bound_event_time(
            kafka.topic_config(settings, topic), ranges, following, to_ms(now), source.max_future // _MS
        ),
        noted_at=now,
    )


def _last_finished(home: PipelineHome, line: Timeline) -> LedgerRow | None:
    finished = last_number(home.checkpoint(line.timeline) / "commits")
    path = path_of(home, line.timeline)
    rows = [] if finished is None else newest_batches(home, committed_batches(home, path).before(finished + 1), path, 1)
    return next((row for row in rows if finished is not None and row.batch <= finished), None)


def check_reach(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    line: Timeline,
    now: datetime,
    *,
    record: bool = True,
) -> None:
    """Refuse to start a stream whose next records are gone; the gap is recorded, unless the timeline is not the head.

    Raises:
        LogGapError: there is a gap; the message names topic, partition and offsets.
    """
    gaps = observe_gaps(settings, home, definition, line, now)
    for gap in gaps if record else ():
        gap.record(home)
    if gaps:
        raise LogGapError("; and ".join(gap.message() for gap in gaps))


def explain_loss(settings: Settings, definition: Definition, now: datetime) -> str | None:
    """Return what a stream that failed for missing records has lost, by partition and offset; None if there is no gap.

    The gap is recorded. It never raises for the log's state, because it is called while a failure is handled.
    """
    home = settings.pipeline(definition.name)
    try:
        name = head(home)
        if name is None:
            return None
        check_reach(settings, home, definition, Timeline.load(home, name), now)
    except LogGapError as error:
        return str(error)
    except (RivertwiceError, OSError, ValueError, json.JSONDecodeError) as error:
        _log.warning("what the stream of %s lost is not known: %s", definition.name, error)
    return None


def reads_on_from_archive(settings: Settings, definition: Definition, now: datetime) -> bool:
    """Say whether a stream that failed for missing records loads a log, and finds them in the archive at its next start.

    It never raises for the log's state, because it is called while a failure is handled.
    """
    home = settings.pipeline(definition.name)
    try:
        name = head(home)
        if name is None:
            return False
        line = Timeline.load(home, name)
        return is_loading(home, line, definition) and not observe_gaps(settings, home, definition, line, now)
    except (RivertwiceError, OSError, ValueError, json.JSONDecodeError) as error:
        _log.warning("whether the archive has what the stream of %s needs is not known: %s", definition.name, error)
        return False


def continued_rows(home: PipelineHome, rows: Sequence[LedgerRow], line: Timeline) -> list[LedgerRow]:
    """Return the newest batches of a timeline's path as its checkpoint must show them, by the records of all its timelines."""
    lines: list[Timeline] = []
    while rows and line.parent is not None and line.parent.batch >= rows[0].batch:
        lines.append(line)
        line = Timeline.load(home, line.parent.timeline)
    shown = list(rows)
    for each in reversed(lines):
        shown = as_continued(shown, each)
    return shown


def as_continued(rows: Sequence[LedgerRow], line: Timeline) -> list[LedgerRow]:
    """Return the batches before and of a timeline as its checkpoint must show them. Pure.

    After an accepted gap the parent's last batch ends where the child begins, for Spark continues from there. If the child has
    another number of state partitions, that batch's offsets have it. The rows of the ledger itself do not change.
    """
    if line.parent is None:
        return list(rows)
    left = line.parent.batch
    return [_continued(row, line) if row.batch == left and row.timeline != line.timeline else row for row in rows]


def _continued(row: LedgerRow, line: Timeline) -> LedgerRow:
    if _leaps(row.end_offsets, line.genesis):
        row = replace(row, end_offsets=line.genesis, offsets_text=moved_to(row.offsets_text, line.genesis))
    if line.shuffle_partitions:
        row = replace(row, offsets_text=with_partitions(row.offsets_text, line.shuffle_partitions))
    return row


def _leaps(end: StoredOffsets, genesis: StoredOffsets) -> bool:
    """Say whether a timeline begins after its parent's end."""
    return any(
        int(offset) > int(end.get(topic, {}).get(partition, 0))
        for topic, parts in genesis.items()
        for partition, offset in parts.items()
    )


def added_partitions(line: Timeline, ends: Mapping[int, int], topic: str) -> list[int]:
    """Return the partitions that the topic got after the timeline began; the stream reads each from its first record."""
    return sorted(ends.keys() - {int(partition) for partition in line.genesis.get(topic, {})})
