"""What each kind of alert means for the served numbers, the command to run next, and the text of its message."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.message import EmailMessage
from typing import Any

from rivertwice.agent.alert_model import Alert, AlertCause
from rivertwice.core import RivertwiceError, Settings, printable_line, to_iso
from rivertwice.definition import load_definition
from rivertwice.timeline import Verdict

PIPELINE = "{pipeline}"


@dataclass(frozen=True)
class AlertKind:
    """What every alert of a kind contains.

    Attributes:
        meaning: what it means for the served numbers.
        verb: the arguments of `rivertwice`; `{pipeline}` stands for the pipeline.
    """

    meaning: str
    verb: tuple[str, ...]


_OLD = "what is served stays right, and gets older: no new window is added while this lasts"
_DELAYED = "what is served is right, and newer windows come later than usual"
_STATUS = ("status",)
_WHY = ("status", PIPELINE, "--why")
_CAUSES = ("verdicts", PIPELINE, "--causes")

STREAM_KINDS: Mapping[str, AlertKind] = {
    "hung": AlertKind(_OLD, _WHY),
    "stalled": AlertKind(_OLD, _WHY),
    "start_slow": AlertKind(_OLD, _WHY),
    "drain_slow": AlertKind("what is served stays right; the stream was asked to stop and has not yet", _STATUS),
    "undefined": AlertKind(_OLD, ("pipelines",)),
    "contended": AlertKind(
        "what is served is right: only the owner of the lease writes; which host that is changes too often", _STATUS
    ),
    "fell_back": AlertKind(
        "served numbers are the same: the stream was resumed from a proved savepoint and computes again what came after it",
        ("savepoint", "list", PIPELINE),
    ),
    "run_missed": AlertKind(_OLD, ("start", PIPELINE, "--once")),
    "given_up": AlertKind(_OLD, _STATUS),
    "driver_down": AlertKind(_OLD, _STATUS),
    "killed": AlertKind(_OLD, _STATUS),
    "drained": AlertKind(_OLD, _STATUS),
    "poison": AlertKind(_OLD, _STATUS),
    "out_of_memory": AlertKind(_OLD, _STATUS),
    "executor_lost": AlertKind(_OLD, _STATUS),
    "schema": AlertKind(_OLD, ("lint", PIPELINE)),
    "lease_lost": AlertKind(_OLD, _STATUS),
    "disk": AlertKind(_OLD, ("doctor",)),
    "store": AlertKind(_OLD, _STATUS),
    "checkpoint": AlertKind(_OLD, ("savepoint", "list", PIPELINE)),
    "fingerprint": AlertKind(_OLD, ("lint", PIPELINE)),
    "range_mismatch": AlertKind(_OLD, _STATUS),
    "fork": AlertKind(
        "what is served counts records that Kafka has lost, and lacks those that it has in their place",
        ("savepoint", "rewind", PIPELINE, "--dry-run"),
    ),
    "ledger": AlertKind(_OLD, ("admin", "repair", PIPELINE)),
    "unknown": AlertKind(_OLD, _STATUS),
}
"""Alerts about a stream that is not in its desired state; all of them are over once it is."""

AGENT_DEAD = "agent_dead"
TASK_FAILED = "task_failed"

KINDS: Mapping[str, AlertKind] = {
    **STREAM_KINDS,
    AGENT_DEAD: AlertKind(
        "drivers run on, but a driver that ends is not started again, and `served` is not rebuilt", ("agent", "start")
    ),
    "retention": AlertKind(
        "what is served is right; records that are not archived in time can never be read again",
        ("admin", "retention", PIPELINE),
    ),
    "partitions_added": AlertKind(
        "rows of keys whose records are in several partitions may be made of events in another order; all others are right",
        ("reconcile", PIPELINE),
    ),
    "archive": AlertKind(
        "what is served is right; a backfill or a reconcile of old windows will miss what Kafka deletes meanwhile",
        ("admin", "retention", PIPELINE),
    ),
    "delivery": AlertKind(
        "the tables are right; the sink has none of the newer batches until it takes them",
        ("deliver", "status", PIPELINE),
    ),
    "delivery_lag": AlertKind(
        "the tables are right; the sink's readers see older results until it takes the newer ones",
        ("deliver", "status", PIPELINE),
    ),
    "delivery_refused": AlertKind(
        "the tables are right; the sink's readers lack the rows that its destination refused",
        ("deliver", "refused", PIPELINE),
    ),
    "fast": AlertKind(
        "the tables are right; the fast path's topic gets no rows", ("deliver", "status", "--fast", PIPELINE)
    ),
    "backpressure": AlertKind(_DELAYED, _WHY),
    "checkpoint_slow": AlertKind(
        "what is served is right: a batch counts from its commit on; newer windows wait for the checkpoint", _WHY
    ),
    "lag": AlertKind(_DELAYED, _WHY),
    "latency": AlertKind(_DELAYED, _WHY),
    "savepoint_stale": AlertKind(
        "what is served is right; after damage of the checkpoint all batches since would be read again",
        ("savepoint", "list", PIPELINE),
    ),
    "recovery": AlertKind(
        "what is served is right; after damage of the checkpoint the stream would stand for longer than was promised",
        ("savepoint", "list", PIPELINE),
    ),
    "unproved_start": AlertKind(
        "what was served before the planned restore or upgrade is right; whether the state after it is, is not proved",
        ("savepoint", "list", PIPELINE),
    ),
    "dead_share": AlertKind("served numbers lack the records that could not be decoded", ("dead", "list", PIPELINE)),
    "dead_unattended": AlertKind(
        "served numbers lack the dead letters until somebody amends them and the window is backfilled",
        ("dead", "list", PIPELINE),
    ),
    "table_damage": AlertKind(
        "what is served stays as it was: rows that were committed are gone, and no build of `served` leaves them out",
        ("admin", "repair", PIPELINE),
    ),
    "damaged_file": AlertKind(_OLD, _STATUS),
    "disk_full": AlertKind(_OLD, ("doctor",)),
    "defect": AlertKind(
        "some served rows are not what the log gives; a backfill replaces them",
        ("verdicts", PIPELINE, "--verdict", Verdict.DEFECT),
    ),
    "finding": AlertKind(
        "what is recorded of the batches contradicts itself; do not trust the numbers until it is found", _CAUSES
    ),
    "gap": AlertKind(
        "windows with missing records cannot be compared, and may lack them", ("admin", "retention", PIPELINE)
    ),
    "balance": AlertKind("some records are in no row and no dead letter; the numbers may lack them", _CAUSES),
    "late_share": AlertKind(
        "served numbers lack records that came too late, until a backfill", ("backfill", "plan", PIPELINE)
    ),
    "not_comparable": AlertKind(
        "it is not known whether some rows are right", ("verdicts", PIPELINE, "--verdict", Verdict.NOT_COMPARABLE)
    ),
    "nothing_compared": AlertKind(
        "it is not known whether the rows are right: none could be compared",
        ("verdicts", PIPELINE, "--verdict", Verdict.NOT_COMPARABLE),
    ),
    "suite": AlertKind("an expectation about the results does not hold", _CAUSES),
    "suite_errored": AlertKind("an expectation about the results could not be checked", _CAUSES),
    "quality": AlertKind(
        "served rows are what the log gives, and not what the pipeline's own suite expects of its data",
        ("quality", PIPELINE),
    ),
    "foreign_write": AlertKind(
        "no served row is wrong by it: everything was judged again after another program had written to a table",
        ("reconcile", PIPELINE),
    ),
    TASK_FAILED: AlertKind(
        "the stream runs on; what this task does (savepoint, archive, reconcile, backfill) was not done", _STATUS
    ),
    "week": AlertKind("the sentence says it; the command shows each pipeline", ("status", "--week")),
    "test": AlertKind("none: this is a test of a route", ("alerts",)),
}
_OTHER = AlertKind("not known for this kind of alert", _STATUS)


def is_about_stream(cause: AlertCause) -> bool:
    """Say whether an alert is over once its stream is in its desired state.

    A driver that ended because its records were deleted is of kind `retention`, as is a topic that is about to lose some; the
    latter names its topic.
    """
    return cause.kind in STREAM_KINDS or (cause.kind == "retention" and not cause.subject)


def meaning_of(cause: AlertCause) -> str:
    """Return what an alert means for the served numbers."""
    return KINDS.get(cause.kind, _OTHER).meaning


def next_command(settings: Settings, cause: AlertCause) -> str:
    """Return the command to run next; it works wherever it is pasted on a host that has the home."""
    words = [
        cause.pipeline if word == PIPELINE else word
        for word in KINDS.get(cause.kind, _OTHER).verb
        if word != PIPELINE or cause.pipeline
    ]
    places = ["--project", str(settings.project), "--home", str(settings.home)]
    return shlex.join(["rivertwice", *places, *words])


# The words of an alert's messages: what happened, since when, what it means for served numbers, what to run next. Pure.

FORMAT = 1
_DETAILS = ("dag", "run", "repair", "repair_run")


def runbook_of(settings: Settings, cause: AlertCause) -> str:
    """Return what the definition names as its runbook; empty: nothing, or it cannot be read now."""
    try:
        return load_definition(settings.definition_folder(cause.pipeline)).runbook if cause.pipeline else ""
    except RivertwiceError:
        return ""


def body_of(settings: Settings, alert: Alert) -> dict[str, Any]:
    """Return an alert as plain data: a line of `alerts.jsonl`, and what a webhook gets."""
    return {
        "format": FORMAT,
        "id": alert.id,
        "status": alert.status,
        "severity": alert.severity,
        "kind": alert.cause.kind,
        "pipeline": alert.cause.pipeline or None,
        "subject": alert.cause.subject,
        "message": printable_line(alert.message),
        "at": to_iso(_at(alert)),
        "since": to_iso(alert.since),
        "until": to_iso(alert.resolved_at) if alert.closed and alert.resolved_at else None,
        "resolution": printable_line(alert.resolution) if alert.closed else "",
        "meaning": meaning_of(alert.cause),
        "next": next_command(settings, alert.cause),
        "page": settings.page_of(alert.place),
        "runbook": runbook_of(settings, alert.cause) or None,
        "by": alert.by,
        **{key: value for key, value in alert.details.items() if key in _DETAILS},
        **_acknowledged(alert),
    }


def title_of(alert: Alert) -> str:
    """Return the first line of a message."""
    where = alert.cause.pipeline or "rivertwice"
    what = f"{alert.cause.kind} ({alert.cause.subject})" if alert.cause.subject else alert.cause.kind
    word = "RESOLVED" if alert.closed else alert.severity.upper()
    return printable_line(f"[{word}] {where}: {what}")


def lines_of(settings: Settings, alert: Alert) -> list[str]:
    """Return the lines below the title."""
    lines = [f"What happened: {printable_line(alert.message)}"]
    if alert.closed and alert.resolved_at is not None:
        lasted = format_lasted(alert.resolved_at - alert.since)
        lines += [
            f"Since: {to_iso(alert.since)}, until {to_iso(alert.resolved_at)} ({lasted})",
            f"Now: {printable_line(alert.resolution)}",
        ]
    else:
        lines += [f"Since: {to_iso(alert.since)}", f"Served numbers: {meaning_of(alert.cause)}"]
    if alert.details.get("repair"):
        lines.append(f"Repair: {printable_line(alert.details['repair'])}")
    lines.append(f"Next: {next_command(settings, alert.cause)}")
    page, runbook = settings.page_of(alert.place), runbook_of(settings, alert.cause)
    return [*lines, *([f"Look: {page}"] if page else []), *([f"Runbook: {printable_line(runbook)}"] if runbook else [])]


def slack_text(settings: Settings, alert: Alert) -> str:
    """Return the text of a message for Slack, and for what takes Slack's shape; its three markup characters are escaped."""
    text = "\n".join([title_of(alert), *lines_of(settings, alert)])
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mail_of(settings: Settings, alert: Alert, sender: str, recipients: tuple[str, ...], now: datetime) -> EmailMessage:
    """Return the mail; the second mail of an alert answers the first, so that programs show them together."""
    mail = EmailMessage()
    mail["Subject"] = title_of(alert)[:200]
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = now
    first = f"<{alert.id}@rivertwice.invalid>"
    if alert.closed:
        mail["Message-ID"] = f"<{alert.id}.resolved@rivertwice.invalid>"
        mail["In-Reply-To"] = mail["References"] = first
    else:
        mail["Message-ID"] = first
    mail["Auto-Submitted"] = "auto-generated"  # so that no holiday notes are sent back
    mail.set_content("\n".join(lines_of(settings, alert)) + "\n")
    return mail


def format_lasted(duration: timedelta) -> str:
    """Return a duration in the two largest units, for instance `2 h 5 min`."""
    seconds = max(int(duration.total_seconds()), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600} h"


def _acknowledged(alert: Alert) -> dict[str, str]:
    if not alert.acknowledged_by or alert.acknowledged_at is None:
        return {}
    why = printable_line(alert.acknowledgement)
    return {
        "acknowledged_by": printable_line(alert.acknowledged_by),
        "acknowledged_at": to_iso(alert.acknowledged_at),
        "acknowledgement": why,
    }


def _at(alert: Alert) -> datetime:
    return alert.resolved_at if alert.closed and alert.resolved_at is not None else alert.since
