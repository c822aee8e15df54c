"""A shell completes verbs, options and names, without Spark and quickly."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.project import REPOSITORY
from homes.savepoint import NOW, make_home
from rivertwice.cli.main import cli
from rivertwice.savepoint.take import take_savepoint

HEAVY = "{'pyspark', 'pyarrow', 'deltalake', 'confluent_kafka', 'pydantic', 'airflow'}"


def complete(words: str, project: Path = REPOSITORY, home: Path | None = None, **env: str) -> list[str]:
    places = {"RIVERTWICE_PROJECT": str(project), "RIVERTWICE_HOME": str(home or project / "nothing")}
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_RIVERTWICE_COMPLETE": "bash_complete"}
    answer = subprocess.run(
        [sys.executable, "-m", "rivertwice.cli.main"],
        env={**os.environ, **places, **asked, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stderr == ""
    return [line.partition(",")[2] for line in answer.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rivertwice rec", ["reconcile"]),
        ("rivertwice savepoint re", ["restore", "rewind"]),
        ("rivertwice start fl", ["flight_delays"]),
        ("rivertwice savepoint list ", ["flight_delays"]),
        ("rivertwice backfill run flight_delays --dr", ["--dry-run"]),
        ("rivertwice show flight_delays --table late", ["late-rows"]),
        ("rivertwice start nosuch", []),
        ("rivertwice topics cr", []),
    ],
)
def test_verbs_names_options_and_tables_are_completed(words: str, expected: list[str]) -> None:
    assert complete(words) == expected


def test_savepoints_and_versions_of_a_home_are_completed(tmp_path: Path) -> None:
    settings, home = make_home(tmp_path, planned=3, finished=3, committed=3)
    ids = {take_savepoint(settings, "p", now=NOW + timedelta(hours=hour)).id for hour in range(2)}
    (home.root.parent / "p@v2").mkdir()
    (home.root.parent / "p@v2" / "intent.json").write_text("{}")
    env = settings.to_env()
    assert set(complete("rivertwice savepoint restore p sp-", **env)) == ids
    assert set(complete("rivertwice upgrade p --savepoint ", **env)) == ids
    assert complete("rivertwice reconcile p@", **env) == ["p@v2"]


def test_routes_are_completed(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text("routes:\n  ops: {to: file, path: /tmp/x}\n")
    assert complete("rivertwice alerts test --route o", project=tmp_path) == ["ops"]
    (tmp_path / "alerts.yaml").write_text("routes: [broken]\n")
    assert complete("rivertwice alerts test --route o", project=tmp_path) == []


def test_completion_is_quick_and_imports_no_engine() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    complete("rivertwice start fl")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3  # CPU seconds, the start included
    code = (
        "import sys; from rivertwice.cli.main import cli; from click.shell_completion import BashComplete; "
        "BashComplete(cli, {}, 'rivertwice', 'X').get_completions(['start'], 'fl'); "
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    shown = CliRunner().invoke(cli, ["admin", "completion", shell])
    assert shown.exit_code == 0, shown.output
    assert f"_RIVERTWICE_COMPLETE={shell}_complete" in shown.output


def test_bash_takes_the_script_and_completes_by_it(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(CliRunner().invoke(cli, ["admin", "completion", "bash"]).output)
    program = tmp_path / "rivertwice"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rivertwice.cli.main "$@"\n')
    program.chmod(0o755)
    lines = (
        f". {script}; COMP_WORDS=(rivertwice start fl); COMP_CWORD=2; _rivertwice_completion rivertwice; "
        'echo "${COMPREPLY[*]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RIVERTWICE_PROJECT": str(REPOSITORY)}
    shown = subprocess.run(["bash", "-c", lines], env=env, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "flight_delays"
