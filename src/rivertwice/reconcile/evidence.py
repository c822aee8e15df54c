"""What a judge of result rows looks at, by kind of windows, and why a row may differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from rivertwice.backfill import HalfOpenRange
from rivertwice.reconcile.gaps import LostRecordEffects
from rivertwice.reconcile.model import (
    OLDER,
    SERVED,
    AmendedRow,
    LateRow,
    OrderDependentRows,
    RowColumns,
    RowId,
    Rows,
    RowVerdict,
    ServedRow,
    ServedSession,
    SessionGroup,
    StreamRow,
    Values,
)
from rivertwice.timeline import FirstLoad, Verdict, key_text

# Why a row differs from the truth, in words and by count. Pure.

WHOLE_ROW = "the whole row"


class Explained(NamedTuple):
    """A verdict with its reason.

    Attributes:
        records: for LATE how many records are missing, where that is counted; else how many nothing explains.
    """

    verdict: str
    reason: str
    records: int = 0


def explain(
    shape: RowColumns, expected: Values | None, truth: Values | None, late: int, amended: int, *, dirty: bool
) -> Explained:
    """Explain how what the stream correctly emitted differs from the truth."""
    names = differing(shape, expected, truth) if dirty else []
    missing = shape.count(truth) - shape.count(expected)
    caused = late + amended
    if not names and missing == caused == 0:
        return Explained(Verdict.AGREES, "")
    if caused and missing == caused:
        return Explained(Verdict.LATE, say_counts(late, amended, shape.count(truth), "came after the window closed"))
    detail = (
        f"the late rule and amendments explain {caused} of {missing} missing records"
        if missing != caused
        else "no record explains it"
    )
    reason = f"the truth differs in {', '.join(names) or 'nothing'}, but {detail}"
    return Explained(Verdict.DEFECT, reason, missing - caused)


def say_counts(late: int, amended: int, total: int, phrase: str) -> str:
    """Return how many records came too late, and how many were amended."""
    parts = [f"{late} of {total} records {phrase}"] if late else []
    if amended:
        parts.append(f"{amended} of {total} were dead letters and have been amended")
    return "; ".join(parts)


def differing(shape: RowColumns, left: Values | None, right: Values | None) -> list[str]:
    """Return the columns in which two rows differ; if one is absent, that it is the whole row."""
    if left is None or right is None:
        return [] if left is right else [WHOLE_ROW]
    return shape.differences(left, right)


def listed(shape: RowColumns, names: Sequence[str], got: Values, want: Values) -> str:
    """Return how columns differ, with both values."""
    index = {name: position for position, name in enumerate(shape.columns)}
    return ", ".join(f"{name} ({got[index[name]]} instead of {want[index[name]]})" for name in names)


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
    doubts: LostRecordEffects = field(default_factory=LostRecordEffects)
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
        """Return the rows that must be served though the truth has others, of the windows closed at a watermark."""
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
            dirty: whether any row of its window differs.
        """
        late, amended = len(self.late_of(row)), len(self.amended_of(row))
        return explain(self.shape, self.expected.get(row), self.truth.get(row), late, amended, dirty=dirty)

    def explain_served(
        self, row: RowId, got: Values | None, base: Values | None, *, published: bool, late: int, amended: int
    ) -> Explained:
        """Explain what is served of a row if it is not its truth.

        Args:
            base: what must be served, or None.
            late: late records that can explain it; for a publication, those that came after it.
            amended: amendments that can, likewise.
        """
        shape, truth = self.shape, self.truth.get(row)
        missing = shape.count(truth) - shape.count(got)
        wrong = differing(shape, got, base)
        if not wrong and (late + amended == missing > 0 or (published and amended)):
            phrase = f"came too late{' after the newest publication' if published else ''}"
            return Explained(Verdict.LATE, say_counts(late, amended, shape.count(truth), phrase), late)
        names = ", ".join(wrong) or "nothing it must equal"
        return Explained(Verdict.DEFECT, f"what is served differs in {names} and no cause explains it", missing)

    def presence(self, pair: str, row: RowId, got: Values | None, verdict: str, reason: str, *, doubted: bool) -> str:
        """Return which sides hold a row, or why that does not matter."""
        if self.is_older(row, verdict, reason):
            return OLDER
        presence = _presence(pair, got, self.truth.get(row), verdict, doubted=doubted, late_only=self.late_only_label)
        if presence == _NEITHER and row in self.expected:
            presence = self.late_only_label if verdict == Verdict.OPEN else _EXPECTED_ONLY
        return _NOT_COMPARED if verdict == Verdict.NOT_COMPARABLE and presence in _ONE_SIDED else presence


