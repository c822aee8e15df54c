"""A command that deletes, moves a head or changes what is served shows what it would do, and asks."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homes.savepoint import NOW, make_home
from rivertwice.cli.main import cli
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.savepoint.catalogue import list_savepoints, savepoint_store
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.intent import write_intent

PRUNE = ("savepoint", "prune", "p", "--keep", "1")


@pytest.fixture
def three(tmp_path: Path) -> tuple[Settings, PipelineHome, list[str]]:
    """Return a home with three savepoints, of which the first can be deleted."""
    settings, home = make_home(tmp_path, planned=3, finished=3, committed=3)
    ids = [take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)).id for hour in range(3)]
    write_intent(home, "running", "test", NOW)
    savepoint_store(home).put(f"{ids[1]}/proof.json", encode_record({"proved": True}))
    return settings, home, ids


def run(settings: Settings, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--project", str(settings.project), "--home", str(settings.home)])


def ids_of(home: PipelineHome) -> list[str]:
    return [one.id for one in list_savepoints(home)]


def ask_in_terminal(settings: Settings, answer: str, *words: str) -> tuple[int, str]:
    """Run a command in a terminal, answer its question, and return its exit code with all that the terminal showed."""
    ours, theirs = pty.openpty()
    places = {"RIVERTWICE_PROJECT": str(settings.project), "RIVERTWICE_HOME": str(settings.home), "TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, "-m", "rivertwice.cli.main", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **places},
        close_fds=True,
    )
    os.close(theirs)
    shown, answered = b"", False
    while select.select([ours], [], [], 60)[0]:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the terminal's other end is closed
            break
        if not piece:
            break
        shown += piece
        if b"[y/N]" in shown and not answered:
            os.write(ours, answer.encode() + b"\n")
            answered = True
    os.close(ours)
    return child.wait(60), shown.decode()


def test_at_a_terminal_it_shows_asks_and_does_what_is_answered(three: tuple[Settings, PipelineHome, list[str]]) -> None:
    settings, home, ids = three
    code, shown = ask_in_terminal(settings, "n", *PRUNE)
    assert code == 1
    assert f"would delete: {ids[0]}" in shown
    assert "Delete these savepoints of p? [y/N]" in shown
    assert "nothing was changed" in shown
    assert ids_of(home) == ids
    code, _ = ask_in_terminal(settings, "", *PRUNE)
    assert (code, ids_of(home)) == (1, ids)
    code, shown = ask_in_terminal(settings, "y", *PRUNE)
    assert code == 0, shown
    assert ids_of(home) == ids[1:]


def test_without_a_terminal_it_says_the_command_that_does_it(three: tuple[Settings, PipelineHome, list[str]]) -> None:
    settings, home, ids = three
    refused = run(settings, *PRUNE)
    assert refused.exit_code == 1
    assert f"would delete: {ids[0]}" in refused.stdout
    assert "nothing was changed: it needs a yes" in refused.stderr
    assert ids_of(home) == ids
    command = refused.stderr.partition("to do it: ")[2].strip()
    done = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert ids_of(home) == ids[1:]


def test_json_is_not_asked_even_at_a_terminal(three: tuple[Settings, PipelineHome, list[str]]) -> None:
    settings, home, ids = three
    code, shown = ask_in_terminal(settings, "y", *PRUNE, "-o", "json")
    assert code == 1
    assert "[y/N]" not in shown
    assert ids_of(home) == ids
    refused = run(settings, *PRUNE, "-o", "json")
    assert json.loads(refused.stdout) == {"would_delete": [ids[0]]}
    assert json.loads(refused.stderr)["error"]["message"].endswith("--yes")


def test_a_dry_run_shows_and_exits_0(three: tuple[Settings, PipelineHome, list[str]]) -> None:
    settings, home, ids = three
    shown = run(settings, *PRUNE, "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert f"would delete: {ids[0]}" in shown.stdout
    assert ids_of(home) == ids
    both = run(settings, *PRUNE, "--dry-run", "--yes")
    assert both.exit_code == 2


def test_nothing_to_do_is_no_question(three: tuple[Settings, PipelineHome, list[str]]) -> None:
    settings, _, _ = three
    shown = run(settings, "savepoint", "prune", "p", "--keep", "9")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "would delete: nothing" in shown.stdout


def test_who_and_why_are_in_the_agents_events(three: tuple[Settings, PipelineHome, list[str]]) -> None:
    settings, _, _ = three
    assert run(settings, *PRUNE, "--dry-run", "--reason", "only looked").exit_code == 0
    assert run(settings, *PRUNE, "--yes", "--reason", "disk is full").exit_code == 0
    events = json.loads(run(settings, "agent", "events", "-o", "json").stdout)
    (event,) = [one for one in events if one["kind"] == "command"]
    assert (event["pipeline"], event["reason"]) == ("p", "disk is full")
    assert event["message"] == f"savepoint prune by {event['by']}: disk is full"
