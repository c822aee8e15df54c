"""One reconcile from end to end: observe, re-derive, judge, gate, store."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from rivertwice.config import Settings
from rivertwice.instants import TimeRange, to_ms
from rivertwice.log.addresses import Part, name_parts
from rivertwice.pipeline.definition import Definition
from rivertwice.progress import Progress
from rivertwice.reconcile import suites
from rivertwice.reconcile.acknowledge import read_acknowledgements, reasons_of, select_acknowledged
from rivertwice.reconcile.assess import (
    Derived,
    find_served_differences,
    gather_evidence,
    gather_served,
    rederive_ledger,
)
from rivertwice.reconcile.balance import Account, PairCount, balance_partitions, balance_total
from rivertwice.reconcile.columns import Contents, check_dead_columns, check_late_columns
from rivertwice.reconcile.copies import check_publications
from rivertwice.reconcile.definition_versions import evidence_of_served, pairs_by_own
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.evidence.evidence import Evidence, ServedEvidence, amended_of
from rivertwice.reconcile.evidence.stateful import StatefulEvidence
from rivertwice.reconcile.frames import balance_frame, verdict_frame
from rivertwice.reconcile.gaps import Doubts, count_readable
from rivertwice.reconcile.gate import Gate, GateInput, decide_gate
from rivertwice.reconcile.kinds.judge import Judge, records_without_output
from rivertwice.reconcile.model import OLDER, SERVED, STREAM, AmendedRow, Finding, LateRow, RowId, Verdict
from rivertwice.reconcile.recorded import (
    RecordedDeadLetter,
    check_dead_letters,
    check_emitted,
    check_late_rows,
    check_order,
    check_updates,
)
from rivertwice.reconcile.rederive import derive_ranges
from rivertwice.reconcile.results import ReconcileCause, Stamp, store_run
from rivertwice.reconcile.verdict import judge_served, judge_stream, select_dirty_windows
from rivertwice.reconcile.view import HeadView, observe_head
from rivertwice.verdicts import LATE, VERDICTS

_MS = timedelta(milliseconds=1)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReconcileReport:
    """What a run found.

    Attributes:
        counts: pair to verdict to number of result rows; a pair that could not be judged is absent.
        total, partitions: the balance, the latter by topic and partition. late: all late rows by address.
        findings: defects of the ledger and the dead letters. dirty: windows whose digests differed.
        phases: seconds by phase.
    """

    stamp: Stamp
    verdicts: Sequence[Verdict]
    counts: Mapping[str, Mapping[str, int]]
    total: Account
    partitions: Mapping[Part, Account]
    late: Sequence[LateRow]
    findings: Sequence[Finding]
    gate: Gate
    dirty: int
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Name of the run in the tables."""
        return self.stamp.run

    @property
    def duration_s(self) -> float:
        """Seconds of all phases together."""
        return sum(self.phases.values())


