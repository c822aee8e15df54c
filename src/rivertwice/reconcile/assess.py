"""From the observed head and the derived log to the evidence that judges look at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from rivertwice.core import Settings
from rivertwice.log import (
    Fork,
    Part,
    Parts,
    StoredOffsets,
    describe_parts,
    fork_message,
    marks_from_plain,
    observe_forks,
)
from rivertwice.reconcile.copies import check_served_rows, choose_again, wrong_rows
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.frames import addresses, late_by_row, unique_rows, values
from rivertwice.reconcile.gaps import (
    HoldsOthers,
    LostRecordEffects,
    LostRecordsDoubt,
    Missing,
    doubt_after_fork,
    doubts_of_exchanged,
    find_doubts,
    find_exchanged,
    find_unreadable,
    gaps_of,
    other_records,
    trusted_counts,
    with_filled,
)
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.model import (
    AmendedRow,
    DefectFinding,
    LateRow,
    RowColumns,
    RowId,
    RowVerdict,
    ServedRow,
    StreamRow,
)
from rivertwice.reconcile.rederive import (
    BatchCounts,
    Chain,
    LedgerDefect,
    Ranges,
    blame_windows,
    check_absent,
    check_ledger,
    derive_chain,
    derive_chain_of_many,
    derive_ranges,
    select_touching,
)
from rivertwice.reconcile.view import HeadView, Served, counted_publications, shape_of
from rivertwice.timeline import newest_rows, rule_of, select_winners, total_of

# Windows of a path that several definitions ran on (after an upgrade): which one made each, and whose rule judges it.

T = TypeVar("T", LateRow, AmendedRow)
Judges = Mapping[int, Judge]
"""The judges of a path's definitions by their numbers, each over the whole log; for a fold, only the newest one's."""


def replaced(rows: dict[RowId, Any], others: Mapping[RowId, Any], starts: set[int]) -> dict[RowId, Any]:
    """Return the result rows of all windows; those of the windows in `starts` are taken from `others`, by another rule."""
    unchanged = {row: value for row, value in rows.items() if row.start_ms not in starts}
    return unchanged | {row: value for row, value in others.items() if row.start_ms in starts}


def exchanged(rows: Sequence[T], others: Sequence[T], starts: set[int]) -> list[T]:
    """Return the rows of all windows; those of the windows in `starts` are taken from `others`, by another rule."""
    chosen: list[T] = [row for row in rows if row.row.start_ms not in starts]
    chosen.extend(row for row in others if row.row.start_ms in starts)
    return sorted(chosen, key=lambda row: (row.partition, row.offset, row.row))


def touched_by_own(view: HeadView, judges: Judges, indexes: Collection[int]) -> dict[int, set[int]]:
    """Return path index to the starts of the windows that its rows touch, by its own definition."""
    newest = view.groups[-1]
    own = {
        index: number if (number := view.groups[index]) in judges else newest
        for index in indexes
        if index < len(view.groups)
    }
    touched: dict[int, set[int]] = {}
    for number, judge in judges.items():
        touched |= judge.touched([index for index, owner in own.items() if owner == number])
    return touched


def evidence_of_served(
    view: HeadView, evidence: Evidence, late: Sequence[LateRow], judges: Judges
) -> tuple[Evidence, Sequence[LateRow]]:
    """Return the evidence that judges what is served, and its late rows; the newest definition judges what it published.

    For sessions and intervals, all definitions of a path choose the same records, so they have the same truth.
    """
    window, stamp = view.newest.definition.window, view.served_stamp
    if not view.older or stamp is None or window.kind.follows_records:
        return evidence, late
    judge, shape = judges[view.groups[-1]], evidence.shape
    newest = unique_rows(judge.truth(view.newest.definition), shape)
    starts = sorted({row.start_ms for row in {*evidence.truth, *newest}})
    counted = [publication for publication in view.publications if publication.seq <= stamp.sequence]
    winners = select_winners(np.array(starts, dtype=np.int64), counted, view.semantics).tolist()
    own = {publication.seq for publication in counted if publication.semantics == view.newest.semantics}
    renewed = {start for start, seq in zip(starts, winners, strict=True) if seq in own}
    late = exchanged(late, judge.late_rows(shape, [row.batch for row in view.rows]), renewed)
    amended_before = [row for rows in evidence.amended.values() for row in rows]
    amended = [row for row in judge.amended_rows(shape) if row.until_seq is None]
    changed = replace(
        evidence,
        truth=replaced(dict(evidence.truth), newest, renewed),
        late=late_by_row(late),
        amended=late_by_row(exchanged(amended_before, amended, renewed)),
    )
    return changed, late


def sort_by_version(
    view: HeadView, chain: Chain, judges: Judges, windows: set[tuple[int, int]]
) -> tuple[dict[int, str], dict[int, set[int]]]:
    """Return the windows that cannot be compared, and those that an older definition alone made.

    A record belongs to a window if any of the definitions assigns it: what one left out, another may have taken.
    """
    touched: dict[int, set[int]] = {}
    for judge in judges.values():
        for start, groups in judge.groups().items():
            touched.setdefault(start, set()).update(groups)
    ends = np.array(chain.batch)
    mixed: dict[int, str] = {}
    by_older: dict[int, set[int]] = {}
    for start, end in windows:
        groups = set(touched.get(start, set()))
        emitter = int(np.searchsorted(ends, end))  # the first batch whose watermark reaches the window's end
        if emitter < len(view.groups):
            groups.add(view.groups[emitter])
        only = next(iter(groups)) if len(groups) == 1 else None
        if only is None:
            mixed[start] = "mixed: more than one definition read or emitted the window"
        elif view.versions[only] is not view.newest and not has_same_windows(view, only):
            mixed[start] = (
                "mixed: another definition made the window, and records are followed by the newest one's windows"
            )
        elif view.versions[only] is not view.newest:
            by_older.setdefault(only, set()).add(start)
    return mixed, by_older


def has_same_windows(view: HeadView, group: int) -> bool:
    """Say whether the newest definition puts records into the same windows as an older one; sessions depend on row filters."""
    new, old = view.newest.definition, view.versions[group].definition
    if new.window != old.window:
        return False
    same_records = new.rows_sql == old.rows_sql and view.versions[group].decode == view.newest.decode
    return same_records or not new.window.kind.follows_records


@dataclass(frozen=True)
class RederivedLedger:
    """The ledger as it must be according to the log.

    Attributes:
        ranges, counts: per batch of the path. by_partition: (path index, part) to counts.
        missing: offsets that neither Kafka nor the archive has. doubts: windows they may belong to.
        exchanged: path index to the ranges that hold other records now than the batch read; they are among `missing`.
        fork: what a person must know and do about these.
        absent: per batch, topic to partition to how many offsets hold no record, as the ledger recorded it; `defects` has
            those that the log contradicts.
    """

    ranges: Sequence[Ranges]
    by_partition: Mapping[tuple[int, Part], BatchCounts]
    counts: Sequence[BatchCounts]
    chain: Chain
    defects: Sequence[LedgerDefect]
    missing: Sequence[Missing] = ()
    doubts: LostRecordEffects = field(default_factory=LostRecordEffects)
    absent: Sequence[StoredOffsets] = ()
    exchanged: Mapping[int, Parts] = field(default_factory=dict)
    fork: Sequence[DefectFinding] = ()

    @property
    def findings(self) -> list[DefectFinding]:
        """The defects as findings, and what was exchanged in the log."""
        return [*(DefectFinding("ledger", defect.message, defect.batch) for defect in self.defects), *self.fork]


@dataclass(frozen=True)
class Forked:
    """Where Kafka does not have the records that the head read, and the path index of the first batch that may have read such a one."""

    forks: Sequence[Fork]
    index: int


def observe_forked(settings: Settings, view: HeadView) -> Forked | None:
    """Compare the last records that the head read with Kafka's; None: they are the same, or nothing can be said.

    Raises:
        ServiceError: Kafka does not answer.
    """
    forks = observe_forks(settings, view.topic_ids, marks_from_plain(view.last.marks))
    if not forks:
        return None

    def is_wrong(part: Part, index: int) -> bool:
        mark = marks_from_plain(view.rows[index].marks).get(part)
        return mark is not None and bool(observe_forks(settings, view.topic_ids, {part: mark}))

    every = range(len(view.rows))
    return Forked(forks, min(bisect_left(every, True, key=partial(is_wrong, fork.part)) for fork in forks))


def rederive_ledger(
    view: HeadView,
    ranges: Sequence[Ranges],
    range_defects: Sequence[LedgerDefect],
    by_partition: Mapping[tuple[int, Part], BatchCounts],
    missing: Sequence[Missing] = (),
    forked: Forked | None = None,
    holds_others: HoldsOthers = lambda _part, _range: True,
) -> RederivedLedger:
    """Re-derive counts and watermarks and compare the recorded ledger with them.

    If not all records of a batch can be read any more, or others are read in their place, the ledger's own counts are used; its windows
    are in doubt. So they are if not all of it was to be read, because it was proved before; then no window is. If Kafka's log forked (`forked`), all windows that were open then are. `holds_others`: see `gaps.other_records`.
    """
    lost = find_unreadable(ranges, missing)
    by_topic = _by_topic(view, by_partition)
    unread: dict[int, Parts] = {number: {} for number in view.unread}
    exchanged = find_exchanged(view.rows, by_topic, ranges, {**lost, **unread})
    exchanged = other_records(exchanged, holds_others)
    unreadable = {**unread, **lost, **exchanged}
    counts = trusted_counts([total_of(topic_counts.values()) for topic_counts in by_topic], view.rows, unreadable)
    read_now = by_topic
    by_topic = [view.rows[n].by_topic if n in unreadable else topic_counts for n, topic_counts in enumerate(by_topic)]
    chain = _chain(view, counts, by_topic)
    defects = [*range_defects, *check_ledger(view.rows, view.topics, counts, chain, by_topic)]
    absent = [row.absent for row in view.rows]
    defects += check_absent(view.rows, ranges, by_partition, unreadable, view.first_new)
    doubts = find_doubts(view.rows, lost, view.jumps, missing, chain)
    exchanged_doubts = doubts_of_exchanged(view.rows, exchanged, read_now, chain)
    if forked is not None:
        exchanged_doubts.append(doubt_after_fork(view.rows, forked.index, chain, forked.forks))
    doubts = replace(doubts, doubts=(*doubts.doubts, *exchanged_doubts))
    gone = [*missing, *((part, *pair) for parts in exchanged.values() for part, pair in parts.items())]
    ordered = sorted(defects, key=lambda defect: (defect.index, defect.field))
    findings = _exchanged_findings(view, exchanged, forked)
    own = {key: count for key, count in by_partition.items() if key[1] not in exchanged.get(key[0], {})}
    return RederivedLedger(ranges, own, counts, chain, ordered, gone, doubts, absent, exchanged, findings)


def _exchanged_findings(view: HeadView, exchanged: Mapping[int, Parts], forked: Forked | None) -> list[DefectFinding]:
    """Return what a person must know and do: the log forked, or the archive alone has other records."""
    name = view.rows[-1].pipeline
    if forked is not None:
        return [DefectFinding("log", fork_message(forked.forks, name), view.rows[forked.index].batch)]
    if not exchanged:
        return []
    first = view.rows[min(exchanged)]
    message = (
        f"{len(exchanged)} batches, the first of them batch {first.batch} of {first.timeline}, read other records at "
        f"{describe_parts(exchanged[min(exchanged)])} than are read there now; if Kafka's log forked and the stream went back, "
        f"`rivertwice admin archive {name} --accept-hole` lets the archive follow it"
    )
    return [DefectFinding("log", message, first.batch)]


def with_doubts(derived: RederivedLedger, further: Sequence[LostRecordsDoubt]) -> RederivedLedger:
    """Return the same with further doubts about windows. Pure."""
    doubts = derived.doubts
    return replace(derived, doubts=replace(doubts, doubts=(*doubts.doubts, *further))) if further else derived


def _by_topic(view: HeadView, by_partition: Mapping[tuple[int, Part], BatchCounts]) -> list[Mapping[str, BatchCounts]]:
    by_batch: list[dict[str, BatchCounts]] = [dict.fromkeys(view.topics, BatchCounts()) for _ in view.rows]
    for (index, part), counts in by_partition.items():
        by_batch[index][part.topic] = by_batch[index].get(part.topic, BatchCounts()).plus(counts)
    return list(by_batch)


def observed_ranges(view: HeadView) -> tuple[list[Ranges], list[LedgerDefect]]:
    """Return each batch's offset ranges, and the ledger fields that disagree; those of a sealed prefix were proved before."""
    if view.prefix is None:
        jumps = {jump.index: jump.start for jump in view.jumps}
        return derive_ranges(view.rows, view.topics, view.genesis, jumps)
    first = view.first_new
    sealed = [
        {part: pair for part, pair in row.parts().items() if part.topic in view.topics} for row in view.rows[:first]
    ]
    fresh, defects = derive_ranges(view.rows[first:], view.topics, view.prefix.end_offsets)
    return [*sealed, *fresh], [replace(defect, index=defect.index + first) for defect in defects]


