"""Judge what a view of the head shows: derive the log, compute truth and expected, compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from rivertwice.config import Settings
from rivertwice.log.addresses import Part
from rivertwice.reconcile.assess import (
    Derived,
    find_served_differences,
    gather_evidence,
    gather_served,
    observed_ranges,
    rederive_ledger,
)
from rivertwice.reconcile.balance import PairCount
from rivertwice.reconcile.columns import Contents, check_dead_columns, check_late_columns
from rivertwice.reconcile.copies import check_publications
from rivertwice.reconcile.definition_versions import evidence_of_served, pairs_by_own
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.evidence.evidence import Evidence, ServedEvidence
from rivertwice.reconcile.evidence.stateful import StatefulEvidence
from rivertwice.reconcile.kinds.judge import HasIncrements, Judge, records_without_output
from rivertwice.reconcile.model import Finding, LateRow, RowId, Verdict
from rivertwice.reconcile.recorded import (
    RecordedDeadLetter,
    check_dead_letters,
    check_emitted,
    check_late_rows,
    check_order,
    check_updates,
)
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.reconcile.view import HeadView, shape_of

Done = Callable[[str, str], None]
"""Is called at the end of a phase with its name and a detail."""


@dataclass(frozen=True)
class Judged:
    """What a view of the head gave.

    Attributes:
        judge: of the newest definition; it has all that it computed.
        late: late records of the batches that were not compared before.
        touched: those of them whose windows are settled and not in scope, by the row that they are missing from.
        dead: dead letters that the log requires. dead_counts: those recorded, by partition.
        pairs: pairs of record and window; without those that the seal counts.
        without_output: records that yielded no row, for kinds that have such.
        can_increment: whether a later run may build on this one.
    """

    derived: Derived
    judge: Judge
    evidence: Evidence
    served: ServedEvidence | None
    verdicts: Sequence[Verdict]
    findings: Sequence[Finding]
    late: Sequence[LateRow]
    touched: Mapping[RowId, Sequence[LateRow]]
    dead: Sequence[RecordedDeadLetter]
    dead_counts: Mapping[Part, int]
    pairs: Sequence[PairCount]
    without_output: Mapping[Part, int] | None
    can_increment: bool


def judge_head(spark: SparkSession, settings: Settings, view: HeadView, done: Done) -> Judged:
    """Return what the log says of the windows that a view judges."""
    ranges, range_defects = observed_ranges(view)
    definition = view.newest.definition
    with DerivedLog(
        spark,
        settings,
        definition,
        ranges,
        view.topic_ids,
        view.jumps,
        view.older,
        view.groups,
        has_holes=view.prefix is not None,
    ) as log:
        derived = rederive_ledger(view, ranges, range_defects, log.counts(), log.missing)
        read = sum(count.read for count in derived.counts)
        done("re-derive", f"{read} records, {len(derived.defects)} ledger fields differ")
        judge = log.judged_by(derived.chain, view.groups, view.cures)
        judges = {**log.judged_by_older(derived.chain, view.groups, view.cures), view.groups[-1]: judge}
        evidence, late = gather_evidence(view, derived, judges)
        fresh = [record for record in late if view.is_new(record.batch)]
        done("recompute", f"{len(evidence.truth)} result rows, {len(fresh)} late records")
        basis, their_late = evidence_of_served(view, evidence, late, judges)
        served = gather_served(view, basis, derived.chain, judge, their_late)
        rejected = [entry for entry in log.rejected() if entry[0][0] >= view.first_new]
        dead = [dead_letter for dead_letter, _ in rejected]
        contents = Contents(
            log.late_contents(fresh) if definition.late.keeps_rows else {},
            {(dead_letter[1], dead_letter[2]): columns for dead_letter, columns in rejected},
        )
        if view.prefix is None:
            pairs = pairs_by_own(judges)
        else:
            assert isinstance(judge, HasIncrements), "its runs alone are built on"
            pairs = judge.pairs_since(view.first_new, view.prefix.scope.settled_ms)
        without_output = records_without_output(judge)
        updates = check_updates(view, judge)
        done("account", f"{len(dead)} dead letters, {len(pairs)} counts")
    verdicts = judge_stream(evidence) + ([] if served is None else judge_served(basis, served))
    dead_findings, dead_counts = check_dead_letters(view, dead, derived.missing)
    findings = [*(Finding("ledger", defect.message, defect.batch) for defect in derived.defects), *view.contradicted]
    findings += [*dead_findings, *check_late_rows(view, fresh, derived.missing), *updates, *check_emitted(view)]
    findings += [*check_dead_columns(view, contents), *check_late_columns(view, fresh, contents)]
    findings += [
        *check_publications(view.publications, view.copies.plans),
        *find_served_differences(view, evidence.shape, derived.chain, verdicts),
    ]
    if isinstance(evidence, StatefulEvidence):
        findings += check_order(evidence.order_dependent)
    return Judged(
        derived=derived,
        judge=judge,
        evidence=evidence,
        served=served,
        verdicts=verdicts,
        findings=findings,
        late=fresh,
        touched=_touched(view, fresh),
        dead=dead,
        dead_counts=dead_counts,
        pairs=pairs,
        without_output=without_output,
        can_increment=isinstance(judge, HasIncrements) and judge.can_increment(shape_of(definition)),
    )


def _touched(view: HeadView, late: Sequence[LateRow]) -> dict[RowId, list[LateRow]]:
    touched: dict[RowId, list[LateRow]] = {}
    for record in late:
        if not view.judges(record.row.start_ms):
            touched.setdefault(record.row, []).append(record)
    return touched


def count_presence(verdicts: Sequence[Verdict], presence: str) -> Counter[str]:
    """Return pair to number of verdicts with this presence."""
    return Counter(verdict.pair for verdict in verdicts if verdict.presence == presence)
