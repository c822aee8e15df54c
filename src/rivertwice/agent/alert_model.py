"""Alerts and what was sent about them, as values. Pure: every change is a function of the state before and of `now`.

An alert has a cause. While the cause lasts there is one alert and one message to each route; when it is over for
`settle` there is one more message, and the alert is forgotten once every route has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from rivertwice.core import Attempts, RequestError


class AlertSeverity:
    """Whether a person is needed at once."""

    CRITICAL = "critical"
    WARNING = "warning"


class AlertPhase:
    """Whether an alert's condition holds."""

    FIRING = "firing"
    RESOLVED = "resolved"


KEPT = 500
"""Alerts kept at most; beyond it the oldest resolved ones go first."""
KEPT_FOR = timedelta(days=7)
"""How long a resolved alert is sent to a route that does not take it; it stays in `HOME/alerts.jsonl`."""
MESSAGE_LENGTH = 2_000
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=10), timedelta(minutes=10)


@dataclass(frozen=True, order=True)
class AlertCause:
    """What distinguishes one alert from another.

    Attributes:
        pipeline: empty for what concerns the whole home.
        kind: stable word, for instance `lag`; `kinds` has its meaning and the next command.
        subject: which of several of that kind: a topic, a sink, a task.
    """

    pipeline: str
    kind: str
    subject: str = ""


@dataclass(frozen=True)
class Report:
    """What somebody observed: it begins an alert, or shows that one lasts.

    Attributes:
        severity: `critical` needs a person now, `warning` does not.
        by: `agent`, `airflow` or `command`.
        details: more fields of the message, for instance `dag` and `run`.
    """

    cause: AlertCause
    severity: str
    message: str
    by: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Alert:
    """One cause from its beginning to its end.

    Attributes:
        since: when it began. seen_at: when it was reported last.
        resolved_at: when its cause was over; None while it lasts. resolution: why it is over.
        closed: it was over for long enough; a new report begins another alert.
        sent: route to the newest status that it took.
        refused: route to how often it refused the message itself.
        times: how often it began: once, and once more each time it came again before it was closed.
        acknowledged_by: who said that they know of it; empty until then. acknowledged_at: when. acknowledgement: why.
    """

    cause: AlertCause
    severity: str
    message: str
    by: str
    since: datetime
    seen_at: datetime
    details: Mapping[str, str] = field(default_factory=dict)
    resolved_at: datetime | None = None
    resolution: str = ""
    closed: bool = False
    sent: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    times: int = 1
    acknowledged_by: str = ""
    acknowledged_at: datetime | None = None
    acknowledgement: str = ""

    @property
    def id(self) -> str:
        """A name of this alert; the same in all its messages."""
        cause = [self.cause.pipeline, self.cause.kind, self.cause.subject, self.since.isoformat()]
        return f"al-{hashlib.sha256(json.dumps(cause).encode()).hexdigest()[:16]}"

    @property
    def status(self) -> str:
        """`firing` or `resolved`; an alert that is over but not yet closed still counts as firing."""
        return AlertPhase.RESOLVED if self.closed else AlertPhase.FIRING

    @property
    def place(self) -> str:
        """Where the page shows its cause, `#/p/NAME/TAB?window=...`: the very cell, batch or savepoint, if its details name one."""
        if not self.cause.pipeline:
            return "#/"
        tab = TAB_OF.get(self.cause.kind, "logs")
        asked = urlencode({name: self.details[name] for name in ASKED.get(tab, ()) if self.details.get(name)})
        return f"#/p/{quote(self.cause.pipeline, safe='')}/{tab}{f'?{asked}' if asked else ''}"


TABS: Mapping[str, tuple[str, ...]] = {
    "correctness": (
        "defect",
        "finding",
        "balance",
        "late_share",
        "not_comparable",
        "nothing_compared",
        "foreign_write",
    ),
    "results": ("delivery", "quality", "suite", "suite_errored"),
    "letters": ("dead_share", "dead_unattended"),
    "timelines": ("savepoint_stale", "recovery", "unproved_start", "fell_back"),
    "health": ("lag", "latency", "backpressure", "checkpoint_slow", "archive", "retention", "gap", "partitions_added"),
}
"""Tab of the page to the kinds of alerts whose cause is seen there; the causes of all others are in the logs."""
TAB_OF: Mapping[str, str] = {kind: tab for tab, kinds in TABS.items() for kind in kinds}
ASKED: Mapping[str, tuple[str, ...]] = {
    "correctness": ("window", "key"),
    "health": ("batch",),
    "timelines": ("savepoint",),
}
"""Tab to the details of an alert that say which cell, batch or savepoint it is about."""


