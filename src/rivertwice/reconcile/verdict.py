"""The verdict on every result row: a pure function over plain rows of what is, what must be and what is true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rivertwice.reconcile.gaps import Doubts
from rivertwice.reconcile.model import (
    AGREES,
    DEFECT,
    LATE,
    NOT_COMPARABLE,
    OLDER,
    OPEN,
    SERVED,
    STREAM,
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
from rivertwice.timeline.digest import digest_values
from rivertwice.timeline.keys import key_text

_UNREADABLE = "unreadable"
_WHOLE = "the whole row"
_SPLIT = "split"
_SUPERSEDED = "superseded"


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
        return _presence(pair, got, self.truth.get(row), verdict, doubted=doubted, standing=self.standing)

    @property
    def standing(self) -> str:
        """What a row is that stands only because of late records: part of a session, or one that they would have removed."""
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
    """

    rows: Mapping[RowId, Sequence[ServedRow]]
    closed_ms: int
    published: frozenset[int] = frozenset()
    publication_truth: Mapping[RowId, Values] = field(default_factory=dict)
    late_since: Mapping[RowId, Sequence[LateRow]] = field(default_factory=dict)
    amended_since: Mapping[RowId, Sequence[AmendedRow]] = field(default_factory=dict)
    published_rows: frozenset[RowId] = frozenset()
    sessions: Mapping[RowId, ServedSession] = field(default_factory=dict)

    def is_published(self, row: RowId) -> bool:
        """Say whether a publication serves the row, or what stands in its place."""
        return row.start_ms in self.published or row in self.published_rows


def amended_of(evidence: Evidence, served: ServedEvidence | None, one: Verdict) -> Sequence[AmendedRow]:
    """Return the amendments that a verdict rests on."""
    where = evidence.cause_id(one.row)
    if served is not None and one.pair == SERVED and served.is_published(one.row):
        return served.amended_since.get(where, ())
    return evidence.amended.get(where, ())


def window_digests(shape: Shape, rows: Iterable[tuple[RowId, Values]]) -> dict[int, str]:
    """Return window start to an order-independent digest of its rows."""
    grouped: dict[int, list[Values]] = defaultdict(list)
    for row, values in rows:
        grouped[row.start_ms].append((row.end_ms, row.key, *values))
    return {start: digest_values(found) for start, found in grouped.items()}


def select_dirty_windows(evidence: Evidence) -> set[int]:
    """Return the windows whose digests differ between stream, expected and truth; only they are drilled into."""
    shape = evidence.shape
    truth = window_digests(shape, evidence.truth.items())
    expected = window_digests(shape, evidence.expected.items())
    stream = window_digests(shape, ((row, one.values) for row, found in evidence.stream.items() for one in found))
    return {
        start
        for start in {*truth, *expected, *stream}
        if not stream.get(start) == expected.get(start) == truth.get(start)
    }


def judge_stream(evidence: Evidence) -> list[Verdict]:
    """Return one verdict of the pair stream for every address that any side holds, in order."""
    dirty = select_dirty_windows(evidence)
    addresses = sorted({*evidence.truth, *evidence.expected, *evidence.stream})
    return [_judge_stream_row(evidence, row, row.start_ms in dirty) for row in addresses]