class _Phases:
    """Seconds by phase; each end of a phase is one line of progress."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._since = time.monotonic()

    def done(self, phase: str, detail: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = round(now - self._since, 3)
        self._since = now
        self._progress(f"reconcile: {phase}: {detail} ({self.seconds[phase]:.1f} s)")


def reconcile(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    *,
    range: TimeRange | None = None,  # noqa: A002 (the word of every request)
    now: datetime,
    progress: Progress = print,
    run: str | None = None,
) -> ReconcileReport:
    """Compare what the stream emitted and what is served with the log, and store the verdicts.

    The whole log of the head's path is read and re-derived for any `range`: a watermark depends on every batch before it.
    `range` limits which windows are judged (by their start).

    Args:
        spark: a session with the Kafka connector.
        settings: where everything is stored.
        pipeline: name of the pipeline.
        range: windows to judge; None judges all.
        now: the run's time.
        progress: gets one line per phase.
        run: name of the run; the same name stores its rows only once.
    """
    threading.Thread(target=suites.warm_up, daemon=True).start()
    phases = _Phases(progress)
    home = settings.pipeline(pipeline)
    view = observe_head(home, settings.definitions)
    jumps = {jump.index: jump.start for jump in view.jumps}
    ranges, range_defects = derive_ranges(view.rows, view.topics, view.genesis, jumps)
    phases.done("observe", f"{len(view.rows)} batches up to {view.last.timeline}/{view.last.batch}")
    with DerivedLog(
        spark, settings, view.newest.definition, ranges, view.topic_ids, view.jumps, view.older, view.groups
    ) as log:
        derived = rederive_ledger(view, ranges, range_defects, log.counts(), log.missing)
        read = sum(count.read for count in derived.counts)
        phases.done("re-derive", f"{read} records, {len(derived.defects)} ledger fields differ")
        judge = log.judged_by(derived.chain, view.groups, view.cures)
        judges = {**log.judged_by_older(derived.chain, view.groups, view.cures), view.groups[-1]: judge}
        evidence, late = gather_evidence(view, derived, judges)
        phases.done("recompute", f"{len(evidence.truth)} result rows, {len(late)} late records")
        basis, their_late = evidence_of_served(view, evidence, late, judges)
        served = gather_served(view, basis, derived.chain, judge, their_late)
        rejected = log.rejected()
        dead = [dead_letter for dead_letter, _ in rejected]
        keeps_rows = view.newest.definition.late.keeps_rows
        contents = Contents(
            log.late_contents(late) if keeps_rows else {},
            {(dead_letter[1], dead_letter[2]): columns for dead_letter, columns in rejected},
        )
        pairs, without_output = pairs_by_own(judges), records_without_output(judge)
        updates = check_updates(view, judge)
        phases.done("account", f"{len(dead)} dead letters, {len(pairs)} counts")
    verdicts = judge_stream(evidence) + ([] if served is None else judge_served(basis, served))
    served_findings = find_served_differences(view, evidence.shape, derived.chain, verdicts)
    verdicts = [verdict for verdict in verdicts if range is None or _inside(verdict.row, range)]
    dead_findings, dead_counts = check_dead_letters(view, dead, derived.missing)
    findings = [*(Finding("ledger", defect.message, defect.batch) for defect in derived.defects), *view.contradicted]
    findings += [*dead_findings, *check_late_rows(view, late, derived.missing), *updates, *check_emitted(view)]
    findings += [*check_dead_columns(view, contents), *check_late_columns(view, late, contents)]
    findings += [*check_publications(view.publications, view.copies.plans), *served_findings]
    if isinstance(evidence, StatefulEvidence):
        findings += check_order(evidence.order_dependent)
    partitions, total = draw_balance(
        derived, dead_counts, pairs, evidence, view.newest.definition, judge, without_output
    )
    dirty = len(select_dirty_windows(evidence))
    counts = count_verdicts(verdicts)
    phases.done("judge", f"{len(verdicts)} verdicts, {dirty} windows with differing digests")
    alert_share = view.newest.definition.late.alert_share
    folder = settings.project / "expectations"
    outcomes = [
        suites.run_suite(folder, "verdicts", verdict_frame(verdicts)),
        suites.run_suite(folder, "balance", balance_frame(total, partitions), {"alert_share": alert_share}),
    ]
    gaps = list(dict.fromkeys([*(doubt.reason for doubt in derived.doubts.doubts), *evidence.doubts.filled.values()]))
    older = Counter(verdict.pair for verdict in verdicts if verdict.presence == OLDER)
    compare = view.newest.definition.compare
    reasons = reasons_of((verdict.pair, verdict.verdict, verdict.presence, verdict.reason) for verdict in verdicts)
    known = select_acknowledged(read_acknowledgements(home), view.last.timeline, reasons, now)
    gate = decide_gate(
        GateInput(counts, total, partitions, alert_share, findings, outcomes, gaps, older, compare, known)
    )
    phases.done("gate", f"{'passed' if gate.passed else 'failed'} with {len(gate.alerts)} alerts")
    stamp = Stamp(
        run=run or f"rc-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}",
        pipeline=pipeline,
        created_at=now,
        timeline=view.last.timeline,
        batch=view.last.batch,
        bundle=view.last.bundle,
        sequence=view.sequence,
        as_of=view.last.end_offsets,
    )
    causes = name_causes(view, verdicts, evidence, served, dead, findings)
    store_run(home, stamp, verdicts, causes, _summary(counts, total, partitions, gate, findings, phases.seconds))
    phases.done("store", f"run {stamp.run}")
    _log.info("reconcile %s of %s: %s", stamp.run, pipeline, counts)
    return ReconcileReport(
        stamp, verdicts, counts, total, partitions, late, findings, gate, dirty, dict(phases.seconds)
    )


def _inside(row: RowId, wanted: TimeRange) -> bool:
    return to_ms(wanted.start) <= row.start_ms < to_ms(wanted.end)


def count_verdicts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """Return pair to verdict to number of rows, with every verdict named."""
    counted = Counter((verdict.pair, verdict.verdict) for verdict in verdicts)
    pairs = [pair for pair in (STREAM, SERVED) if any(verdict.pair == pair for verdict in verdicts)]
    return {pair: {verdict: counted[pair, verdict] for verdict in VERDICTS} for pair in pairs}


def draw_balance(
    derived: Derived,
    dead: Mapping[Part, int],
    pairs: Sequence[PairCount],
    evidence: Evidence,
    definition: Definition,
    judge: Judge,
    without_output: Mapping[Part, int] | None = None,
) -> tuple[dict[Part, Account], Account]:
    """Return the balance per partition, re-derived from the log, and in total, as the changelog counts it."""
    read = count_readable(derived.ranges, derived.missing)
    accepted: dict[Part, int] = {}
    for (_, part), counts in derived.by_partition.items():
        accepted[part] = accepted.get(part, 0) + counts.accepted
    window = definition.window
    closed_ms = window.closed_ms(derived.chain.closed_ms)
    partitions = balance_partitions(
        read, dead, accepted, pairs, closed_ms, windows=window.passes, without_output=without_output
    )
    unread = Doubts([doubt for doubt in derived.doubts.doubts if doubt.unread])
    return partitions, balance_total(partitions, judge.count_emitted(evidence, pairs, unread, closed_ms))


def name_causes(
    view: HeadView,
    verdicts: Sequence[Verdict],
    evidence: Evidence,
    served: ServedEvidence | None,
    dead: Sequence[RecordedDeadLetter],
    findings: Sequence[Finding],
) -> list[ReconcileCause]:
    """Return every late or splitting record of a LATE row, every dead letter and every finding, by address."""
    causes: list[ReconcileCause] = []
    for verdict in verdicts:
        by_row = evidence.late
        session = None
        if served is not None and verdict.pair == SERVED and served.is_published(verdict.row):
            by_row = served.late_since
            session = served.sessions.get(verdict.row)
        group = evidence.group_of(verdict.row)
        if verdict.verdict == LATE and session is not None:
            causes.extend(_record_cause(verdict, "late", record) for record in (*session.late, *session.since))
            causes.extend(_record_cause(verdict, "split", record) for record in session.split)
        elif verdict.verdict == LATE and group is not None:
            causes.extend(_record_cause(verdict, "late", record) for record in group.late)
            causes.extend(_record_cause(verdict, "split", record) for record in group.split)
        elif verdict.verdict == LATE:
            where = evidence.cause_id(verdict.row)
            causes.extend(_record_cause(verdict, "late", record) for record in by_row.get(where, ()))
            causes.extend(_amended_cause(verdict, record) for record in amended_of(evidence, served, verdict))
        causes.extend(
            ReconcileCause(pair=verdict.pair, cause=kind, row=verdict.row, detail=why) for kind, why in verdict.defects
        )
    causes.extend(
        ReconcileCause(STREAM, "dead", None, part.topic, part.partition, offset, view.rows[index].batch, detail=reason)
        for index, part, offset, reason in dead
    )
    causes.extend(
        ReconcileCause(
            STREAM,
            f"finding:{finding.kind}",
            None,
            finding.topic,
            finding.partition,
            finding.offset,
            finding.batch,
            detail=finding.message,
        )
        for finding in findings
    )
    return causes


def _record_cause(verdict: Verdict, cause: str, record: LateRow) -> ReconcileCause:
    return ReconcileCause(
        pair=verdict.pair,
        cause=cause,
        row=verdict.row,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        batch=record.batch,
        late_watermark_ms=record.late_watermark_ms,
        event_time=record.event_time,
    )


def _amended_cause(verdict: Verdict, record: AmendedRow) -> ReconcileCause:
    ended = "" if record.until_seq is None else f", ended by amendment {record.until_seq}"
    return ReconcileCause(
        pair=verdict.pair,
        cause="amended",
        row=verdict.row,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        event_time=record.event_time,
        detail=f"amendment {record.first_seq}{ended}",
    )


def _summary(
    counts: Mapping[str, Mapping[str, int]],
    total: Account,
    partitions: Mapping[Part, Account],
    gate: Gate,
    findings: Sequence[Finding],
    phases: Mapping[str, float],
) -> dict[str, object]:
    named = {name: partitions[part].to_json() for part, name in name_parts(partitions).items()}
    return {
        "counts": counts,
        "balance": {"total": total.to_json(), "partitions": named},
        "late_by_partition": {name: account["late_share"] for name, account in named.items()},
        "gate": {**gate.to_json(), "findings": [finding.message for finding in findings], "phases": dict(phases)},
        "duration_s": sum(phases.values()),
    }
