"""Mistakes of people, at the command line: the message names file, fact and remedy, the remedy works, and `lab/docs/mistakes.md` shows it as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY, link
from lab.faults.events import Event
from mistakes.made import ALL, ASKED, IN_CASES, IN_SETTINGS, IN_SQL, IN_YAML, Mistake
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.send import send_records
from running.warm_spark import own_session, run_command_warm, run_driver_warm

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
PAGE = REPOSITORY / "lab" / "docs" / "mistakes.md"
WRITE = "RIVERTWICE_WRITE_PAGE" in os.environ
HEAD = """# Mistakes, and what each says

What people write wrong, the command that meets it, and the message it gets, as printed. A test
makes each of these mistakes in the project that `rivertwice init` writes for a file of orders,
compares the message with this page, and applies the remedy that the message names.
"""
START = datetime(2026, 1, 5, 8, tzinfo=UTC)
GROUPS = {
    "In pipeline.yaml": IN_YAML,
    "In transform.sql": IN_SQL,
    "In a case": IN_CASES,
    "In rivertwice.yaml": IN_SETTINGS,
    "On the command line": ASKED,
}


def order(number: int) -> dict[str, object]:
    placed = (START + timedelta(minutes=number)).isoformat()
    return {
        "order_id": number,
        "shop": ("berlin", "lagos", "quito")[number % 3],
        "amount": 3 + number % 7 / 4,
        "placed_at": placed,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, broker: BrokerInfo) -> Settings:
    """The project of a file of orders, whose stream has read them; each test works on a copy of the project."""
    folder = tmp_path_factory.mktemp("mistakes") / "own"
    link(folder, [".build"])
    settings = Settings(
        project=folder, home=folder / ".rivertwice", bootstrap=broker.bootstrap, spark_master="local[2]"
    )
    orders = [order(number) for number in range(600)]
    (folder / "orders.jsonl").write_text("".join(json.dumps(each) + "\n" for each in orders))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_command_warm(settings, "init", "--from-file", "orders.jsonl", "--window", "1 hour", "--watermark", "1 hour")
    topic = f"orders_{uuid.uuid4().hex[:8]}"
    definition = folder / "pipelines" / "orders" / "pipeline.yaml"
    definition.write_text(definition.read_text().replace('topic: "orders"', f'topic: "{topic}"'))
    ensure_topic(settings, topic, 1)
    stamps = [int((START + timedelta(minutes=number)).timestamp() * 1_000) for number in range(600)]
    send_records(
        settings,
        topic,
        [Event(0, None, json.dumps(each).encode(), at) for each, at in zip(orders, stamps, strict=True)],
    )
    run_driver_warm(settings, "orders", folder.parent / "driver.log")
    run_command_warm(settings, "admin", "rebuild", "orders")
    run_command_warm(settings, "reconcile", "orders")
    definition.write_text(definition.read_text().replace(f'topic: "{topic}"', 'topic: "orders"'))
    return settings


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, str]]:
    """The messages by their mistake; written as the page of the documentation if the environment says so."""
    messages: dict[str, str] = {}
    yield messages
    if WRITE:
        parts = [HEAD]
        for title, group in GROUPS.items():
            parts += [f"## {title}\n", *(as_block(mistake, messages[mistake.title]) for mistake in group)]
        PAGE.write_text("\n".join(parts))


def as_block(mistake: Mistake, message: str) -> str:
    """Return the part of the page about a mistake."""
    shown = " ".join(f'"{part}"' if " " in part else part for part in mistake.command)
    lines = mistake.new.strip("\n").splitlines() if mistake.file else []
    written = "".join(f"{line.strip()}\n" for line in lines)
    return f"### {mistake.title}\n\n```\n{written}$ rivertwice {shown}\n{message}\n```\n"


@pytest.fixture
def project(made: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    folder = tmp_path / "own"
    shutil.copytree(made.project, folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100000")  # a message is one text
    monkeypatch.setattr("rivertwice.log.kafka.TIMEOUT", 2.0)
    return replace(made, project=folder, home=folder / ".rivertwice")


def run(settings: Settings, mistake: Mistake, command: tuple[str, ...]) -> tuple[int, str]:
    """Return exit code and message of a command, with the names that differ from run to run replaced."""
    env: dict[str, str | None] = {**settings.to_env()}
    if mistake in IN_SETTINGS:  # what no variable says, the file may
        env |= dict.fromkeys(name for name in env if name not in ("RIVERTWICE_PROJECT", "RIVERTWICE_HOME"))
    is_lint = command[0] == "lint"
    with own_session():
        done = CliRunner().invoke(cli, ["--output", "json", *command] if is_lint else command, env=env)
    text = _message(done, command[0])
    for made, name in (
        (f"{settings.project}/", ""),
        (str(settings.project), "."),
        (str(settings.bootstrap), "127.0.0.1:9092"),
    ):
        text = text.replace(made, name)
    text = re.sub(r"\borders_[0-9a-f]{8}\b", "orders", text)
    text = re.sub(r"(no topic 'no-such-topic'.*there are): .*", r"\1: orders", text)  # whatever topics others made
    return done.exit_code, text


def _message(done: Result, verb: str) -> str:
    """Return what a person reads about a mistake: of tables the rows about it, else what is no progress and no hint of usage."""
    if verb == "lint":
        findings = json.loads(done.stdout)[0]["findings"]
        return "\n".join(each["told"] for each in findings if each["state"] == "broken")
    if verb == "test":
        about = "orders: records_of_one_window: "
        return "\n".join(line.removeprefix(about) for line in done.output.splitlines() if line.startswith(about))
    return "\n".join(
        line
        for line in done.stderr.splitlines()
        if line.strip() and not line.startswith(("  ", "Usage", "Try", "rivertwice: warning:"))
    )


@pytest.mark.proves("lab/docs/mistakes.md#no-agent-runs-that-could-start-a-stream")
@pytest.mark.parametrize("mistake", ALL, ids=lambda mistake: mistake.title)
def test_a_mistake_is_named_and_its_remedy_works(project: Settings, page: dict[str, str], mistake: Mistake) -> None:
    file = project.project / mistake.file
    if mistake.file:
        before = file.read_text()
        assert mistake.old in before
        file.write_text(before.replace(mistake.old, mistake.new, 1))
    code, message = run(project, mistake, mistake.command)
    assert code == mistake.exit, message
    for part in mistake.says:
        assert part in message
    assert "Traceback" not in message
    if mistake.cure is not None:
        wrong, right = mistake.cure
        assert (mistake.named or right.split(" ")[-1].strip("'{}:;,()")) in message
        command = mistake.command
        if mistake.file:
            changed = file.read_text()
            assert wrong in changed
            file.write_text(changed.replace(wrong, right, 1))
        else:
            command = tuple(part.replace(wrong, right) for part in command)
        code, message_then = run(project, mistake, command)
        assert code == 0, message_then
    page[mistake.title] = message
    if not WRITE:
        assert as_block(mistake, message) in PAGE.read_text(), "RIVERTWICE_WRITE_PAGE=1 writes the page again"
