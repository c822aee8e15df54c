"""A rewind that release 0.1 left unfinished is resumed from its file, at whichever step it was cut off."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from homes.operations import Crash, patch_effect
from rivertwice.cli.main import cli
from rivertwice.savepoint.operations import effects, rewind
from rivertwice.savepoint.operations.rewind import rewind_stream
from rivertwice.storage.local import read_json, replace_json
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head

pytestmark = pytest.mark.long

FILE = "rewind-0a1b2c3d"
STORED: dict[str, Any] = {
    "format": 1,
    "id": FILE,
    "parent": "t1",
    "batch": 3,
    "head": "t1",
    "child": "t2",
    "was_running": True,
    "started_at": "2026-10-01T00:00:00.000000Z",
    "plan": {"batches": 3, "records": 30, "rows": 3, "windows": 3, "dead": 0},
    "head_batch": None,
    "batches": 0,
    "records": 0,
    "comparison": None,
}
COMPARED: dict[str, Any] = {
    "head_batch": 6,
    "batches": 2,
    "records": 30,
    "comparison": {
        "same": 2,
        "differs": 1,
        "only_old": 0,
        "only_new": 0,
        "old_windows": 3,
        "new_windows": 3,
        "examples": [
            {
                "kind": "differs",
                "row": {"window_start": "1970-01-01T00:00:50Z", "window_end": "1970-01-01T00:01:00Z", "k": "k"},
                "old": {"n": 1},
                "new": {"n": 2},
            }
        ],
    },
}


def leave_at(world, monkeypatch, step):
    """Run a rewind up to a step's record, and put the file there that 0.1 wrote for that step."""
    real = effects.write_operation

    def write_and_die(home, record):
        real(home, record)
        if record.step == step:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(rewind, "secrets", SimpleNamespace(token_hex=lambda _: FILE.removeprefix("rewind-")))
        patch_effect(patch, "write_operation", write_and_die)
        with pytest.raises(Crash):
            rewind_stream(world.settings, "p")
    stored = {**STORED, **(COMPARED if step >= 6 else {}), "savepoint": world.taken.id, "step": step}
    replace_json(world.home.operations / f"{FILE}.json", stored)


def command(world, *words):
    options = ["--project", str(world.settings.project), "--home", str(world.settings.home), "--output", "json"]
    return CliRunner().invoke(cli, [*options, "savepoint", "rewind", "p", *words])


@pytest.mark.parametrize("step", range(1, 8))
def test_what_0_1_stored_of_a_rewind_is_resumed_at_each_step(rewind_world, monkeypatch, step):
    leave_at(rewind_world, monkeypatch, step)
    done = command(rewind_world, "--yes")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["operation"], report["resumed"], report["moved"], report["running"]) == (FILE, True, True, True)
    assert (report["planned"], report["records"], report["compared_at"]) == (STORED["plan"], 30, 6)
    assert report["comparison"] == COMPARED["comparison"]
    home = rewind_world.home
    assert (head(home), Intent.load(home).desired) == ("t2", "running")
    path = [(row.timeline, row.batch) for row in path_ledger(home)]
    assert path == [*(("t1", batch) for batch in range(4)), ("t2", 4), ("t2", 5)]
    assert read_json(home.operations / f"{FILE}.json")["step"] == 8


@pytest.mark.parametrize("step", [8, 9])
def test_a_rewind_that_0_1_stored_as_over_is_not_resumed(rewind_world, step):
    stored = {**STORED, **COMPARED, "savepoint": rewind_world.taken.id, "step": step}
    replace_json(rewind_world.home.operations / f"{FILE}.json", stored)
    refused = command(rewind_world, "--abandon")
    assert (refused.exit_code, "nothing to abandon" in refused.output) == (1, True), refused.output
    report = json.loads(command(rewind_world, "--yes").stdout)
    assert (report["resumed"], report["operation"] == FILE) == (False, False)
