"""From the observed head and the derived log to the evidence that judges look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from rivertwice.log.addresses import Part
from rivertwice.pipeline.kinds.stateful import FOREVER_MS
from rivertwice.reconcile.copies import check_served_rows, choose_again
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.fold_rule import is_read_by
from rivertwice.reconcile.frames import addresses, late_by_row, unique_rows, values
from rivertwice.reconcile.gaps import (
    Doubts,
    Missing,
    find_doubts,
    find_unreadable,
    trusted_counts,
    widened,
    with_filled,
    without_end,
)
from rivertwice.reconcile.late_rule import NEVER_MS, Rule
from rivertwice.reconcile.meanings import (
    Rules,
    exchanged,
    has_same_windows,
    replaced,
    sort_out_meanings,
    touched_by_own,
)
from rivertwice.reconcile.model import (
    SERVED,
    STREAM,
    AmendedRow,
    Finding,
    LateRow,
    RowId,
    ServedRow,
    Shape,
    StreamRow,
    Verdict,
)
from rivertwice.reconcile.rederive import (
    BatchCounts,
    Chain,
    LedgerDefect,
    Ranges,
    blame_windows,
    check_ledger,
    derive_chain,
    derive_chain_of_many,
    select_touching,
)
from rivertwice.reconcile.session_served import Claim, PublishedSessions
from rivertwice.reconcile.verdict import select_stale_published
from rivertwice.reconcile.view import HeadView, shape_of
from rivertwice.timeline.counts import total_of
from rivertwice.timeline.served import newest_rows
from rivertwice.timeline.serving import Publication, select_winners, withdrawn_rows
from rivertwice.timeline.watermarks import rule_of


@dataclass(frozen=True)
class Derived:
    """The ledger as the log says it must be.

    Attributes:
        ranges, counts: per batch of the path. by_partition: (path index, part) to counts.
        defects: fields of the recorded ledger that differ.
        missing: offsets that neither Kafka nor the archive has. doubts: windows they may belong to.
    """

    ranges: Sequence[Ranges]
    by_partition: Mapping[tuple[int, Part], BatchCounts]
    counts: Sequence[BatchCounts]
    chain: Chain
    defects: Sequence[LedgerDefect]
    missing: Sequence[Missing] = ()
    doubts: Doubts = field(default_factory=Doubts)


def rederive_ledger(
    view: HeadView,
    ranges: Sequence[Ranges],
    range_defects: Sequence[LedgerDefect],
    by_partition: Mapping[tuple[int, Part], BatchCounts],
    missing: Sequence[Missing] = (),
) -> Derived:
    """Re-derive counts and watermarks and compare the recorded ledger with them.

    A batch whose records cannot all be read any more is taken as the ledger says; its windows are in doubt.
    """
    unreadable = find_unreadable(ranges, missing)
    by_topic = _by_topic(view, by_partition)
    counts = trusted_counts([total_of(found.values()) for found in by_topic], view.rows, unreadable)
    by_topic = [view.rows[n].by_topic if n in unreadable else found for n, found in enumerate(by_topic)]
    chain = _chain(view, counts, by_topic)
    defects = [*range_defects, *check_ledger(view.rows, view.topics, counts, chain, by_topic)]
    doubts = find_doubts(view.rows, unreadable, view.jumps, missing, chain)
    ordered = sorted(defects, key=lambda one: (one.index, one.field))
    return Derived(ranges, by_partition, counts, chain, ordered, missing, doubts)


def _by_topic(view: HeadView, by_partition: Mapping[tuple[int, Part], BatchCounts]) -> list[Mapping[str, BatchCounts]]:
    found: list[dict[str, BatchCounts]] = [dict.fromkeys(view.topics, BatchCounts()) for _ in view.rows]
    for (index, part), counts in by_partition.items():
        found[index][part.topic] = found[index].get(part.topic, BatchCounts()).plus(counts)
    return list(found)


def _chain(view: HeadView, counts: Sequence[BatchCounts], by_topic: Sequence[Mapping[str, BatchCounts]]) -> Chain:
    if len(view.topics) > 1:
        rules = [rule_of(meaning.definition) for meaning in view.meanings]
        return derive_chain_of_many(by_topic, [rules[group] for group in view.groups], view.rows)
    delays = [view.meanings[group].definition.source[1].watermark for group in view.groups]
    return derive_chain(counts, [int(delay.total_seconds() * 1000) for delay in delays])


def gather_evidence(view: HeadView, derived: Derived, rules: Rules) -> tuple[Evidence, list[LateRow]]:
    """Run the batch side and return everything the stream is judged by, and all late rows by address.

    A window that one definition alone made is judged by that one's rule, whatever ran since.
    """
    definition, rule = view.newest.definition, rules[view.groups[-1]]
    shape = shape_of(definition)
    truth = unique_rows(rule.truth(definition), shape)
    expected = unique_rows(rule.expected(definition), shape)
    batches = [row.batch for row in view.rows]
    late, amended = rule.late_rows(shape, batches), rule.amended_rows(shape)
    stream = _stream_rows(view, derived)
    mixed: dict[int, str] = {}
    if definition.window.is_sliced:
        mixed = _ambiguous(rule.truth(definition), shape)
    if len(view.meanings) > 1 and definition.window.is_fold:
        reason = "mixed: more than one definition made the states that the fold went on from"
        mixed = {row.start_ms: reason for row in {*truth, *expected, *stream}}
    elif len(view.meanings) > 1:
        theirs = {
            number: unique_rows(rules[number].truth(one), shape)
            for number, one in view.older.items()
            if has_same_windows(view, number)
        }
        known = {row[:2] for row in {*truth, *expected, *stream}}
        known |= {row[:2] for rows in theirs.values() for row in rows}
        unlike, pure = sort_out_meanings(view, derived.chain, rules, known)
        mixed |= unlike
        for group, starts in pure.items():
            other = rules[group]
            truth = replaced(truth, theirs[group], starts)
            expected = replaced(expected, unique_rows(other.expected(view.older[group]), shape), starts)
            late = exchanged(late, other.late_rows(shape, batches), starts)
            amended = exchanged(amended, other.amended_rows(shape), starts)
    if not definition.compare:
        mixed = {row.start_ms: "not compared: the definition says compare: false" for row in {*truth, *stream}}
    blamed: dict[int, str] = {}
    if derived.defects:
        touched = touched_by_own(view, rules, select_touching(derived.defects))
        windows = {row[:2] for row in {*truth, *expected, *stream}}
        blamed = blame_windows(derived.defects, derived.chain, windows, lambda index: touched.get(index, ()))
    doubts = derived.doubts
    if definition.window.is_session:
        doubts = widened(doubts, definition.window.length // timedelta(milliseconds=1))
    if definition.window.is_fold:
        doubts = without_end(doubts)
    if view.jumps:
        doubts = with_filled(doubts, view.jumps, rule.filled())
    evidence = Evidence(
        shape=shape,
        closed_ms=definition.window.closed_ms(derived.chain.closed_ms),
        truth=truth,
        expected=expected,
        stream=stream,
        late=late_by_row(late),
        amended=late_by_row(one for one in amended if one.until_seq is None),
        mixed=mixed,
        blamed=blamed,
        doubts=doubts,
        families=rule.families(shape, batches),
        sliced=definition.window.is_sliced,
        apart=rule.apart(shape),
        updates=definition.has_updates,
    )
    return evidence, late


def _ambiguous(table: pa.Table, shape: Shape) -> dict[int, str]:
    """Return window start to reason, for windows in which the keys do not tell rows apart."""
    counted = Counter(addresses(table, shape))
    return {
        row.start_ms: f"the transform yields {count} rows with the keys {row.key}, so they cannot be told apart; add a key"
        for row, count in counted.items()
        if count > 1
    }


def _stream_rows(view: HeadView, derived: Derived) -> dict[RowId, list[StreamRow]]:
    if view.stream is None:
        return {}
    definition = view.newest.definition
    shape = shape_of(definition)
    chain = derived.chain
    index = view.index
    found: dict[RowId, list[StreamRow]] = {}
    stamps = zip(view.stream.column("_timeline").to_pylist(), view.stream.column("_batch").to_pylist(), strict=True)
    for row, one, (timeline, batch) in zip(
        addresses(view.stream, shape), values(view.stream, shape), stamps, strict=True
    ):
        number = index.get((timeline, batch))
        if number is None and timeline == view.last.timeline and batch > view.last.batch:
            continue  # committed after we looked
        late_ms = None if number is None else chain.late[number]
        batch_ms = None if number is None else chain.batch[number]
        if (
            definition.window.is_fold and number is not None
        ):  # the batch that emits a row is the one that reads its record
            is_own = is_read_by(row, definition, derived.ranges[number])
            late_ms, batch_ms = NEVER_MS if is_own else FOREVER_MS, FOREVER_MS
        if definition.has_updates and number is not None:  # which batch had to is `recorded.check_updates`
            late_ms, batch_ms = NEVER_MS, FOREVER_MS
        found.setdefault(row, []).append(StreamRow(one, timeline, batch, late_ms, batch_ms))
    if definition.has_updates:
        return {row: _newest(rows, index) for row, rows in found.items()}
    return found


def _newest(rows: Sequence[StreamRow], index: Mapping[tuple[str, int], int]) -> list[StreamRow]:
    """Return the rows of the newest batch among those that emitted an address; more than one is a defect."""
    last = max(index.get((one.timeline, one.batch), -1) for one in rows)
    return [one for one in rows if index.get((one.timeline, one.batch), -1) == last]


def gather_served(
    view: HeadView, evidence: Evidence, chain: Chain, rule: Rule, late: Sequence[LateRow]
) -> ServedEvidence | None:
    """Return what the served table is judged by; None if there is none that shows the head's path."""
    stamp = view.served_stamp
    if view.served is None or stamp is None or (stamp.timeline, stamp.batch) not in view.index:
        return None
    shape = evidence.shape
    rows: dict[RowId, list[ServedRow]] = {}
    extras = zip(view.served.column("_status").to_pylist(), view.served.column("_backfill").to_pylist(), strict=True)
    for row, one, (status, backfill) in zip(
        addresses(view.served, shape), values(view.served, shape), extras, strict=True
    ):
        rows.setdefault(row, []).append(ServedRow(one, status, backfill))
    counted = [one for one in view.publications if one.seq <= stamp.sequence]
    closed_ms = view.newest.definition.window.closed_ms(chain.batch[view.index[stamp.timeline, stamp.batch]])
    if view.newest.definition.window.is_session:
        return _served_sessions(view, evidence, rule, rows, counted, closed_ms)
    starts = np.array(sorted({row.start_ms for row in {*evidence.truth, *rows}}), dtype=np.int64)
    winners = select_winners(starts, counted, view.semantics)
    owner = {int(start): int(seq) for start, seq in zip(starts, winners, strict=True) if seq >= 0}
    old = {one.seq for one in counted if one.semantics != view.newest.semantics}
    served = ServedEvidence(
        rows=rows,
        closed_ms=closed_ms,
        published=frozenset(owner),
        older=frozenset(start for start, seq in owner.items() if seq in old),
    )
    stale = select_stale_published(evidence, served) - served.older
    return (
        _with_publication_truth(view, evidence, served, {s: owner[s] for s in stale}, rule, late) if stale else served
    )


