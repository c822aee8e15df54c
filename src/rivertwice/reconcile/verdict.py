"""The verdict on every result row: a pure function over plain rows of what is, what must be and what is true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rivertwice.reconcile.evidence import (
    Evidence,
    Explained,
    ServedEvidence,
    differing,
    explain_published_session,
    listed,
)
from rivertwice.reconcile.model import ALSO, SERVED, STREAM, RowColumns, RowId, RowVerdict, StreamRow, Values
from rivertwice.timeline import FirstLoad, Verdict, digest_values


def window_digests(shape: RowColumns, rows: Iterable[tuple[RowId, Values]]) -> dict[int, str]:
    """Return window start to an order-independent digest of its rows."""
    grouped: dict[int, list[Values]] = defaultdict(list)
    for row, values in rows:
        grouped[row.start_ms].append((row.end_ms, row.key, *values))
    return {start: digest_values(window_rows) for start, window_rows in grouped.items()}


def select_dirty_windows(evidence: Evidence) -> set[int]:
    """Return the windows whose digests differ between stream, expected and truth; only they are drilled into."""
    shape = evidence.shape
    truth = window_digests(shape, evidence.truth.items())
    expected = window_digests(shape, evidence.expected.items())
    stream = window_digests(
        shape, ((row, stream_row.values) for row, emitted in evidence.stream.items() for stream_row in emitted)
    )
    return {
        start
        for start in {*truth, *expected, *stream}
        if not stream.get(start) == expected.get(start) == truth.get(start)
    }


def judge_stream(evidence: Evidence) -> list[RowVerdict]:
    """Return one verdict of the pair stream for every address that any side holds, in order.

    Windows that are loaded by batch have none, as long as the stream emitted what it must of the records that it read.
    """
    dirty = select_dirty_windows(evidence)
    addresses = sorted({*evidence.truth, *evidence.expected, *evidence.stream})
    return [
        _with_ledger(evidence, _judge_stream_row(evidence, row, row.start_ms in dirty))
        for row in addresses
        if not _is_left_to_batch(evidence, row, row.start_ms in dirty)
    ]


def _is_left_to_batch(evidence: Evidence, row: RowId, dirty: bool) -> bool:
    """Say whether a row's window is loaded by batch, and nothing is wrong with what the stream emitted of it."""
    if not evidence.is_loaded(row) or row.start_ms in evidence.blamed:
        return False
    emitted = evidence.stream.get(row, ())
    doubt = evidence.doubts.of(row.start_ms, row.end_ms)
    if row.end_ms > evidence.closed_ms:
        return not emitted
    if doubt is not None and doubt.unread:
        return len(emitted) < 2
    return _stream_problem(evidence, emitted, evidence.expected.get(row), dirty) is None


def _with_ledger(evidence: Evidence, verdict: RowVerdict) -> RowVerdict:
    """Return a verdict with the ledger's defect that puts its window in doubt; a defect of the row itself stays named."""
    row = verdict.row
    if row.start_ms not in evidence.blamed:
        return verdict
    ledger = f"ledger: {evidence.blamed[row.start_ms]}"
    is_wrong = verdict.verdict == Verdict.DEFECT
    emitted = evidence.stream.get(row, ())
    got = emitted[0].values if emitted else None
    return replace(
        verdict,
        verdict=Verdict.DEFECT,
        reason=f"{ledger}{ALSO}{verdict.reason}" if is_wrong else ledger,
        presence=evidence.presence(STREAM, row, got, Verdict.DEFECT, ledger, doubted=False),
        dead=0,
        unexplained=verdict.unexplained if is_wrong else 0,
        ledger=ledger,
    )


