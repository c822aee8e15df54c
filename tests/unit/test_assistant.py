"""`rivertwice mcp`: the SDK's own client asks the command over a home, and nothing in the home changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from homes import savepoint as savepoints
from homes.backfill import SQL, YAML
from homes.cockpit import Past, make_past
from homes.project import make_project
from rivertwice.acts import acts_of, parse_request
from rivertwice.cli.assistant import MOST_CHARACTERS, MOST_TEXT, Tool, _command_of, answer, tools_of
from rivertwice.cli.frame import Frame
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.savepoint.take import take_savepoint
from running.docs_commands import command_of

SECRETS = {
    "RIVERTWICE_KAFKA_PASSWORD": "canary-kafka-1f0c",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-9c1e",
    "POSTGRES_PASSWORD": "canary-password-77e1",
}
NOBODY = "127.0.0.1:9"
"""An address where no broker answers."""
SAVEPOINT = "sp-t1-120-0a1b2c3d"
WHY = "a test"
FIELDS: dict[str, dict[str, Any]] = {
    "backfill": {"scope": "range", "start": "2026-01-02T00:00:00Z", "end": "2026-01-03T00:00:00Z", "reason": WHY},
    "savepoint.prove": {"savepoint": SAVEPOINT},
    "savepoint.pin": {"savepoint": SAVEPOINT},
    "savepoint.unpin": {"savepoint": SAVEPOINT},
    "savepoint.restore": {"savepoint": SAVEPOINT, "unproved": True, "reason": WHY},
    "savepoint.rewind": {"from_beginning": True, "reason": WHY},
    "upgrade": {"reason": WHY},
    "dead.amend": {"place": "0@117", "value": '{"k": "a"}', "reason": WHY},
    "dead.discard": {"kind": "schema", "reason": WHY},
    "operation.abandon": {"reason": WHY},
}
"""Fields of the acts whose plans are tools; every such act is here."""
REFUSED = {
    "backfill": NOBODY,
    "savepoint.restore": "does not exist",
    "savepoint.rewind": NOBODY,
    "savepoint.prove": "does not exist",
    "savepoint.pin": "does not exist",
    "savepoint.unpin": "does not exist",
    "dead.amend": "no dead letter of p is at 0@117",
    "dead.discard": "no open dead letter has the reason",
    "operation.abandon": "there is nothing to abandon",
}
"""Why a plan is refused over this home, which has no broker, no savepoint and no dead letter."""


@dataclass(frozen=True)
class Said:
    """An answer: what its JSON holds, its text, and whether the client takes it for an error."""

    value: Any
    text: str
    failed: bool


@dataclass(frozen=True)
class Heard:
    """What a session heard: the tools, and each answer by a call's name."""

    tools: dict[str, Any]
    said: dict[str, Said]


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "status": ("status", {}),
    "one": ("status", {"pipeline": "p"}),
    "why": ("status", {"pipeline": "p", "why": True}),
    "alerts": ("alerts", {}),
    "verdicts": ("verdicts", {"pipeline": "p", "limit": 2}),
    "the next ones": ("verdicts", {"pipeline": "p", "limit": 2, "skip": 2}),
    "defects": ("verdicts", {"pipeline": "p", "verdict": "DEFECT"}),
    "causes": ("verdicts", {"pipeline": "p", "causes": True}),
    "explain": ("explain", {"pipeline": "p", "window": "2026-01-02T08:00:00Z", "key": "k001"}),
    "explain by columns": ("explain", {"pipeline": "p", "window": "2026-01-02T08:00:00Z", "key": {"k": "k001"}}),
    "unknown pipeline": ("verdicts", {"pipeline": "q"}),
    "no pipeline": ("verdicts", {}),
    "not an instant": ("explain", {"pipeline": "p", "window": "tomorrow"}),
    "not a verdict": ("verdicts", {"pipeline": "p", "verdict": "WRONG"}),
    "not a number": ("verdicts", {"pipeline": "p", "limit": "all"}),
    "an option that writes": ("verdicts", {"pipeline": "p", "accept": True, "reason": WHY}),
    "an option in a name": ("status", {"pipeline": "--home=/"}),
    "an act": ("backfill", {"pipeline": "p"}),
    "a field for programs": ("plan_backfill", {"pipeline": "p", "publish": True}),
    "a bad field": ("plan_savepoint_pin", {"pipeline": "p", "savepoint": "x"}),
    "no reason": ("plan_dead_discard", {"pipeline": "p", "kind": "schema"}),
    **{act: (f"plan_{act.replace('.', '_')}", {"pipeline": "p", **fields}) for act, fields in FIELDS.items()},
}