def _served_sessions(
    view: HeadView,
    evidence: Evidence,
    rule: Rule,
    rows: Mapping[RowId, Sequence[ServedRow]],
    counted: Sequence[Publication],
    closed_ms: int,
) -> ServedEvidence:
    """Return what sessions are judged by: those that publications overlap, by their own addresses and the truth's."""
    counting = {one.backfill: one for one in counted if one.semantics in view.semantics}
    old = {one.seq for one in counting.values() if one.semantics != view.newest.semantics}
    claims: dict[str, list[Claim]] = {}
    if view.corrections is not None:
        made = view.corrections["_backfill"].to_pylist()
        gone = withdrawn_rows(view.corrections).tolist()
        for row, backfill, vanishes in zip(addresses(view.corrections, evidence.shape), made, gone, strict=True):
            if backfill in counting:
                claims.setdefault(row.key, []).append(Claim(row.start_ms, row.end_ms, counting[backfill].seq, vanishes))

    def over(row: RowId) -> set[int]:
        return {claim.seq for claim in claims.get(row.key, ()) if claim.overlaps(row.start_ms, row.end_ms)}

    published = {row: over(row) for row in {*evidence.truth, *rows}}
    sessions = rule.served_sessions(
        evidence.shape,
        [row.batch for row in view.rows],
        PublishedSessions(
            claims,
            {one.seq: one.as_of for one in counting.values()},
            closed_ms,
            {one.seq: one.amendments for one in counting.values()},
        ),
        evidence.expected,
    )
    older = {row for row, found in published.items() if found & old}
    for row, one in sessions.items():
        if over(row) & old:  # with all that belongs to the same session
            older |= {one.truth, *one.others, *one.owed}
    return ServedEvidence(
        rows=rows,
        closed_ms=closed_ms,
        published_rows=frozenset(row for row, found in published.items() if found),
        sessions=sessions,
        older_rows=frozenset(older),
        amended_since={one.truth: one.decided for one in sessions.values() if one.decided},
    )


