"""Alerts over real HTTP: a server of the test's own takes, refuses, or is not there."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from rivertwice.config import Settings
from rivertwice.errors import RequestError
from rivertwice.orchestration.alerts import WEBHOOK, AirflowAlert, send_alert

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ALERT = AirflowAlert("flight_delays", "reconcile__flight_delays", "manual__1", "late_share", "warning", "16.5 %", NOW)


class Receiver(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken: list[Any] = []
        self.answer = 204
        self.url = f"http://127.0.0.1:{self.server_port}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def lines(settings: Settings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.home / "alerts.jsonl").read_text().splitlines()]


def test_an_alert_is_a_line_even_without_a_webhook(settings: Settings) -> None:
    assert send_alert(settings, ALERT, env={})
    assert send_alert(settings, ALERT, env={})
    assert [line["kind"] for line in lines(settings)] == ["late_share", "late_share"]
    assert lines(settings)[0] == {
        "format": 1, "pipeline": "flight_delays", "dag": "reconcile__flight_delays", "run": "manual__1",
        "kind": "late_share", "severity": "warning", "message": "16.5 %", "at": "2026-11-21T12:00:00Z", "by": "airflow",
    }  # fmt: skip


def test_the_webhook_gets_the_same_object_as_json(settings: Settings, receiver: Receiver) -> None:
    assert send_alert(settings, ALERT, env={WEBHOOK: receiver.url})
    assert receiver.taken == [("/hook", "application/json", lines(settings)[0])]


def test_a_webhook_that_refuses_loses_no_alert(settings: Settings, receiver: Receiver) -> None:
    receiver.answer = 500
    assert not send_alert(settings, ALERT, env={WEBHOOK: receiver.url})
    assert len(lines(settings)) == 1


def test_a_webhook_that_is_not_there_loses_no_alert(settings: Settings) -> None:
    assert not send_alert(settings, ALERT, env={WEBHOOK: "http://127.0.0.1:1/hook"})
    assert not send_alert(settings, ALERT, env={WEBHOOK: "no address"})
    assert len(lines(settings)) == 2


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("cause", "kind", "severity"),
    [(None, "task_failed", "critical"), (RequestError("bad range"), "refused", "warning")],
)
def test_the_notifier_tells_a_refused_form_from_a_failure(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    receiver: Receiver,
    cause: Exception | None,
    kind: str,
    severity: str,
) -> None:
    from rivertwice.orchestration.notifiers import AlertNotifier

    for name, value in {**settings.to_env(), WEBHOOK: receiver.url}.items():
        monkeypatch.setenv(name, value)
    error = RuntimeError("bad range")
    error.__cause__ = cause
    AlertNotifier(pipeline="flight_delays").notify(
        {
            "dag": SimpleNamespace(dag_id="backfill__flight_delays"),
            "dag_run": SimpleNamespace(run_id="manual__1"),
            "ti": SimpleNamespace(task_id="plan"),
            "exception": error,
        }
    )
    (line,) = lines(settings)
    assert (line["kind"], line["severity"], line["message"]) == (kind, severity, "task plan: bad range")
    assert receiver.taken[0][2] == line
