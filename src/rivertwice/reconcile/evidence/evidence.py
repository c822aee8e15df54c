"""What a judge of result rows looks at. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.reconcile.evidence.explanations import Explained, differing, explain, say_counts
from rivertwice.reconcile.gaps import Doubts
from rivertwice.reconcile.model import (
    OLDER,
    SERVED,
    AmendedRow,
    LateRow,
    RowColumns,
    RowId,
    Rows,
    ServedRow,
    ServedSession,
    SessionGroup,
    StreamRow,
    Values,
    Verdict,
)
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.verdicts import DEFECT, LATE, NOT_COMPARABLE, OPEN

_UNREADABLE = "unreadable"
SPLIT = "split"
_NEITHER = "neither"
_EXPECTED_ONLY = "expected only"
_NOT_COMPARED = "not compared"
"""Presence of a row that one side alone has and that has no rule, for instance one that an older definition emitted."""
_ONE_SIDED = (_NEITHER, _EXPECTED_ONLY, "stream only", "served only")


_Kind = TypeVar("_Kind", bound="Evidence")


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
        amended: what dead letters should have been, by the address of the row it belongs to; the truth counts it.
        updates: rows are emitted with every batch that changes them, so those of open windows are judged too.
        load: the first load by batch; its windows are served from backfills, and have no verdict of the pair stream but a DEFECT.
    """

    shape: RowColumns
    closed_ms: int
    truth: Rows
    expected: Rows
    stream: Mapping[RowId, Sequence[StreamRow]]
    late: Mapping[RowId, Sequence[LateRow]]
    mixed: Mapping[int, str] = field(default_factory=dict)
    blamed: Mapping[int, str] = field(default_factory=dict)
    doubts: Doubts = field(default_factory=Doubts)
    amended: Mapping[RowId, Sequence[AmendedRow]] = field(default_factory=dict)
    updates: bool = False
    load: FirstLoad | None = None

    def of_kind(self, kind: type[_Kind], **own: Any) -> _Kind:
        """Return the same evidence as that of a kind, with what only the kind has."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(Evidence)}, **own)

    @property
    def late_only_label(self) -> str:
        """Presence of a row that only the stream has, because of late records: they would have changed its address."""
        return SPLIT

    def is_loaded(self, row: RowId) -> bool:
        """Say whether a row's window is loaded by batch, whatever the stream makes of the records of it that it reads."""
        return self.load is not None and self.load.has(row.start_ms)

    def order_reason(self, row: RowId) -> str | None:
        """Return why no order of the log makes a row true, or None: its order does not matter."""
        del row
        return None

    def is_older(self, row: RowId, verdict: str, reason: str) -> bool:
        """Say whether a row cannot be compared only because it is not the newest of its key, and only the newest must hold."""
        del row, verdict, reason
        return False

    def group_of(self, row: RowId) -> SessionGroup | None:
        """Return the sessions that a row belongs to, where they are not the same on both sides, or None."""
        del row
        return None

    def parts_to_serve(self, published: Set[RowId], closed_ms: int) -> set[RowId]:
        """Return the rows that must be served though the truth has others, of the windows closed at a watermark.

        Args:
            published: addresses that a publication serves.
            closed_ms: the watermark (epoch ms).
        """
        del published, closed_ms
        return set()

    def late_of(self, row: RowId) -> Sequence[LateRow]:
        """Return the late records that can explain a row."""
        return self.late.get(self.cause_id(row), ())

    def amended_of(self, row: RowId) -> Sequence[AmendedRow]:
        """Return the amendments that can explain a row."""
        return self.amended.get(self.cause_id(row), ())

    def cause_id(self, row: RowId) -> RowId:
        """Return the address under which late records and amendments of a row are kept."""
        return row

    def explain(self, row: RowId, *, dirty: bool) -> Explained:
        """Explain how what the stream correctly emitted differs from the truth.

        Args:
            row: the address.
            dirty: whether any row of its window differs.
        """
        late, amended = len(self.late_of(row)), len(self.amended_of(row))
        return explain(self.shape, self.expected.get(row), self.truth.get(row), late, amended, dirty=dirty)

    def explain_served(
        self, row: RowId, got: Values | None, base: Values | None, *, published: bool, late: int, amended: int
    ) -> Explained:
        """Explain what is served of a row if it is not its truth.

        Args:
            row: the address.
            got: what is served, or None.
            base: what must be served, or None.
            published: whether a publication serves it.
            late: late records that can explain it; for a publication, those that came after it.
            amended: amendments that can, likewise.
        """
        shape, truth = self.shape, self.truth.get(row)
        missing = shape.count(truth) - shape.count(got)
        wrong = differing(shape, got, base)
        if not wrong and (late + amended == missing > 0 or (published and amended)):
            phrase = f"came too late{' after the newest publication' if published else ''}"
            return Explained(LATE, say_counts(late, amended, shape.count(truth), phrase), late)
        names = ", ".join(wrong) or "nothing it must equal"
        return Explained(DEFECT, f"what is served differs in {names} and no cause explains it", missing)

    def presence(self, pair: str, row: RowId, got: Values | None, verdict: str, reason: str, *, doubted: bool) -> str:
        """Return which sides hold a row, or why that does not matter."""
        if self.is_older(row, verdict, reason):
            return OLDER
        presence = _presence(pair, got, self.truth.get(row), verdict, doubted=doubted, late_only=self.late_only_label)
        if presence == _NEITHER and row in self.expected:
            presence = self.late_only_label if verdict == OPEN else _EXPECTED_ONLY
        return _NOT_COMPARED if verdict == NOT_COMPARABLE and presence in _ONE_SIDED else presence


