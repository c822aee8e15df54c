"""The command line: help that teaches, JSON that parses, refusals in one clear line."""

from __future__ import annotations

import errno
import importlib.metadata
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from homes.project import REPOSITORY, make_project
from rivertwice.agent.act import page, record_event
from rivertwice.cli import frame
from rivertwice.cli.catalogue import COMMAND_GROUP, added_commands
from rivertwice.cli.checks import exit_code_of_gate, summary_text
from rivertwice.cli.frame import as_table, as_unexpected, exit_code_of
from rivertwice.cli.main import cli
from rivertwice.core.errors import (
    AuditError,
    ConfigError,
    ReplayMismatchError,
    RequestError,
    RivertwiceError,
    ServiceError,
    UnknownOutcomeError,
)
from rivertwice.core.instants import utc_now
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.core.spark_versions import SparkVersion
from rivertwice.reconcile.gate import Gate, GateAlert
from rivertwice.timeline.intent import Intent, write_intent


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))


COMMANDS = [(" ".join(path) or "rivertwice", path) for path, _ in leaves(cli)]
WITH_NAME = [
    ("start",), ("stop",), ("admin", "archive"), ("reconcile",), ("verdicts",), ("backfill", "plan"), ("backfill", "run"),
    ("backfill", "list"), ("savepoint", "take"), ("savepoint", "list"), ("savepoint", "prune"), ("deliver", "run"), ("test",),
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def invoke(*arguments: str, output: str = "text", project: Path = REPOSITORY) -> Result:
        options = ["--output", output, "--project", str(project), "--home", str(tmp_path / "home")]
        return CliRunner().invoke(cli, [*options, *arguments])

    return invoke


@pytest.mark.parametrize(("title", "path"), COMMANDS, ids=[title for title, _ in COMMANDS])
def test_every_help_explains_itself_and_shows_an_example(title: str, path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"rivertwice {' '.join(path)}".strip() in result.output.split("Example:")[1], title


def test_the_exit_codes_are_in_the_help_and_in_the_docs() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    docs = (REPOSITORY / "docs" / "cli.md").read_text()
    for code in range(5):
        assert f"\n    {code}  " in shown
        assert f"| {code} |" in docs


def test_every_command_has_its_place_in_the_docs() -> None:
    docs = (REPOSITORY / "docs" / "cli.md").read_text()
    missing = [title for title, path in COMMANDS if path and f"`rivertwice {title}" not in docs]
    assert missing == []


@pytest.mark.parametrize("name", ["../x", "a b", "", "x;rm", "x" * 65, "/etc/passwd", "Ünicode"])
@pytest.mark.parametrize("command", WITH_NAME, ids=lambda path: " ".join(path))
def test_a_name_that_could_leave_its_folder_is_refused_and_writes_nothing(
    run: Any, tmp_path: Path, command: tuple[str, ...], name: str
) -> None:
    if command == ("test",) and name == "":
        pytest.skip("an empty NAME means all pipelines")
    result = run(*command, name)
    assert result.exit_code == 1, result.output
    assert "cannot name a pipeline" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", WITH_NAME, ids=lambda path: " ".join(path))
def test_an_unknown_pipeline_is_refused_with_the_closest_name(run: Any, command: tuple[str, ...]) -> None:
    result = run(*command, "flight_delay")
    assert result.exit_code == 1
    assert "did you mean flight_delays?" in result.output


def test_an_error_is_one_json_object_when_json_is_asked_for(run: Any) -> None:
    result = run("start", "nosuch", output="json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["reason"] == "request"
    assert error["retryable"] is False
    assert "there are: flight_delays" in error["message"]
    assert result.stdout == ""


def test_a_mistyped_command_is_answered_with_close_names(run: Any) -> None:
    result = run("savepiont", "list")
    assert result.exit_code == 2
    assert "Did you mean savepoint?" in result.output
    result = run("savepoint", "tak", "flight_delays")
    assert result.exit_code == 2
    assert "Did you mean take?" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "2013-06-30T04:00:00Z"], "the range has no end"),
        (["--to", "2013-06-30T04:00:00Z"], "the range has no start"),
        (["--from", "2013-06-30T04:00", "--to", "2013-07-01"], "no time zone"),
        (["--from", "2013-13-01", "--to", "2014-01-01"], "write it as 2013-06-30T04:00:00Z, or a date as 2013-06-30"),
        (["--from", "2013-06-30Z", "--to", "2013-07-01"], "not an ISO 8601 timestamp"),
        (
            ["--from", "2013-07-01", "--to", "2013-06-30"],
            "[2013-07-01T00:00:00Z, 2013-06-30T00:00:00Z) is empty or reversed",
        ),
        (["--from", "yesterday", "--to", "2013-07-01T00:00:00Z"], "not an ISO 8601 timestamp"),
        (["--from", "2013-07-01T00:00:00Z", "--to", "2013-06-30T00:00:00Z"], "empty or reversed"),
    ],
)
@pytest.mark.parametrize("command", [("reconcile",), ("backfill", "plan"), ("backfill", "run")], ids=" ".join)
def test_a_bad_range_is_refused_before_anything_starts(
    run: Any, tmp_path: Path, command: tuple[str, ...], arguments: list[str], words: str
) -> None:
    result = run(*command, "flight_delays", *arguments)
    assert result.exit_code == 1
    assert words in result.output
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "2013-06-30"], "only --from is given"),
        (["--from", "30 June", "--to", "2013-07-01"], "is no day"),
        (["--from", "2013-07-01", "--to", "2013-06-30"], "swap them"),
        (["--topic", "../x"], "cannot name a topic"),
    ],
)
def test_a_replay_that_cannot_be_meant_is_refused(run: Any, arguments: list[str], words: str) -> None:
    result = run("replay", "flights", *arguments)
    assert result.exit_code == 1
    assert words in result.output


