"""Alerts of what a reconcile's gate found, run by anyone: Airflow, a person, or cron."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rivertwice.agent.alert_model import AlertCause, AlertSeverity, Report
from rivertwice.agent.alert_store import alerts_of
from rivertwice.core import Settings, to_iso, utc_now
from rivertwice.reconcile import DEAD_SHARE, SERVED
from rivertwice.timeline import Verdict

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 3
GATE_KINDS = (
    "defect", "finding", "gap", "balance", "late_share", "not_comparable", "nothing_compared", "suite", "suite_errored",
    "quality", "foreign_write",
)  # fmt: skip
_VERDICTS = {"defect": Verdict.DEFECT, "late_share": Verdict.LATE, "not_comparable": Verdict.NOT_COMPARABLE}
"""The kinds that a backfill repairs: they are over once `served` has no row of the verdict, whatever the stream emitted."""


_LOOKED_AT = 16
"""Runs in which a row is looked for, for an alert's link."""

CURABLE = frozenset({"defect", "late_share"})
"""The kinds that a repair is about."""


def record_gate(
    settings: Settings,
    pipeline: str,
    newest: Mapping[str, Any],
    *,
    by: str,
    details: Mapping[str, str],
    whole: bool,
    repair: Callable[[], Mapping[str, str]] = dict,
    left: Collection[str] = (),
) -> list[Report]:
    """Record what a reconcile's gate found, one alert of each kind, and the end of each kind that it no longer found.

    The agent sends them, or the caller (`agent.alert_sender`).

    Args:
        newest: the reconcile, as stored.
        by: who reports, see `Report`.
        whole: it compared everything; a reconcile of a range cannot end an alert.
        repair: gives the details of the repair that cures a late share or a defect; only called if there is one.
        left: kinds whose end is left to a repair that is at work, which knows the numbers of before and after.

    Returns:
        what was reported; empty if the gate found nothing that a person should know now.
    """
    findings = judge_gate(newest["gate"]["alerts"], newest["counts"])
    now = utc_now()
    if whole:
        why = f"reconcile {newest['run']} found it no more"
        alerts_of(settings).resolve(
            lambda alert: (
                alert.cause.pipeline == pipeline
                and alert.cause.kind in GATE_KINDS
                and alert.cause.kind not in findings
                and alert.cause.kind not in left
            ),
            why,
            now,
        )
    cure = dict(repair()) if findings.keys() & CURABLE else {}
    cells = find_cells(
        settings, pipeline, newest["run"], {kind: _VERDICTS[kind] for kind in findings if kind in _VERDICTS}
    )
    reports = [
        Report(
            AlertCause(pipeline, kind),
            severity,
            message,
            by,
            {**details, **cells.get(kind, {}), **(cure if kind in CURABLE else {})},
        )
        for kind, (severity, message) in findings.items()
    ]
    for report in reports:
        alerts_of(settings).report(report, now)
    return reports


def find_cells(
    settings: Settings, pipeline: str, run: str, verdicts: Mapping[str, str]
) -> dict[str, Mapping[str, str]]:
    """Return kind to window and key of the worst row that has its verdict, for a link to it.

    Only what the newest runs judged is read, so that a reconcile that finds the same again does not read all that was ever judged; the
    alert keeps the cell of an earlier report if none of them judged such a row.

    Args:
        verdicts: kind to the verdict of its rows.
    """
    if not verdicts:
        return {}
    from rivertwice.timeline import read_verdicts, run_chain  # not where Airflow's scheduler parses the DAGs

    home = settings.pipeline(pipeline)
    rows = read_verdicts(home, run_chain(home, run)[:_LOOKED_AT], None)
    return {} if rows is None else {kind: worst_cell(rows, verdict) for kind, verdict in verdicts.items()}


def worst_cell(rows: pa.Table, verdict: str) -> Mapping[str, str]:
    """Return window and key of the worst row that has a verdict, empty if none has it. Pure.

    It is the row that the page lists first: what is served comes before what the stream emitted, then the row with the most late
    records, then the newest window. A verdict does not hold how far a DEFECT is off, so of these it is the newest.
    """
    import pyarrow.compute as pc

    found = rows.filter(pc.equal(rows["verdict"], verdict)).select(["pair", "window_start", "key", "late"])
    if not found.num_rows:
        return {}
    ranked = found.append_column("stream", pc.not_equal(found["pair"], SERVED))
    order = [("stream", "ascending"), ("late", "descending"), ("window_start", "descending"), ("key", "ascending")]
    worst = ranked.sort_by(order).slice(0, 1).to_pylist()[0]
    return {"window": to_iso(worst["window_start"]), "key": worst["key"] or ""}


def judge_gate(
    alerts: Sequence[Mapping[str, str]], counts: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[str, str]]:
    """Return kind to (severity, message) of what a person should know now. Pure.

    Several alerts of one kind (a late share per partition) are one, and a suite that says the same once more is none. What a
    backfill has repaired is not an alert: the stream's own rows keep their verdict for ever, but it affects no served number any more.
    """
    served = counts.get(SERVED, {})
    by_kind: dict[str, list[Mapping[str, str]]] = {}
    kinds = {alert["kind"] for alert in alerts}
    for alert in alerts:
        if alert.get("repeats") in kinds or alert["kind"] == DEAD_SHARE:  # a rule of the agent reports it, and its end
            continue
        verdict = _VERDICTS.get(alert["kind"])
        is_repaired = verdict is not None and sum(served.values()) > 0 and not served.get(verdict)
        if not is_repaired:
            by_kind.setdefault(alert["kind"], []).append(alert)
    return {kind: (_severity(alerts_of_kind), _message(alerts_of_kind)) for kind, alerts_of_kind in by_kind.items()}


def _severity(alerts: Sequence[Mapping[str, str]]) -> str:
    return (
        AlertSeverity.CRITICAL
        if any(alert["severity"] == AlertSeverity.CRITICAL for alert in alerts)
        else AlertSeverity.WARNING
    )


def _message(alerts: Sequence[Mapping[str, str]]) -> str:
    shown = "; ".join(alert["message"] for alert in alerts[:SHOWN])
    return shown if len(alerts) <= SHOWN else f"{shown}; and {len(alerts) - SHOWN} more"