def _judge_stream_row(evidence: Evidence, row: RowId, dirty: bool) -> Verdict:
    emitted = evidence.stream.get(row, ())
    expected = evidence.expected.get(row)
    truth = evidence.truth.get(row)
    late, amended = len(evidence.late_of(row)), len(evidence.amended.get(evidence.cause_id(row), ()))
    got = emitted[0].values if emitted else None
    count = evidence.shape.count
    closed = row.end_ms <= evidence.closed_ms
    unexplained = 0
    doubt = evidence.doubts.of(row.start_ms, row.end_ms)
    apart = evidence.apart_of(row)
    if row.start_ms in evidence.blamed:
        verdict, reason = DEFECT, f"ledger: {evidence.blamed[row.start_ms]}"
    elif row.start_ms in evidence.mixed:
        verdict, reason = NOT_COMPARABLE, evidence.mixed[row.start_ms]
    elif not closed and not emitted and not (evidence.updates and expected is not None):
        verdict, reason = OPEN, "the window is not closed yet"
    elif doubt is not None and doubt.unread and len(emitted) < 2:
        verdict, reason = NOT_COMPARABLE, doubt.reason
    else:
        judged = closed or evidence.updates
        problem = _stream_problem(evidence, row, emitted, expected, dirty) if judged else _OPEN_EMITTED
        if problem:
            verdict, reason = DEFECT, problem
            unexplained = sum(count(one.values) for one in emitted) - count(expected)
        elif not closed:
            verdict, reason = OPEN, "the window is not closed yet; its newest row is what was read of it so far"
        elif doubt is not None or apart is not None:
            verdict, reason = NOT_COMPARABLE, apart or (doubt.reason if doubt else "")
        else:
            family = evidence.families.get(row)
            if evidence.sliced:
                verdict, reason, unexplained = _explain_slice(evidence.shape, expected, truth, late, amended)
            elif family is None:
                verdict, reason, unexplained = _explain(evidence.shape, expected, truth, late, amended, dirty=dirty)
            else:
                verdict, reason, unexplained = _explain_family(evidence, family)
            reason = reason or evidence.doubts.caveat(row.start_ms)
    return Verdict(
        pair=STREAM,
        row=row,
        verdict=verdict,
        reason=reason,
        presence=evidence.presence(STREAM, row, got, verdict, reason, doubted=doubt is not None),
        late=late,
        dead=amended if verdict == LATE else 0,
        unexplained=abs(unexplained),
        late_share=_share(late, count(truth)),
    )


_OPEN_EMITTED = "the stream emitted a row of a window that is not closed"


def _stream_problem(
    evidence: Evidence, row: RowId, emitted: Sequence[StreamRow], expected: Values | None, dirty: bool
) -> str | None:
    if len(emitted) > 1:
        return f"the stream emitted the row {len(emitted)} times"
    if not emitted:
        return None if expected is None else "the stream did not emit the row"
    one = emitted[0]
    if expected is None:
        return "the stream emitted a row that no record explains"
    if dirty:
        names = evidence.shape.differences(one.values, expected)
        if names:
            return f"the stream differs from what it must have emitted in {_listed(evidence.shape, names, one.values, expected)}"
    if one.watermark_ms is None or one.late_watermark_ms is None:
        return f"batch {one.batch} of timeline {one.timeline}, which emitted the row, is not in the ledger"
    if not one.late_watermark_ms < row.end_ms <= one.watermark_ms:
        return f"batch {one.batch} emitted the row, but another batch closed its window, or read its record"
    return None


def _explain(
    shape: Shape, expected: Values | None, truth: Values | None, late: int, amended: int, *, dirty: bool
) -> tuple[str, str, int]:
    """Explain what the stream rightly emitted against the truth: (verdict, reason, unexplained records)."""
    names = _differing(shape, expected, truth) if dirty else []
    missing = shape.count(truth) - shape.count(expected)
    caused = late + amended
    if not names and missing == caused == 0:
        return AGREES, "", 0
    if caused and missing == caused:
        return LATE, _said(late, amended, shape.count(truth), "came after the window closed"), 0
    detail = (
        f"the late rule and amendments explain {caused} of {missing} missing records"
        if missing != caused
        else "no record explains it"
    )
    return DEFECT, f"the truth differs in {', '.join(names) or 'nothing'}, but {detail}", missing - caused


def _said(late: int, amended: int, total: int, came: str) -> str:
    """Return how many records came too late, and how many were amended."""
    parts = [f"{late} of {total} records {came}"] if late else []
    if amended:
        parts.append(f"{amended} of {total} were dead letters and have been amended")
    return "; ".join(parts)


def _explain_slice(
    shape: Shape, expected: Values | None, truth: Values | None, late: int, amended: int = 0
) -> tuple[str, str, int]:
    """Explain a row of a slice: what its window's late or amended records changed; they need not touch every row."""
    names = _differing(shape, expected, truth)
    if not names:
        return AGREES, "", 0
    causes = [f"{late} records of its window came after it had closed"] if late else []
    if amended:
        causes.append(f"{amended} records of its window were dead letters and have been amended")
    if causes:
        return LATE, f"{', '.join(causes)}; with them {_changed(names)}", 0
    return DEFECT, f"the truth differs in {', '.join(names)}, but no record of the window was late", 0


