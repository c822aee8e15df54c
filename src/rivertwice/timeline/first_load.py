"""A first load by batch: records before a pipeline's stream, which backfills read instead of it.

A file of the pipeline's place, `first_load/load.json`, format 1, written once: from then on the stream begins where it says. Beside
it, `zones-ID.json` has the event times of the records that the stream does not read, block by block. The stream reads every record
of the windows that start at or after `before_ms`. Of windows before it, it reads a part at most; they serve what backfills publish.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from rivertwice.core import DamagedFileError, PipelineHome, Place, RequestError, below, parse_iso, to_iso
from rivertwice.log import OffsetRanges, StoredOffsets, drop_empty, encode_ends
from rivertwice.storage import RecordStore, encode_json
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.serving import Publication

FORMAT = 1
RECORD = "load.json"


class LogZone(NamedTuple):
    """Offsets `[start, end)` of a partition, and the event times (epoch ms) of the records that are accepted among them.

    Both times are None if none is.
    """

    partition: int
    start: int
    end: int
    accepted: int
    min_event_ms: int | None
    max_event_ms: int | None


@dataclass(frozen=True)
class FirstLoad:
    """Where a stream begins, and what backfills have to read instead of it.

    Attributes:
        timeline: the stream's first timeline; bundle, fingerprint, cluster_id, topic_id: as the timeline records them.
        ranges: partition to the offsets before the stream's first one, half-open; empty where the stream reads all.
        since_ms, before_ms: the windows to load by their start (epoch ms, half-open).
        closed_ms: all of them end at or before this instant.
        accepted: records in `ranges` that the definition accepts.
        rejected: reason to number of the others; they get no row among the dead letters.
        history: what of the ranges lies in a lake, in words; None: nothing. history_ms: the largest event time of its records.
    """

    pipeline: str
    timeline: str
    bundle: str
    fingerprint: Mapping[str, str]
    cluster_id: str
    topic: str
    topic_id: str
    ranges: OffsetRanges
    since_ms: int
    before_ms: int
    closed_ms: int
    accepted: int
    rejected: Mapping[str, int]
    by: str
    noted_at: datetime
    history: str | None = None
    history_ms: int | None = None

    @property
    def id(self) -> str:
        """`load-` and a hash of what the stream leaves out."""
        return f"load-{self._hash}"

    @property
    def cover(self) -> str:
        """Name of the publication of no rows that covers the windows until backfills publish them."""
        return f"bf-{self._hash}"

    @property
    def _hash(self) -> str:
        identity = [
            self.timeline,
            self.bundle,
            self.topic_id,
            sorted(self.ranges.items()),
            self.since_ms,
            self.before_ms,
        ]
        return hashlib.sha256(encode_json(identity)).hexdigest()[:12]

    @property
    def until_ms(self) -> int:
        """Upper bound of the event time of the records that the stream leaves out."""
        return self.before_ms - 1

    @property
    def genesis(self) -> StoredOffsets:
        """The stream's first offsets."""
        return {self.topic: encode_ends({partition: end for partition, (_, end) in self.ranges.items()})}

    def has(self, start_ms: int) -> bool:
        """Say whether a window is served from backfills, by its start."""
        return self.since_ms <= start_ms < self.before_ms

    def proof_of(self, start_ms: int) -> str:
        """Return what is known of a window that may have records of a history in a lake, by its start; empty if it has none."""
        if self.history is None or self.history_ms is None or start_ms > self.history_ms or not self.has(start_ms):
            return ""
        return f"history: computed from {self.history}; no stream ever read it, so nothing is proved of what one would have made of it"

    def first_timeline(self) -> Timeline:
        """Return the record of the timeline that begins after what is loaded."""
        return Timeline(
            pipeline=self.pipeline,
            timeline=self.timeline,
            parent=None,
            first_batch=0,
            genesis=self.genesis,
            bundle=self.bundle,
            fingerprint=self.fingerprint,
            cluster_id=self.cluster_id,
            topic_ids={self.topic: self.topic_id},
            created_at=self.noted_at,
        )

    def covering(self, seq: int) -> Publication:
        """Return the publication that lets the windows serve nothing yet: it counts no record of the log."""
        return Publication(
            seq=seq,
            backfill=self.cover,
            ranges=((self.since_ms, self.before_ms),),
            semantics=self.fingerprint["semantics"],
            bundle=self.bundle,
            as_of={self.topic: {partition: start for partition, (start, _) in self.ranges.items()}},
            rows=0,
        )

    @classmethod
    def load(cls, home: PipelineHome) -> FirstLoad | None:
        """Return the first load of a pipeline; None if its stream reads the log from the beginning.

        Raises:
            RequestError: its format is unknown.
            DamagedFileError: it is not what was written.
        """
        return read_own(home, RECORD, cls._from_record)

    @classmethod
    def _from_record(cls, data: dict[str, Any]) -> FirstLoad:
        ranges = {int(p): (int(pair[0]), int(pair[1])) for p, pair in data["ranges"].items()}
        return cls(**{**data, "ranges": ranges, "noted_at": parse_iso(data["noted_at"])})


