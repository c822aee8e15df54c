"""What is true of a pipeline now, each fact with its instant: what `now` decides on. Values alone; `read_facts` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rivertwice.agent import Alert, QualityView, StreamObservation, StreamView
from rivertwice.retention import RetentionBrief
from rivertwice.timeline import Entry

if TYPE_CHECKING:
    from rivertwice.backfill import LoadProgress, StreamLoadProgress


@dataclass(frozen=True)
class GateFinding:
    """One thing that the gate of a reconcile found; `repeats` is the kind of another one that says the same."""

    severity: str
    kind: str
    message: str
    pair: str = ""
    repeats: str = ""


@dataclass(frozen=True)
class Windows:
    """Windows in which served rows have one verdict: how many, and the first and last start."""

    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True)
class RunVerdict:
    """What the newest reconcile found.

    Attributes:
        at: when it ran. timeline, batch, sequence: what it looked at.
        served, stream: verdict to rows.
        windows: verdict to the windows of served rows that have it; only of those that differ.
        late_share: late pairs of record and window among all; limit: above which it is an alert.
        left_by: the head move that left its batch, so what is served now was not compared; None: the head's path has it.
    """

    run: str
    at: datetime
    timeline: str
    batch: int
    sequence: int
    served: Mapping[str, int]
    stream: Mapping[str, int]
    late_share: float | None
    limit: float
    windows: Mapping[str, Windows] = field(default_factory=dict)
    findings: tuple[GateFinding, ...] = ()
    passed: bool = True
    left_by: Entry | None = None


@dataclass(frozen=True)
class UnfinishedOperation:
    """A restore, rewind or upgrade that is not done."""

    id: str
    noun: str
    since: datetime
    step: int
    steps: int
    name: str
    finish: str


@dataclass(frozen=True)
class Savepoints:
    """The newest proved savepoint.

    Attributes:
        proved_at: when it was taken; None: none is proved.
        limit: age beyond which it is too old.
        recovery_s: what a fall-back to it would take; over: whether that is longer than was promised.
    """

    proved_at: datetime | None
    limit: timedelta
    recovery_s: float | None = None
    over: bool = False


@dataclass(frozen=True)
class Facts:
    """What is true of one pipeline.

    Attributes:
        alerts: those whose cause lasts, of the pipeline and of the whole home.
        head_at: when the head last moved, its number in the sequence, and to which timeline.
        published_at: the newest publication, and its number.
        began_at: when the first batch of the head's path was committed.
        told: whether an alert has a route, so that somebody would be told of it.
        reconcile_every: how often a reconcile starts by itself; None: none is scheduled, or its rhythm is not a simple one.
        dead: that too many of the newest records are dead letters, in words; empty: they are not.
        unread: what cannot be read now, with the reason.
    """

    name: str
    observation: StreamObservation
    stream: StreamView
    alerts: tuple[Alert, ...] = ()
    told: bool = True
    verdict: RunVerdict | None = None
    head: Entry | None = None
    published: Entry | None = None
    began_at: datetime | None = None
    quality: QualityView | None = None
    retention: RetentionBrief | None = None
    retention_at: datetime | None = None
    savepoints: Savepoints | None = None
    first_load: LoadProgress | None = None
    stream_load: StreamLoadProgress | None = None
    operation: UnfinishedOperation | None = None
    reconcile_every: timedelta | None = None
    compare: bool = True
    has_room: bool = True
    dead: str = ""
    unread: tuple[tuple[str, str], ...] = ()