@dataclass(frozen=True)
class RouteState:
    """The state of a route.

    Attributes:
        failures: failures in a row. next_attempt: before this instant nothing is sent to it. error: the last one.
    """

    failures: int = 0
    next_attempt: datetime | None = None
    error: str = ""


@dataclass(frozen=True)
class State:
    """All alerts, oldest first, and the state of each route that the sender knows; no route: nobody would be told of an alert."""

    alerts: tuple[Alert, ...] = ()
    routes: Mapping[str, RouteState] = field(default_factory=dict)

    def with_routes(self, names: Collection[str]) -> State:
        """Return it with exactly these routes; those that are in it keep their state."""
        return (
            self
            if set(names) == set(self.routes)
            else replace(self, routes={name: self.routes.get(name, RouteState()) for name in names})
        )

    def open(self) -> list[Alert]:
        """Return the alerts whose cause lasts, or ended too short ago to be sure, critical ones first, then by age."""
        unclosed = [alert for alert in self.alerts if not alert.closed]
        return sorted(unclosed, key=lambda alert: (alert.severity != AlertSeverity.CRITICAL, alert.since))


Changed = tuple[State, tuple[Alert, ...]]
"""A new state, and the alerts that began or were closed by the change: each is a line of `alerts.jsonl`."""


def report(state: State, new_report: Report, now: datetime) -> Changed:
    """Begin an alert, or note that the one of this cause lasts; one that was just over continues."""
    message = new_report.message[:MESSAGE_LENGTH]
    for position, alert in enumerate(state.alerts):
        if alert.cause == new_report.cause and not alert.closed:
            lasting = replace(
                alert,
                severity=new_report.severity,
                message=message,
                details={**alert.details, **new_report.details},
                seen_at=now,
                times=alert.times + (alert.resolved_at is not None),
                resolved_at=None,
                resolution="",
            )
            alerts = (*state.alerts[:position], lasting, *state.alerts[position + 1 :])
            return replace(state, alerts=alerts), ()
    begun = Alert(new_report.cause, new_report.severity, message, new_report.by, now, now, dict(new_report.details))
    return replace(state, alerts=_bounded((*state.alerts, begun))), (begun,)


def resolve(state: State, over: Callable[[Alert], bool], why: str, now: datetime) -> State:
    """Note that the causes of some alerts are over."""
    alerts = tuple(
        replace(alert, resolved_at=now, resolution=why[:MESSAGE_LENGTH])
        if not alert.closed and alert.resolved_at is None and over(alert)
        else alert
        for alert in state.alerts
    )
    return replace(state, alerts=alerts)


def acknowledge(state: State, alert_id: str, by: str, why: str, now: datetime) -> Changed:
    """Note that a person knows of an alert and cares for it. It still fires; the first who does so stays.

    Raises:
        RequestError: no such alert lasts.
    """
    known = next((alert for alert in state.alerts if alert.id == alert_id and not alert.closed), None)
    if known is None:
        message = f"no alert {alert_id[:40]!r} lasts, so there is nothing to acknowledge; `rivertwice alerts` shows those that do"
        raise RequestError(message)
    if known.acknowledged_by:
        return state, ()
    noted = replace(known, acknowledged_by=by, acknowledged_at=now, acknowledgement=why[:MESSAGE_LENGTH])
    return replace(state, alerts=tuple(noted if alert is known else alert for alert in state.alerts)), (noted,)


def amend(state: State, concerns: Callable[[Alert], bool], details: Mapping[str, str]) -> State:
    """Add details to the alerts that last and concern something, for instance the repair that waits for a person."""
    alerts = tuple(
        replace(alert, details={**alert.details, **details}) if not alert.closed and concerns(alert) else alert
        for alert in state.alerts
    )
    return replace(state, alerts=alerts)