def _chain(view: HeadView, counts: Sequence[BatchCounts], by_topic: Sequence[Mapping[str, BatchCounts]]) -> Chain:
    if len(view.topics) > 1:
        rules = [rule_of(version.definition) for version in view.versions]
        return derive_chain_of_many(by_topic, [rules[group] for group in view.groups], view.rows)
    delays = [view.versions[group].definition.source[1].watermark for group in view.groups]
    sealed = None if view.prefix is None else Chain(view.prefix.late_ms, view.prefix.batch_ms)
    return derive_chain(counts, [int(delay.total_seconds() * 1000) for delay in delays], sealed)


def gather_evidence(view: HeadView, derived: RederivedLedger, judges: Judges) -> tuple[Evidence, list[LateRow]]:
    """Run the batch side; return all evidence that the stream is judged by, and all late rows by address.

    A window that one definition alone made is judged by that definition's judge, whatever ran after it.
    """
    definition, judge = view.newest.definition, judges[view.groups[-1]]
    shape = shape_of(definition)
    truth = unique_rows(_in_scope(view, judge.truth(definition)), shape)
    expected = unique_rows(_in_scope(view, judge.expected(definition)), shape)
    batches = [row.batch for row in view.rows]
    late, amended = judge.late_rows(shape, batches), judge.amended_rows(shape)
    stream = _stream_rows(view, derived, judge)
    mixed = judge.find_incomparable(shape, {*truth, *expected, *stream}, len(view.versions))
    if view.older:
        older_truth = {
            number: unique_rows(judges[number].truth(older_definition), shape)
            for number, older_definition in view.older.items()
            if has_same_windows(view, number)
        }
        known = {row[:2] for row in {*truth, *expected, *stream}}
        known |= {row[:2] for rows in older_truth.values() for row in rows}
        incomparable, older_windows = sort_by_version(view, derived.chain, judges, known)
        mixed |= incomparable
        for group, starts in older_windows.items():
            older_judge = judges[group]
            truth = replaced(truth, older_truth[group], starts)
            expected = replaced(expected, unique_rows(older_judge.expected(view.older[group]), shape), starts)
            late = exchanged(late, older_judge.late_rows(shape, batches), starts)
            amended = exchanged(amended, older_judge.amended_rows(shape), starts)
    if not definition.compare:
        mixed = {row.start_ms: "not compared: the definition says compare: false" for row in {*truth, *stream}}
    blamed: dict[int, str] = {}
    if derived.defects:
        touched = touched_by_own(view, judges, select_touching(derived.defects))
        windows = {row[:2] for row in {*truth, *expected, *stream}}
        blamed = blame_windows(derived.defects, derived.chain, windows, lambda index: touched.get(index, ()))
    doubts = judge.widen(derived.doubts)
    gaps = gaps_of(view.jumps)
    if gaps:
        doubts = with_filled(doubts, gaps, judge.windows_with_skipped_records())
    common = Evidence(
        shape=shape,
        closed_ms=definition.window.closed_ms(derived.chain.closed_ms),
        truth=truth,
        expected=expected,
        stream=stream,
        late=late_by_row(late),
        amended=late_by_row(amendment for amendment in amended if amendment.until_seq is None),
        mixed=mixed,
        blamed=blamed,
        doubts=doubts,
        updates=definition.has_updates,
        load=view.load,
    )
    return judge.evidence(common, batches), late


