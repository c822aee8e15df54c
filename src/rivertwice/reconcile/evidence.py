"""What a judge of result rows looks at. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.reconcile.gaps import Doubts
from rivertwice.reconcile.model import (
    LATE,
    NOT_COMPARABLE,
    OLDER,
    OPEN,
    SERVED,
    AmendedRow,
    Apart,
    Family,
    LateRow,
    RowId,
    Rows,
    ServedRow,
    ServedSession,
    Shape,
    StreamRow,
    Values,
    Verdict,
)
from rivertwice.timeline.keys import key_text

_UNREADABLE = "unreadable"
_SPLIT = "split"
_SUPERSEDED = "superseded"
_NEITHER = "neither"
_EXPECTED_ONLY = "expected only"
_NOT_COMPARED = "not compared"
"""Presence of a row that one side alone has and that has no rule, for instance one that an older definition emitted."""
_ONE_SIDED = (_NEITHER, _EXPECTED_ONLY, "stream only", "served only")


@dataclass(frozen=True)
class Evidence:
    """All that a judge looks at.

    Attributes:
        shape: columns and how they compare.
        closed_ms: windows that end at or before it are closed.
        truth: batch result over all accepted rows.
        expected: batch result over the rows that were not late.
        stream: changelog rows on the head's path; more than one per address is a defect.
        late: late rows by the address of the row they belong to.
        mixed: window start to reason, for windows that no single definition made.
        blamed: window start to reason, for windows that a ledger defect puts in doubt.
        doubts: windows that lost records may belong to; they are never AGREES.
        families: by address, the sessions that are not the same on both sides, with the records that made them differ.
        sliced: rows are made of a whole window's records, so late ones stand under the window's address, without a key.
        apart: of folds, what hangs on the order in which partitions were read.
        amended: what dead letters should have been, by the address of the row it belongs to; the truth counts it.
        updates: rows are emitted with every batch that changes them, so those of open windows are judged too.
    """

    shape: Shape
    closed_ms: int
    truth: Rows
    expected: Rows
    stream: Mapping[RowId, Sequence[StreamRow]]
    late: Mapping[RowId, Sequence[LateRow]]
    mixed: Mapping[int, str] = field(default_factory=dict)
    blamed: Mapping[int, str] = field(default_factory=dict)
    doubts: Doubts = field(default_factory=Doubts)
    families: Mapping[RowId, Family] = field(default_factory=dict)
    sliced: bool = False
    apart: Apart = field(default_factory=Apart)
    amended: Mapping[RowId, Sequence[AmendedRow]] = field(default_factory=dict)
    updates: bool = False

    def apart_of(self, row: RowId) -> str | None:
        """Return why no order of the log makes a fold's row true, or None."""
        return self.apart.rows.get(row)

    def is_older(self, row: RowId, verdict: str, reason: str) -> bool:
        """Say whether a row cannot be compared only because it is not the newest of its key, where just that one is said to hold."""
        return verdict == NOT_COMPARABLE and row in self.apart.older and reason == self.apart_of(row)

    def presence(self, pair: str, row: RowId, got: Values | None, verdict: str, reason: str, *, doubted: bool) -> str:
        """Return which sides hold a row, or why that is not asked."""
        if self.is_older(row, verdict, reason):
            return OLDER
        found = _presence(pair, got, self.truth.get(row), verdict, doubted=doubted, standing=self.standing)
        if found == _NEITHER and row in self.expected:
            found = self.standing if verdict == OPEN else _EXPECTED_ONLY
        return _NOT_COMPARED if verdict == NOT_COMPARABLE and found in _ONE_SIDED else found

    @property
    def standing(self) -> str:
        """What a row is that only the stream has, because of late records: part of a session, or one they would have removed."""
        return _SUPERSEDED if self.sliced else _SPLIT

    def late_of(self, row: RowId) -> Sequence[LateRow]:
        """Return the late records that belong to a row, or, of slices, to its window."""
        return self.late.get(self.cause_id(row), ())

    def cause_id(self, row: RowId) -> RowId:
        """Return the address that late records of a row stand under."""
        return row._replace(key=key_text((), ())) if self.sliced else row


@dataclass(frozen=True)
class ServedEvidence:
    """What the served table holds.

    Attributes:
        rows: served rows by address.
        closed_ms: watermark of the batch the table was last rebuilt at; later windows are not served yet.
        published: starts of the windows whose newest matching publication serves them.
        publication_truth: what publications older than the reconcile must serve: batch result over the rows up to the
            publication's own offsets, for the windows in which that differs from the truth of now.
        late_since: late rows past the publication's offsets, for the same windows.
        amended_since: what was decided about dead letters after the publication, for the same windows.
        published_rows: of sessions, which no start tells: the addresses that a session of a publication overlaps.
        sessions: of those what must be served instead of the truth, by the addresses of all that belongs to it.
        older, older_rows: windows, and rows of sessions, that a publication of an older definition serves.
    """

    rows: Mapping[RowId, Sequence[ServedRow]]
    closed_ms: int
    published: frozenset[int] = frozenset()
    publication_truth: Mapping[RowId, Values] = field(default_factory=dict)
    late_since: Mapping[RowId, Sequence[LateRow]] = field(default_factory=dict)
    amended_since: Mapping[RowId, Sequence[AmendedRow]] = field(default_factory=dict)
    published_rows: frozenset[RowId] = frozenset()
    sessions: Mapping[RowId, ServedSession] = field(default_factory=dict)
    older: frozenset[int] = frozenset()
    older_rows: frozenset[RowId] = frozenset()

    def is_of_older(self, row: RowId) -> bool:
        """Say whether a publication of an older definition serves the row, or what stands in its place."""
        return row.start_ms in self.older or row in self.older_rows

    def is_published(self, row: RowId) -> bool:
        """Say whether a publication serves the row, or what stands in its place."""
        return row.start_ms in self.published or row in self.published_rows


def amended_of(evidence: Evidence, served: ServedEvidence | None, one: Verdict) -> Sequence[AmendedRow]:
    """Return the amendments that a verdict rests on."""
    where = evidence.cause_id(one.row)
    if served is not None and one.pair == SERVED and served.is_published(one.row):
        return served.amended_since.get(where, ())
    return evidence.amended.get(where, ())


def _presence(
    pair: str, got: Values | None, truth: Values | None, verdict: str, *, doubted: bool, standing: str = _SPLIT
) -> str:
    if doubted and verdict == NOT_COMPARABLE:
        return _UNREADABLE
    if got is not None and truth is not None:
        return "both"
    if got is not None:
        return standing if verdict == LATE else f"{pair} only"
    return "truth only" if truth is not None else _NEITHER
