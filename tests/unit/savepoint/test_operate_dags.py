"""Runs of operate__p, task by task: shown, confirmed, done once however often they are repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from homes.operations import Crash, die_around
from homes.project import REPOSITORY
from rivertwice.acts import World, find_act, parse_request
from rivertwice.acts.job import run_stored
from rivertwice.acts.project import ActingProject
from rivertwice.acts.savepoint import SavepointState
from rivertwice.airflow.work import do_step, run_of
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.savepoint import prove
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.record import read_restores, read_rewinds
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline import dead_summary
from rivertwice.timeline.requests import StoredRequest
from rivertwice.timeline.sequence import EntryKind, head, read_sequence

pytestmark = pytest.mark.airflow
SURE = {"confirm": "p", "reason": "the disk was replaced"}
RESTORE, REWIND = "savepoint.restore", "savepoint.rewind"


class Run:
    """One run of a DAG as Airflow hands it to its tasks; the worker's process may die in any of them."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in settings.to_env().items():
            monkeypatch.setenv(name, value)
        self.context: dict[str, Any] = {
            "dag_run": SimpleNamespace(run_id="manual__1", run_type="manual", conf={}, triggering_user_name="ada"),
            "params": {},
        }
        monkeypatch.setattr("rivertwice.airflow.work.get_current_context", lambda: self.context)

    def asks(self, **conf: Any) -> None:
        self.context["dag_run"].conf, self.context["params"] = conf, conf

    def report(self, request: str) -> Any:
        """Return what the last task of the run returns."""
        return do_step("report_act", "p", run=replace(run_of(self.context), results={"check": request}))


def do_job(request: str) -> int:
    """Run the Spark job of a request in this process; return its exit code."""
    return run_stored(["--pipeline", "p", "--request", request])


def events(settings: Settings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.home / "agent" / "events.jsonl").read_text().splitlines()]


def die_before(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], effect: str = "move_head") -> None:
    """Do work in a process that dies right before an effect."""
    with monkeypatch.context() as patch:
        die_around(patch, effect)
        with pytest.raises(Crash):
            work()


def moves(home: PipelineHome) -> int:
    return len([entry for entry in read_sequence(home) if entry.kind == EntryKind.HEAD])