def _judge_stream_row(evidence: Evidence, row: RowId, dirty: bool) -> RowVerdict:
    emitted = evidence.stream.get(row, ())
    expected = evidence.expected.get(row)
    truth = evidence.truth.get(row)
    late, amended = len(evidence.late_of(row)), len(evidence.amended_of(row))
    got = emitted[0].values if emitted else None
    count = evidence.shape.count
    closed = row.end_ms <= evidence.closed_ms
    unexplained = 0
    doubt = evidence.doubts.of(row.start_ms, row.end_ms)
    order = evidence.order_reason(row)
    if row.start_ms in evidence.mixed:
        verdict, reason = Verdict.NOT_COMPARABLE, evidence.mixed[row.start_ms]
    elif not closed and not emitted and not (evidence.updates and expected is not None):
        verdict, reason = Verdict.OPEN, "the window is not closed yet"
    elif doubt is not None and doubt.unread and len(emitted) < 2:
        verdict, reason = Verdict.NOT_COMPARABLE, doubt.reason
    else:
        judged = closed or evidence.updates
        problem = _stream_problem(evidence, emitted, expected, dirty) if judged else _OPEN_EMITTED
        if problem:
            verdict, reason = Verdict.DEFECT, problem
            unexplained = sum(count(stream_row.values) for stream_row in emitted) - count(expected)
        elif not closed:
            verdict, reason = Verdict.OPEN, "the window is not closed yet; its newest row is what was read of it so far"
        elif doubt is not None or order is not None:
            verdict, reason = Verdict.NOT_COMPARABLE, order or (doubt.reason if doubt else "")
        else:
            verdict, reason, unexplained = evidence.explain(row, dirty=dirty)
            reason = reason or evidence.doubts.caveat(row.start_ms)
    return RowVerdict(
        pair=STREAM,
        row=row,
        verdict=verdict,
        reason=reason,
        presence=evidence.presence(STREAM, row, got, verdict, reason, doubted=doubt is not None),
        late=late,
        dead=amended if verdict == Verdict.LATE else 0,
        unexplained=abs(unexplained),
        late_share=_share(late, count(truth)),
    )


_OPEN_EMITTED = "the stream emitted a row of a window that is not closed"


def _stream_problem(
    evidence: Evidence, emitted: Sequence[StreamRow], expected: Values | None, dirty: bool
) -> str | None:
    if len(emitted) > 1:
        return f"the stream emitted the row {len(emitted)} times"
    if not emitted:
        return None if expected is None else "the stream did not emit the row"
    stream_row = emitted[0]
    if expected is None:
        return "the stream emitted a row that no record explains"
    if dirty:
        names = evidence.shape.differences(stream_row.values, expected)
        if names:
            return f"the stream differs from what it must have emitted in {listed(evidence.shape, names, stream_row.values, expected)}"
    if stream_row.is_due is None:
        return (
            f"batch {stream_row.batch} of timeline {stream_row.timeline}, which emitted the row, is not in the ledger"
        )
    if not stream_row.is_due:
        return f"batch {stream_row.batch} emitted the row, but another batch closed its window, or read its record"
    return None


NOT_LOADED = (
    "the first load by batch has not published the window yet; `rivertwice start NAME --from-batch` continues it"
)
"""Reason of a verdict about a window that is served from a backfill, before that is published."""


def published_reason(load: FirstLoad | None, start_ms: int) -> str:
    """Return the reason of an agreeing row of a published window: for one of a history in a lake also what is not proved of it."""
    proof = "" if load is None else load.proof_of(start_ms)
    return f"published; {proof}" if proof else "published"


def judge_served(evidence: Evidence, served: ServedEvidence) -> list[RowVerdict]:
    """Return one verdict of the pair served (against truth) for every address, in order."""
    to_serve = _expected_served(evidence, served)
    addresses = sorted({*evidence.truth, *served.rows, *to_serve})
    return [_judge_served_row(evidence, served, row, to_serve=row in to_serve) for row in addresses]


def _expected_served(evidence: Evidence, served: ServedEvidence) -> set[RowId]:
    """Return the sessions that must be served though the truth has others: parts of the truth's sessions."""
    closed_ms = min(evidence.closed_ms, served.closed_ms)
    expected = {row for session in served.sessions.values() for row in session.to_serve}
    return expected | evidence.parts_to_serve(served.published_rows, closed_ms)


