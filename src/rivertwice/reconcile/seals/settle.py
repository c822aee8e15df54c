"""Make the seal of a run that passed, or say why there is none. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rivertwice.backfill import find_unloaded
from rivertwice.core import PipelineHome
from rivertwice.reconcile.evidence import Evidence
from rivertwice.reconcile.frames import addresses, values
from rivertwice.reconcile.gaps import LostRecordEffects, SkippedRange, gaps_of
from rivertwice.reconcile.gate import Gate
from rivertwice.reconcile.judged import JudgedHead, Totals
from rivertwice.reconcile.kinds.judge import count_by_rows
from rivertwice.reconcile.model import SERVED, DefectFinding, RowColumns, RowId, RowVerdict
from rivertwice.reconcile.results import Stamp
from rivertwice.reconcile.seals.look import ChangesSinceSeal
from rivertwice.reconcile.seals.merge import Counts, merge_counts, settled_parts
from rivertwice.reconcile.seals.model import START, Seal, chain_hash, meaning_of
from rivertwice.reconcile.seals.scope import Scope, join_nearest
from rivertwice.reconcile.seals.touched import SettledRows, by_address
from rivertwice.reconcile.view import HeadView, counted_publications, shape_of
from rivertwice.storage import Table, Where
from rivertwice.timeline import (
    FirstLoad,
    LedgerRow,
    Range,
    ServedStamp,
    Verdict,
    is_on_path,
    path_until,
    select_winners,
    verdicts_of,
)


def why_not_sealed(judged: JudgedHead, view: HeadView, gate: Gate, totals: Totals) -> str:
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


def why_unfilled(jumps: Sequence[SkippedRange], filled: Collection[int], verdicts: Sequence[RowVerdict]) -> str:
    """Return why no run may build on one after an accepted gap; empty if every window of its records is served as they say.

    Args:
        filled: starts of the windows of records that the stream skipped and the archive has.
        verdicts: of all windows.
    """
    gaps = gaps_of(jumps)
    if not gaps:
        return ""
    served = [verdict for verdict in verdicts if verdict.pair == SERVED]
    if filled and not served:
        return f"windows of {gaps[0].skipped.id} are not served by a backfill yet"
    if any(
        verdict.row.start_ms in filled and verdict.verdict not in (Verdict.AGREES, Verdict.LATE) for verdict in served
    ):
        return f"windows of {gaps[0].skipped.id} are not closed yet, or no backfill is published over them"
    return ""


def why_unproved(gate: Gate, counts: Counts) -> str:
    """Return why the verdicts of a run prove nothing; empty if they prove what they cover.

    A pair may have nothing but open rows: after a first load by batch the stream itself has not closed a window yet.

    Args:
        counts: pair to verdict to rows, of all windows.
    """
    if not gate.passed:
        return "its gate did not pass"
    if any(by_verdict.get(Verdict.DEFECT) for by_verdict in counts.values()):
        return "a row is a DEFECT"
    compared = [by_verdict.get(Verdict.AGREES, 0) + by_verdict.get(Verdict.LATE, 0) for by_verdict in counts.values()]
    left = [by_verdict.get(Verdict.NOT_COMPARABLE, 0) for by_verdict in counts.values()]
    if not any(compared) or any(others and not rows for rows, others in zip(compared, left, strict=True)):
        return "nothing could be compared"
    return ""


def make_seal(
    stamp: Stamp,
    view: HeadView,
    judged: JudgedHead,
    verdicts: Sequence[RowVerdict],
    totals: Totals,
    look: ChangesSinceSeal,
) -> Seal:
    """Return the seal of a run.

    Args:
        look: with which it began; the tables' versions are of that moment.
    """
    settled_ms = settled_until(judged.evidence.closed_ms, None if judged.served is None else judged.served.closed_ms)
    served = view.served_stamp if judged.served is not None else None
    own = Counter((verdict.pair, verdict.verdict) for verdict in verdicts if verdict.row.end_ms <= settled_ms)
    emitted = _emitted(judged.evidence, view, settled_ms) if judged.can_increment else 0
    served_rows = -1
    if judged.can_increment and judged.served is not None and view.served_total is not None:
        after = sum(len(rows) for row, rows in judged.served.rows.items() if row.end_ms > settled_ms)
        served_rows = view.served_total - after - judged.sieved.served_after(settled_ms)
    own += judged.sieved.counts(settled_ms)
    emitted += judged.sieved.pairs(settled_ms) - judged.sieved.pairs()
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
        emitted=records.emitted_before + emitted,
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
    return count_by_rows(replace(evidence, stream=newly), LostRecordEffects(), settled_ms)


# What a seal says, compared with what a run sees: the ledger's chain, and the number of served rows. Pure.


def check_seals(view: HeadView, seals: Sequence[Seal]) -> list[DefectFinding]:
    """Compare the ledger's rows with the chain that each seal on the path has of them; the first that differs is named."""
    return check_chain(view.rows, seals)