@pytest.fixture
def run(world: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(world[0], monkeypatch)


def test_a_restore_is_shown_recorded_with_the_person_and_done(
    world: Any, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    settings, home, taken, _ = world
    caplog.set_level("INFO")
    run.asks(act=RESTORE, savepoint=taken.id, **SURE)
    arguments = do_step("check_act", "p")
    assert f"savepoint: {taken.id} (proved)" in caplog.text
    assert "replayed and compared: 3 recorded batches, from Kafka" in caplog.text
    assert head(home) == "t1"
    (event,) = events(settings)
    assert (event["by"], event["reason"]) == ("ada in Airflow", "the disk was replaced")
    assert event["message"] == "savepoint restore by ada in Airflow: the disk was replaced"
    assert do_job(arguments) == 0
    report = run.report(arguments)
    assert (report["head"], report["parent"], report["forked_at"], report["replayed"]) == ("t2", "t1", 6, 3)


@pytest.mark.parametrize("act", [RESTORE, REWIND, "savepoint.prove", "savepoint.pin"])
def test_a_savepoint_that_does_not_exist_is_a_refused_form_and_no_alert(world: Any, run: Run, act: str) -> None:
    sure = SURE if act in (RESTORE, REWIND) else {}
    run.asks(act=act, savepoint="sp-t9-1-0a1b2c3d", **sure)
    with pytest.raises(AirflowFailException, match="savepoint sp-t9-1-0a1b2c3d does not exist") as refused:
        do_step("check_act", "p")
    assert isinstance(refused.value.__cause__, RequestError)


def test_a_restore_that_its_run_has_done_is_not_begun_again(world: Any, run: Run) -> None:
    _, home, taken, _ = world
    for named in ({"savepoint": taken.id}, {}):
        before = moves(home)
        run.asks(act=RESTORE, **named, **SURE)
        arguments = do_step("check_act", "p")
        for _ in range(3):  # the worker died after the job was done, twice
            assert do_job(arguments) == 0
        assert moves(home) == before + 1


def test_a_restore_that_was_cut_off_is_resumed_by_the_retry(
    world: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, home, taken, _ = world
    run.asks(act=RESTORE, savepoint=taken.id, **SURE)
    arguments = do_step("check_act", "p")
    die_before(monkeypatch, lambda: do_job(arguments))
    assert head(home) == "t1"
    assert do_job(arguments) == 0
    assert do_job(arguments) == 0
    assert (head(home), moves(home), len(read_restores(home))) == ("t2", 2, 1)


def test_a_run_that_resumes_an_old_restore_does_no_second_one(
    world: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, home, taken, _ = world
    run.asks(act=RESTORE, savepoint=taken.id, **SURE)
    first = do_step("check_act", "p")
    die_before(monkeypatch, lambda: do_job(first))
    run.asks(act=RESTORE, **SURE)
    arguments = do_step("check_act", "p")
    assert StoredRequest.load(home, arguments).resumes == read_restores(home)[-1].id
    for _ in range(2):
        assert do_job(arguments) == 0
    assert (moves(home), len(read_restores(home))) == (2, 1)


def test_a_restore_that_was_given_up_is_not_begun_by_a_retry(
    world: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, home, taken, _ = world
    run.asks(act=RESTORE, savepoint=taken.id, **SURE)
    arguments = do_step("check_act", "p")
    die_before(monkeypatch, lambda: do_job(arguments), "create_timeline")
    run.context["dag_run"].run_id = "manual__2"
    run.asks(act="operation.abandon", reason="another way")
    asked = do_step("check_act", "p")
    assert do_step("do_act", "p", asked)["abandoned"]
    assert do_step("do_act", "p", asked)["abandoned"]  # the retry of that
    assert do_job(arguments) == 1
    assert (head(home), read_restores(home)[-1].step) == ("t1", record.OperationStep.ABANDONED)


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"reason": "no name"}, "the pipeline's name, p, has to be typed .* nothing was"),
        ({"confirm": "q"}, "'q' was; nothing was done"),
        ({"confirm": "p", "savepoint": "../x"}, "is not a valid savepoint id"),
        ({"confirm": "p", "planned": True, "savepoint": "sp-t1-3-00000003"}, "leave one of them out"),
        ({"confirm": "p", "other": 1}, "does not take 'other'"),
        ({"confirm": "p", "savepoint": "sp-t1-3-00000003"}, "does not exist"),
    ],
)
def test_a_restore_is_refused_before_anything_starts(world: Any, run: Run, conf: dict[str, Any], said: str) -> None:
    settings, home, *_ = world
    run.asks(act=RESTORE, **conf)
    with pytest.raises(AirflowFailException, match=said):
        do_step("check_act", "p")
    assert moves(home) == 1
    assert not (settings.home / "agent" / "events.jsonl").exists()


def test_a_savepoint_that_cannot_be_restored_is_refused_by_its_first_task(world: Any, run: Run) -> None:
    settings, home, _, begin = world
    unproved = take_savepoint(settings, "p", now=utc_now())
    run.asks(act=RESTORE, savepoint=unproved.id, **SURE)
    with pytest.raises(AirflowFailException, match="never proved"):
        do_step("check_act", "p")
    begin[0] = 1000
    run.asks(act=RESTORE, **SURE)
    with pytest.raises(AirflowFailException, match="records are gone"):
        do_step("check_act", "p")
    assert moves(home) == 1


def test_a_dry_run_needs_no_confirmation_and_starts_nothing(world: Any, run: Run) -> None:
    run.asks(act=RESTORE, dry_run=True)
    assert do_step("check_act", "p") == ""
    assert moves(world[1]) == 1


def test_a_rewind_is_confirmed_done_once_and_reports_counts_alone(
    rewind_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(rewind_world.settings, monkeypatch)
    run.asks(act=REWIND, dry_run=True)
    assert do_step("check_act", "p") == ""
    run.asks(act=REWIND, savepoint=rewind_world.taken.id, confirm="q")
    with pytest.raises(AirflowFailException, match="lets other rows of its windows serve"):
        do_step("check_act", "p")
    run.asks(act=REWIND, savepoint=rewind_world.taken.id, **SURE)
    asked = do_step("check_act", "p")
    die_before(monkeypatch, lambda: do_step("do_act", "p", asked))
    for _ in range(2):
        done = do_step("do_act", "p", asked)
    assert (done["head"], head(rewind_world.home)) == ("t2", "t2")
    assert done["comparison"]["differs"] == 1
    assert all(isinstance(count, int) for count in done["comparison"].values())
    assert len(read_rewinds(rewind_world.home)) == 1


def test_pin_and_unpin_carry_the_name_of_the_person(world: Any, run: Run) -> None:
    settings, home, taken, _ = world
    run.asks(act="savepoint.pin", savepoint=taken.id, reason="for the audit")
    asked = do_step("check_act", "p")
    assert do_step("choose_task", "p", asked) == "act"
    for _ in range(2):
        assert do_step("do_act", "p", asked)["pinned"]
    assert json.loads(taken.store.get(f"{taken.id}/pin.json"))["by"] == "ada in Airflow"
    assert events(settings)[-1]["message"] == "savepoint pin by ada in Airflow: for the audit"
    assert run.report(asked)["pinned"]
    run.asks(act="savepoint.unpin", savepoint=taken.id, reason="done")
    do_step("do_act", "p", do_step("check_act", "p"))
    assert not list_savepoints(home)[0].pinned


def test_a_program_does_the_same(world: Any) -> None:
    settings, home, taken, _ = world
    act = find_act("savepoint.pin")
    request = parse_request(act, {"savepoint": taken.id, "reason": "for the audit"}, "p")
    asked = World(settings, "nightly job", utc_now())
    assert act.plan(asked, request).lines() == [f"savepoint: {taken.id} (proved)"]
    assert not list_savepoints(home)[0].pinned
    assert act.apply(asked, request) == SavepointState(taken.id, "proved", pinned=True)
    assert list_savepoints(home)[0].pinned


@dataclass(frozen=True)
class Proved:
    proved: bool = True


def test_to_prove_one_savepoint_proves_no_older_one_instead(
    world: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.asks(act="savepoint.prove", savepoint=world[2].id)
    asked = do_step("check_act", "p")
    assert do_step("choose_task", "p", asked) == "job"
    proved: list[str] = []
    monkeypatch.setattr(prove, "prove_savepoint", lambda *args, **_: proved.append(args[2]) or Proved())
    for _ in range(2):
        assert do_job(asked) == 0
    assert proved == [world[2].id]


def test_an_act_on_what_does_not_exist_is_refused_at_once(world: Any, run: Run) -> None:
    run.asks(act="savepoint.pin", savepoint="sp-t1-9-00000009")
    with pytest.raises(AirflowFailException, match="does not exist"):
        do_step("check_act", "p")
    run.asks(act="operation.abandon", reason="x")
    with pytest.raises(AirflowFailException, match="nothing to abandon"):
        do_step("check_act", "p")


def test_an_amended_value_is_in_no_argument_and_no_result(
    world: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, home, *_ = world
    rejected = SimpleNamespace(place="0@7", state="open", reason="schema", detail="k is missing")
    monkeypatch.setattr(dead_summary, "find_letter", lambda *_: rejected)
    run.asks(act="dead.amend", place="0@7", value='{"secret": 1}', reason="field was missing")
    asked = do_step("check_act", "p")
    assert do_step("choose_task", "p", asked) == "job"
    (stored,) = home.operations.glob("request-*.json")
    assert "secret" not in asked
    assert "secret" in stored.read_text()
    assert stored.stat().st_mode & 0o077 == 0
    StoredRequest.load(home, asked).finish(home, asked, {"seq": 1})
    assert "secret" not in stored.read_text()
    assert run.report(asked)["reason"] == "field was missing"
    assert not stored.exists()


def test_the_jobs_lie_where_airflow_finds_them() -> None:
    assert all(Path(REPOSITORY / "spark_jobs" / f"{name}.py").is_file() for name in ("act", "prove"))


def test_a_python_program_plans_and_does_the_same(world: Any) -> None:
    settings, home, taken, _ = world
    project = ActingProject(settings)
    shown = project.plan(RESTORE, "p", savepoint=taken.id)
    assert f"savepoint: {taken.id} (proved)" in shown.lines()
    assert head(home) == "t1"
    said: list[str] = []
    assert project.act(RESTORE, "p", savepoint=taken.id, by="a program", progress=said.append).head == "t2"
    assert said
    assert project.act("savepoint.pin", "p", savepoint=taken.id).pinned
    for act, pipeline, says in (("drop", "p", "is not one of reconcile"), ("savepoint.pin", "q", "q")):
        with pytest.raises(RequestError, match=says):
            project.act(act, pipeline, savepoint=taken.id)


def test_a_request_of_a_program_is_checked_before_anything_is_read(world: Any) -> None:
    with pytest.raises(RequestError, match="does not take 'now'"):
        ActingProject(world[0]).act("reconcile", "p", now=True)