def _changed(names: Sequence[str]) -> str:
    return "the row is there or not" if names == [_WHOLE] else f"{', '.join(names)} differ"


def _explain_family(evidence: Evidence, family: Family) -> tuple[str, str, int]:
    """Explain sessions of the stream against the one session of the truth that holds them all.

    No record may be missing but the late ones, and there must be a named record that made them differ: one that was
    dropped, or one that came when a part of its session had been emitted.
    """
    count = evidence.shape.count
    total = count(evidence.truth.get(family.truth))
    missing = total - sum(count(evidence.expected.get(part)) for part in family.parts)
    late, split = len(family.late), len(family.split)
    if missing != late:
        return DEFECT, f"the late rule explains {late} of {missing} missing records of the session", missing - late
    reasons = [f"{late} of {total} records came too late"] if late else []
    if split:
        reasons.append(_said_split(family.split, len(family.parts), total))
    if not reasons:
        return DEFECT, "the session differs, but no record explains it", 0
    return LATE, "; ".join(reasons), 0


def _said_split(split: Sequence[LateRow], parts: int, total: int) -> str:
    where = f"{split[0].topic}/{split[0].partition}@{split[0].offset}"
    return (
        f"split: the session came apart into {parts}, for {len(split)} of {total} records (the first is {where}) "
        "came when a part of it had been emitted"
    )


def _explain_served_session(
    evidence: Evidence, session: ServedSession, row: RowId, got: Values | None
) -> tuple[str, str, int]:
    """Explain what is served of a session that publications overlap: (verdict, reason, missing records)."""
    total = evidence.shape.count(evidence.truth.get(session.truth))
    names = _differing(evidence.shape, got, session.owed.get(row))
    missing = len(session.late) + len(session.since) if row == session.truth else 0
    if names:
        unlike = evidence.shape.count(session.owed.get(row)) - evidence.shape.count(got)
        return DEFECT, f"what is served differs in {', '.join(names)} and no cause explains it", unlike
    if session.unexplained:
        detail = f"{session.unexplained} of {total} records are in no session that is served, though they came in time"
        return DEFECT, f"{detail}; no cause explains it", session.unexplained
    reasons = [f"{len(session.late)} of {total} records came too late"] if session.late else []
    if session.since:
        reasons.append(f"{len(session.since)} of {total} records came after the newest publication")
    if session.split:
        reasons.append(_said_split(session.split, len(session.owed), total))
    if not (session.late or session.since or session.split):
        return DEFECT, "the session differs, but no record explains it", 0
    return LATE, "; ".join(reasons), missing


def judge_served(evidence: Evidence, served: ServedEvidence) -> list[Verdict]:
    """Return one verdict of the pair served (against truth) for every address, in order."""
    owed = _owed_parts(evidence, served)
    addresses = sorted({*evidence.truth, *served.rows, *owed})
    return [_judge_served_row(evidence, served, row, owed=row in owed) for row in addresses]


def _owed_parts(evidence: Evidence, served: ServedEvidence) -> set[RowId]:
    """Return the sessions that must be served though the truth has them otherwise: parts of its own."""
    closed_ms = min(evidence.closed_ms, served.closed_ms)
    found = {row for session in served.sessions.values() for row in session.owed}
    for family in evidence.families.values():
        if family.truth not in served.published_rows:
            found |= {row for row in family.parts if row.end_ms <= closed_ms}
    return found


