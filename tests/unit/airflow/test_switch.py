"""A run of `operate__P` that lets a version serve: which version, whether it is compared, what a person is asked, and what lets it serve."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homes.versions import AT, GONE, TWO_HOURS, World
from rivertwice.airflow.work import ReportedError
from rivertwice.core.errors import RequestError
from rivertwice.core.plain import to_plain
from rivertwice.definition.definition import load_definition
from rivertwice.read.timelines import describe_versions
from rivertwice.tasks.definitions import DagFacts
from rivertwice.tasks.jobs import SparkJob
from rivertwice.tasks.names import comparisons
from rivertwice.timeline.sequence import publish, read_sequence
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.timeline.version_records import read_versions
from rivertwice.versions.comparisons import store_comparison
from rivertwice.versions.serve import read_switches
from rivertwice.versions.try_model import Comparison, Example, RowChange

pytestmark = pytest.mark.airflow
RUN = "manual__2026-11-26T02:00:00+00:00"
YES = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}


class Run:
    """A run of `operate__p` with act `version.serve` as Airflow hands it to its tasks; what the tasks `compare` and `approve` do is given."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        from rivertwice.airflow.dags import operate_dag

        for name, value in world.settings.to_env().items():
            monkeypatch.setenv(name, value)
        self.world = world
        self.dag = operate_dag(world.settings, DagFacts.of(load_definition(world.settings.definition_folder("p"))))
        self.answer: dict[str, Any] | None = None
        self.context: dict[str, Any] = {
            "dag_run": SimpleNamespace(dag_id=self.dag.dag_id, run_id=RUN, run_type="manual", conf={}),
            "params": {},
            "ti": SimpleNamespace(try_number=1, xcom_pull=lambda task_ids: self.answer),
        }
        monkeypatch.setattr("rivertwice.airflow.work.get_current_context", lambda: self.context)

    def do(self, task: str, *arguments: Any) -> Any:
        return self.dag.get_task(task).python_callable(*arguments)  # type: ignore[attr-defined]

    def choose(self, version: str | None = None, reason: str | None = None) -> dict[str, Any]:
        self.context["params"] = {"act": "version.serve", "version": version, "reason": reason}
        assert self.do("choose", "p", self.do("check", "p")) == "version"
        return dict(self.do("version", "p"))

    def compare(self, choice: dict[str, Any], minute: int = 0, **found: Any) -> None:
        """Do what the task `compare` does, but for Spark: store a comparison under the name that its job is given."""
        task: Any = self.dag.get_task("compare")
        task.application_args = self.do("comparison_wanted", "p", choice)
        arguments = SparkJob("p", "compare", task.application_args).named(RUN, 1)
        assert arguments[:2] == ["--pipeline", choice["version"]]
        run = str(arguments[arguments.index("--run") + 1])
        store_comparison(
            self.world.new, self.world.parity(**found), run, by="airflow", now=AT + timedelta(minutes=minute)
        )

    def found(self, **found: Any) -> dict[str, Any]:
        choice = self.choose()
        self.compare(choice, **found)
        return dict(self.do("gate", "p", choice))

    def serve(self, found: dict[str, Any], answer: dict[str, Any] | None = YES) -> dict[str, Any]:
        self.answer = answer
        return dict(self.do("serve", "p", found))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.seal("r1")
    return made


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(world, monkeypatch)


def test_an_approved_version_serves_and_the_record_says_by_whom(run: Run, world: World) -> None:
    assert run.dag.schedule is None
    found = run.found()
    assert found["subject"] == "Let p@v2 serve in place of p?"
    assert "| as declared | 7 | the count begins at a hundred (`n`) |" in found["body"]
    assert "asked for in Airflow" in found["body"]
    done = run.serve(found)
    assert serving_by_stamp(world.old) == "p@v2"
    (record,) = read_switches(world.old)
    assert (record["by"], record["reason"]) == ("ada in Airflow", "asked for in Airflow")
    assert record["compared"]["run"].startswith(comparisons(RUN))
    assert record["compared"]["counts"]["declared"] == 7
    assert run.do("switched", "p", done)["not_counted"] == []
    assert run.serve(found)["version"] == "p@v2"  # a retry after the commit