@dataclass(frozen=True)
class ServedEvidence:
    """What the served table holds.

    Attributes:
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


def amended_of(evidence: Evidence, served: ServedEvidence | None, verdict: RowVerdict) -> Sequence[AmendedRow]:
    """Return the amendments that a verdict depends on."""
    if served is not None and verdict.pair == SERVED and served.is_published(verdict.row):
        return served.amended_since.get(evidence.cause_id(verdict.row), ())
    return evidence.amended_of(verdict.row)


def _presence(
    pair: str, got: Values | None, truth: Values | None, verdict: str, *, doubted: bool, late_only: str
) -> str:
    if doubted and verdict == Verdict.NOT_COMPARABLE:
        return _UNREADABLE
    if got is not None and truth is not None:
        return "both"
    if got is not None:
        return late_only if verdict == Verdict.LATE else f"{pair} only"
    return "truth only" if truth is not None else _NEITHER


# Rows of intervals: made of all records of a window, so late ones explain every row of it. Pure.

SUPERSEDED = "superseded"


@dataclass(frozen=True)
class IntervalEvidence(Evidence):
    """Late records and amendments are kept under their window's address, without a key."""

    @property
    def late_only_label(self) -> str:
        """Presence of a row that only the stream has: late records of its window would have removed it."""
        return SUPERSEDED

    def cause_id(self, row: RowId) -> RowId:
        """Return the address of a row's window."""
        return row._replace(key=key_text((), ()))

    def explain(self, row: RowId, *, dirty: bool) -> Explained:
        """Explain a row by what its window's late or amended records changed; they need not touch every row."""
        del dirty
        late, amended = len(self.late_of(row)), len(self.amended_of(row))
        return explain_interval(self.shape, self.expected.get(row), self.truth.get(row), late, amended)

    def explain_served(
        self, row: RowId, got: Values | None, base: Values | None, *, published: bool, late: int, amended: int
    ) -> Explained:
        """Explain what is served of a row that is as it must be by its window's causes."""
        if late + amended and not differing(self.shape, got, base):
            return explain_interval(self.shape, got, self.truth.get(row), late, amended)._replace(records=late)
        return super().explain_served(row, got, base, published=published, late=late, amended=amended)


def explain_interval(
    shape: RowColumns, expected: Values | None, truth: Values | None, late: int, amended: int
) -> Explained:
    """Explain a row against the truth by the late and amended records of its window."""
    names = differing(shape, expected, truth)
    if not names:
        return Explained(Verdict.AGREES, "")
    causes = [f"{late} records of its window came after it had closed"] if late else []
    if amended:
        causes.append(f"{amended} records of its window were dead letters and have been amended")
    if causes:
        return Explained(Verdict.LATE, f"{', '.join(causes)}; with them {_changed(names)}")
    return Explained(Verdict.DEFECT, f"the truth differs in {', '.join(names)}, but no record of the window was late")


def _changed(names: Sequence[str]) -> str:
    return "the row is there or not" if names == [WHOLE_ROW] else f"{', '.join(names)} differ"


# Rows of sessions: windows of stream and truth may differ though they are made of the same records. Pure.


