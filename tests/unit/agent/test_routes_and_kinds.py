"""What `alerts.yaml` may say, and what every kind of alert says: its meaning, and a command that works when pasted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from homes.delivery import DeliveryHome, fill
from homes.project import REPOSITORY
from rivertwice.agent.alert_gates import GATE_KINDS
from rivertwice.agent.alert_kinds import KINDS, next_command
from rivertwice.agent.alert_model import AlertCause
from rivertwice.agent.alert_routes import EmailRoute, load_routes
from rivertwice.agent.backoff import FailureClass
from rivertwice.agent.prometheus import RULES
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError
from rivertwice.core.settings import Settings

MAIL = "to: email, host: mail.example.com, sender: a@example.com, recipients: [b@example.com]"


def write(root: Path, text: str) -> Settings:
    (root / "alerts.yaml").write_text(text)
    return Settings(project=root, home=root / "home")


def test_without_file_and_variable_there_are_no_routes(tmp_path: Path) -> None:
    assert load_routes(Settings(project=tmp_path, home=tmp_path), {}).routes == {}


def test_the_example_of_the_documentation_is_accepted(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "howto-watch.md").read_text()
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", page, re.S) if "routes:" in block)
    found = load_routes(write(tmp_path, text), {})
    assert {name: route.to for name, route in found.routes.items()} == {
        "ops": "webhook", "chat": "slack", "mail": "email", "audit": "file",
    }  # fmt: skip
    mail = found.routes["mail"]
    assert isinstance(mail, EmailRoute)
    assert (mail.severities, mail.security) == (("critical",), "starttls")


@pytest.mark.proves("howto-watch.md#configure-routes")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("routes: {a: {to: webhook, url: https://hooks.example.com/s3cr3t}}", "url"),
        ("routes: {a: {to: webhook, url_env: 'https://hooks.example.com/s3cr3t'}}", "names no environment variable"),
        ("routes: {a: {to: webhook}}", "write url_env"),
        ("routes: {a: {to: pigeon}}", "pigeon"),
        ("routes: {A B: {to: webhook, url_env: X}}", "cannot name a route"),
        ("routes: {a: {to: webhook, url_env: X, severities: [fatal]}}", "'critical' or 'warning'"),
        ("routes: {a: {to: webhook, url_env: X, severities: []}}", "at least 1 item"),
        (f"routes: {{a: {{{MAIL}, username: x}}}}", "one of password_env and password_file"),
        (f"routes: {{a: {{{MAIL}, username: x, password_env: P, security: none}}}}", "unprotected"),
        (f"routes: {{a: {{{MAIL.replace('b@example.com', 'nobody')}}}}}", "not a valid mail address"),
        (f"routes: {{a: {{{MAIL.replace('b@example.com', '')}}}}}", "at least 1 item"),
        ("settle: soon", "not a valid duration"),
        ("[", "not YAML"),
        ("&a [*a, *a]", "alerts.yaml"),
        ("x: " + "y" * 70_000, "65536 bytes"),
    ],
)
def test_a_wrong_route_is_refused_by_the_command_without_its_secret(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)
    found = CliRunner().invoke(cli, ["--project", str(tmp_path), "--home", str(tmp_path / "home"), "alerts"])
    assert found.exit_code == 1, found.output
    assert said in found.stderr
    assert "s3cr3t" not in found.stderr
    assert "are not valid" in found.stderr or said == "cannot name a route"


def test_the_routes_file_must_exist_and_children_get_its_variable(tmp_path: Path) -> None:
    settings = Settings.from_env(
        {"RIVERTWICE_PROJECT": str(tmp_path), "RIVERTWICE_ALERTS": str(tmp_path / "mine.yaml")}
    )
    with pytest.raises(ConfigError, match="does not exist; write it"):
        load_routes(settings, {})
    (tmp_path / "mine.yaml").write_text("routes: {a: {to: webhook, url_env: X}}")
    assert list(load_routes(settings, {}).routes) == ["a"]
    assert Settings.from_env(settings.to_env()) == settings


def test_every_kind_that_is_reported_says_what_it_means_and_what_to_run() -> None:
    reported = {rule.name for rule in RULES} | {str(one) for one in FailureClass} | set(GATE_KINDS)
    for path in (REPOSITORY / "src" / "rivertwice").rglob("*.py"):
        text = path.read_text()
        reported |= set(re.findall(r'\bpage\([\w.]+, "(\w+)"', text))
        reported |= set(re.findall(r'(?:_page_once\(|page=)"(\w+)"', text))
    assert {"hung", "stalled", "retention", "archive", "delivery", "fast", "fell_back", "undefined"} <= reported
    assert reported - set(KINDS) == set()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> DeliveryHome:
    found = DeliveryHome(tmp_path_factory.mktemp("a folder"), "{}")
    fill(found, "t1", range(2), keys=2)
    return found


LOOKS_ONLY = {"status", "savepoint", "dead", "verdicts", "lint", "deliver", "alerts", "pipelines"}
"""Verbs that read the home; the others (of agent, doctor, Kafka's offsets, Spark) are parsed, and not run here."""


def leaf_of(words: list[str]) -> click.Command:
    """Return the command that a command line runs."""
    command: click.Command = cli
    for word in words:
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
    return command


@pytest.mark.parametrize("verb", sorted({kind.verb for kind in KINDS.values()}), ids=" ".join)
def test_the_next_command_works_when_it_is_pasted(
    world: DeliveryHome, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    kind = next(name for name, one in KINDS.items() if one.verb == verb)
    words = shlex.split(next_command(world.settings, AlertCause("p", kind)))
    assert words[0] == "rivertwice"
    if verb[0] not in LOOKS_ONLY or "--why" in verb:
        monkeypatch.setattr(leaf_of(words), "callback", lambda *_, **__: None)
    found = CliRunner().invoke(cli, words[1:], env={"RIVERTWICE_PROJECT": "", "RIVERTWICE_HOME": ""})
    assert found.exit_code in (0, 1, 3), found.output  # 2: not understood
    assert "no pipeline 'p'" not in found.output
    assert "unexpected" not in found.output, found.output
