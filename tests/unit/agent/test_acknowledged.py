"""An alert that a person knows of: it still fires, says who and why, and counts how often it came again."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rivertwice.agent import alert_store
from rivertwice.agent.alert_kinds import body_of, lines_of
from rivertwice.agent.alert_model import (
    AlertCause,
    AlertSeverity,
    Report,
    State,
    acknowledge,
    amend,
    close,
    report,
    resolve,
)
from rivertwice.agent.alert_store import AlertStore
from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LAG = AlertCause("p", "lag")


def begun(times: int = 1) -> State:
    state = State()
    for minute in range(times):
        at = NOW + timedelta(minutes=minute)
        state = report(state, Report(LAG, AlertSeverity.WARNING, "lag is 9", "agent"), at)[0]
        if minute + 1 < times:
            state = resolve(state, lambda alert: alert.cause == LAG, "lag is 0", at)
    return state


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path / "project", home=tmp_path / "home")


def test_who_knows_of_an_alert_is_in_it_and_the_first_one_stays() -> None:
    state = begun()
    (alert,) = state.alerts
    state, lines = acknowledge(state, alert.id, "ada", "the source is loaded again", NOW)
    assert [line.acknowledged_by for line in lines] == ["ada"]
    state, lines = acknowledge(state, alert.id, "bob", "me too", NOW)
    (noted,) = state.alerts
    assert lines == ()
    assert (noted.acknowledged_by, noted.acknowledgement, noted.status) == (
        "ada",
        "the source is loaded again",
        "firing",
    )


def test_what_does_not_last_cannot_be_acknowledged() -> None:
    state = resolve(begun(), lambda alert: alert.cause == LAG, "lag is 0", NOW)
    state, (closed,) = close(state, timedelta(0), NOW)
    for name in (closed.id, "al-unknown"):
        with pytest.raises(RequestError, match="nothing to acknowledge"):
            acknowledge(state, name, "ada", "why", NOW)


def test_an_alert_counts_how_often_it_came_again() -> None:
    state = begun(times=3)
    assert state.alerts[0].times == 3
    state = report(state, Report(LAG, AlertSeverity.WARNING, "lag is 10", "agent"), NOW)[0]
    assert state.alerts[0].times == 3


def test_a_proposed_repair_is_in_the_message(settings: Settings) -> None:
    state = amend(begun(), lambda alert: alert.cause == LAG, {"repair": "2 windows", "repair_run": "r1"})
    (alert,) = state.alerts
    assert body_of(settings, alert)["repair"] == "2 windows"
    assert "Repair: 2 windows" in lines_of(settings, alert)


def test_it_is_stored_and_what_0_1_stored_is_read(settings: Settings) -> None:
    store = AlertStore(settings)
    store.report(Report(LAG, AlertSeverity.WARNING, "lag is 9", "agent"), NOW)
    (alert,) = store.state().alerts
    store.acknowledge(alert.id, "ada", "known", NOW)
    assert AlertStore(settings).state() == store.state()
    last = json.loads((settings.home / "alerts.jsonl").read_text().splitlines()[-1])
    assert (last["acknowledged_by"], last["acknowledgement"], last["status"]) == ("ada", "known", "firing")

    path = settings.home / "alerts" / "state.json"
    stored = json.loads(path.read_text())
    for name in ("times", "acknowledged_by", "acknowledged_at", "acknowledgement"):
        del stored["alerts"][0][name]
    path.write_text(json.dumps(stored))
    (old,) = AlertStore(settings).state().alerts
    assert (old.id, old.times, old.acknowledged_by, old.acknowledged_at) == (alert.id, 1, "", None)


def test_an_acknowledgement_that_cannot_be_written_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AlertStore(settings)
    store.report(Report(LAG, AlertSeverity.WARNING, "lag is 9", "agent"), NOW)
    (alert,) = store.state().alerts

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(alert_store, "replace_json", full)
    with pytest.raises(RequestError, match="the acknowledgement is not kept"):
        store.acknowledge(alert.id, "ada", "known", NOW)
    assert store.state().alerts[0].acknowledged_by == ""
