"""Which messages a cause makes: one while it lasts, one at its end, and what is kept when nobody takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rivertwice.agent.alert_model import (
    KEPT,
    KEPT_FOR,
    Alert,
    AlertCause,
    AlertPhase,
    AlertSeverity,
    Report,
    RouteState,
    State,
    close,
    due,
    forget,
    is_waiting,
    record_failure,
    record_refused,
    record_sent,
    reopen,
    report,
    resolve,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SETTLE = timedelta(seconds=60)
ALL = (AlertSeverity.CRITICAL, AlertSeverity.WARNING)
LAG = AlertCause("p", "lag")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def seen(
    state: State,
    seconds: float,
    cause: AlertCause = LAG,
    message: str = "lag is 9",
    severity: str = AlertSeverity.WARNING,
) -> State:
    return report(state, Report(cause, severity, message, "agent"), at(seconds))[0]


def over(state: State, seconds: float, why: str = "lag is 0") -> State:
    return resolve(state, lambda alert: alert.cause == LAG, why, at(seconds))


def test_a_cause_that_lasts_is_one_alert_with_the_newest_message() -> None:
    state, begun = report(State(), Report(LAG, AlertSeverity.WARNING, "lag is 9", "agent"), NOW)
    assert [alert.cause for alert in begun] == [LAG]
    state, again = report(state, Report(LAG, AlertSeverity.WARNING, "lag is 12", "agent"), at(30))
    assert again == ()
    (alert,) = state.alerts
    assert (alert.since, alert.seen_at, alert.message) == (NOW, at(30), "lag is 12")


def test_each_route_is_told_once_that_it_begins_and_once_that_it_is_over() -> None:
    state = seen(State(), 0)
    (alert,) = due(state.alerts, "ops", ALL)
    state = record_sent(state, alert.id, "ops", alert.status)
    assert due(seen(state, 30).alerts, "ops", ALL) == []
    state, _ = close(over(state, 40), SETTLE, at(99))
    assert due(state.alerts, "ops", ALL) == []
    state, closed = close(state, SETTLE, at(100))
    assert [one.status for one in closed] == [AlertPhase.RESOLVED]
    (alert,) = due(state.alerts, "ops", ALL)
    assert (alert.id, alert.resolution) == (closed[0].id, "lag is 0")
    state = forget(record_sent(state, alert.id, "ops", alert.status), {"ops": ALL}, at(101))
    assert state.alerts == ()


def test_an_alert_that_soon_comes_again_is_the_same_and_no_news() -> None:
    state = seen(State(), 0)
    state = record_sent(state, state.alerts[0].id, "ops", AlertPhase.FIRING)
    for round_ in range(1, 20):
        state = seen(over(state, 30 * round_), 30 * round_ + 15)
        state, closed = close(state, SETTLE, at(30 * round_ + 16))
        assert (closed, due(state.alerts, "ops", ALL)) == ((), [])
    assert state.alerts[0].since == NOW


def test_an_end_that_is_taken_back_lasts() -> None:
    state = reopen(over(seen(State(), 0), 10), lambda _: True)
    assert close(state, SETTLE, at(1000)) == (state, ())


def test_what_begins_again_after_its_end_is_another_alert() -> None:
    state, _ = close(over(seen(State(), 0), 10), SETTLE, at(70))
    state = seen(state, 100)
    first, second = state.alerts
    assert (first.status, second.status, first.id == second.id) == (AlertPhase.RESOLVED, AlertPhase.FIRING, False)


def test_what_began_and_ended_while_a_route_was_away_is_one_message() -> None:
    state, _ = close(over(seen(State(), 0), 10), SETTLE, at(70))
    (alert,) = due(state.alerts, "ops", ALL)
    assert (alert.status, alert.since, alert.resolved_at) == (AlertPhase.RESOLVED, NOW, at(10))


def test_what_is_over_but_not_for_long_is_not_told_as_if_it_fired() -> None:
    assert due(over(seen(State(), 0), 1).alerts, "ops", ALL) == []


def test_a_route_gets_the_alerts_of_its_severities() -> None:
    state = seen(State(), 0)
    assert due(state.alerts, "pager", [AlertSeverity.CRITICAL]) == []
    state = seen(state, 10, severity=AlertSeverity.CRITICAL)
    assert [one.severity for one in due(state.alerts, "pager", [AlertSeverity.CRITICAL])] == [AlertSeverity.CRITICAL]


def test_a_refused_message_holds_up_no_other() -> None:
    state = seen(seen(State(), 0), 1, AlertCause("p", "latency"))
    state = record_refused(state, state.alerts[0].id, "ops")
    assert [one.cause.kind for one in due(state.alerts, "ops", ALL)] == ["latency", "lag"]


def test_a_failing_route_is_tried_after_10_s_and_then_ever_later() -> None:
    state, waits = State(), []
    for _ in range(9):
        state = record_failure(state, "ops", "no answer", None, NOW)
        attempt = state.routes["ops"].next_attempt
        assert attempt is not None
        waits.append((attempt - NOW).total_seconds())
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert is_waiting(state.routes["ops"], at(599))
    assert not is_waiting(state.routes["ops"], at(600))
    state = record_failure(state, "ops", "status 429", timedelta(seconds=90), NOW)
    assert state.routes["ops"].next_attempt == at(90)


def test_a_clock_that_was_set_back_does_not_silence_a_route() -> None:
    assert not is_waiting(RouteState(1, NOW + timedelta(hours=5), "x"), NOW)


@pytest.mark.proves("guarantees.md#alerts")
def test_what_no_route_takes_is_kept_for_a_week() -> None:
    state, _ = close(over(seen(State(), 0), 10), SETTLE, at(70))
    assert forget(state, {"ops": ALL}, at(10) + KEPT_FOR) == state
    assert forget(state, {"ops": ALL}, at(11) + KEPT_FOR).alerts == ()


@pytest.mark.proves("guarantees.md#alerts")
def test_the_state_is_bounded_and_resolved_alerts_go_first() -> None:
    state = State()
    for number in range(KEPT + 20):
        state = seen(state, number, AlertCause("p", "lag", str(number)))
        if number < 5:
            state, _ = close(resolve(state, lambda _: True, "over", at(number)), timedelta(0), at(number))
    assert len(state.alerts) == KEPT
    kept = {int(alert.cause.subject) for alert in state.alerts}
    assert kept == set(range(20, KEPT + 20))
    assert not any(alert.closed for alert in state.alerts)


def test_long_messages_are_cut_and_critical_alerts_are_shown_first() -> None:
    state = seen(seen(State(), 0, message="x" * 9_000), 5, AlertCause("q", "hung"), severity=AlertSeverity.CRITICAL)
    shown: list[Alert] = state.open()
    assert [one.cause.kind for one in shown] == ["hung", "lag"]
    assert len(shown[1].message) == 2_000