@dataclass(frozen=True)
class SessionEvidence(Evidence):
    """What a judge of sessions looks at.

    Attributes:
        groups: by address, the sessions that are not the same on both sides, with the records that made them differ.
    """

    groups: Mapping[RowId, SessionGroup] = field(default_factory=dict)

    def group_of(self, row: RowId) -> SessionGroup | None:
        """Return the sessions that a row belongs to, where they are not the same on both sides, or None."""
        return self.groups.get(row)

    def parts_to_serve(self, published: Set[RowId], closed_ms: int) -> set[RowId]:
        """Return the sessions that the stream made of one of the truth, and that no publication replaced."""
        groups = (group for group in self.groups.values() if group.truth not in published)
        return {part for group in groups for part in group.parts if part.end_ms <= closed_ms}

    def explain(self, row: RowId, *, dirty: bool) -> Explained:
        """Explain a session by all that belongs to it, where it is not the same on both sides."""
        group = self.group_of(row)
        return super().explain(row, dirty=dirty) if group is None else self._explain_group(group)

    def explain_served(
        self, row: RowId, got: Values | None, base: Values | None, *, published: bool, late: int, amended: int
    ) -> Explained:
        """Explain what is served of a session that no publication overlaps by all that belongs to it."""
        group = None if published else self.group_of(row)
        if group is None or differing(self.shape, got, base):
            return super().explain_served(row, got, base, published=published, late=late, amended=amended)
        explained = self._explain_group(group)
        if explained.verdict == Verdict.LATE and row == group.truth:
            return explained._replace(records=len(group.late))
        return explained

    def _explain_group(self, group: SessionGroup) -> Explained:
        """Explain sessions of the stream against the one session of the truth that holds them all.

        No record may be missing but the late ones, and there must be a named record that made them differ: one that was
        dropped, or one that came when a part of its session had been emitted.
        """
        count = self.shape.count
        total = count(self.truth.get(group.truth))
        missing = total - sum(count(self.expected.get(part)) for part in group.parts)
        late, amended = len(group.late), len(group.amended)
        if missing != late + amended:
            caused = late + amended
            reason = f"the late rule and amendments explain {caused} of {missing} missing records of the session"
            return Explained(Verdict.DEFECT, reason, missing - caused)
        counted = say_counts(late, amended, total, "came too late")
        reasons = [counted] if counted else []
        if group.split:
            reasons.append(_describe_split(group.split, len(group.parts), total))
        if not reasons:
            return Explained(Verdict.DEFECT, "the session differs, but no record explains it")
        return Explained(Verdict.LATE, "; ".join(reasons))


def _describe_split(split: Sequence[LateRow], parts: int, total: int) -> str:
    where = f"{split[0].topic}/{split[0].partition}@{split[0].offset}"
    return (
        f"split: the session came apart into {parts}, for {len(split)} of {total} records (the first is {where}) "
        "came when a part of it had been emitted"
    )


def explain_published_session(evidence: Evidence, session: ServedSession, row: RowId, got: Values | None) -> Explained:
    """Explain what is served of a session that publications overlap."""
    total = sum(evidence.shape.count(evidence.truth.get(address)) for address in (session.truth, *session.others))
    names = differing(evidence.shape, got, session.to_serve.get(row))
    missing = len(session.late) + len(session.since) if row == session.truth else 0
    if names:
        difference = evidence.shape.count(session.to_serve.get(row)) - evidence.shape.count(got)
        return Explained(
            Verdict.DEFECT, f"what is served differs in {', '.join(names)} and no cause explains it", difference
        )
    if session.unexplained:
        detail = f"{session.unexplained} of {total} records are in no session that is served, though they came in time"
        return Explained(Verdict.DEFECT, f"{detail}; no cause explains it", session.unexplained)
    counted = say_counts(len(session.late), len(session.amended), total, "came too late")
    reasons = [counted] if counted else []
    if session.since:
        reasons.append(f"{len(session.since)} of {total} records came after the newest publication")
    if session.former:
        reasons.append(f"{len(session.former)} records of what is published were amended then, and are not so any more")
    if session.split:
        reasons.append(_describe_split(session.split, len(session.to_serve), total))
    if not reasons:
        return Explained(Verdict.DEFECT, "the session differs, but no record explains it")
    return Explained(Verdict.LATE, "; ".join(reasons), missing)


# Rows of stateful processing: for a key in several partitions, they may depend on the order of reading. Pure.


@dataclass(frozen=True)
class StatefulEvidence(Evidence):
    """What a judge of a fold looks at."""

    order_dependent: OrderDependentRows = field(default_factory=OrderDependentRows)

    def order_reason(self, row: RowId) -> str | None:
        """Return why no order of the log makes a row true, or None."""
        return self.order_dependent.rows.get(row)

    def is_older(self, row: RowId, verdict: str, reason: str) -> bool:
        """Say whether a row cannot be compared only because it is not the newest of its key, and only the newest must hold."""
        return (
            verdict == Verdict.NOT_COMPARABLE and row in self.order_dependent.older and reason == self.order_reason(row)
        )