def bytes_of(root: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return make_past(tmp_path_factory.mktemp("assistant"), Past(days=4, keys=3))


@pytest.fixture(scope="module")
def heard(settings: Settings) -> Iterator[Heard]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("RIVERTWICE_")}
    login = {"PROTOCOL": "SASL_SSL", "MECHANISM": "PLAIN", "USERNAME": "reader"}
    known |= {f"RIVERTWICE_KAFKA_{name}": value for name, value in login.items()} | {"RIVERTWICE_BOOTSTRAP": NOBODY}
    env = {**known, **SECRETS, "RIVERTWICE_HOME": str(settings.home)}
    words = ["-m", "rivertwice.cli.main", "mcp", "--project", str(settings.project)]

    async def ask() -> Heard:
        server = StdioServerParameters(command=sys.executable, args=words, env=env)
        async with Client(stdio_client(server)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            said = {}
            for call, (name, arguments) in CALLS.items():
                done = await client.call_tool(name, arguments)
                (content,) = done.content
                said[call] = Said(json.loads(content.text), content.text, done.is_error)
            return Heard(tools, said)

    before = bytes_of(settings.home.parent)
    yield asyncio.run(ask())
    assert bytes_of(settings.home.parent) == before  # at the end too: every test has asked by then


def test_the_tools_are_commands_that_read_and_plans_of_acts(heard: Heard) -> None:
    plans = {f"plan_{act.replace('.', '_')}" for act in FIELDS}
    assert set(heard.tools) == {"status", "alerts", "verdicts", "explain"} | plans
    assert {name for name, act in acts_of().items() if act.dry_run} == set(FIELDS)
    assert all(tool.annotations.read_only_hint and tool.description for tool in heard.tools.values())
    verdicts = heard.tools["verdicts"]
    assert verdicts.description.startswith("Show the verdicts of a reconcile, or the causes.")
    assert "DEFECT" in verdicts.input_schema["properties"]["verdict"]["enum"]
    assert not {"accept", "reason", "until", "end"} & set(verdicts.input_schema["properties"])
    backfill = heard.tools["plan_backfill"].input_schema
    assert backfill["properties"]["scope"]["enum"] == ["stale", "range", "late"]
    assert not {"id", "publish", "accept_quality"} & set(backfill["properties"])
    assert "reason" in heard.tools["plan_dead_discard"].input_schema["required"]


@pytest.mark.proves("howto-watch.md#ask-an-assistant")
def test_nothing_in_the_home_changes(heard: Heard, settings: Settings) -> None:
    assert set(heard.said) == set(CALLS)
    assert bytes_of(settings.home.parent)


def test_status_and_alerts_are_those_of_the_commands(heard: Heard) -> None:
    (pipeline,) = heard.said["status"].value["pipelines"]
    assert pipeline["name"] == "p"
    assert pipeline["reconcile"]["counts"]["served"]["DEFECT"] == 1
    assert heard.said["one"].value["pipelines"][0]["name"] == "p"
    assert heard.said["why"].value["p"][0]["symptom"] == "defect"
    assert heard.said["alerts"].value["firing"] == []


def test_verdicts_come_in_pages_newest_first(heard: Heard) -> None:
    first, second = heard.said["verdicts"].value, heard.said["the next ones"].value
    assert first["page"] == {"total": first["total"], "skip": 0, "next_skip": 2}
    starts = [row["window_start"] for row in (*first["rows"], *second["rows"])]
    assert starts == sorted(starts, reverse=True)
    assert starts[0] > "2026-01-04"
    assert {row["verdict"] for row in heard.said["defects"].value["rows"]} == {"DEFECT"}
    assert {row["cause"] for row in heard.said["causes"].value["rows"]} >= {"late"}


def test_a_number_is_explained(heard: Heard) -> None:
    explained = heard.said["explain"].value
    assert explained["address"]["key"] == {"k": "k001"}
    assert [verdict["pair"] for verdict in explained["verdicts"]] == ["served", "stream"]
    assert heard.said["explain by columns"].value["history"] == explained["history"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("unknown pipeline", "no pipeline 'q'"),
        ("no pipeline", "Missing argument 'NAME'"),
        ("not an instant", "'tomorrow' is not an ISO 8601 timestamp; write it as"),
        ("not a verdict", "'WRONG' is not one of"),
        ("not a number", "limit 'all' is not a whole number of 1 to 500"),
        ("an option that writes", "verdicts does not take 'accept'; it takes: pipeline, run, pair"),
        ("an option in a name", "'--home=/' cannot name a pipeline"),
        ("an act", "there is no tool 'backfill'; did you mean plan_backfill?"),
        ("a field for programs", "plan_backfill does not take 'publish'"),
        ("a bad field", "'x' is not a valid savepoint id"),
        ("no reason", "dead.discard needs reason"),
        *REFUSED.items(),
    ],
)
def test_what_cannot_be_answered_says_why(heard: Heard, call: str, message: str) -> None:
    said = heard.said[call]
    assert said.failed
    assert message in said.value["error"]["message"]