def test_status_of_an_empty_home_is_json_with_everything_down(run: Any) -> None:
    result = run("status", output="json")
    assert result.exit_code == 0, result.output
    view = json.loads(result.stdout)
    assert (view["broker"], view["agent"], view["airflow"]) == (None, None, None)
    found = {item["name"]: (item["state"], item["desired"]) for item in view["pipelines"]}
    assert set(found) == {"flight_delays"}
    assert set(found.values()) == {("down", None)}


def test_status_of_one_pipeline_is_that_of_all_with_this_one_alone(run: Any, tmp_path: Path) -> None:
    write_intent(Settings(REPOSITORY, tmp_path / "home").pipeline("gone"), "stopped", "ada", utc_now())
    of_all, of_one = (json.loads(run("status", *name, output="json").stdout) for name in ((), ("flight_delays",)))
    assert {each["name"] for each in of_all["pipelines"]} == {"flight_delays", "gone"}
    assert of_one == {**of_all, "pipelines": [each for each in of_all["pipelines"] if each["name"] != "gone"]}
    assert "no pipeline 'nosuch'" in run("status", "nosuch").output


def test_start_and_stop_write_the_intent_even_without_an_agent_and_say_so(run: Any, tmp_path: Path) -> None:
    home = Settings(REPOSITORY, tmp_path / "home").pipeline("flight_delays")
    started = run("start", "flight_delays", output="json")
    assert started.exit_code == 0
    assert json.loads(started.stdout) == {"agent": None, "desired": "running", "pipeline": "flight_delays"}
    assert "no agent is running" in started.stderr
    intent = Intent.load(home)
    assert intent is not None
    assert (intent.desired, intent.by) == ("running", "cli")
    assert run("stop", "flight_delays", "--wait").exit_code == 0
    assert Intent.load(home) != intent