def _judge_served_row(evidence: Evidence, served: ServedEvidence, row: RowId, *, owed: bool) -> Verdict:
    found = served.rows.get(row, ())
    got = found[0].values if found else None
    truth = evidence.truth.get(row)
    late = len(evidence.late_of(row))
    shape = evidence.shape
    published = served.is_published(row)
    missing = amended = 0
    doubt = evidence.doubts.of(row.start_ms, row.end_ms)
    is_truth = not _differing(shape, got, truth) and not (owed and got is None)
    if row.end_ms > min(evidence.closed_ms, served.closed_ms):
        waits = "the window is not closed yet" if row.end_ms > evidence.closed_ms else "the window is not served yet"
        verdict, reason = (DEFECT, "a window is served that is not closed") if found else (OPEN, waits)
    elif len(found) > 1:
        verdict, reason = DEFECT, f"the row is served {len(found)} times"
    elif doubt is not None and not (doubt.known and is_truth):
        verdict, reason = NOT_COMPARABLE, doubt.reason
    elif is_truth and (apart := evidence.apart_of(row)) is not None:
        verdict, reason = NOT_COMPARABLE, apart
    elif is_truth:
        verdict, reason = AGREES, "published" if published else evidence.doubts.caveat(row.start_ms)
    elif not published and row.start_ms in evidence.mixed:
        verdict, reason = NOT_COMPARABLE, evidence.mixed[row.start_ms]
    elif (session := served.sessions.get(row)) is not None:
        verdict, reason, missing = _explain_served_session(evidence, session, row, got)
    else:
        base = _base_of(evidence, served, row)
        where = evidence.cause_id(row)
        cause = len(served.late_since.get(where, ())) if published else late
        amended = len((served.amended_since if published else evidence.amended).get(where, ()))
        missing = shape.count(truth) - shape.count(got)
        family = None if published else evidence.families.get(row)
        if family is not None and not _differing(shape, got, base):
            verdict, reason, missing = _explain_family(evidence, family)
            missing = len(family.late) if verdict == LATE and row == family.truth else missing
        elif evidence.sliced and cause + amended and not _differing(shape, got, base):
            verdict, reason, _ = _explain_slice(shape, got, truth, cause, amended)
            missing = cause
        elif not _differing(shape, got, base) and (cause + amended == missing > 0 or (published and amended)):
            came = f"came too late{' after the newest publication' if published else ''}"
            verdict, reason = LATE, _said(cause, amended, shape.count(truth), came)
            missing = cause
        else:
            names = ", ".join(_differing(shape, got, base)) or "nothing it must equal"
            verdict, reason = DEFECT, f"what is served differs in {names} and no cause explains it"
    explained = verdict in (LATE, AGREES, OPEN, NOT_COMPARABLE)
    return Verdict(
        pair=SERVED,
        row=row,
        verdict=verdict,
        reason=reason,
        presence=evidence.presence(SERVED, row, got, verdict, reason, doubted=doubt is not None),
        late=missing if verdict == LATE else 0,
        dead=amended if verdict == LATE else 0,
        unexplained=0 if explained else abs(missing),
        late_share=_share(missing if verdict == LATE else 0, shape.count(truth)),
    )


def _base_of(evidence: Evidence, served: ServedEvidence, row: RowId) -> Values | None:
    """Return what must be served of a row: what its publication owed when it was made, or what the stream had to emit."""
    if row in served.published_rows:  # a session that changed since is judged apart
        return evidence.truth.get(row)
    return served.publication_truth.get(row) if served.is_published(row) else evidence.expected.get(row)


def select_stale_published(evidence: Evidence, served: ServedEvidence) -> set[int]:
    """Return published windows that serve something else than the truth of now."""
    stale = set()
    for row in {*evidence.truth, *served.rows}:
        if row.start_ms not in served.published:
            continue
        found = served.rows.get(row, ())
        if _differing(evidence.shape, found[0].values if found else None, evidence.truth.get(row)):
            stale.add(row.start_ms)
    return stale


def _differing(shape: Shape, left: Values | None, right: Values | None) -> list[str]:
    if left is None or right is None:
        return [] if left is right else [_WHOLE]
    return shape.differences(left, right)


def _listed(shape: Shape, names: Sequence[str], got: Values, want: Values) -> str:
    index = {name: position for position, name in enumerate(shape.columns)}
    return ", ".join(f"{name} ({got[index[name]]} instead of {want[index[name]]})" for name in names)


def _presence(
    pair: str, got: Values | None, truth: Values | None, verdict: str, *, doubted: bool, standing: str = _SPLIT
) -> str:
    if doubted and verdict == NOT_COMPARABLE:
        return _UNREADABLE
    if got is not None and truth is not None:
        return "both"
    if got is not None:
        return standing if verdict == LATE else f"{pair} only"
    return "truth only" if truth is not None else "neither"


def _share(late: int, total: int) -> float:
    return late / total if total else 0.0