def test_a_plan_says_what_would_be_done(heard: Heard) -> None:
    upgrade = heard.said["upgrade"]
    assert not upgrade.failed
    assert upgrade.value["changed"] == "nothing: this is a plan"
    assert "there is nothing to upgrade" in upgrade.value["refusals"][0]
    assert upgrade.value["command"] is None  # it is refused: no command would do it
    assert any(line.startswith("step 2: ") for line in upgrade.value["plan"])


def test_no_answer_holds_a_secret_and_none_is_larger_than_the_limit(heard: Heard) -> None:
    texts = [said.text for said in heard.said.values()]
    assert not [text for text in texts if any(secret in text for secret in SECRETS.values())]
    assert max(map(len, texts)) < MOST_CHARACTERS


@pytest.mark.parametrize("act", [act for act in FIELDS if act not in ("savepoint.unpin", "operation.abandon")])
def test_the_command_of_a_plan_is_one_that_the_command_line_takes(act: str) -> None:
    assert parse_request(acts_of()[act], FIELDS[act], "p")
    words = shlex.split(str(_command_of(cli, act, "p", FIELDS[act])))
    command, rest = command_of(words)
    with command.make_context(words[1], rest) as context:
        assert context.params["name"] == "p"
        assert getattr(command.callback, "asks", False) or act in (
            "savepoint.prove",
            "savepoint.pin",
            "dead.amend",
            "dead.discard",
        )


def test_a_plan_that_can_be_done_ends_with_its_command(tmp_path: Path) -> None:
    make_project(tmp_path, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})
    settings, home = savepoints.make_home(tmp_path)
    taken = take_savepoint(settings, "p", now=savepoints.NOW).id
    text, failed = answer(tools(settings), "plan_savepoint_pin", {"pipeline": "p", "savepoint": taken})
    assert not failed, text
    assert (json.loads(text)["command"], failed) == (f"rivertwice savepoint pin p {taken}", False)
    assert home.savepoints.is_dir()


def tools(settings: Settings) -> dict[str, Tool]:
    assert isinstance(cli, click.Group)
    return tools_of(Frame(settings, "json", debug=False), cli)


def test_a_large_answer_is_cut_and_says_by_how_much(settings: Settings) -> None:
    status = tools(settings)["status"]
    rows = [{"at": number, "text": "x" * 90} for number in range(5_000)]
    large = replace(status, call=lambda _: {"rows": rows, "one": "y" * 9_000, "few": [1, 2]})
    text, failed = answer({"status": large}, "status", {})
    value = json.loads(text)
    assert not failed
    assert len(text) <= MOST_CHARACTERS
    assert value["rows"] == rows[: 5_000 - value["left_out"]["rows"]]
    assert value["one"] == f"{'y' * MOST_TEXT}... (9000 characters)"
    assert value["few"] == [1, 2]
    wide = replace(status, call=lambda _: {str(number): "z" * 100 for number in range(5_000)})
    refused, failed = answer({"status": wide}, "status", {})
    assert failed
    assert "ask for one pipeline" in refused
