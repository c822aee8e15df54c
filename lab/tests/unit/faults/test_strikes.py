"""A struck program dies at the very call; every place that a fault case strikes still exists in the product."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lab.faults.cases import all_cases
from lab.faults.strikes import AFTER, BEFORE, GO, HELD, IN_WORKER, Strike
from lab.faults.struck import killing_workers, owner_of
from rivertwice.storage.local import read_json
from running.waiting import wait_for

LOAD = Strike("reading the file", "json:load", BEFORE)


def strikes_in(value: object) -> list[Strike]:
    if isinstance(value, Strike):
        return [value]
    return [strike for each in value for strike in strikes_in(each)] if isinstance(value, tuple) else []


def run_struck(strike: Strike, folder: Path) -> subprocess.CompletedProcess[str]:
    """Let Python's own `json.tool` be struck while it reads a file."""
    document = folder / "document.json"
    document.write_text('{"a": 1}')
    command = [*strike.program(str(folder)), "json.tool", str(document)]
    return subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_program_is_killed_around_the_call(tmp_path: Path, when: str) -> None:
    done = run_struck(replace(LOAD, when=when), tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr


def test_a_program_that_makes_fewer_calls_ends_by_itself(tmp_path: Path) -> None:
    done = run_struck(replace(LOAD, count=2), tmp_path)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"a": 1}), done.stderr


def test_a_program_that_is_held_stands_at_the_call_until_it_may_continue(tmp_path: Path) -> None:
    document = tmp_path / "document.json"
    document.write_text('{"a": 1}')
    command = [*replace(LOAD, holds=True).program(str(tmp_path)), "json.tool", str(document)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        held = wait_for("the stop", lambda: read_json(tmp_path / HELD), 60, every=0.01)
        assert held == {"pid": process.pid}
        assert process.poll() is None
        (tmp_path / GO).touch()
        assert json.loads(process.communicate(timeout=60)[0]) == {"a": 1}
    finally:
        process.kill()


def test_a_file_puts_a_strike_and_none_puts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "strike.json"
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from lab.faults.struck import put_strike_of\n"
        "put_strike_of(Path(sys.argv[1]))\n"
        "print(json.dumps(1))\n"
    )
    command = [sys.executable, "-c", code, str(file)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "1\n"
    file.write_text(json.dumps(Strike("writing", "json:dumps", BEFORE).plain(str(tmp_path))))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr


def test_values_are_set_before_the_program_runs(tmp_path: Path) -> None:
    done = run_struck(replace(LOAD, count=0, values={"json.encoder:INFINITY": 1}), tmp_path)
    assert done.returncode == 0
    refused = run_struck(replace(LOAD, values={"json.nowhere:INFINITY": 1}), tmp_path)
    assert refused.returncode == 1
    assert "json.nowhere" in refused.stderr


def test_so_many_workers_die_that_run_what_a_call_was_given(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lab.faults.struck import killing_workers\n"
        "call = killing_workers(lambda work, number: work(number), Path(sys.argv[1]), 2)\n"
        "print(call(lambda number: number + 1, 4))\n"
    )
    done = [
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
        for _ in range(3)
    ]
    assert [each.returncode for each in done] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert done[2].stdout == "5\n"
    assert killing_workers(sum, tmp_path, 0)([1, 2]) == 3


def test_every_place_that_a_case_strikes_exists() -> None:
    modules = {sys.modules[each.run.__module__] for each in all_cases() if hasattr(each.run, "__module__")}
    strikes = [strike for module in modules for value in vars(module).values() for strike in strikes_in(value)]
    assert strikes
    for strike in strikes:
        owner, last = owner_of(strike.function)
        assert callable(getattr(owner, last)), strike
        for name in strike.values:
            owner, last = owner_of(name)
            assert hasattr(owner, last), strike
        assert strike.when in (BEFORE, AFTER, IN_WORKER)
        assert json.loads(json.dumps(asdict(strike)))["function"] == strike.function