def reopen(state: State, lasts: Callable[[Alert], bool]) -> State:
    """Take back that the causes of some alerts are over, where they were not closed yet."""
    alerts = tuple(
        replace(alert, resolved_at=None, resolution="")
        if not alert.closed and alert.resolved_at is not None and lasts(alert)
        else alert
        for alert in state.alerts
    )
    return replace(state, alerts=alerts)


def close(state: State, settle: timedelta, now: datetime) -> Changed:
    """Close the alerts that have been over for `settle`; one that comes again before is the same alert, not a new one."""
    closed = []
    alerts = []
    for alert in state.alerts:
        if not alert.closed and alert.resolved_at is not None and now - alert.resolved_at >= settle:
            closed.append(replace(alert, closed=True))
            alerts.append(closed[-1])
        else:
            alerts.append(alert)
    return replace(state, alerts=tuple(alerts)), tuple(closed)


def due(alerts: Iterable[Alert], route: str, severities: Iterable[str]) -> list[Alert]:
    """Return the alerts that are to be sent to a route now, in the order of sending.

    An alert that began and ended before the route took anything is one message, which reports both. Messages that the
    route refused come last, so that they hold up no other.
    """
    wanted = set(severities)
    due_alerts = [alert for alert in alerts if _is_due(alert, route, wanted)]
    return sorted(due_alerts, key=lambda alert: (alert.refused.get(route, 0), alert.since))


def _is_due(alert: Alert, route: str, severities: set[str]) -> bool:
    last_sent = alert.sent.get(route)
    if last_sent is None:
        return alert.severity in severities and (alert.closed or alert.resolved_at is None)
    return alert.closed and last_sent != AlertPhase.RESOLVED


def record_sent(state: State, alert_id: str, route: str, status: str) -> State:
    """Note that a route took a message; it works again."""
    alerts = tuple(
        replace(alert, sent={**alert.sent, route: status}) if alert.id == alert_id else alert for alert in state.alerts
    )
    return State(alerts, {**state.routes, route: RouteState()})


def record_refused(state: State, alert_id: str, route: str) -> State:
    """Note that a route refused a message itself."""
    alerts = tuple(
        replace(alert, refused={**alert.refused, route: alert.refused.get(route, 0) + 1})
        if alert.id == alert_id
        else alert
        for alert in state.alerts
    )
    return replace(state, alerts=alerts)


def record_failure(state: State, route: str, error: str, wait: timedelta | None, now: datetime) -> State:
    """Note that a route does not take messages now, and when it is tried again.

    Args:
        error: what happened, without any secret.
        wait: what the receiver asked for; None lets the wait double from 10 s to 10 min.
    """
    before = state.routes.get(route, RouteState())
    failures = before.failures + 1
    doubled = Attempts(failures).pause(FIRST_WAIT, LONGEST_WAIT)
    chosen = doubled if wait is None else min(max(wait, FIRST_WAIT), timedelta(hours=1))
    return replace(state, routes={**state.routes, route: RouteState(failures, now + chosen, error)})


def is_waiting(route: RouteState, now: datetime) -> bool:
    """Say whether a route is not to be tried yet. An attempt far in the future was set before the clock was set back."""
    return route.next_attempt is not None and now < route.next_attempt <= now + timedelta(hours=1)


def forget(state: State, routes: Mapping[str, Iterable[str]], now: datetime) -> State:
    """Drop the closed alerts that every route has, and what no route took for a week.

    Args:
        routes: name to severities of all configured routes, also of those that this process cannot use.
    """

    def is_done(alert: Alert) -> bool:
        if not alert.closed:
            return False
        if alert.resolved_at is not None and now - alert.resolved_at > KEPT_FOR:
            return True
        return not any(_is_due(alert, name, set(severities)) for name, severities in routes.items())

    return replace(state, alerts=tuple(alert for alert in state.alerts if not is_done(alert)))


def _bounded(alerts: tuple[Alert, ...]) -> tuple[Alert, ...]:
    surplus = len(alerts) - KEPT
    if surplus <= 0:
        return alerts
    going = {alert.id for alert in sorted(alerts[:-1], key=lambda alert: (not alert.closed, alert.since))[:surplus]}
    return tuple(alert for alert in alerts if alert.id not in going)