def test_without_an_approval_nothing_is_switched(run: Run, world: World) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    found = run.found()
    for answer in (None, {"chosen_options": ["Reject"]}):
        with pytest.raises(AirflowFailException, match="the switch to p@v2 was not approved"):
            run.serve(found, answer)
    assert serving_by_stamp(world.old) == "p"


def test_each_task_that_was_killed_is_tried_again(run: Run) -> None:
    """The question too: Airflow fails one that is answered as it begins to wait."""
    assert [task.task_id for task in run.dag.tasks if not task.retries] == []


def test_each_field_of_what_a_task_returns_is_stored_by_its_name_too(run: Run) -> None:
    stored = {task.task_id for task in run.dag.tasks if getattr(task, "multiple_outputs", False)}
    assert stored == {"act", "report", "version", "gate", "serve", "switched"}


def test_a_refused_comparison_fails_the_run_with_its_reasons(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(
        AirflowFailException, match="does not let p@v2 serve: 3 rows differ without a cause; 0 eq"
    ) as no:
        run.found(reasons=("3 rows differ without a cause",))
    assert not isinstance(no.value.__cause__, RequestError | ReportedError)  # so that it is an alert


def test_a_refusal_names_the_window_of_an_example_and_no_value_of_it(run: Run) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    row = Example("changed", AT, AT + timedelta(hours=1), {"k": "ann"}, {"n": RowChange(7, 107)})
    rows = Comparison(1, 1, changed=1, windows=1, windows_differing=1, declared=(0,), examples=(row,))
    with pytest.raises(AirflowFailException) as no:
        run.found(reasons=("1 row differs without a cause",), rows=rows)
    said = str(no.value)
    assert "1 row differs without a cause; 0 equal, 0 declared, 0 late, 1 without a cause" in said
    assert "for example, a row of the window [2026-11-26T00:00:00Z, 2026-11-26T01:00:00Z) is changed (n); " in said
    assert "ann" not in said
    assert "107" not in said


def test_a_comparison_of_somebody_else_does_not_open_the_gate(run: Run, world: World) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    choice = run.choose()
    store_comparison(world.new, world.parity(), "pc-by-hand", by="cli", now=AT)
    with pytest.raises(AirflowFailException, match="no comparison of p@v2 is recorded for the run manual__2026"):
        run.do("gate", "p", choice)


def test_what_changed_while_a_person_thought_refuses_the_switch(run: Run, world: World) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    found = run.found()
    seq = read_sequence(world.old)[-1].seq
    payload = {"backfill": "b1", "ranges": [[0, 3_600_000]], "bundle": "b", "as_of": {}, "semantics": "s"}
    publish(world.old, payload, expected_seq=seq, now=AT)
    with pytest.raises(AirflowFailException, match="p published backfills after r1-p proved"):
        run.serve(found)
    assert serving_by_stamp(world.old) == "p"


@pytest.mark.proves("howto-upgrade.md#let-it-serve-through-airflow")
def test_going_back_compares_nothing_and_asks_all_the_same(run: Run, world: World) -> None:
    run.serve(run.found())
    seq = read_sequence(world.new)[-1].seq
    payload = {"backfill": "b7", "ranges": [[0, 7_200_000]], "bundle": world.bundle, "as_of": {}, "semantics": "s"}
    publish(world.new, payload, expected_seq=seq, now=AT.replace(year=2100))
    choice = run.choose("p", "the new one is wrong")
    assert run.do("comparison_wanted", "p", choice) == []
    found = dict(run.do("gate", "p", choice))
    assert found["run"] is None
    assert "p served before and is not compared" in found["body"]
    assert "b7: [1970-01-01T00:00:00Z, 1970-01-01T02:00:00Z)" in found["body"]
    run.serve(found)
    assert serving_by_stamp(world.old) == "p"
    assert read_switches(world.old)[-1]["reason"] == "the new one is wrong"
    again = run.choose()
    assert (again["version"], again["compares"]) == ("p@v2", False)


def test_a_person_is_told_of_windows_that_are_left_out(run: Run) -> None:
    found = run.found(left_out=(GONE,))
    assert "**Left out: 3 windows**" in found["body"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [("p@v7", "p@v7 is not a version of p that runs"), ("q", "q is not a version of p"), ("p", "p serves already")],
)
def test_a_version_that_cannot_serve_is_a_refused_form(run: Run, asked: str, said: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=said) as no:
        run.choose(asked)
    assert isinstance(no.value.__cause__, RequestError)


@pytest.fixture
def other_windows(tmp_path: Path) -> World:
    made = World(tmp_path, TWO_HOURS)
    made.seal("r1")
    made.reconciled("p")
    return made


@pytest.mark.proves("howto-upgrade.md#other-windows-or-keys")
def test_rows_that_cannot_be_compared_are_accepted_by_a_person_who_says_why(
    other_windows: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    world, run = other_windows, Run(other_windows, monkeypatch)
    with pytest.raises(
        AirflowFailException, match=r"the windows changed from 1 hour to 2 hours.*write in `reason`"
    ) as no:
        run.choose()
    assert isinstance(no.value.__cause__, RequestError)
    choice = run.choose(reason="as planned")
    assert run.do("comparison_wanted", "p", choice) == []
    found = dict(run.do("gate", "p", choice))
    assert found["run"] is None
    assert "**No row was compared**: the windows changed from 1 hour to 2 hours" in found["body"]
    assert "| windows | 8 | 5 |" in found["body"]
    with pytest.raises(AirflowFailException, match="was not approved"):
        run.serve(found, None)
    assert serving_by_stamp(world.old) == "p"
    done = run.serve(found)
    assert serving_by_stamp(world.old) == "p@v2"
    (version,) = read_versions(world.old)
    assert version.accepted is not None
    assert (version.accepted.by, version.accepted.reason) == ("ada in Airflow", "as planned")
    assert read_switches(world.old)[-1]["accepted"] == to_plain(version.accepted)
    assert run.do("switched", "p", done)["not_counted"] == []
    (_, row) = to_plain(describe_versions(world.settings, "p", AT))
    assert row["accepted"]["reason"] == "as planned"


def test_the_dag_refuses_and_accepts_by_what_the_command_line_does(
    other_windows: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    world, run = other_windows, Run(other_windows, monkeypatch)
    choice = run.choose(reason="as planned")
    found = dict(run.do("gate", "p", choice))
    world.reconciled("p", read=120)
    for task, argument in (("gate", choice), ("serve", found)):
        run.answer = YES
        with pytest.raises(AirflowFailException, match="p@v2 has not read 20 records"):
            run.do(task, "p", argument)
    assert serving_by_stamp(world.old) == "p"
    (_, row) = to_plain(describe_versions(world.settings, "p", AT))
    assert "p@v2 has not read 20 records" in row["next"]["text"]


def test_a_type_of_a_key_that_only_spark_knows_asks_a_person_too(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    world.reconciled("p")
    why = "the key k changed from string to int, so its values cannot be matched"
    choice = run.choose()
    run.compare(choice, different=(why,), reasons=(why,))
    with pytest.raises(AirflowFailException, match=r"the key k changed.*write in `reason`"):
        run.do("gate", "p", choice)
    choice = run.choose(reason="ids are numbers")
    found = dict(run.do("gate", "p", choice))
    assert why in found["body"]
    run.serve(found)
    (version,) = read_versions(world.old)
    assert version.accepted is not None
    assert version.accepted.different == (why,)
