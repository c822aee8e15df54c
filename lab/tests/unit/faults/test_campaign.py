"""A campaign goes through every case and seed once, goes on where it stopped, and tells what it found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import lab
import rivertwice
from lab.faults import campaign
from lab.faults.campaign import plan_campaign, tell
from lab.faults.cases import Case, all_cases, case, main_cases, select_cases
from lab.faults.control_cases import control_cases
from lab.faults.lab import Lab
from lab.faults.outcomes import (
    CONTROL,
    OURS,
    Outcome,
    append_outcome,
    product_mark,
    read_outcomes,
    this_code,
    wall_seconds,
)
from lab.faults.report import FOUND, render_report
from rivertwice.cli.main import cli
from rivertwice.core.errors import RequestError

BEGAN = "2026-03-01T10:00:00Z"


def do_nothing(lab: Lab) -> None:
    """Nothing."""


def made(name: str, *, kills: int = 3, control: bool = False, seeds: int = 3) -> Case:
    return Case(name, f"what {name} does", do_nothing, seeds, kills, control, quick=False, spark=True, judge=True)


def outcome(name: str, seed: int, job: str = OURS, *, lost: int = 0) -> Outcome:
    return Outcome(
        name,
        seed,
        job,
        3,
        lost,
        0,
        0,
        0,
        lost == 0,
        12.5,
        "gone: 3" if lost else "",
        {"records": 600},
        BEGAN,
        product_mark(),
    )


CASES = [made("F1", control=True), made("F2/x"), made("F13", kills=0)]


def test_every_case_is_planned_with_every_seed_and_the_control_job() -> None:
    planned = plan_campaign(CASES, [CASES[0]], [], seeds=2)
    assert [(one.case.name, one.seed, one.job) for one in planned] == [
        ("F1", 1, OURS), ("F2/x", 1, OURS), ("F13", 1, OURS),
        ("F1", 2, OURS), ("F2/x", 2, OURS), ("F13", 2, OURS),
        ("F1", 1, CONTROL), ("F1", 2, CONTROL),
    ]  # fmt: skip


def test_what_is_done_is_not_planned_again() -> None:
    done = [outcome("F1", 1), outcome("F1", 1, CONTROL), outcome("F2/x", 2)]
    planned = {(one.case.name, one.seed, one.job) for one in plan_campaign(CASES, [CASES[0]], done, seeds=2)}
    assert planned == {("F2/x", 1, OURS), ("F13", 1, OURS), ("F1", 2, OURS), ("F1", 2, CONTROL), ("F13", 2, OURS)}


def test_upto_goes_on_with_further_seeds_of_the_cases_that_kill() -> None:
    planned = plan_campaign(CASES, [], [], seeds=1, upto=20)
    assert sum(one.case.kills for one in planned) >= 20
    assert {one.case.name for one in planned if one.seed > 1} == {"F1", "F2/x"}


def test_outcomes_survive_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    append_outcome(path, outcome("F1", 1))
    with path.open("a") as file:
        file.write('{"case": "F1", "se')
    assert read_outcomes(path) == [outcome("F1", 1)]
    append_outcome(path, outcome("F1", 2))
    assert read_outcomes(path) == [outcome("F1", 1), outcome("F1", 2)]


def test_a_line_of_the_first_format_reads_as_one_of_unknown_code(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    line = json.loads(outcome("F1", 1).to_line()) | {"format": 1}
    path.write_text(json.dumps({key: value for key, value in line.items() if key not in ("began", "product")}) + "\n")
    (old,) = read_outcomes(path)
    assert (old.case, old.began, old.product) == ("F1", "", "")


def test_wall_time_counts_parallel_runs_once_and_pauses_never() -> None:
    spans = [("10:00:00", 60.0), ("10:00:30", 60.0), ("10:00:40", 10.0), ("12:00:00", 5.0)]
    runs = [replace(outcome("F1", 1), began=f"2026-03-01T{at}Z", seconds=length) for at, length in spans]
    assert wall_seconds(runs) == 95.0
    assert wall_seconds([replace(outcome("F1", 1), began="")]) == 0.0


def test_one_case_of_each_fault_comes_first() -> None:
    cases = [made("F13"), made("F13/zombie"), made("F24/folder"), made("F24/state"), made("F4/copied"), made("F4")]
    chosen = main_cases(cases, [made("F13/zombie")])
    assert [each.name for each in chosen] == ["F4", "F13/zombie", "F24/folder"]
    registered = all_cases()
    main = main_cases(registered, control_cases(registered))
    assert {each.fault for each in main} == {each.fault for each in registered}
    assert 3 * sum(each.kills for each in main) >= 150


def test_the_report_shows_the_control_job_beside_and_names_what_failed() -> None:
    page = render_report(CASES, [outcome("F1", 1), outcome("F1", 1, CONTROL, lost=7), outcome("F2/x", 1, lost=3)])
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| F")}
    assert [cell.strip() for cell in rows["F1"].split("|")][3:-1] == ["1", "3", "0", "0", "0", "0", "12", "7", "0", "0"]
    assert "3 (1 failed)" in rows["F2/x"]
    assert f"- **F2/x**, seed 1, on the code `{product_mark()}`: gone: 3" in page
    assert "2 runs of 2 cases, 6 processes" in page


def test_the_report_says_what_was_found_and_which_release_and_commit_ran() -> None:
    before = replace(
        outcome("F1", 1, lost=2),
        product="0123456789ab",
        release="0.1.0",
        commit="aaaaaaaa",
        began="2026-02-01T10:00:00Z",
    )
    after = replace(outcome("F1", 1), release="0.2.0", commit="bbbbbbbb+")
    page = render_report(CASES, [after, before, replace(outcome("F1", 2), release="0.2.0", commit="bbbbbbbb+")])
    assert page.index("## What was found") < page.index("## What ran") < page.index("## By case")
    codes = [line for line in page.splitlines() if line.startswith("| 0.")]
    assert codes == [
        "| 0.1.0 | `aaaaaaaa` | `0123456789ab` | 2026-02-01 | 1 | 1 | 3 | 1 |",
        f"| 0.2.0 | `bbbbbbbb+` | `{product_mark()}` | 2026-03-01 | 2 | 1 | 6 | 0 |",
    ]
    assert "- **F1**, seed 1, on `aaaaaaaa`: gone: 3" in page
    rows = [line for line in page.splitlines() if line.startswith("| F1 ")]
    assert rows == ["| F1 | what F1 does | 3 | 9 | 2 (1 failed) | 0 | 0 | 0 | 12 |  |  |  |"]


def test_what_was_found_names_cases_and_tests_that_exist() -> None:
    rows = [line.split(" | ") for line in FOUND.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    names = {each.name for each in all_cases()}
    for row in rows:
        what, by, _, mended, kept = (cell.strip("| ") for cell in row)
        assert re.fullmatch(r"`[0-9a-f]{8}`(, `[0-9a-f]{8}`)*", mended), what
        for word in re.split(", ", f"{by}, {kept}"):
            if re.match(r"F[0-9]", word):
                assert word in names, what
            elif word.startswith("`"):
                assert (Path(lab.__file__).parents[1] / word.strip("`")).exists(), what


def test_an_outcome_names_the_commit_of_the_clone_that_ran() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert head.stdout.startswith(this_code()["commit"].rstrip("+"))
    assert this_code()["release"] == rivertwice.__version__


def test_an_outcome_is_told_with_its_seed() -> None:
    assert "F1 seed 4" in tell(outcome("F1", 4))
    assert "gone: 3" in tell(outcome("F1", 4, lost=1))


WITHOUT_DUCKDB = """
import sys
sys.modules["duckdb"] = None
import importlib.util
importlib.util.find_spec = lambda name, found=importlib.util.find_spec: None if name == "duckdb" else found(name)
from rivertwice.cli.main import main
main()
"""


def test_without_duckdb_cases_are_listed_and_no_run_is_begun(tmp_path: Path) -> None:
    """A user's environment (requirements.txt alone) has no DuckDB. In a process of its own: this one has it loaded."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_DUCKDB, "--home", str(tmp_path), "faults", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    listed = call("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "F36" in listed.stdout
    for arguments in (("run", "--case", "F4"), ("campaign", "--only", "F4")):
        refused = call(*arguments)
        assert refused.returncode == 1
        assert "DuckDB is not installed" in refused.stderr
        assert "`make setup-dev` installs it" in refused.stderr