def load_place(home: PipelineHome) -> Place:
    """Return the place of a first load's records: they outlive a host."""
    return below(home.place, "first_load")


def record_load(home: PipelineHome, load: FirstLoad, zones: Sequence[LogZone]) -> bool:
    """Record a first load and the event times of what it leaves out; return False if one is recorded already."""
    _record_zones(home, load, zones)
    body = {**asdict(load), "ranges": {str(p): list(pair) for p, pair in sorted(load.ranges.items())}}
    if load.history is None:  # an earlier version reads it, too
        del body["history"], body["history_ms"]
    stored = {"format": FORMAT, "id": load.id, **body, "noted_at": to_iso(load.noted_at)}
    return RecordStore(load_place(home)).put_if_absent(RECORD, stored)


def _record_zones(home: PipelineHome, load: FirstLoad, zones: Sequence[LogZone]) -> None:
    columns = dict(zip(LogZone._fields, map(list, zip(*zones, strict=True)), strict=True)) if zones else {}
    RecordStore(load_place(home)).put_if_absent(_zones_key(load), {"format": FORMAT, "zones": columns})


class _Recorded(Protocol):
    @property
    def id(self) -> str:
        """`load-` and a hash of what it loads."""


L = TypeVar("L", bound=_Recorded)


def read_own(home: PipelineHome, name: str, build: Callable[[dict[str, Any]], L]) -> L | None:
    """Return a load as its record says; None if there is no record.

    Args:
        name: the record's file.
        build: makes the load of the record's content, without format and id.

    Raises:
        RequestError: its format is unknown.
        DamagedFileError: it is not what was written.
    """
    data: dict[str, Any] | None = RecordStore(load_place(home)).read(name)
    if data is None:
        return None
    _require_format(home, data, name)
    recorded = data.pop("id")
    load = build(data)
    if load.id != recorded:
        message = (
            f"{name} of {home.root.name} holds {recorded}, but its content is {load.id}: it was changed after it was written, so it "
            "is not known where the stream began; put the file back from a backup"
        )
        raise DamagedFileError(message)
    return load


def read_zones(home: PipelineHome, load: FirstLoad) -> list[LogZone]:
    """Return the event times of the records that the stream leaves out, block by block.

    Raises:
        DamagedFileError: they are gone, or do not cover these records.
    """
    data: dict[str, Any] | None = RecordStore(load_place(home)).read(_zones_key(load))
    if data is None:
        raise DamagedFileError(_no_zones(home, load))
    _require_format(home, data, _zones_key(load))
    columns = data["zones"]
    zones = [LogZone(*row) for row in zip(*(columns[name] for name in LogZone._fields), strict=True)] if columns else []
    if covered_by(zones) != drop_empty(dict(load.ranges)):
        raise DamagedFileError(_no_zones(home, load))
    return zones


def covered_by(zones: Iterable[LogZone]) -> OffsetRanges:
    """Return the offsets of zones that follow each other, by partition; a hole ends a partition's range. Pure."""
    ranges: OffsetRanges = {}
    for zone in sorted(zones):
        start, end = ranges.get(zone.partition, (zone.start, zone.start))
        if zone.start == end:
            ranges[zone.partition] = (start, zone.end)
    return drop_empty(ranges)


def _zones_key(load: FirstLoad) -> str:
    return f"zones-{load.id.removeprefix('load-')}.json"


def _no_zones(home: PipelineHome, load: FirstLoad) -> str:
    return (
        f"{_zones_key(load)} of {home.root.name} is gone or does not cover what {load.id} left out, so it is not known which records a "
        "window needs; put the file back from a backup"
    )


def _require_format(home: PipelineHome, data: dict[str, Any], name: str) -> None:
    if data.pop("format", None) != FORMAT:
        message = (
            f"{name} of {home.root.name} is not of format {FORMAT}, which this version reads; use a newer rivertwice"
        )
        raise RequestError(message)