def _in_scope(view: HeadView, rows: pa.Table) -> pa.Table:
    """Return the rows of the windows that are judged; of others an incremental run has not read all records."""
    if view.prefix is None:
        return rows
    return view.prefix.scope.only(rows)


def _stream_rows(view: HeadView, derived: RederivedLedger, judge: Judge) -> dict[RowId, list[StreamRow]]:
    if view.stream is None:
        return {}
    definition = view.newest.definition
    shape = shape_of(definition)
    index = view.index
    stream_rows: dict[RowId, list[StreamRow]] = {}
    stamps = zip(view.stream.column("_timeline").to_pylist(), view.stream.column("_batch").to_pylist(), strict=True)
    for row, row_values, (timeline, batch) in zip(
        addresses(view.stream, shape), values(view.stream, shape), stamps, strict=True
    ):
        number = index.get((timeline, batch))
        if number is None and timeline == view.last.timeline and batch > view.last.batch:
            continue  # committed after we looked
        is_due = None if number is None else judge.is_due(row, number, derived.chain, derived.ranges)
        stream_rows.setdefault(row, []).append(StreamRow(row_values, timeline, batch, is_due))
    if definition.has_updates:
        return {row: _newest(rows, index) for row, rows in stream_rows.items()}
    return stream_rows