def test_the_command_lists_cases_and_writes_the_page(tmp_path: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(cli, ["--output", "json", "--home", str(tmp_path), "faults", "list"])
    assert {"case", "title", "seeds", "kills"} == set(json.loads(shown.output)[0])
    results, page = tmp_path / "outcomes.jsonl", tmp_path / "page.md"
    append_outcome(results, outcome("F1", 1))
    append_outcome(results, replace(outcome("F1", 2, lost=4), product="of-other-code"))
    done = runner.invoke(cli, ["faults", "report", "--results", str(results), "--file", str(page)])
    assert done.exit_code == 0
    assert "| F1 | killed right after offsets/N | 2 | 6 | 4 (1 failed) |" in page.read_text()


def test_a_campaign_goes_on_across_commits_if_asked_but_for_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, planned = tmp_path / "outcomes.jsonl", []
    monkeypatch.setattr(campaign, "run_campaign", lambda _settings, runs, *_, **__: planned.append(list(runs)))
    append_outcome(results, replace(outcome("F5", 1), product="of-other-code"))
    append_outcome(results, replace(outcome("F5", 2, lost=4), product="of-other-code"))
    asked = [
        "--home",
        str(tmp_path),
        "faults",
        "campaign",
        "--only",
        "F5",
        "--seeds",
        "2",
        "--no-control",
        "--results",
        str(results),
    ]
    for more in ([], ["--across-commits"]):
        CliRunner().invoke(cli, [*asked, *more], catch_exceptions=False)
    assert [[each.seed for each in runs] for runs in planned] == [[1, 2], [2]]


def test_the_register_holds_the_matrix_s_order_and_refuses_bad_names() -> None:
    cases = all_cases()
    faults = [int(each.fault[1:]) for each in cases]
    assert faults == sorted(faults)
    assert {1, 2, 3, 4, 5, 6, 13, 14, 15, 16, 17, 28, 29, 33} <= set(faults)
    assert {each.fault for each in control_cases(cases)} == {
        "F1", "F2", "F3", "F4", "F5", "F6", "F13", "F14", "F18", "F24",
    }  # fmt: skip
    assert {each.name for each in select_cases(cases, "F4, F13/zombie")} >= {"F4", "F4/copied", "F13/zombie"}
    assert [each.name for each in select_cases(cases, "F4", exact=True)] == ["F4"]
    assert {each.fault for each in select_cases(cases, "F24", exact=True)} == {"F24"}  # it has variants only
    with pytest.raises(RequestError, match="faults list"):
        select_cases(cases, "F99")
    with pytest.raises(RequestError, match="names no fault"):
        case("G1", "no such matrix")(do_nothing)
    with pytest.raises(RequestError, match="two cases are named"):
        case("F1", "taken")(do_nothing)
