"""The named causes of differing rows, as they are stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rivertwice.reconcile.evidence.evidence import Evidence, ServedEvidence, amended_of
from rivertwice.reconcile.model import SERVED, STREAM, AmendedRow, Finding, LateRow, RowId, Verdict
from rivertwice.reconcile.recorded import RecordedDeadLetter
from rivertwice.reconcile.results import ReconcileCause
from rivertwice.reconcile.view import HeadView
from rivertwice.verdicts import LATE, LATE_RECORD


def touched_causes(
    verdicts: Sequence[Verdict], late: Mapping[tuple[str, RowId], Sequence[LateRow]]
) -> list[ReconcileCause]:
    """Return the further late records of settled rows; those of before are stored already."""
    return [
        _record_cause(verdict, LATE_RECORD, record)
        for verdict in verdicts
        for record in late.get((verdict.pair, verdict.row), ())
    ]


def row_causes(verdicts: Sequence[Verdict], evidence: Evidence, served: ServedEvidence | None) -> list[ReconcileCause]:
    """Return every late or splitting record of a LATE row, by address, and what is wrong with a DEFECT."""
    causes: list[ReconcileCause] = []
    for verdict in verdicts:
        by_row = evidence.late
        session = None
        if served is not None and verdict.pair == SERVED and served.is_published(verdict.row):
            by_row = served.late_since
            session = served.sessions.get(verdict.row)
        group = evidence.group_of(verdict.row)
        if verdict.verdict == LATE and session is not None:
            causes.extend(_record_cause(verdict, LATE_RECORD, record) for record in (*session.late, *session.since))
            causes.extend(_record_cause(verdict, "split", record) for record in session.split)
        elif verdict.verdict == LATE and group is not None:
            causes.extend(_record_cause(verdict, LATE_RECORD, record) for record in group.late)
            causes.extend(_record_cause(verdict, "split", record) for record in group.split)
        elif verdict.verdict == LATE:
            where = evidence.cause_id(verdict.row)
            causes.extend(_record_cause(verdict, LATE_RECORD, record) for record in by_row.get(where, ()))
            causes.extend(_amended_cause(verdict, record) for record in amended_of(evidence, served, verdict))
        causes.extend(
            ReconcileCause(pair=verdict.pair, cause=kind, row=verdict.row, detail=why) for kind, why in verdict.defects
        )
    return causes


def dead_causes(view: HeadView, dead: Sequence[RecordedDeadLetter]) -> list[ReconcileCause]:
    """Return every dead letter by address."""
    return [
        ReconcileCause(STREAM, "dead", None, part.topic, part.partition, offset, view.rows[index].batch, detail=reason)
        for index, part, offset, reason in dead
    ]


def finding_causes(findings: Sequence[Finding]) -> list[ReconcileCause]:
    """Return every finding, by address as far as it has one."""
    return [
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
    ]


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
