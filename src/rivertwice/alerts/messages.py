"""The words of an alert's messages: what happened, since when, what it means for served numbers, what to run next. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from email.message import EmailMessage
from typing import Any

from rivertwice.alerts.kinds import meaning_of, next_command
from rivertwice.alerts.model import Alert
from rivertwice.config import Settings
from rivertwice.instants import to_iso
from rivertwice.printable import printable_line

FORMAT = 1
_DETAILS = ("dag", "run", "repair", "repair_run")


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
    return [*lines, f"Next: {next_command(settings, alert.cause)}"]


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
