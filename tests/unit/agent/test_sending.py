"""Messages over real HTTP and real SMTP: what they say, what failing receivers cost, and what outlives a restart."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rivertwice.agent import alert_store
from rivertwice.agent.act import page, page_over
from rivertwice.agent.alert_model import AlertCause
from rivertwice.agent.alert_sender import Sender
from rivertwice.agent.alert_store import AlertStore, alerts_of
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from running.waiting import wait_for
from servers.alert_receivers import SECRET, Hook, MailServer
from servers.secure_kafka import make_files

pytestmark = pytest.mark.long

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WORDS = "a record waits 93 s until it is committed (limit 30 s)"


class World:
    """A home with routes, a clock that the test turns, and a sender as the agent has one."""

    def __init__(self, root: Path, routes: str) -> None:
        self.settings = Settings(project=root / "project", home=root / "home dir")
        self.settings.project.mkdir(parents=True)
        (self.settings.project / "alerts.yaml").write_text(routes)
        self.env = {"OPS": "", "MAIL_PASSWORD": f"{SECRET}-mail"}
        self.now = NOW
        self.restart()

    def restart(self) -> None:
        alert_store._STORES.clear()
        self.sender = Sender(self.settings, self.env, lambda: self.now)

    def turn(self, seconds: float = 0.0) -> int:
        self.now += timedelta(seconds=seconds)
        return self.sender.run_pass()

    def begin(self, kind: str = "latency", severity: str = "critical", message: str = WORDS, subject: str = "") -> None:
        page(self.settings, kind, "p", message, self.now, severity=severity, subject=subject)

    def end(self, kind: str = "latency") -> None:
        page_over(self.settings, {kind}, "p", f"{kind} is 1", self.now)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.settings.home / "alerts.jsonl").read_text().splitlines()]

    def run(self, *words: str, output: str = "text") -> Result:
        places = ["--project", str(self.settings.project), "--home", str(self.settings.home)]
        return CliRunner(env=self.env).invoke(cli, ["--output", output, *places, "alerts", *words])


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.close()


@pytest.fixture
def world(tmp_path: Path, hook: Hook) -> World:
    found = World(tmp_path, "routes: {ops: {to: webhook, url_env: OPS}}")
    found.env["OPS"] = hook.url
    return found


@pytest.mark.proves("guarantees.md#alerts")
def test_one_fact_is_one_message_and_one_more_when_it_is_over(world: World, hook: Hook) -> None:
    for _ in range(120):  # an hour of half minutes
        world.begin()
        world.turn(30)
    assert hook.told() == [("latency", "firing")]
    world.end()
    for _ in range(120):
        world.turn(30)
    assert hook.told() == [("latency", "firing"), ("latency", "resolved")]
    assert hook.taken == [{**line, "page": None} for line in world.lines()]
    first, last = hook.taken
    assert first["id"] == last["id"]
    assert len(set(hook.keys)) == 2
    assert first["message"] == WORDS
    assert first["since"] == last["since"] == "2026-11-21T12:00:00Z"
    assert last["until"] == "2026-11-21T13:00:00Z"
    assert last["resolution"] == "latency is 1"
    assert first["meaning"] == "what is served is right, and newer windows come later than usual"
    assert first["next"].endswith(" status p --why")
    assert alerts_of(world.settings).state().alerts == ()


@pytest.mark.proves("guarantees.md#alerts")
def test_a_new_agent_sends_nothing_twice_and_still_sends_the_end(world: World, hook: Hook) -> None:
    world.begin()
    world.turn()
    world.restart()
    world.begin()
    world.turn(60)
    assert hook.told() == [("latency", "firing")]
    world.end()
    world.restart()
    world.turn(60)
    assert hook.told() == [("latency", "firing"), ("latency", "resolved")]


@pytest.mark.proves("guarantees.md#alerts")
@pytest.mark.parametrize("answer", [500, 503, 429, 302])
def test_a_failing_webhook_is_asked_ever_less_often_and_loses_nothing(
    world: World, hook: Hook, caplog: pytest.LogCaptureFixture, answer: int
) -> None:
    hook.answer = answer
    world.begin()
    world.begin("retention", subject="flights")
    for _ in range(1_800):  # an hour of the agent's passes
        world.turn(2)
    assert hook.asked == 11  # after 10 s, 20 s, ... then every ten minutes
    assert f"route ops of alerts: status {answer}" in caplog.text
    assert "2 messages wait and are tried again later" in caplog.text
    shown = json.loads(world.run(output="json").stdout)["routes"]
    assert [(one["route"], one["waiting"], one["failures"]) for one in shown] == [("ops", 2, 11)]
    world.restart()
    hook.answer = 204
    world.turn(600)
    assert sorted(hook.told()) == [("latency", "firing"), ("retention", "firing")]


def test_a_webhook_that_is_not_there_loses_nothing(world: World, hook: Hook) -> None:
    world.env["OPS"] = "http://127.0.0.1:1/gone"
    world.begin()
    world.turn()
    assert [line["kind"] for line in world.lines()] == ["latency"]
    world.env["OPS"] = hook.url
    world.turn(10)
    assert hook.told() == [("latency", "firing")]


@pytest.mark.proves("guarantees.md#alerts")
def test_a_message_that_the_webhook_refuses_holds_up_no_other(world: World, hook: Hook) -> None:
    hook.refuse = lambda body: body["kind"] == "latency"
    world.begin()
    world.turn()
    world.begin("lag", "warning")
    world.turn(20)
    world.begin("hung")
    world.turn(40)
    assert hook.told() == [("lag", "firing"), ("hung", "firing")]
    hook.refuse = lambda _: False
    world.turn(600)
    assert hook.told()[-1] == ("latency", "firing")


def test_a_slow_webhook_holds_up_nobody_who_reports(world: World, hook: Hook) -> None:
    hook.hold_s = 2.0
    world.begin()
    thread = threading.Thread(target=world.turn)
    thread.start()
    wait_for("the request", lambda: hook.asked == 1, 60, every=0.05)
    for number in range(20):
        world.begin("archive", subject=str(number))
    assert hook.taken == []  # all of them were recorded while the receiver made up its mind
    assert (
        Sender(world.settings, world.env, lambda: world.now).run_pass() == 0
    )  # another process leaves it to the first
    thread.join()
    assert hook.told() == [("latency", "firing")]


def test_routes_by_severity(tmp_path: Path, hook: Hook) -> None:
    other = Hook()
    world = World(
        tmp_path,
        "routes: {pager: {to: webhook, url_env: PAGER, severities: [critical]}, all: {to: webhook, url_file: FILE}}".replace(
            "FILE", str(tmp_path / "address")
        ),
    )
    (tmp_path / "address").write_text(f"{other.url}\n")
    world.env["PAGER"] = hook.url
    world.begin()
    world.begin("lag", "warning")
    world.turn()
    assert hook.told() == [("latency", "firing")]
    assert sorted(other.told()) == [("lag", "firing"), ("latency", "firing")]
    other.close()


def test_without_a_file_the_variable_makes_one_webhook(world: World, hook: Hook) -> None:
    (world.settings.project / "alerts.yaml").unlink()
    world.env["RIVERTWICE_ALERT_WEBHOOK"] = hook.url
    world.begin()
    world.turn()
    assert hook.told() == [("latency", "firing")]


def test_slack_gets_a_text_whose_markup_is_escaped(tmp_path: Path, hook: Hook) -> None:
    world = World(tmp_path, "routes: {chat: {to: slack, url_env: OPS}}")
    world.env["OPS"] = hook.url
    taken: list[Any] = []
    hook.refuse = lambda body: bool(taken.append(body))
    world.begin("hung", message="driver <!channel> & \x1b[2J said nothing")
    world.turn()
    (body,) = taken
    assert list(body) == ["text"]
    title, what, since, served, following = body["text"].split("\n")
    assert title == "[CRITICAL] p: hung"
    assert what == r"What happened: driver &lt;!channel&gt; &amp; \x1b[2J said nothing"
    assert since == "Since: 2026-11-21T12:00:00Z"
    assert served.startswith("Served numbers: what is served stays right, and gets older")
    assert following.startswith("Next: rivertwice --project ")
    assert following.endswith("/home dir' status p --why")


def test_an_alert_is_two_mails_of_which_the_second_answers_the_first(tmp_path: Path) -> None:
    server = MailServer()
    world = World(
        tmp_path,
        f"routes: {{mail: {{to: email, host: 127.0.0.1, port: {server.port}, security: none, username: rt, "
        "password_env: MAIL_PASSWORD, sender: rt@example.com, recipients: [a@example.com, b@example.com]}}",
    )
    world.begin(message="line one\r\nBcc: everybody@example.com")
    world.turn()
    world.end()
    world.turn(1)
    world.turn(60)
    first, second = server.mails
    assert first["Subject"] == "[CRITICAL] p: latency"
    assert first["To"] == "a@example.com, b@example.com"
    assert first["Bcc"] is None
    assert r"What happened: line one\r\nBcc: everybody@example.com" in first.get_content()
    assert "Served numbers: what is served is right" in first.get_content()
    assert second["Subject"] == "[RESOLVED] p: latency"
    assert second["In-Reply-To"] == first["Message-ID"]
    assert "(1 s)" not in second.get_content()
    assert "Now: latency is 1" in second.get_content()
    assert [one for one in server.commands if one.startswith("rcpt")] == [
        "rcpt TO:<a@example.com>",
        "rcpt TO:<b@example.com>",
    ] * 2
    assert len(server.logins) == 2
    server.close()


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mails_travel_encrypted_to_a_server_whose_certificate_is_trusted(tmp_path: Path, security: str) -> None:
    files = make_files(tmp_path / "tls")
    server = MailServer(files / "server.pem", wrapped=security == "tls")
    text = (
        f"routes: {{mail: {{to: email, host: 127.0.0.1, port: {server.port}, security: {security}, CA username: rt, "
        "password_env: MAIL_PASSWORD, sender: rt@example.com, recipients: [a@example.com]}}"
    )
    world = World(tmp_path, text.replace("CA", f"ca: {files / 'ca.pem'},"))
    world.begin()
    world.turn()
    assert [mail["Subject"] for mail in server.mails] == ["[CRITICAL] p: latency"]
    (world.settings.project / "alerts.yaml").write_text(text.replace("CA", ""))  # the system trusts no such authority
    refused = world.run("test")
    assert refused.exit_code == 1
    assert "SSLCertVerificationError" in refused.stdout
    assert len(server.logins) == 1  # no password went to the one that is not trusted
    server.close()


def test_a_mail_server_that_has_no_room_gets_the_mail_later(tmp_path: Path) -> None:
    server = MailServer()
    world = World(
        tmp_path,
        f"routes: {{mail: {{to: email, host: 127.0.0.1, port: {server.port}, security: none, "
        "sender: rt@example.com, recipients: [a@example.com]}}",
    )
    server.refuse = "452 no room"
    world.begin()
    world.turn()
    server.refuse = ""
    assert world.turn(9) == 0
    assert world.turn(1) == 1
    server.close()


def test_a_route_may_be_a_file_which_its_owner_alone_can_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    world = World(tmp_path, f"routes: {{file: {{to: file, path: {path}}}}}")
    world.begin()
    world.turn()
    assert json.loads(path.read_text()) == {**world.lines()[0], "page": None}
    assert path.stat().st_mode & 0o777 == 0o600
    assert (world.settings.home / "alerts.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.proves("guarantees.md#alerts")
def test_a_disk_without_room_neither_stops_an_alert_nor_repeats_it(
    world: World, hook: Hook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(alert_store, "replace_json", full)
        patch.setattr(alert_store.os, "write", full)
        for _ in range(5):
            world.begin("disk")
            world.turn(2)
        assert hook.told() == [("disk", "firing")]
        assert "No space left on device" in caplog.text
        assert '"kind": "disk"' in caplog.text  # the line that the file did not take
        assert not (world.settings.home / "alerts" / "state.json").exists()
    world.begin("disk")
    world.restart()
    world.turn(2)
    assert hook.told() == [("disk", "firing")]


@pytest.mark.proves("guarantees.md#alerts")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1, "alerts": [{}], "routes": {}}'])
def test_a_damaged_state_is_kept_aside_and_alerts_go_on(
    world: World, hook: Hook, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = world.settings.home / "alerts" / "state.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    world.begin()
    world.turn()
    assert hook.told() == [("latency", "firing")]
    assert path.with_suffix(".damaged").read_text() == content
    assert "it is kept as" in caplog.text


def test_an_unreadable_unwritable_state_stops_and_repeats_no_alert(world: World, hook: Hook) -> None:
    (world.settings.home / "alerts" / "state.json").mkdir(parents=True)
    for _ in range(3):
        world.begin()
        world.turn(2)
    assert hook.told() == [("latency", "firing")]
    world.end()
    world.turn(1)
    world.turn(60)
    assert hook.told() == [("latency", "firing"), ("latency", "resolved")]


def test_no_secret_is_in_a_file_a_log_or_an_answer_of_the_command(
    world: World, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        caplog.at_level(logging.DEBUG, "httpx"),
        caplog.at_level(logging.DEBUG, "httpcore"),
    ):
        for url in (
            hook.url,
            hook.url.replace("//", f"//user:{SECRET}@"),
            f"http://127.0.0.1:1/{SECRET}",
            f"no {SECRET}",
        ):
            world.env["OPS"] = url
            world.begin(subject=str(len(url)))
            world.turn(700)
            shown = [world.run().output, world.run("test").output, world.run(output="json").output]
            assert SECRET not in "".join(shown)
    assert hook.taken
    assert SECRET not in caplog.text
    files = [path for path in world.settings.home.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.proves("guarantees.md#alerts")
def test_two_processes_and_many_threads_report_and_send_each_message_once(world: World, hook: Hook) -> None:
    stores = [AlertStore(world.settings) for _ in range(4)]  # as processes have them

    def work(number: int) -> None:
        from rivertwice.agent.alert_model import Report

        for step in range(20):
            cause = AlertCause("p", "archive", str(step))
            stores[number].report(Report(cause, "warning", f"by {number}", "agent"), NOW)
            Sender(world.settings, world.env, lambda: NOW).run_pass()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.turn()
    assert sorted(int(one["subject"]) for one in hook.taken) == list(range(20))
    assert len(world.lines()) == 20


def test_the_command_lists_what_fires_and_tries_routes(world: World, hook: Hook) -> None:
    assert world.run().stdout.startswith("nothing fires\n")
    world.begin()
    world.turn()
    shown = world.run()
    assert shown.exit_code == 0
    assert "[CRITICAL] p: latency" in shown.stdout
    assert "told: ops" in shown.stdout
    assert world.run("--check").exit_code == 3
    tried = world.run("test", "--route", "ops", output="json")
    assert json.loads(tried.stdout) == [{"route": "ops", "to": "webhook", "taken": True, "error": None}]
    assert hook.told()[-1] == ("test", "firing")
    hook.answer = 500
    failed = world.run("test")
    assert failed.exit_code == 1
    assert "status 500" in failed.stdout
    assert "1 of 1 routes did not take the test message: ops" in failed.stderr
    assert world.run("test", "--route", "nobody").exit_code == 1