def _newest(rows: Sequence[StreamRow], index: Mapping[tuple[str, int], int]) -> list[StreamRow]:
    """Return the rows of the newest batch among those that emitted an address; more than one is a defect."""
    last = max(index.get((row.timeline, row.batch), -1) for row in rows)
    return [row for row in rows if index.get((row.timeline, row.batch), -1) == last]


def gather_served(
    view: HeadView, evidence: Evidence, chain: Chain, judge: Judge, late: Sequence[LateRow]
) -> ServedEvidence | None:
    """Return what the served table is judged by; None if there is none that shows the head's path."""
    stamp = view.served_stamp
    if view.served is None or stamp is None or (stamp.timeline, stamp.batch) not in view.index:
        return None
    shape = evidence.shape
    rows: dict[RowId, list[ServedRow]] = {}
    extras = zip(view.served.column("_status").to_pylist(), view.served.column("_backfill").to_pylist(), strict=True)
    for row, row_values, (status, backfill) in zip(
        addresses(view.served, shape), values(view.served, shape), extras, strict=True
    ):
        rows.setdefault(row, []).append(ServedRow(row_values, status, backfill))
    closed_ms = view.newest.definition.window.closed_ms(chain.batch[view.index[stamp.timeline, stamp.batch]])
    return judge.served_evidence(evidence, Served(view, rows, closed_ms, late))


def find_served_differences(
    view: HeadView, shape: RowColumns, chain: Chain, verdicts: Sequence[RowVerdict]
) -> list[DefectFinding]:
    """Compare the served table with what changelog and corrections give, as of its own stamp (`copies.check_served_rows`)."""
    stamp, definition = view.served_stamp, view.newest.definition
    if view.served is None or view.stream is None or stamp is None or (stamp.timeline, stamp.batch) not in view.index:
        return []
    index = view.index
    last = index[stamp.timeline, stamp.batch]
    stamps = zip(view.stream.column("_timeline").to_pylist(), view.stream.column("_batch").to_pylist(), strict=True)
    shown_rows = view.stream.filter(
        pa.array([index.get(batch_key, last + 1) <= last for batch_key in stamps], pa.bool_())
    )
    chosen = choose_again(
        definition,
        newest_rows(shown_rows, definition),
        view.corrections,
        counted_publications(view),
        view.semantics,
        definition.window.closed_ms(chain.batch[last]),
    )
    return check_served_rows(view.served, chosen, shape, *wrong_rows(verdicts))