def check_chain(rows: Sequence[LedgerRow], seals: Sequence[Seal]) -> list[DefectFinding]:
    """Compare the whole ledger of a path with the chain that each seal has of it; seals that are not on the path are left out."""
    by_batch: dict[tuple[str, int], list[Seal]] = {}
    for seal in seals:
        by_batch.setdefault((seal.timeline, seal.batch), []).append(seal)
    current = START
    for row in rows:
        current = chain_hash(current, [row])
        for seal in by_batch.get((row.timeline, row.batch), ()):
            if seal.ledger != current:
                message = (
                    f"the ledger up to batch {row.batch} of {row.timeline} is not what it was at the {seal.name}: a row of it was "
                    "changed since; compare it with a backup"
                )
                return [DefectFinding("seal", message, row.batch)]
    return []


def check_served_total(view: HeadView, seal: Seal) -> list[DefectFinding]:
    """Compare the number of served rows outside the windows that are judged with the number at the seal."""
    if view.prefix is None or view.served is None or view.served_total is None:
        return []
    settled = view.served_total - view.served.num_rows
    return compare_served_rows(view.home.root.name, seal, view.prefix.scope, settled)


def compare_served_rows(pipeline: str, seal: Seal, scope: Scope, settled: int) -> list[DefectFinding]:
    """Compare the number of served rows of windows that are not judged with the number at the seal.

    Args:
        scope: the windows that are judged; if settled ones are among them, nothing is known of the others.
        settled: served rows of all other windows.
    """
    if seal.served_rows < 0 or scope.ranges or settled == seal.served_rows:
        return []
    message = (
        f"the table served has {settled} rows of settled windows, it had {seal.served_rows} at the {seal.name}, and no commit of "
        f"rivertwice explains it; `rivertwice reconcile {pipeline} --full` compares every row"
    )
    return [DefectFinding("served", message)]


# Read what is stored of settled windows that changed: their verdicts, and how many records their rows count.

_MOST_RANGES = 64


def read_settled_rows(
    home: PipelineHome,
    look: ChangesSinceSeal,
    view: HeadView,
    seal: Seal,
    touched: Sequence[RowId],
    again: Sequence[Range],
) -> SettledRows:
    """Return what is known of the windows of touched rows, and the stored verdicts of windows that are judged again.

    Args:
        touched: addresses of rows of settled windows.
        again: starts of settled windows that are judged again (epoch ms).
    """
    starts = sorted({row.start_ms for row in touched})
    ranges = join_nearest([(start, start + 1) for start in starts], _MOST_RANGES)
    touched_windows = Where("window_start").is_within(ranges) if ranges else None
    shape = shape_of(view.newest.definition)
    stored = verdicts_of(home, seal.run, join_nearest([*ranges, *again], _MOST_RANGES)) if ranges or again else []
    emitted = served = None
    if touched_windows is not None:
        emitted = Table(home.tables.changelog).read(matching=touched_windows)
        served = None if view.served is None else Table(home.tables.served).read(matching=touched_windows)
    counted = counted_publications(view)
    winners = select_winners(np.array(starts, dtype=np.int64), counted, view.semantics).tolist()
    by_seq = {publication.seq: publication for publication in counted}
    return SettledRows(
        verdicts=by_address(stored),
        emitted={}
        if emitted is None
        else _counts(emitted.filter(is_on_path(path_until(look.path, view.last.batch))), shape),
        served=None if view.served is None else {} if served is None else _counts(served, shape),
        winners={start: by_seq[seq] for start, seq in zip(starts, winners, strict=True) if seq >= 0},
        semantics=view.newest.semantics,
        load=FirstLoad.load(home),
    )


def _counts(rows: pa.Table, shape: RowColumns) -> dict[RowId, int]:
    return {
        row: shape.count(row_values)
        for row, row_values in zip(addresses(rows, shape), values(rows, shape), strict=True)
    }