def test_waiting_for_a_start_without_an_agent_is_refused_with_the_remedy(run: Any) -> None:
    result = run("start", "flight_delays", "--wait")
    assert result.exit_code == 1
    assert "run `rivertwice up`" in result.output


@pytest.mark.proves("howto-stream.md#how-to-run-a-stream-and-what-the-agent-does-when-it-fails")
def test_a_definition_that_cannot_run_is_refused_at_start(run: Any, tmp_path: Path) -> None:
    bad = make_project(tmp_path, {"bad": {"pipeline.yaml": "name: bad\n", "transform.sql": "SELECT 1"}})
    result = run("start", "bad", project=bad.project)
    assert result.exit_code == 1
    assert "pipeline.yaml" in result.output
    assert not (tmp_path / "home" / "pipelines" / "bad" / "intent.json").exists()


def test_pipelines_and_schema_are_json(run: Any, tmp_path: Path) -> None:
    listed = json.loads(run("pipelines", output="json").stdout)
    assert {item["name"] for item in listed} == {"flight_delays"}
    schema = json.loads(run("admin", "schema").stdout)
    assert set(schema["required"]) >= {"name", "sources", "window"}
    file = tmp_path / "schema.json"
    assert run("admin", "schema", "--file", str(file)).exit_code == 0
    assert json.loads(file.read_text()) == schema
    assert file.read_text() == (REPOSITORY / "docs" / "pipeline.schema.json").read_text()


def test_agent_status_without_an_agent_says_how_to_start_one(run: Any) -> None:
    result = run("agent", "status")
    assert result.exit_code == 1
    assert "run `rivertwice agent start`" in result.output


def test_events_are_shown_newest_last_and_limited(run: Any, tmp_path: Path) -> None:
    settings = Settings(REPOSITORY, tmp_path / "home")
    for number in range(5):
        record_event(settings, "start", "p", f"event {number}", utc_now(), pid=number)
    shown = json.loads(run("agent", "events", "--limit", "2", output="json").stdout)
    assert [item["message"] for item in shown] == ["event 3", "event 4"]
    page(settings, "hung", "p", "look", utc_now())
    alert = json.loads((settings.home / "alerts.jsonl").read_text())
    assert (alert["severity"], alert["kind"], alert["pipeline"]) == ("critical", "hung", "p")


