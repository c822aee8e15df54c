"""Make the seal of a run that passed, or say why there is none. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from rivertwice.backfill.load_plan import find_unloaded
from rivertwice.reconcile.evidence.evidence import Evidence
from rivertwice.reconcile.gaps import Doubts, Jump, gaps_of
from rivertwice.reconcile.gate import Gate
from rivertwice.reconcile.judged import Judged
from rivertwice.reconcile.kinds.account import count_by_rows
from rivertwice.reconcile.model import SERVED, Verdict
from rivertwice.reconcile.results import Stamp
from rivertwice.reconcile.seals.look import Look
from rivertwice.reconcile.seals.merge import Counts, merge_counts, settled_parts
from rivertwice.reconcile.seals.model import START, Seal, chain_hash, meaning_of
from rivertwice.reconcile.totals import Totals
from rivertwice.reconcile.view import HeadView, counted_publications
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.verdicts import AGREES, DEFECT, LATE, NOT_COMPARABLE


def why_not_sealed(judged: Judged, view: HeadView, gate: Gate, totals: Totals) -> str:
    """Return why no later run may build on one; empty if it may."""
    if not view.newest.definition.compare:
        return "its definition says compare: false"
    if view.load is not None and find_unloaded(view.load, counted_publications(view), view.semantics):
        return "windows of its first load by batch are not published yet"
    if judged.derived.missing or judged.derived.doubts.doubts:
        return "records of the log are lost"
    unfilled = why_unfilled(view.jumps, judged.evidence.doubts.filled, judged.verdicts)
    if unfilled:
        return unfilled
    if judged.derived.defects:
        return "a row is a DEFECT"
    if totals.total.unexplained or any(account.unexplained for account in totals.partitions.values()):
        return "records are without a cause"
    return why_unproved(gate, totals.counts)


def why_unfilled(jumps: Sequence[Jump], filled: Collection[int], verdicts: Sequence[Verdict]) -> str:
    """Return why no run may build on one after an accepted gap; empty if every window of its records is served as they say.

    Args:
        jumps: what the path skipped.
        filled: starts of the windows of records that the stream skipped and the archive has.
        verdicts: of all windows.
    """
    gaps = gaps_of(jumps)
    if not gaps:
        return ""
    served = [verdict for verdict in verdicts if verdict.pair == SERVED]
    if filled and not served:
        return f"windows of {gaps[0].skipped.id} are not served by a backfill yet"
    if any(verdict.row.start_ms in filled and verdict.verdict not in (AGREES, LATE) for verdict in served):
        return f"windows of {gaps[0].skipped.id} are not closed yet, or no backfill is published over them"
    return ""


def why_unproved(gate: Gate, counts: Counts) -> str:
    """Return why the verdicts of a run prove nothing; empty if they prove what they cover.

    A pair may have nothing but open rows: after a first load by batch the stream has closed no window of its own yet.

    Args:
        gate: of the run.
        counts: pair to verdict to rows, of all windows.
    """
    if not gate.passed:
        return "its gate did not pass"
    if any(by_verdict.get(DEFECT) for by_verdict in counts.values()):
        return "a row is a DEFECT"
    compared = [by_verdict.get(AGREES, 0) + by_verdict.get(LATE, 0) for by_verdict in counts.values()]
    left = [by_verdict.get(NOT_COMPARABLE, 0) for by_verdict in counts.values()]
    if not any(compared) or any(others and not rows for rows, others in zip(compared, left, strict=True)):
        return "nothing could be compared"
    return ""


def make_seal(
    stamp: Stamp, view: HeadView, judged: Judged, verdicts: Sequence[Verdict], totals: Totals, look: Look
) -> Seal:
    """Return the seal of a run.

    Args:
        stamp: of the run.
        view: what it looked at.
        judged: what that gave.
        verdicts: all that it judged.
        totals: of all windows.
        look: with which it began; the tables' versions are of that moment.
    """
    settled_ms = settled_until(judged.evidence.closed_ms, None if judged.served is None else judged.served.closed_ms)
    served = view.served_stamp if judged.served is not None else None
    own = Counter((verdict.pair, verdict.verdict) for verdict in verdicts if verdict.row.end_ms <= settled_ms)
    emitted = _emitted(judged.evidence, view, settled_ms) if judged.can_increment else 0
    served_rows = -1
    if judged.can_increment and judged.served is not None and view.served_total is not None:
        after = sum(len(rows) for row, rows in judged.served.rows.items() if row.end_ms > settled_ms)
        spread_after = 0 if judged.spread is None else judged.spread.served_after(settled_ms)
        served_rows = view.served_total - after - spread_after
    if judged.spread is not None:
        own += judged.spread.counts(settled_ms)
        emitted += judged.spread.pairs(settled_ms)
    records = totals.records
    return Seal(
        run=stamp.run,
        created_at=stamp.created_at,
        timeline=stamp.timeline,
        batch=stamp.batch,
        meaning=meaning_of(view.newest),
        sequence=counted_sequence(view.sequence, served),
        amendments=look.amendments,
        end_offsets=view.last.end_offsets,
        settled_ms=settled_ms,
        served=served,
        counts=merge_counts(totals.settled_before, own, ()),
        parts=settled_parts(records.read, records.accepted, records.dead, records.pairs, settled_ms),
        emitted=(0 if judged.spread is not None else records.emitted_before) + emitted,
        ledger=chain_hash(
            START if view.prefix is None or look.seal is None else look.seal.ledger, view.rows[view.first_new :]
        ),
        served_rows=served_rows,
        versions=look.versions,
        whole=not judged.can_increment,
    )


def settled_until(closed_ms: int, served_ms: int | None) -> int:
    """Return up to which end (epoch ms) windows are settled: closed in the stream, and served if there is a served table."""
    return closed_ms if served_ms is None else min(closed_ms, served_ms)


def counted_sequence(read: int, served: ServedStamp | None) -> int:
    """Return the newest entry of the sequence that all verdicts count.

    The served table may not yet show an entry that was read: the windows of such a publication are judged by rows of before it,
    so for the next run it is a new one.

    Args:
        read: the newest entry that was read.
        served: what the judged served rows show; None: there are none.
    """
    return read if served is None else min(read, served.sequence)


def _emitted(evidence: Evidence, view: HeadView, settled_ms: int) -> int:
    """Return what the changelog counts in windows that this run settled."""
    before_ms = None if view.prefix is None else view.prefix.scope.settled_ms
    newly = {
        row: rows
        for row, rows in evidence.stream.items()
        if row.end_ms <= settled_ms and (before_ms is None or row.end_ms > before_ms)
    }
    return count_by_rows(replace(evidence, stream=newly), Doubts(), settled_ms)
