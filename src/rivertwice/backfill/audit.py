"""The audit between write and publish: no trust in the run that wrote. Spark only judges many rows by a user's suite."""

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
from rivertwice.pipeline.on_demand import Spark
from rivertwice.quality.corrections import CorrectionsCheck, judge_corrections
from rivertwice.store import delta
from rivertwice.store.files import read_json, replace_json
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served_rows import publications_of
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
        accepted: why a person publishes it although a critical expectation fails; empty: nobody did.
    """

    backfill: str
    rows: int
    records: int
    checks: tuple[AuditFinding, ...]
    accepted: str = ""

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


@traced("backfill.audit", lambda _settings, plan, *_, **__: {"pipeline": plan.pipeline, "backfill": plan.id})
def audit_backfill(
    settings: Settings, plan: BackfillPlan, spark: Spark | None = None, *, accepted: str = ""
) -> AuditReport:
    """Check what a backfill wrote and store the report in `backfills/ID/audit.json`.

    Once the rows are what was to be computed, the user's own suite judges them, if there is one
    (`expectations/PIPELINE/corrections.json`).

    Args:
        settings: where things lie.
        plan: the backfill's.
        spark: gives a session if the suite has many rows to judge; None: pandas judges them.
        accepted: why it is to be published although a critical expectation fails; stored with the report.

    Raises:
        AuditError: a check failed, so the backfill cannot be published. A new plan of the same windows gets another id and
            starts from the beginning. If only an expectation failed, the same backfill can be audited again.
        SuiteError: the suite cannot be run as it is written.
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
    exact = all(check.passed for check in checks)
    quality: CorrectionsCheck | None = None
    if rows is not None and exact:
        quality = judge_corrections(settings, home, definition, plan.id, rows, spark, utc_now(), accepted=accepted)
        checks = checks if quality is None else (*checks, _quality_finding(home, plan, quality, accepted))
    report = AuditReport(
        backfill=plan.id,
        rows=0 if rows is None else rows.num_rows,
        records=sum(sum(commit.records.values()) for commit in commits),
        checks=checks,
        accepted=accepted if quality is not None else "",
    )
    unfinished = len({commit.chunk for commit in commits}) < len(plan.chunks)
    if not unfinished:
        stored = {"format": FORMAT, "passed": report.passed, "audited_at": to_iso(utc_now()), **asdict(report)}
        replace_json(backfill_folder(home, plan.id) / "audit.json", stored)
    if not report.passed:
        failed = "; ".join(f"{check.name}: {check.detail}" for check in report.checks if not check.passed)
        # Keys and values of rows are printed, and not stored beside the table `quality`, where an erasure finds them.
        rows_text = "" if quality is None else quality.describe_rows()
        failed += f"; {rows_text}" if rows_text else ""
        remedy = _remedy(plan) if exact else "plan the same windows again: it starts from the beginning"
        remedy = "run it again, it continues where it stopped" if unfinished else remedy
        message = f"backfill {plan.id} failed its audit ({failed}), so nothing of it is served; {remedy}"
        raise AuditError(message)
    return report


def _quality_finding(home: PipelineHome, plan: BackfillPlan, check: CorrectionsCheck, accepted: str) -> AuditFinding:
    """Return the finding of the user's suite. What is published already stays published, whatever a changed suite says."""
    blocking = [each.describe() for each in check.blocking]
    others = [f"{each.severity}: {each.describe()}" for each in check.others]
    counted = f"{check.rows} rows by {check.path}: {len(blocking)} critical expectations fail"
    detail = "; ".join([counted, *blocking, *others, *([f"accepted: {accepted}"] if accepted else [])])
    is_published = any(each.backfill == plan.id for each in publications_of(read_sequence(home)))
    return AuditFinding("quality", not blocking or bool(accepted) or is_published, detail)


def _remedy(plan: BackfillPlan) -> str:
    again = f"rivertwice backfill run {plan.pipeline} --id {plan.id}"
    return (
        f"correct the data or the definition and plan again, or correct the suite and run `{again}`; `{again} --accept-quality "
        '"WHY"` publishes it all the same and records why'
    )


def read_audit(home: PipelineHome, backfill: str) -> dict[str, Any] | None:
    """Return the stored report of a finished backfill's audit, or None."""
    audit: dict[str, Any] | None = read_json(backfill_folder(home, backfill) / "audit.json")
    return audit


def _changelog_schema(home: PipelineHome) -> pa.Schema | None:
    table = delta.open_table(home.tables.changelog)
    return None if table is None else pa.schema(table.schema().to_arrow())
