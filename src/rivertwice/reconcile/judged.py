"""What judging a view of the head gave, and its totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rivertwice.definition import Definition
from rivertwice.log import Part
from rivertwice.reconcile.assess import RederivedLedger
from rivertwice.reconcile.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.gaps import LostRecordEffects, count_readable
from rivertwice.reconcile.kinds.judge import Judge
from rivertwice.reconcile.model import (
    Account,
    DefectFinding,
    LateRow,
    PairCount,
    RowId,
    RowVerdict,
    balance_partitions,
    balance_total,
)
from rivertwice.reconcile.recorded import RecordedDeadLetter
from rivertwice.reconcile.seals.merge import Counts, merge_counts, plus, replaced_verdicts, sealed_pairs
from rivertwice.reconcile.seals.model import Seal
from rivertwice.reconcile.seals.touched import SettledRows, TouchedRows
from rivertwice.reconcile.sieve import Sieved
from rivertwice.reconcile.verdict import select_dirty_windows
from rivertwice.reconcile.view import HeadView


@dataclass(frozen=True)
class JudgedHead:
    """What a view of the head gave.

    Attributes:
        judge: of the newest definition; it has all that it computed.
        late: late records of the batches that were not compared before.
        touched: those of them whose windows are settled and not in scope, by the row that they are missing from.
        dead: dead letters that the log requires. dead_counts: those recorded, by partition.
        pairs: pairs of record and window; without those that the seal counts.
        can_increment: whether a later run may build on this one.
        decoded: what was read of the archive as it is kept decoded, in words.
        sieved: what was judged without the driver; `evidence`, `served`, `verdicts` and `late` are of the other windows alone.
    """

    derived: RederivedLedger
    judge: Judge
    evidence: Evidence
    served: ServedEvidence | None
    verdicts: Sequence[RowVerdict]
    findings: Sequence[DefectFinding]
    late: Sequence[LateRow]
    touched: Mapping[RowId, Sequence[LateRow]]
    dead: Sequence[RecordedDeadLetter]
    dead_counts: Mapping[Part, int]
    pairs: Sequence[PairCount]
    without_output: Mapping[Part, int] | None
    can_increment: bool
    sieved: Sieved
    decoded: Sequence[str] = ()

    @property
    def dirty(self) -> int:
        """How many windows have rows that differ between stream, expected and truth."""
        return len(select_dirty_windows(self.evidence)) + self.sieved.dirty


def touched_rows(view: HeadView, late: Sequence[LateRow]) -> dict[RowId, list[LateRow]]:
    """Return late records of windows that a view does not judge, by the row that they are missing from."""
    touched: dict[RowId, list[LateRow]] = {}
    for record in late:
        if not view.judges(record.row.start_ms):
            touched.setdefault(record.row, []).append(record)
    return touched


def count_presence(verdicts: Sequence[RowVerdict], presence: str) -> Counter[str]:
    """Return pair to number of verdicts with this presence."""
    return Counter(verdict.pair for verdict in verdicts if verdict.presence == presence)


# Counts and balance of all windows: of those that a run judged, and of those that a seal counted before. Pure.


@dataclass(frozen=True)
class RecordCounts:
    """Records and pairs of a path, from its first batch on.

    Attributes:
        read, accepted, dead: records by partition.
        pairs: pairs of record and window. own_pairs: without those that a seal counted.
        emitted_before: pairs of windows of the seal, or of those that executors judged, as the changelog counts them.
    """

    read: Mapping[Part, int]
    accepted: Mapping[Part, int]
    dead: Mapping[Part, int]
    pairs: Sequence[PairCount]
    own_pairs: Sequence[PairCount]
    emitted_before: int = 0


@dataclass(frozen=True)
class Totals:
    """What holds for all windows.

    Attributes:
        counts: pair to verdict to rows. partitions, total: the balance.
        settled_before: counts of the seal, without the verdicts that no longer hold.
    """

    counts: Counts
    partitions: Mapping[Part, Account]
    total: Account
    records: RecordCounts
    settled_before: Counts = field(default_factory=dict)


def add_up(
    view: HeadView,
    judged: JudgedHead,
    verdicts: Sequence[RowVerdict],
    seal: Seal | None = None,
    settled: SettledRows | None = None,
    touched: TouchedRows | None = None,
) -> Totals:
    """Return the totals of a run.

    Args:
        seal: that it builds on; None: it judged everything.
        touched: verdicts of such rows; they are among `verdicts`.
    """
    evidence = judged.evidence
    records = count_records(judged.derived, judged.dead_counts, judged.pairs, view.first_new)
    records = replace(records, emitted_before=judged.sieved.pairs())
    own = Counter((verdict.pair, verdict.verdict) for verdict in verdicts) + judged.sieved.counts()
    counts: Counts = merge_counts({}, own, ())
    before: Counts = {}
    if seal is not None:
        assert view.prefix is not None, "a run that builds on a seal has a view that begins there"
        scope = view.prefix.scope
        records = _with_sealed(records, seal)
        stored = {} if settled is None else settled.verdicts
        again = TouchedRows() if touched is None else touched
        replaced = replaced_verdicts(stored, scope, again.verdicts, again.agreed)
        before = merge_counts(seal.counts, (), replaced)
        counts = merge_counts(before, own, ())
        unsettled = {row: rows for row, rows in evidence.stream.items() if row.end_ms > scope.settled_ms}
        evidence = replace(evidence, stream=unsettled)
    partitions, total = draw_balance(
        judged.derived, records, evidence, view.newest.definition, judged.judge, judged.without_output
    )
    return Totals(counts, partitions, total, records, before)


def count_records(
    derived: RederivedLedger, dead: Mapping[Part, int], pairs: Sequence[PairCount], first_new: int = 0
) -> RecordCounts:
    """Return what a run counted itself, of the batches from a path index on."""
    accepted: dict[Part, int] = {}
    for (index, part), counts in derived.by_partition.items():
        if index >= first_new:
            accepted[part] = accepted.get(part, 0) + counts.accepted
    own = {
        (index - first_new, part): counts.read
        for (index, part), counts in derived.by_partition.items()
        if index >= first_new
    }
    read = count_readable(derived.ranges[first_new:], derived.missing, derived.absent[first_new:], own)
    return RecordCounts(read, accepted, dead, pairs, pairs)


def _with_sealed(records: RecordCounts, seal: Seal) -> RecordCounts:
    return RecordCounts(
        read=plus({part: account.read for part, account in seal.parts.items()}, records.read),
        accepted=plus({part: account.accepted for part, account in seal.parts.items()}, records.accepted),
        dead=plus({part: account.dead for part, account in seal.parts.items()}, records.dead),
        pairs=[*records.pairs, *sealed_pairs(seal)],
        own_pairs=records.own_pairs,
        emitted_before=seal.emitted,
    )


def draw_balance(
    derived: RederivedLedger,
    records: RecordCounts,
    evidence: Evidence,
    definition: Definition,
    judge: Judge,
    without_output: Mapping[Part, int] | None = None,
) -> tuple[dict[Part, Account], Account]:
    """Return the balance per partition, re-derived from the log, and in total, as the changelog counts it.

    Args:
        evidence: with what the stream emitted of windows that a seal does not count.
        definition: of the newest batch.
    """
    window = definition.window
    closed_ms = window.closed_ms(derived.chain.closed_ms)
    partitions = balance_partitions(
        records.read,
        records.dead,
        records.accepted,
        records.pairs,
        closed_ms,
        windows=window.passes,
        without_output=without_output,
    )
    unread = LostRecordEffects([doubt for doubt in derived.doubts.doubts if doubt.unread])
    emitted = judge.count_emitted(evidence, records.own_pairs, unread, closed_ms)
    return partitions, balance_total(partitions, records.emitted_before + emitted)
