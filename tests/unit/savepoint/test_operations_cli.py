"""Every operation is shown step by step, resumed and given up through the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.operations import Crash, die_around
from rivertwice.cli.main import cli
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import Restore, read_operations, write_operation
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.storage.local import replace_json
from rivertwice.timeline.intent import Intent, write_intent
from rivertwice.timeline.sequence import head

pytestmark = pytest.mark.long


@pytest.fixture
def run(world):
    settings, _, _, _ = world

    def invoke(*arguments: str, output: str = "text") -> Result:
        places = ["--project", str(settings.project), "--home", str(settings.home), "--output", output]
        return CliRunner().invoke(cli, [*places, *arguments])

    return invoke


def files_of(home):
    return {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_a_restore_is_shown_step_by_step_and_changes_nothing(world, run):
    _, home, taken, _ = world
    before = files_of(home)
    shown = run("savepoint", "restore", "p", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "3 recorded batches, from Kafka" in shown.output
    assert f"to do it: rivertwice savepoint restore p {taken.id}" in shown.output
    plan = json.loads(run("savepoint", "restore", "p", "--dry-run", output="json").stdout)
    assert (plan["savepoint"], plan["forks_at"], plan["replay"], plan["resumes"]) == (taken.id, 6, 3, None)
    assert [step["number"] for step in plan["steps"]] == [2, 3, 4, 5, 6, 7, 8]
    assert {step["state"] for step in plan["steps"]} == {"to do"}
    assert files_of(home) == before


def test_a_planned_restore_is_shown_with_what_proves_it_afterwards(planned_world, run):
    _, home, taken, _ = planned_world
    before = files_of(home)
    shown = run("savepoint", "restore", "p", "--planned", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert f"a savepoint of the drained checkpoint, proved afterwards from {taken.id}" in shown.output
    assert "to do it: rivertwice savepoint restore p --planned" in shown.output
    plan = json.loads(run("savepoint", "restore", "p", "--planned", "--dry-run", output="json").stdout)
    assert (plan["savepoint"], plan["origin"], plan["replay"], plan["damage"]) == ("checkpoint", taken.id, 0, None)
    assert [step["number"] for step in plan["steps"]] == [2, 3, 4, 5, 6, 7, 8]
    (home.checkpoint("t1") / "offsets/6").write_text("x")
    assert "the checkpoint is damaged" in run("savepoint", "restore", "p", "--planned", "--dry-run").output
    (home.checkpoint("t1") / "offsets/6").write_bytes(before[home.checkpoint("t1") / "offsets/6"])
    assert files_of(home) == before


def test_a_planned_restore_by_its_option_replays_no_batch(planned_world, run):
    _, home, taken, _ = planned_world
    done = run("savepoint", "restore", "p", "--planned", "--yes", output="json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["forked_at"], report["replayed"], head(home)) == (6, 0, "t2")
    assert report["savepoint"] != taken.id
    for others in ((taken.id,), ("--from-beginning",)):
        refused = run("savepoint", "restore", "p", "--planned", "--yes", *others)
        assert (refused.exit_code, "takes a savepoint itself" in refused.output) == (1, True)
    refused = run("savepoint", "restore", "p", "--planned", "--yes", "--abandon")
    assert (refused.exit_code, "leave everything else out" in refused.output) == (2, True)


def test_a_restore_that_would_be_refused_says_why_and_exits_1(world, run):
    _, home, _, begin = world
    begin[0] = 71
    shown = run("savepoint", "restore", "p", "--dry-run")
    assert shown.exit_code == 1
    assert "refused: a stream restored at batch 6 continues at offset 70" in shown.output
    assert (head(home), read_operations(home)) == ("t1", [])


def test_a_restore_that_was_cut_off_shows_what_is_done_again(world, run, monkeypatch):
    settings, _, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "create_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    plan = json.loads(run("savepoint", "restore", "p", "--dry-run", output="json").stdout)
    assert plan["resumes"].startswith("restore-")
    assert [step["state"] for step in plan["steps"]] == [*["done, and done again"] * 4, *["to do"] * 3]
    assert "was interrupted and is resumed" in run("savepoint", "restore", "p", "--dry-run").output


def test_a_fall_back_is_shown_before_anything_is_broken(world, run):
    _, home, taken, _ = world
    before = files_of(home)
    plan = json.loads(run("savepoint", "fall-back", "p", "--dry-run", output="json").stdout)
    assert (plan["savepoint"], [found["savepoint"] for found in plan["candidates"]]) == (taken.id, [taken.id])
    assert len(plan["steps"]) == 7
    assert files_of(home) == before


def test_a_fall_back_without_a_usable_savepoint_names_the_way_out(world, run):
    _, _, taken, _ = world
    taken.store.delete(f"{taken.id}/proof.json")
    shown = run("savepoint", "fall-back", "p", "--dry-run")
    assert shown.exit_code == 1
    assert f"rivertwice savepoint restore p {taken.id} --unproved" in shown.output


def test_a_fall_back_by_hand_restores_and_leaves_the_intent_alone(world, run):
    _, home, taken, _ = world
    before = Intent.load(home)
    done = run("savepoint", "fall-back", "p", "--yes")
    assert done.exit_code == 0, done.output
    assert f"proved savepoint {taken.id}" in done.output
    assert (head(home), Intent.load(home)) == ("t2", before)


def test_an_upgrade_that_was_cut_off_is_given_up(world, run):
    _, home, taken, _ = world
    write_operation(home, Restore("restore-1", taken.id, "t1", "t2", True, utc_now(), step=3, bundle="new"))
    write_intent(home, "stopped", "restore-1", utc_now())
    given = json.loads(run("upgrade", "p", "--abandon", "--yes", output="json").stdout)
    assert (given["operation"], given["stopped_after"], given["running"]) == ("restore-1", "parent drained", True)
    assert [found.step for found in read_operations(home)] == [record.OperationStep.ABANDONED]


@pytest.mark.parametrize(
    "words",
    [
        ("savepoint", "restore", "p", "sp-t1-3-00000000", "--abandon"),
        ("savepoint", "fall-back", "p", "--yes", "--dry-run"),
        ("savepoint", "rewind", "p", "--yes", "--dry-run"),
        ("upgrade", "p", "--yes", "--dry-run"),
        ("upgrade", "p", "--abandon", "--savepoint", "sp-t1-3-00000000"),
    ],
)
def test_words_that_contradict_each_other_are_refused(run, words):
    assert run(*words).exit_code == 2


def test_a_persons_stop_since_the_restore_began_stands_when_it_is_finished(world, run, monkeypatch):
    settings, home, taken, _ = world
    with monkeypatch.context() as patch:
        die_around(patch, "create_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", taken.id)
    write_intent(home, "stopped", "somebody", utc_now())
    assert run("savepoint", "restore", "p", "--yes").exit_code == 0
    assert (head(home), Intent.load(home).by) == ("t2", "somebody")


STORED: dict[str, Any] = {
    "format": 1,
    "id": "restore-0a1b2c3d",
    "parent": "t1",
    "child": "t2",
    "was_running": True,
    "started_at": "2026-10-01T00:00:00.000000Z",
    "step": 4,
    "forked_at": 6,
    "replayed": 0,
}


@pytest.mark.parametrize(
    "step",
    [
        record.OperationStep.RECORDED,
        record.OperationStep.CHECKED,
        record.OperationStep.DRAINED,
        record.OperationStep.FORKED,
        record.OperationStep.REPLAYED,
    ],
)
def test_what_0_1_stored_of_a_restore_is_resumed_by_replaying(planned_world, step):
    """The file as 0.1.0 wrote it, before upgrades, erasures and planned restores had fields of their own."""
    settings, home, taken, _ = planned_world
    write_intent(home, "stopped", STORED["id"], utc_now())
    stored = {
        **STORED,
        "savepoint": taken.id,
        "step": step,
        "forked_at": 6 if step >= record.OperationStep.FORKED else None,
    }
    replace_json(home.operations / "restore-0a1b2c3d.json", stored)
    with pytest.raises(RequestError, match="was interrupted"):
        restore_savepoint(settings, "p", StateBase.RESTING)
    report = restore_savepoint(settings, "p")
    assert (report.operation, report.savepoint, report.resumed) == ("restore-0a1b2c3d", taken.id, True)
    assert (report.timeline, report.replayed, read_operations(home)[-1].planned) == ("t2", 3, False)
    assert (head(home), Intent.load(home).desired) == ("t2", "running")
