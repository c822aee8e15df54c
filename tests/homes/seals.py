"""A seal after six batches of one timeline, and a look in which nothing is new since."""

from __future__ import annotations

from datetime import UTC, datetime

from rivertwice.log.addresses import Part
from rivertwice.reconcile.model import STREAM
from rivertwice.reconcile.seals.look import ChangesSinceSeal
from rivertwice.reconcile.seals.model import Seal, SealedPart
from rivertwice.timeline.lineage import Segment
from rivertwice.timeline.sequence import Entry, EntryKind
from rivertwice.timeline.served_stamp import ServedStamp

NOW = datetime(2026, 1, 1, tzinfo=UTC)
P0 = Part("t", 0)
SEAL = Seal(
    run="r1",
    created_at=NOW,
    timeline="t1",
    batch=5,
    meaning="m",
    sequence=1,
    amendments=0,
    end_offsets={"t": {"0": 9}},
    settled_ms=100,
    served=ServedStamp(1, "t1", 5),
    counts={STREAM: {"AGREES": 3, "LATE": 1}},
    parts={P0: SealedPart(9, 8, 1, 7, 1)},
    emitted=7,
    ledger="h",
    served_rows=4,
    versions={"changelog": 6},
)
LOOK = ChangesSinceSeal(
    path=[Segment("t1", 0, None)],
    last=("t1", 5),
    entries=[Entry(1, EntryKind.HEAD, {"timeline": "t1"}, NOW)],
    stamp=ServedStamp(1, "t1", 5),
    seal=SEAL,
)
