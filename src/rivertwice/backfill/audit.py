"""The audit between write and publish: no Spark, no trust in the run that wrote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.checks import check_rows
from rivertwice.backfill.corrections import chunk_records
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.session_checks import AuditFinding
from rivertwice.backfill.store import backfill_folder
from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import AuditError
from rivertwice.instants import to_iso, utc_now
from rivertwice.pipeline.bundle import load_bundle_definition
from rivertwice.store import delta
from rivertwice.store.files import read_json, replace_json
from rivertwice.tracing import traced

FORMAT = 1


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        backfill: id of the backfill.
        rows: result rows.
        records: accepted records they were computed from.
        checks: all findings.
    """

    backfill: str
    rows: int
    records: int
    checks: tuple[AuditFinding, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


@traced("backfill.audit", lambda _settings, plan: {"pipeline": plan.pipeline, "backfill": plan.id})
def audit_backfill(settings: Settings, plan: BackfillPlan) -> AuditReport:
    """Check what a backfill wrote and store the report in `backfills/ID/audit.json`.

    Raises:
        AuditError: a check failed, so the backfill cannot be published. A new plan of the same windows gets another id and
            starts from the beginning.
    """
    home = settings.pipeline(plan.pipeline)
    rows = delta.read(home.tables.corrections, where=pc.field("_backfill") == plan.id)
    commits = chunk_records(home, plan.id)
    if rows is None:
        checks: tuple[AuditFinding, ...] = (
            AuditFinding("chunks", False, f"0 of {len(plan.chunks)} chunks committed; compute the backfill first"),
        )
    else:
        definition = load_bundle_definition(home.bundles, plan.bundle)
        checks = tuple(check_rows(plan, definition, rows, commits, _changelog_schema(home)))
    report = AuditReport(
        backfill=plan.id,
        rows=0 if rows is None else rows.num_rows,
        records=sum(sum(commit.records.values()) for commit in commits),
        checks=checks,
    )
    unfinished = len({commit.chunk for commit in commits}) < len(plan.chunks)
    if not unfinished:
        stored = {"format": FORMAT, "passed": report.passed, "audited_at": to_iso(utc_now()), **asdict(report)}
        replace_json(backfill_folder(home, plan.id) / "audit.json", stored)
    if not report.passed:
        failed = "; ".join(f"{check.name}: {check.detail}" for check in report.checks if not check.passed)
        remedy = (
            "run it again, it continues where it stopped"
            if unfinished
            else "plan the same windows again: it starts from the beginning"
        )
        message = f"backfill {plan.id} failed its audit ({failed}), so nothing of it is served; {remedy}"
        raise AuditError(message)
    return report


def read_audit(home: PipelineHome, backfill: str) -> dict[str, Any] | None:
    """Return the stored report of a finished backfill's audit, or None."""
    audit: dict[str, Any] | None = read_json(backfill_folder(home, backfill) / "audit.json")
    return audit


def _changelog_schema(home: PipelineHome) -> pa.Schema | None:
    table = delta.open_table(home.tables.changelog)
    return None if table is None else pa.schema(table.schema().to_arrow())
