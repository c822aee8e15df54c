"""Timelines and the head's path: which batches count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rivertwice.core import LedgerError, PipelineHome, parse_iso, require_name, to_iso
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.storage import RecordStore
from rivertwice.timeline.ledger import LedgerRow, read_ledger
from rivertwice.timeline.sequence import Entry, EntryKind, head

FORMAT = 1
RECORD = "timeline.json"


@dataclass(frozen=True)
class Fork:
    """Where a timeline left its parent: after `batch` of `timeline`."""

    timeline: str
    batch: int


@dataclass(frozen=True)
class Timeline:
    """An unbroken line of micro-batches.

    Attributes:
        parent: the fork, or None for a timeline that began at `genesis`.
        first_batch: number of its own first batch (Spark continues to count from the parent's).
        genesis: topic to partition to the first offset of its own first batch.
        fingerprint: {"state", "semantics", "decode"} of the bundle.
        fold_buckets: buckets of a fold's keys in the state, for ever; 0: a state for each key (`engine.fold_buckets`), or
            no fold.
        shuffle_partitions: number of state partitions that its own batches have; 0: the number that its first batch froze.
    """

    pipeline: str
    timeline: str
    parent: Fork | None
    first_batch: int
    genesis: Mapping[str, Mapping[str, int]]
    bundle: str
    fingerprint: Mapping[str, str]
    cluster_id: str
    topic_ids: Mapping[str, str]
    created_at: datetime
    fold_buckets: int = 0
    shuffle_partitions: int = 0

    def fork(self, last: LedgerRow, name: str, now: datetime) -> Timeline:
        """Return the record of a timeline that continues after `last`, a batch on this one's path. Pure."""
        has_own = last.timeline == self.timeline  # an upgraded one may have no batch under its own definition yet
        return replace(
            self,
            timeline=name,
            parent=Fork(self.timeline, last.batch),
            first_batch=last.batch + 1,
            genesis=last.end_offsets,
            bundle=last.bundle if has_own else self.bundle,
            created_at=now,
        )

    @classmethod
    def load(cls, home: PipelineHome, timeline: str) -> Timeline:
        """Return a timeline's record.

        Raises:
            LedgerError: the timeline has no record, or its format is not known.
        """
        data: dict[str, Any] | None = RecordStore(home.timeline_records).read(
            f"{require_name(timeline, 'timeline')}/{RECORD}"
        )
        if data is None or data.get("format") != FORMAT:
            message = (
                f"timeline {timeline} of {home.root.name} has no record of format {FORMAT}; "
                f"known timelines: {', '.join(cls.names(home)) or 'none'}"
            )
            raise LedgerError(message)
        parent = data["parent"]
        return cls(
            pipeline=data["pipeline"],
            timeline=data["timeline"],
            parent=None if parent is None else Fork(parent["timeline"], parent["batch"]),
            first_batch=data["first_batch"],
            genesis=data["genesis"],
            bundle=data["bundle"],
            fingerprint=data["fingerprint"],
            cluster_id=data["cluster_id"],
            topic_ids=data["topic_ids"],
            created_at=parse_iso(data["created_at"]),
            fold_buckets=data.get("fold_buckets", 0),
            shuffle_partitions=data.get("shuffle_partitions", 0),
        )

    @staticmethod
    def names(home: PipelineHome) -> list[str]:
        """Return the names of all recorded timelines, in order of creation (t1, t2, ...)."""
        names = RecordStore(home.timeline_records).folders_with(RECORD)
        return sorted(names, key=lambda name: (len(name), name))

    @classmethod
    def next_name(cls, home: PipelineHome) -> str:
        """Return the first free name of t1, t2, ...; a folder without a record counts as taken."""
        return select_free_name({folder.name for folder in home.timelines.glob("*")} | set(cls.names(home)))


@dataclass(frozen=True)
class Segment:
    """Batches of one timeline on a path: `first <= batch <= last`; `last` None means without end."""

    timeline: str
    first: int
    last: int | None

    def contains(self, timeline: str, batch: int) -> bool:
        """Say whether a batch is in the segment."""
        return timeline == self.timeline and self.first <= batch and (self.last is None or batch <= self.last)


def create_timeline(home: PipelineHome, line: Timeline) -> bool:
    """Record a timeline permanently; return False if its name is taken (its record is left as it is)."""
    return RecordStore(home.timeline_records).put_if_absent(
        f"{require_name(line.timeline, 'timeline')}/{RECORD}",
        {
            "format": FORMAT,
            "pipeline": line.pipeline,
            "timeline": line.timeline,
            "parent": None if line.parent is None else {"timeline": line.parent.timeline, "batch": line.parent.batch},
            "first_batch": line.first_batch,
            "genesis": line.genesis,
            "bundle": line.bundle,
            "fingerprint": line.fingerprint,
            "cluster_id": line.cluster_id,
            "topic_ids": line.topic_ids,
            "created_at": to_iso(line.created_at),
            **({"fold_buckets": line.fold_buckets} if line.fold_buckets else {}),
            **({"shuffle_partitions": line.shuffle_partitions} if line.shuffle_partitions else {}),
        },
    )


def select_free_name(taken: Collection[str]) -> str:
    """Return the first of t1, t2, ... that is not taken."""
    number = 1
    while f"t{number}" in taken:
        number += 1
    return f"t{number}"


def path_of(home: PipelineHome, timeline: str) -> list[Segment]:
    """Return the segments from the root to `timeline`, root first."""
    return trace_path(timeline, lambda name: Timeline.load(home, name))


def trace_path(timeline: str, load: Callable[[str], Timeline]) -> list[Segment]:
    """Return the segments from the root to `timeline`, root first, by the timelines' records that `load` gives."""
    segments: list[Segment] = []
    last: int | None = None
    name: str | None = timeline
    while name is not None:
        line = load(name)
        segments.append(Segment(name, line.first_batch, last))
        name, last = (None, None) if line.parent is None else (line.parent.timeline, line.parent.batch)
    return segments[::-1]


def find_move_off(
    entries: Iterable[Entry], path: Iterable[Segment], batch: tuple[str, int], since: int
) -> Entry | None:
    """Return the newest head move by which the head's path lost a batch; None: it still has it. Pure.

    Args:
        batch: timeline and number, for instance of the last batch that a reconcile saw.
        since: moves up to this entry of the sequence were seen.
    """
    if any(part.contains(*batch) for part in path):
        return None
    moves = [entry for entry in entries if entry.kind == EntryKind.HEAD and entry.seq > since]
    return moves[-1] if moves else None


def path_until(path: Iterable[Segment], batch: int) -> list[Segment]:
    """Return the batches of a path up to one of them: each segment has an end, none is empty. Numbers rise along a path."""
    ends = [replace(part, last=batch if part.last is None else min(part.last, batch)) for part in path]
    return [part for part in ends if part.last is not None and part.first <= part.last]


def last_in_common(one: Sequence[Segment], other: Sequence[Segment]) -> int | None:
    """Return the last batch up to which two paths have the same batches, None if they have none in common.

    Args:
        one: segments with ends, none empty (`path_until`).
        other: the same.
    """
    last = None
    for left, right in zip(one, other, strict=False):
        if (left.timeline, left.first) != (right.timeline, right.first) or left.last is None or right.last is None:
            break
        last = min(left.last, right.last)
        if left.last != right.last:
            break
    return last


def path_semantics(home: PipelineHome, path: Iterable[Segment]) -> frozenset[str]:
    """Return the semantics hashes of the timelines on a path: publications with any of these serve.

    There is more than one after an upgrade: what was published before it serves until it is published again.
    """
    return frozenset(Timeline.load(home, part.timeline).fingerprint["semantics"] for part in path)


def head_path(home: PipelineHome) -> list[Segment]:
    """Return the head's path, root first; empty before the first start."""
    name = head(home)
    return [] if name is None else path_of(home, name)


def head_definition(home: PipelineHome) -> Definition | None:
    """Return the definition that the head timeline runs, from its bundle; None before the first start."""
    name = head(home)
    return None if name is None else load_bundle_definition(home.bundles, Timeline.load(home, name).bundle)


def select_on_path(rows: Sequence[LedgerRow], path: Sequence[Segment]) -> list[LedgerRow]:
    """Return the ledger rows that are on a path, in the path's order."""
    by_timeline: dict[str, list[LedgerRow]] = {}
    for row in rows:
        by_timeline.setdefault(row.timeline, []).append(row)
    chosen: list[LedgerRow] = []
    for segment in path:
        own_rows = [row for row in by_timeline.get(segment.timeline, []) if segment.contains(row.timeline, row.batch)]
        chosen.extend(sorted(own_rows, key=lambda row: row.batch))
    return chosen


def path_ledger(home: PipelineHome) -> list[LedgerRow]:
    """Return the committed batches on the head's path, in order. Only these count."""
    return select_on_path(read_ledger(home), head_path(home))


def timeline_ledger(home: PipelineHome, timeline: str) -> list[LedgerRow]:
    """Return the committed batches on a timeline's own path, in order; they count only if it is the head's."""
    return select_on_path(read_ledger(home), path_of(home, timeline))


def late_watermarks_ms(rows: Sequence[LedgerRow]) -> list[int]:
    """Return, for each row of a path in order, the watermark by which its rows were late: the previous batch's.

    Source: Spark's late filter takes the previous batch's watermark; the first batch of a root has 0.
    """
    return [0, *(row.batch_watermark_ms for row in rows[:-1])] if rows else []
