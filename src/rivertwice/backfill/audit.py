"""The audit between write and publish: no trust in the run that wrote. Spark only judges many rows by a user's suite."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.model import BackfillPlan, Chunk, PlannedSession, PlannedSessions
from rivertwice.backfill.session_observe import spans_of
from rivertwice.backfill.session_plan import sessions_of
from rivertwice.backfill.store import ChunkRecord, backfill_folder, chunk_records
from rivertwice.core import AuditError, PipelineHome, Settings, to_iso, traced, utc_now
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.engine import Spark
from rivertwice.quality import CorrectionsCheck, judge_corrections
from rivertwice.storage import Table, read_json, replace_json
from rivertwice.timeline import key_digest, publications_of, read_sequence, to_epoch_ms, withdrawn_rows

# What a backfill's sessions must be: those of its plan, each in the chunk and on the day of its start. Pure.

SHOWN = 3


@dataclass(frozen=True)
class AuditFinding:
    """One finding of an audit; `detail` names the first rows that are wrong, or what was counted."""

    name: str
    passed: bool
    detail: str


def check_sessions(
    plan: BackfillPlan, planned: PlannedSessions, definition: Definition, rows: pa.Table
) -> AuditFinding:
    """Compare the rows, chunk by chunk, with the planned sessions: stretch, key and number of records."""
    actual = Counter(_placed_rows(definition, rows))
    wanted = Counter(placed for chunk in plan.chunks for placed in _placed_plan(planned, chunk))
    differing = sorted((actual - wanted) + (wanted - actual))
    days = pc.strftime(rows[definition.window.start_column], format="%Y-%m-%d")
    on_other_day = rows.num_rows - (pc.sum(pc.equal(days, rows["_day"])).as_py() or 0)
    shown = ", ".join(
        f"chunk {chunk}: {start}, {records} records" for chunk, _, (_, start, _, records) in differing[:SHOWN]
    )
    detail = f"{len(differing)} rows are not as they were planned" + (f" ({shown})" if shown else "")
    return AuditFinding("sessions", not differing and not on_other_day, f"{detail}, {on_other_day} lie on another day")


_Placed = tuple[int, bool, PlannedSession]
"""Chunk, whether it vanishes, session."""


def _placed_rows(definition: Definition, rows: pa.Table) -> Iterator[_Placed]:
    spans = spans_of(rows, definition)
    withdrawn = withdrawn_rows(rows).tolist()
    for chunk, vanishes, span in zip(rows["_chunk"].to_pylist(), withdrawn, spans, strict=True):
        yield chunk, vanishes, PlannedSession(key_digest(span.key), *span[1:4])


def _placed_plan(planned: PlannedSessions, chunk: Chunk) -> Iterator[_Placed]:
    published, vanishing = sessions_of(planned, chunk)
    yield from ((chunk.index, False, session) for session in published)
    yield from ((chunk.index, True, session) for session in vanishing)


# What a backfill's rows must satisfy before they are served: pure checks over Arrow.


def check_rows(
    plan: BackfillPlan,
    definition: Definition,
    rows: pa.Table,
    commits: Sequence[ChunkRecord],
    changelog: pa.Schema | None,
) -> list[AuditFinding]:
    """Check a backfill's rows.

    Args:
        changelog: schema of the changelog; None if there is none to compare with.
    """
    checks = [_check_chunks(plan, rows, commits), _check_schema(definition, rows.schema, changelog)]
    if not checks[1].passed:
        return checks
    if plan.sessions is not None:
        remaining = rows.filter(pa.array(~withdrawn_rows(rows)))
        return [
            *checks,
            _check_keys(definition, rows),
            check_sessions(plan, plan.sessions, definition, rows),
            _check_counts(plan, definition, remaining, commits),
        ]
    return [
        *checks,
        _check_keys(definition, rows),
        _check_windows(plan, definition, rows),
        _check_counts(plan, definition, rows, commits),
    ]


def _check_chunks(plan: BackfillPlan, rows: pa.Table, commits: Sequence[ChunkRecord]) -> AuditFinding:
    commit_counts = Counter(commit.chunk for commit in commits)
    missing = [chunk.index for chunk in plan.chunks if not commit_counts[chunk.index]]
    wrong = [index for index, count in commit_counts.items() if count > 1 or index >= len(plan.chunks)]
    declared = {commit.chunk: commit.rows for commit in commits}
    row_counts = Counter(rows["_chunk"].to_pylist()) if "_chunk" in rows.schema.names else Counter()
    differing = [
        index for index in sorted(declared.keys() | row_counts.keys()) if declared.get(index, 0) != row_counts[index]
    ]
    detail = f"{len(commit_counts)} of {len(plan.chunks)} chunks committed"
    detail += f"; missing {missing[:SHOWN]}" if missing else ""
    detail += f"; unknown or committed twice {wrong[:SHOWN]}" if wrong else ""
    detail += f"; rows differ from the commit in {differing[:SHOWN]}" if differing else ""
    return AuditFinding("chunks", not (missing or wrong or differing), detail)


def _check_schema(definition: Definition, schema: pa.Schema, changelog: pa.Schema | None) -> AuditFinding:
    names = [name for name in schema.names if not name.startswith("_")]
    if names != definition.result_columns:
        return AuditFinding("schema", False, f"columns are {names}, the definition says {definition.result_columns}")
    if changelog is None:
        return AuditFinding("schema", True, f"{len(names)} columns; no changelog to compare with")
    differing = [
        f"{name} is {schema.field(name).type}, in the changelog {_type(changelog, name)}"
        for name in names
        if schema.field(name).type != _type(changelog, name)
    ]
    return AuditFinding(
        "schema", not differing, "; ".join(differing[:SHOWN]) or f"{len(names)} columns as in the changelog"
    )


def _type(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _check_keys(definition: Definition, rows: pa.Table) -> AuditFinding:
    names = [definition.window.start_column, definition.window.end_column, *definition.keys]
    counts = rows.group_by(names).aggregate([([], "count_all")])
    repeated = counts.filter(pc.field("count_all") > 1)
    shown = "; ".join(str(row) for row in repeated.slice(0, SHOWN).to_pylist())
    return AuditFinding(
        "keys",
        repeated.num_rows == 0,
        f"{repeated.num_rows} repeated of {counts.num_rows}" + (f": {shown}" if shown else ""),
    )


def _check_windows(plan: BackfillPlan, definition: Definition, rows: pa.Table) -> AuditFinding:
    starts = to_epoch_ms(rows[definition.window.start_column])
    ends = to_epoch_ms(rows[definition.window.end_column])
    good = (starts % plan.step == 0) & (ends == starts + plan.window_ms)
    chunks = np.array(rows["_chunk"].to_pylist(), dtype=np.int64)
    for chunk in plan.chunks:
        in_chunk = chunks == chunk.index
        good[in_chunk] &= starts_inside(starts[in_chunk], chunk)
    days = pc.strftime(rows[definition.window.start_column], format="%Y-%m-%d")
    good &= np.array(pc.equal(days, rows["_day"]).to_pylist(), dtype=bool)
    bad = np.flatnonzero(~good)
    shown = ", ".join(str(starts[i]) for i in bad[:SHOWN])
    return AuditFinding(
        "windows",
        len(bad) == 0,
        f"{len(bad)} of {rows.num_rows} rows out of place" + (f", starts {shown}" if shown else ""),
    )


def starts_inside(starts: npt.NDArray[np.int64], chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Return for each window start whether the window belongs to the chunk."""
    lows, highs = np.array(chunk.ranges, dtype=np.int64).T
    at = np.searchsorted(lows, starts, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (starts < highs[at])
    return inside


def _check_counts(
    plan: BackfillPlan, definition: Definition, rows: pa.Table, commits: Sequence[ChunkRecord]
) -> AuditFinding:
    """Compare, window by window, the count column's sum with the records counted before the transform."""
    if definition.count_column is None:
        return AuditFinding("counts", True, "rows of intervals count no records; their keys and windows were checked")
    summed: Counter[int] = Counter()
    starts = to_epoch_ms(rows[definition.window.start_column]).tolist()
    for start, count in zip(starts, rows[definition.count_column].to_pylist(), strict=True):
        summed[start] += count or 0
    counted: Counter[int] = Counter()
    for commit in commits:
        counted.update(commit.records)
    differing = sorted(start for start in summed.keys() | counted.keys() if summed[start] != counted[start])
    detail = f"{sum(summed.values())} counted by the result, {sum(counted.values())} accepted"
    shown = ", ".join(f"{start}: {summed[start]} against {counted[start]}" for start in differing[:SHOWN])
    return AuditFinding(
        "counts", not differing, detail + (f"; {len(differing)} windows differ: {shown}" if differing else "")
    )


FORMAT = 1


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        records: accepted records they were computed from.
        accepted: why a person publishes it although a critical expectation fails; empty: no person did.
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
        spark: gives a session if the suite has many rows to judge; None: pandas judges them.
        accepted: why it is to be published although a critical expectation fails; stored with the report.

    Raises:
        AuditError: a check failed, so the backfill cannot be published. A new plan of the same windows gets another id and
            starts from the beginning. If only an expectation failed, the same backfill can be audited again.
        SuiteError: the suite cannot be run as it is written.
    """
    began = time.monotonic()
    home = settings.pipeline(plan.pipeline)
    rows = Table(home.tables.corrections).read(where=pc.field("_backfill") == plan.id)
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
        seconds = {"compute": sum(commit.seconds for commit in commits), "audit": round(time.monotonic() - began, 3)}
        stored = {
            "format": FORMAT,
            "passed": report.passed,
            "audited_at": to_iso(utc_now()),
            "seconds": seconds,
            **asdict(report),
        }
        replace_json(backfill_folder(home, plan.id) / "audit.json", stored)
    if not report.passed:
        failed = "; ".join(f"{check.name}: {check.detail}" for check in report.checks if not check.passed)
        # Keys and values of rows are printed, and not stored beside the table `quality`, where an erasure finds them.
        rows_text = "" if quality is None else quality.describe_rows()
        failed += f"; {rows_text}" if rows_text else ""
        remedy = _remedy(plan) if exact else "plan the same windows again: it starts from the beginning"
        remedy = "run it again, it continues where it stopped" if unfinished else remedy
        message = f"backfill {plan.id} failed its audit ({failed}), and is not served; {remedy}"
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
    table = Table(home.tables.changelog).open()
    return None if table is None else table.schema