def find_served_differences(view: HeadView, shape: Shape, chain: Chain, verdicts: Sequence[Verdict]) -> list[Finding]:
    """Compare the served table with what changelog and corrections give, as of its own stamp (`copies.check_served_rows`)."""
    stamp, definition = view.served_stamp, view.newest.definition
    if view.served is None or view.stream is None or stamp is None or (stamp.timeline, stamp.batch) not in view.index:
        return []
    last = view.index[stamp.timeline, stamp.batch]
    stamps = zip(view.stream.column("_timeline").to_pylist(), view.stream.column("_batch").to_pylist(), strict=True)
    shown = view.stream.filter(pa.array([view.index.get(one, last + 1) <= last for one in stamps], pa.bool_()))
    chosen = choose_again(
        definition,
        newest_rows(shown, definition),
        view.corrections,
        [one for one in view.publications if one.seq <= stamp.sequence],
        view.semantics,
        definition.window.closed_ms(chain.batch[last]),
    )
    wrong: dict[str, set[RowId]] = {STREAM: set(), SERVED: set()}
    for one in verdicts:
        if any(cause == "unexplained" for cause, _ in one.defects):
            wrong[one.pair].add(one.row)
    return check_served_rows(view.served, chosen, shape, wrong[STREAM], wrong[SERVED])


