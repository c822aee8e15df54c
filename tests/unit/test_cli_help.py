"""The help lists the verbs under the headings of docs/cli.md, in whole sentences; options stand before or after a verb."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from homes.project import REPOSITORY
from rivertwice.cli.catalogue import ADDED, MOVED, SECTIONS
from rivertwice.cli.main import cli

HELP = ["--help"]


def groups(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        yield path
        for name, child in command.commands.items():
            yield from groups(child, (*path, name))


def sections_of_help() -> dict[str, list[str]]:
    text = CliRunner().invoke(cli, HELP, terminal_width=80).output
    found: dict[str, list[str]] = {}
    listed = "Begin:" + text.partition("\nBegin:")[2].partition("\n  Exit codes")[0]
    for block in listed.split("\n\n"):
        heading, *lines = block.strip("\n").splitlines()
        found[heading.strip().removesuffix(":")] = [line.split()[0] for line in lines if line.startswith("  ")]
    return found


def sections_of_docs() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in (REPOSITORY / "docs" / "cli.md").read_text().split("\n## ")[1:]:
        verbs = re.findall(r"^\| `rivertwice ([a-z-]+)", part, re.MULTILINE)
        if verbs:
            found[part.splitlines()[0]] = list(dict.fromkeys(verbs))
    return found


def test_the_headings_of_the_help_are_those_of_the_docs() -> None:
    shown = sections_of_help()
    assert shown == sections_of_docs()
    assert list(shown.items()) == list(sections_of_docs().items())  # also in order
    assert list(shown) == [*SECTIONS, ADDED]


def test_commands_of_packages_have_their_own_heading() -> None:
    assert {"faults", "replay"} <= set(sections_of_help()[ADDED])


@pytest.mark.parametrize("path", groups(cli), ids=lambda path: " ".join(path) or "rivertwice")
def test_no_first_sentence_is_cut_at_80_columns(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, *HELP], terminal_width=80).output
    listed = [line for line in shown.splitlines() if not line.startswith("Usage:")]
    assert [line for line in listed if line.rstrip().endswith("...")] == []


@pytest.mark.proves("upgrade.md#commands")
@pytest.mark.parametrize(
    ("typed", "now", "run"),
    [
        ("topics", "admin topics", "admin topics"),
        ("-o json topics create --debug", "admin topics", "-o json admin topics --debug"),
        ("upkeep p", "admin upkeep", "admin upkeep p"),
        ("served rebuild p --compare", "admin rebuild", "admin rebuild p --compare"),
        ("completion bash", "admin completion", "admin completion bash"),
        ("archive p --accept-hole", "admin archive", "admin archive p --accept-hole"),
        ("schema", "admin schema", "admin schema"),
        ("schema pin p o.protoset --dry-run", "admin schema", "admin schema pin p o.protoset --dry-run"),
        ("-o json retention p --check", "admin retention", "-o json admin retention p --check"),
        ("repair p --yes", "admin repair", "admin repair p --yes"),
        ("catch-up p --by-batch", "backfill catch-up", "backfill catch-up p --by-batch"),
        ("privacy erase p --field=x", "admin privacy", "admin privacy erase p --field=x"),
        ("acknowledge p --reason why", "verdicts NAME --accept", "verdicts p --reason why --accept"),
        ("acknowledge p --list", "verdicts NAME --accept", "verdicts p --accepted"),
        ("acknowledge p --end ak-1", "verdicts NAME --accept", "verdicts p --end ak-1"),
        ("metrics --rules", "agent metrics", "agent metrics --rules"),
        ("diagnose", "status NAME --why", "status --why"),
        ("-o json diagnose p", "status NAME --why", "-o json status p --why"),
        ("export p a.csv --overwrite", "show NAME --write TARGET", "show p --write a.csv --overwrite"),
        (
            "-o json export --require-current p --from 2024-01-02 --to=2024-01-03 -ojson a.csv",
            "show NAME --write TARGET",
            "-o json show --require-current p --from 2024-01-02 --to=2024-01-03 -ojson --write a.csv",
        ),
        ("late list p --limit 5", "show NAME --late", "show p --limit 5 --late"),
        ("-o json late queue p", "backfill queue", "-o json backfill queue p"),
        ("view p --limit 5", "show NAME --by-key", "show p --limit 5 --by-key"),
        ("view p --at=2024-01-02", "show NAME --by-key", "show p --at=2024-01-02"),
        (
            "case from-log p --record t/0@1 --record=t/0@2 --name late",
            "test NAME --from-log WINDOW|RECORD",
            "test p --from-log t/0@1 --from-log=t/0@2 --as late",
        ),
    ],
)
def test_a_verb_of_before_says_which_command_does_its_work(typed: str, now: str, run: str) -> None:
    words = shlex.split(typed)
    result = CliRunner().invoke(cli, words)
    verb = max((verb for verb in MOVED if f" {verb} " in f" {typed} "), key=len)
    assert result.exit_code == 2
    assert result.output.endswith(f"`{verb}` is now `rivertwice {now}`; run: rivertwice {run}\n")


def test_what_a_verb_of_before_became_is_there() -> None:
    for verb, moved in MOVED.items():
        assert verb.split()[0] not in cli.list_commands(click.Context(cli))
        words, _, option = moved.now.partition(" NAME")
        command: click.Command = cli
        for word in words.split():
            assert isinstance(command, click.Group)
            command = command.commands[word]
        taken = {name for param in command.params for name in param.opts}
        assert {*option.split()[:1], *moved.options.values()} <= taken


@pytest.mark.parametrize(
    "arguments",
    [
        ("--output", "json", "status"),
        ("-o", "json", "status"),
        ("status", "--output", "json"),
        ("status", "-o", "json"),
        ("-o", "text", "status", "-ojson"),
    ],
    ids=" ".join,
)
def test_output_is_json_wherever_it_is_asked_for(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--project", str(REPOSITORY), "--home", str(tmp_path / "home")])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["home"] == str(tmp_path / "home")


def test_options_stand_in_the_middle_of_a_verb_of_two_words(tmp_path: Path) -> None:
    options = ["--project", str(REPOSITORY), "--home", str(tmp_path / "home")]
    result = CliRunner().invoke(cli, ["savepoint", *options, "list", "flight_delays", "-o", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == []


def test_an_error_is_json_when_that_is_asked_for_after_the_verb(tmp_path: Path) -> None:
    options = ["--project", str(REPOSITORY), "--home", str(tmp_path / "home")]
    result = CliRunner().invoke(cli, ["start", "nosuch", *options, "-o", "json"])
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["reason"] == "request"


def test_debug_after_the_verb_shows_the_traceback(tmp_path: Path) -> None:
    options = ["--project", str(REPOSITORY), "--home", str(tmp_path / "home")]
    assert "Traceback" in CliRunner().invoke(cli, ["start", "nosuch", *options, "--debug"]).output
    assert "Traceback" not in CliRunner().invoke(cli, ["start", "nosuch", *options]).output


def test_a_verb_imports_its_own_module_alone() -> None:
    code = (
        "import sys; from rivertwice.cli.main import cli; cli.main(['stop', '--help'], standalone_mode=False); "
        "print(sorted(n for n in sys.modules if n.startswith('rivertwice.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rivertwice.cli.streams" in done.stderr
    assert "rivertwice.cli.schemas" not in done.stderr


def test_a_pipe_gets_no_colours_and_a_table_of_its_own_width(tmp_path: Path) -> None:
    env = {**os.environ, "COLUMNS": "40", "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "rivertwice.cli.main", "pipelines", "--project", str(REPOSITORY)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert "\x1b" not in shown
    assert (
        max(len(line) for line in shown.splitlines()) > 40
    )  # not folded to the columns of a terminal that is not there