def test_empty_lists_are_empty_not_errors(run: Any) -> None:
    for command in (("savepoint", "list"), ("backfill", "list")):
        result = run(*command, "flight_delays", output="json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == []


def test_verdicts_of_a_pipeline_that_was_never_reconciled_name_the_remedy(run: Any) -> None:
    result = run("verdicts", "flight_delays")
    assert result.exit_code == 1
    assert "run `rivertwice reconcile flight_delays`" in result.output


def test_doctor_names_a_remedy_for_everything_that_is_missing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # outside a clone, jars lie in the user's cache
    result = run("doctor", output="json", project=tmp_path / "empty")
    findings = json.loads(result.stdout)
    missing = {item["name"] for item in findings if not item["ok"]}
    assert result.exit_code == 1
    assert missing == {"project", "pipelines", "broker jars", "connector jars"}
    assert all(item["remedy"] for item in findings if not item["ok"])
    (project,) = [item for item in findings if item["name"] == "project"]
    assert "has no folder pipelines, so it is not a project" in project["found"]
    assert "init" in project["remedy"]
    assert "--project PATH" in project["remedy"]
    assert not any("Errno" in item["found"] for item in findings)


def test_doctor_in_a_clone_that_was_not_set_up_names_what_it_lacks(run: Any, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("requirements.txt", "requirements.lock", "locks", "pipelines"):
        (clone / name).symlink_to(REPOSITORY / name)
    findings = json.loads(run("doctor", output="json", project=clone).stdout)
    missing = {item["name"]: item["remedy"] for item in findings if not item["ok"]}
    assert {"broker jars", "connector jars"} <= missing.keys()
    assert all("rivertwice setup" in missing[name] for name in ("broker jars", "connector jars"))


@pytest.mark.parametrize(
    ("installed", "ok", "said"),
    [
        ({"pyspark": "4.2.0", "pyspark-client": "4.2.0"}, True, "Spark 4.2.0"),
        ({"pyspark": "4.2.0"}, True, "Spark 4.2.0"),
        ({"pyspark": "4.1.2"}, True, "is refused (Spark 4.2 and later)"),
        ({"pyspark": "4.1.2", "pyspark-client": "4.2.0"}, False, "'pyspark==4.1.2' 'pyspark-client==4.1.2'"),
        ({"pyspark": "4.3.0"}, False, "'pyspark>=4.0.2,<=4.2.0'"),
    ],
)
def test_doctor_says_which_spark_there_is_and_what_it_lacks(
    run: Any, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], ok: bool, said: str
) -> None:
    monkeypatch.setattr(SparkVersion, "installed", lambda: SparkVersion(installed["pyspark"]))
    monkeypatch.setattr("rivertwice.cli.doctor.installed_packages", lambda: installed)
    (spark,) = [item for item in json.loads(run("doctor", output="json").stdout) if item["name"] == "spark"]
    assert spark["ok"] is ok
    assert said in f"{spark['found']} {spark['remedy']}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RivertwiceError("x"), 1),
        (ConfigError("x"), 1),
        (RequestError("x"), 1),
        (ServiceError("x"), 1),
        (ReplayMismatchError("x"), 3),
        (AuditError("x"), 3),
        (UnknownOutcomeError("x"), 4),
    ],
)
def test_an_error_has_its_exit_code(error: RivertwiceError, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_traceback_is_shown_only_with_debug(run: Any) -> None:
    assert "Traceback" not in run("start", "nosuch").output
    assert "Traceback" in run("--debug", "start", "nosuch").output


def test_an_error_of_no_room_of_ours_is_one_line_too(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(root: Path) -> None:
        raise ValueError("first line\n" + "at org.apache.spark\n" * 300)

    monkeypatch.setattr("rivertwice.definition.definition.load_each", explode)
    result = run("pipelines")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "unexpected ValueError: first line" in result.stderr
    assert json.loads(run("pipelines", output="json").stderr)["error"]["reason"] == "unexpected"
    assert "at org.apache.spark" in run("--debug", "pipelines").stderr


def test_a_reconcile_s_exit_code_is_the_gate_s() -> None:
    assert exit_code_of_gate(Gate().to_json()) == 0
    assert exit_code_of_gate(Gate((GateAlert("warning", "late_share", "36 %"),)).to_json()) == 0
    assert exit_code_of_gate(Gate((GateAlert("critical", "finding", "ledger of batch 4"),)).to_json()) == 3


def test_a_reconcile_is_summed_up_by_pair_with_its_alerts() -> None:
    alert = {"severity": "warning", "kind": "late_share", "message": "36 % came too late"}
    stored = {
        "run": "rc-1",
        "pipeline": "p",
        "timeline": "t1",
        "batch": 8,
        "counts": {"stream": {"AGREES": 13, "LATE": 37}},
    }
    text = summary_text({**stored, "gate": {"alerts": [alert]}}).splitlines()
    assert text[0] == "rc-1: p up to batch t1/8"
    assert text[3].split() == ["stream", "13", "37", "0", "0", "0"]
    assert text[-1] == "warning: 36 % came too late"
    reason = "another program made version 7 of the table served (UPDATE)"
    assert summary_text({**stored, "gate": {"reason": reason}}).splitlines()[1] == f"reason: {reason}"


def test_values_become_plain_json() -> None:
    made = {"at": utc_now(), "wait": timedelta(seconds=2), "path": Path("a"), "set": {2, 1}, "pair": (1, b"x")}
    plain = to_plain(made)
    assert json.loads(json.dumps(plain))["set"] == [1, 2]
    assert plain["at"].endswith("Z")
    assert plain["wait"] == 2.0


def test_a_table_has_no_trailing_spaces_and_shows_nothing_as_a_dash() -> None:
    lines = as_table(("a", "b"), [(1, None), ("[red]x[/red]", "y")]).splitlines()
    assert lines[0].split() == ["a", "b"]
    assert lines[2].split() == ["1", "-"]
    assert lines[3].split() == ["[red]x[/red]", "y"]
    assert all(line == line.rstrip() for line in lines)


def test_importing_the_command_line_imports_no_engine() -> None:
    import subprocess
    import sys

    heavy = "{'pyspark', 'airflow', 'deltalake', 'confluent_kafka', 'great_expectations', 'boto3'}"
    code = f"import sys, rivertwice.cli.main; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
    assert frame.OK == 0


def test_an_agent_that_lives_but_is_silent_fails_its_health_check(run: Any, tmp_path: Path) -> None:
    import os

    import psutil

    folder = tmp_path / "home" / "agent"
    folder.mkdir(parents=True)
    beat = {"format": 1, "pid": os.getpid(), "pid_started": psutil.Process().create_time(), "pipelines": {}}
    beat["at"] = (utc_now() - timedelta(seconds=90)).isoformat()
    (folder / "heartbeat.json").write_text(json.dumps(beat))
    assert run("agent", "status").exit_code == 0
    assert run("agent", "status", "--max-age", "600").exit_code == 0
    told = run("agent", "status", "--max-age", "60")
    assert told.exit_code == 1
    assert "lives but last spoke" in told.output


@pytest.mark.parametrize("verb", [("start", "flight_delays"), ("stop", "flight_delays"), ("agent", "start")])
def test_a_home_that_cannot_be_written_is_named_with_what_to_do(verb: tuple[str, ...]) -> None:
    where = "/proc/rivertwice"  # where nobody can make a folder, root neither
    words = ["--output", "json", "--project", str(REPOSITORY), "--home", where, *verb]
    result = CliRunner().invoke(cli, words)
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (result.exit_code, error["reason"]) == (1, "disk")
    assert error["message"].startswith(where)
    assert "--home or RIVERTWICE_HOME" in error["message"]


def test_a_full_disk_is_named_with_what_to_do() -> None:
    told = str(as_unexpected(OSError(errno.ENOSPC, "x", "/data/home/a.json")))
    assert told.startswith("/data/home/a.json: No space left on device; free some space")


def test_a_value_that_makes_sql_throw_is_named_with_the_way_on() -> None:
    error = as_unexpected(
        ArithmeticError("[ARITHMETIC_OVERFLOW] overflow. SQLSTATE: 22003\nand two hundred lines of Scala")
    )
    assert error.reason == "poison"
    for word in ("[ARITHMETIC_OVERFLOW] overflow", "`rivertwice lint`"):
        assert word in str(error)
    assert "Scala" not in str(error)
    assert as_unexpected(KeyError("k")).reason == "unexpected"


def test_what_not_every_user_needs_comes_by_entry_points_and_is_no_import() -> None:
    entries = importlib.metadata.entry_points(group=COMMAND_GROUP)
    own = {entry.name: entry.value.partition(":")[0] for entry in entries if entry.value.startswith("lab.")}
    assert own == {"faults": "lab.faults.commands", "replay": "lab.flights.commands"}
    assert own.keys() <= set(cli.commands)


def test_a_command_of_a_package_that_cannot_be_imported_says_so() -> None:
    entry = importlib.metadata.EntryPoint("odd", "no_such_package.commands:odd", COMMAND_GROUP)
    (odd,) = added_commands([entry])
    assert odd.name == "odd"
    with pytest.raises(
        ServiceError, match=r"odd .*cannot be imported \(ModuleNotFoundError: No module named 'no_such_package'\)"
    ):
        odd.main(["some", "--arguments"], standalone_mode=False)