@dataclass(frozen=True)
class ServedEvidence:
    """What the served table holds.

    Attributes:
        rows: served rows by address.
        closed_ms: watermark of the batch the table was last rebuilt at; later windows are not served yet.
        published: starts of the windows whose newest matching publication serves them.
        publication_truth: what publications older than the reconcile must serve: batch result over the rows up to the
            publication's own offsets, for the windows in which that differs from the present truth.
        late_since: late rows past the publication's offsets, for the same windows.
        amended_since: what was decided about dead letters after the publication, for the same windows.
        published_rows: for sessions, which a start does not identify: the addresses that a published session overlaps.
        sessions: for those, what must be served instead of the truth, by the addresses of all that belongs to it.
        older, older_rows: windows, and rows of sessions, that a publication of an older definition serves.
        unloaded: starts of the windows of a first load by batch that no backfill has published yet, as half-open ranges.
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
    unloaded: Sequence[HalfOpenRange] = ()

    def is_unloaded(self, start_ms: int) -> bool:
        """Say whether a window waits for the backfill of a first load by batch."""
        return any(low <= start_ms < high for low, high in self.unloaded)

    def is_of_older(self, row: RowId) -> bool:
        """Say whether a publication of an older definition serves the row, or what replaces it."""
        return row.start_ms in self.older or row in self.older_rows

    def is_published(self, row: RowId) -> bool:
        """Say whether a publication serves the row, or what replaces it."""
        return row.start_ms in self.published or row in self.published_rows


def amended_of(evidence: Evidence, served: ServedEvidence | None, verdict: Verdict) -> Sequence[AmendedRow]:
    """Return the amendments that a verdict depends on."""
    if served is not None and verdict.pair == SERVED and served.is_published(verdict.row):
        return served.amended_since.get(evidence.cause_id(verdict.row), ())
    return evidence.amended_of(verdict.row)


def _presence(
    pair: str, got: Values | None, truth: Values | None, verdict: str, *, doubted: bool, late_only: str
) -> str:
    if doubted and verdict == NOT_COMPARABLE:
        return _UNREADABLE
    if got is not None and truth is not None:
        return "both"
    if got is not None:
        return late_only if verdict == LATE else f"{pair} only"
    return "truth only" if truth is not None else _NEITHER