def _judge_served_row(evidence: Evidence, served: ServedEvidence, row: RowId, *, to_serve: bool) -> RowVerdict:
    served_rows = served.rows.get(row, ())
    got = served_rows[0].values if served_rows else None
    truth = evidence.truth.get(row)
    shape = evidence.shape
    published = served.is_published(row)
    missing = amended = 0
    doubt = evidence.doubts.of(row.start_ms, row.end_ms)
    is_truth = not differing(shape, got, truth) and not (to_serve and got is None)
    if row.end_ms > min(evidence.closed_ms, served.closed_ms):
        waits = "the window is not closed yet" if row.end_ms > evidence.closed_ms else "the window is not served yet"
        verdict, reason = (
            (Verdict.DEFECT, "a window is served that is not closed") if served_rows else (Verdict.OPEN, waits)
        )
    elif served.is_unloaded(row.start_ms) and not served_rows:
        verdict, reason = Verdict.OPEN, NOT_LOADED
    elif len(served_rows) > 1:
        verdict, reason = Verdict.DEFECT, f"the row is served {len(served_rows)} times"
    elif doubt is not None and not (doubt.known and (is_truth or _came_after_publication(evidence, served, row, got))):
        verdict, reason = Verdict.NOT_COMPARABLE, doubt.reason
    elif is_truth and (order := evidence.order_reason(row)) is not None:
        verdict, reason = Verdict.NOT_COMPARABLE, order
    elif is_truth:
        caveat = evidence.doubts.caveat(row.start_ms)
        verdict, reason = Verdict.AGREES, published_reason(evidence.load, row.start_ms) if published else caveat
    elif not published and row.start_ms in evidence.mixed:
        verdict, reason = Verdict.NOT_COMPARABLE, evidence.mixed[row.start_ms]
    elif served.is_of_older(row):
        verdict, reason = Verdict.NOT_COMPARABLE, "mixed: a publication of an older definition serves the window"
    elif (session := served.sessions.get(row)) is not None:
        verdict, reason, missing = explain_published_session(evidence, session, row, got)
        amended = len(session.decided) if row == session.truth else 0
    else:
        (verdict, reason, missing), amended = _explain_served(evidence, served, row, got)
    explained = verdict in (Verdict.LATE, Verdict.AGREES, Verdict.OPEN, Verdict.NOT_COMPARABLE)
    return RowVerdict(
        pair=SERVED,
        row=row,
        verdict=verdict,
        reason=reason,
        presence=evidence.presence(SERVED, row, got, verdict, reason, doubted=doubt is not None),
        late=missing if verdict == Verdict.LATE else 0,
        dead=amended if verdict == Verdict.LATE else 0,
        unexplained=0 if explained else abs(missing),
        late_share=_share(missing if verdict == Verdict.LATE else 0, shape.count(truth)),
    )


def _explain_served(
    evidence: Evidence, served: ServedEvidence, row: RowId, got: Values | None
) -> tuple[Explained, int]:
    """Return why a served row differs from the truth, and how many amendments can be the cause."""
    published, where = served.is_published(row), evidence.cause_id(row)
    cause = len(served.late_since.get(where, ())) if published else len(evidence.late_of(row))
    amended = len((served.amended_since if published else evidence.amended).get(where, ()))
    base = _base_of(evidence, served, row)
    return evidence.explain_served(row, got, base, published=published, late=cause, amended=amended), amended


def _came_after_publication(evidence: Evidence, served: ServedEvidence, row: RowId, got: Values | None) -> bool:
    """Say whether records that came after a window's publication explain the row to the last one.

    Then the publication had all others, those too that the stream skipped: one that was made before them would lack more records
    than came late. So a seal after it, and a run that judges everything, say the same.
    """
    if not served.is_published(row) or served.is_of_older(row) or row in served.sessions:
        return False
    return _explain_served(evidence, served, row, got)[0].verdict == Verdict.LATE


def _base_of(evidence: Evidence, served: ServedEvidence, row: RowId) -> Values | None:
    """Return what must be served of a row: what its publication had to serve, or what the stream had to emit."""
    if row in served.published_rows:  # a session that changed since is judged separately
        return evidence.truth.get(row)
    return served.publication_truth.get(row) if served.is_published(row) else evidence.expected.get(row)


def select_stale_published(evidence: Evidence, served: ServedEvidence) -> set[int]:
    """Return published windows that serve other rows than the present truth."""
    stale = set()
    for row in {*evidence.truth, *served.rows}:
        if row.start_ms not in served.published:
            continue
        served_rows = served.rows.get(row, ())
        if differing(evidence.shape, served_rows[0].values if served_rows else None, evidence.truth.get(row)):
            stale.add(row.start_ms)
    return stale


def _share(late: int, total: int) -> float:
    return late / total if total else 0.0
