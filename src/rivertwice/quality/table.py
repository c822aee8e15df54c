"""The table `quality`: what each run of a suite found, one row for each expectation, and what people accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.core import PipelineHome, Row, Settings
from rivertwice.quality.model import ACCEPTED, SEVERITIES, WINDOWS, Judgement, still_true
from rivertwice.quality.suites import Suite, read_suite
from rivertwice.storage import Remembered, Table, Where
from rivertwice.timeline import json_value

if TYPE_CHECKING:
    from rivertwice.quality.judge import JudgedRows

FORMAT = 1
_TIME = pa.timestamp("us", "UTC")
QUALITY = pa.schema(
    [
        ("_format", pa.int32()),
        ("run", pa.string()),
        ("subject", pa.string()),
        ("created_at", _TIME),
        ("suite", pa.string()),
        ("expectation", pa.string()),
        ("type", pa.string()),
        ("column", pa.string()),
        ("severity", pa.string()),
        ("state", pa.string()),
        ("because", pa.string()),
        ("observed", pa.string()),
        ("unexpected", pa.int64()),
        ("examples", pa.string()),
        ("rows", pa.int64()),
        ("engine", pa.string()),
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("failing", pa.string()),
        ("since", pa.string()),
        ("error", pa.string()),
        ("reason", pa.string()),
    ]
)
"""`window_start` and `window_end` are of the first and the last window that the run judged."""


@dataclass(frozen=True)
class QualityRun:
    """What is stored of one run of a suite.

    Attributes:
        run: the reconcile, or the backfill.
        subject: `windows` or `corrections`.
        judgements: what is true after it.
    """

    run: str
    subject: str
    created_at: datetime
    judgements: tuple[Judgement, ...]


def store_quality(
    home: PipelineHome,
    run: str,
    suite: Suite,
    judged: JudgedRows,
    judgements: Sequence[Judgement],
    now: datetime,
    *,
    reason: str = "",
) -> bool:
    """Append what a run found, once for the run and the suite; say whether it was appended now.

    Args:
        run: its name: a reconcile's, or a backfill's.
        suite: as it was written then.
        judgements: what is true after it.
        reason: why a person published a backfill although it fails; empty: no person did.
    """
    app = f"quality/{run}/{suite.sha256[:16]}{'/accepted' if reason else ''}"
    if Table(home.tables.quality).applied_version(app) is not None:
        return False
    rows = [
        _row(run, suite.subject, suite.sha256, now, each, reason)
        | {
            "rows": judged.rows,
            "engine": judged.engine,
            "window_start": judged.first,
            "window_end": judged.last_end,
        }
        for each in judgements
    ]
    Table(home.tables.quality).append(pa.Table.from_pylist(rows, schema=QUALITY), transactions={app: 1})
    return True


def store_acceptance(home: PipelineHome, of: QualityRun, judgement: Judgement, reason: str, now: datetime) -> None:
    """Append that a person accepts what a run found of an expectation; it does not fail a gate any more."""
    row = _row(of.run, of.subject, "", now, replace(judgement, state=ACCEPTED), reason)
    Table(home.tables.quality).append(pa.Table.from_pylist([row], schema=QUALITY))


def _row(run: str, subject: str, suite: str, now: datetime, each: Judgement, reason: str) -> Row:
    return {
        "_format": FORMAT,
        "run": run,
        "subject": subject,
        "created_at": now,
        "suite": suite,
        "expectation": each.id,
        "type": each.type,
        "column": each.column or None,
        "severity": each.severity,
        "state": each.state,
        "because": each.because,
        "observed": each.observed,
        "unexpected": each.unexpected,
        "examples": json.dumps(list(each.examples)) if each.examples else None,
        "failing": json.dumps(each.failing) if each.failing else None,
        "since": each.since or None,
        "error": each.error or None,
        "reason": reason or None,
    }


def read_newest(home: PipelineHome, subject: str = WINDOWS) -> QualityRun | None:
    """Return the newest run of a suite over a subject, without what people accepted of it; None before the first one.

    A table without a new commit is not read again.
    """
    table = home.tables.quality
    return _NEWEST.get((str(table), subject), (table,), lambda: _read_newest(home, subject))


def _read_newest(home: PipelineHome, subject: str) -> QualityRun | None:
    handle = Table(home.tables.quality).open()
    if handle is None:
        return None
    of_subject = pc.field("subject") == subject
    stamps = handle.read(columns=["run", "subject", "created_at", "state"], where=of_subject)
    runs = [] if stamps is None else [row for row in stamps.to_pylist() if row["state"] != ACCEPTED]
    if not runs:
        return None
    newest = max(runs, key=lambda row: (row["created_at"], row["run"]))["run"]
    rows = handle.read(where=of_subject, matching=Where("run").equals(newest))
    assert rows is not None, "the run was just found"
    stored = rows.to_pylist()
    accepted = {row["expectation"] for row in stored if row["state"] == ACCEPTED}
    found = [row for row in stored if row["state"] != ACCEPTED]
    # A backfill is audited again when its suite was changed: what was found last counts.
    last = max(row["created_at"] for row in found)
    judgements = tuple(
        judgement_of(row) for row in found if row["created_at"] == last and row["expectation"] not in accepted
    )
    return QualityRun(newest, subject, last, judgements)


def judgement_of(row: Mapping[str, Any]) -> Judgement:
    """Return what a stored row says."""
    return Judgement(
        id=row["expectation"],
        type=row["type"],
        column=row["column"] or "",
        severity=row["severity"],
        state=row["state"],
        because=row["because"],
        observed=row["observed"],
        unexpected=row["unexpected"],
        examples=tuple(json.loads(row["examples"] or "[]")),
        failing=tuple((start, end) for start, end in json.loads(row["failing"] or "[]")),
        since=row["since"] or "",
        error=row["error"] or "",
    )


def read_results(home: PipelineHome, subject: str | None = None) -> list[Row]:
    """Return the stored rows, newest first."""
    where = None if subject is None else pc.field("subject") == subject
    rows = Table(home.tables.quality).read(where=where)
    found = [] if rows is None else rows.to_pylist()
    for row in found:
        row |= {name: _as_json(row[name]) for name in ("observed", "examples")}
    return sorted(found, key=lambda row: (row["created_at"], row["run"]), reverse=True)


def _as_json(text: str | None) -> str | None:
    """Return stored JSON; rows of version 0.1 may have `Infinity` as a number, which JSON lacks. Pure."""
    return None if text is None else json.dumps(json_value(json.loads(text)))


_NEWEST: Remembered[QualityRun | None] = Remembered()  # the newest runs, by pipeline and subject


# What is true of the served rows as far as they were judged: read from the records of the runs. This module judges nothing.


def standing(settings: Settings, home: PipelineHome) -> QualityRun | None:
    """Return what is true of the served rows as far as they were judged; None without a suite, or before its first run.

    Raises:
        SuiteError: the file of the suite cannot be read.
    """
    suite = read_suite(settings, home.root.name, WINDOWS)
    newest = None if suite is None else read_newest(home)
    if suite is None or newest is None:
        return None
    return QualityRun(newest.run, newest.subject, newest.created_at, tuple(still_true(newest.judgements, suite.ids)))


def failing_by_severity(known: QualityRun | None) -> dict[str, int]:
    """Return severity to the number of expectations that fail, of each severity; empty if no suite has run. Pure."""
    if known is None:
        return {}
    return {level: sum(each.fails and each.severity == level for each in known.judgements) for level in SEVERITIES}