def _with_publication_truth(
    view: HeadView,
    evidence: Evidence,
    served: ServedEvidence,
    owner: Mapping[int, int],
    rule: Rule,
    late: Sequence[LateRow],
) -> ServedEvidence:
    """Add what each publication owed when it was made, for windows that serve something else than the truth of now."""
    size_ms = view.newest.definition.window.length // timedelta(milliseconds=1)
    truth: dict[RowId, Any] = {}
    since: dict[RowId, list[LateRow]] = {}
    amended: list[AmendedRow] = []
    for publication in view.publications:
        starts = {start for start, seq in owner.items() if seq == publication.seq}
        if not starts:
            continue
        ends_ms = [start + size_ms for start in starts]
        table: pa.Table = rule.truth_as_of(publication.as_of, publication.amendments, ends_ms)
        truth |= unique_rows(table, evidence.shape)
        for one in late:
            counted = publication.as_of.get(one.topic, {}).get(one.partition, 0)
            if one.row.start_ms in starts and one.offset >= counted:
                since.setdefault(one.row, []).append(one)
        amended += [
            one
            for one in rule.amended_rows(evidence.shape)
            if one.row.start_ms in starts and one.changed_since(publication.amendments)
        ]
    return replace(served, publication_truth=truth, late_since=since, amended_since=late_by_row(amended))
