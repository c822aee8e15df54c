"""lab/docs/scenarios.md: a row per scenario and pitfall, and none that points to nothing."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest
from click.testing import CliRunner

from homes.project import REPOSITORY
from lab.faults.cases import all_cases, select_cases
from lab.faults.control_cases import control_cases
from rivertwice.cli.main import cli

WANTED = [*(f"S{number}" for number in range(1, 56)), *(f"P{number}" for number in range(1, 13))]
STATES = ("shown", "part", "open")
_ROW = re.compile(r"^\| ([SP]\d+) \| (.+?) \| (\w+) \| (.*?) \| (.*?) \| (.*?) \|$")


def rows() -> dict[str, tuple[str, str, str, str]]:
    """Return id to (state, where, command, as run)."""
    found = {}
    for line in (REPOSITORY / "lab" / "docs" / "scenarios.md").read_text().splitlines():
        match = _ROW.match(line.replace("|  |", "| - |").replace("|  |", "| - |"))
        if match:
            ident, _, state, where, command, told = match.groups()
            assert ident not in found, f"{ident} has two rows"
            found[ident] = (state, where, command.strip("`"), told)
    return found


def test_every_scenario_and_pitfall_has_its_row() -> None:
    assert list(rows()) == WANTED


@pytest.mark.parametrize("ident", WANTED)
def test_a_row_points_to_what_there_is(ident: str) -> None:
    state, where, command, told = rows()[ident]
    assert state in STATES
    if state == "open":
        return
    path = re.search(r"\]\((\.\./.+?)\)", where)
    assert path is not None
    assert (REPOSITORY / "lab" / "docs" / path.group(1)).exists(), path.group(1)
    assert told != "-"
    check_command(shlex.split(command))


def check_command(words: list[str]) -> None:
    program, *arguments = words
    if program == "rivertwice":
        path = [word for word in arguments[:2] if not word.startswith("-") and word[0].islower()]
        verb = path[:2] if path[0] in ("faults",) else path[:1]
        assert CliRunner().invoke(cli, [*verb, "--help"]).exit_code == 0
        if "--case" in arguments:
            known = control_cases(all_cases()) if "--control" in arguments else all_cases()
            assert select_cases(known, arguments[arguments.index("--case") + 1], exact=True)
        if "--examples" in arguments:
            assert (REPOSITORY / "pipelines" / "examples" / arguments[-1]).is_dir()
    elif program == "pytest":
        files = [word for word in arguments if word.startswith(("tests/", "lab/tests/"))]
        assert files
        assert [file for file in files if not (REPOSITORY / file).exists()] == []
    elif program == "python":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]) is not None
    elif program == "make":
        assert f"\n{arguments[0]}:" in (REPOSITORY / "Makefile").read_text()
    else:
        assert words == ["docker", "compose", "config"]
