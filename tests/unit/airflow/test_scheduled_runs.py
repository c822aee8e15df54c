"""A scheduled run of a pipeline that never ran is skipped; one that somebody asks for is refused, or finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.acts import arguments_of, find_act, job, parse_request
from rivertwice.airflow.work import do_step
from rivertwice.core.instants import parse_iso
from rivertwice.tasks.run import TaskRun
from rivertwice.tasks.turns import find_most_frequent, find_period, is_turn_of
from rivertwice.tasks.watched import Watched

DUE = datetime(2026, 11, 22, 3, 25, tzinfo=UTC)
FIRST_TASKS: dict[str, Callable[[str], object]] = {
    "rotate": lambda name: do_step("take_savepoint", name, "*/5 * * * *", "*/5 * * * *"),
    "archive": lambda name: do_step("check_archive", name, "25 * * * *", "*/5 * * * *"),
    "reconcile": lambda name: do_step("check_reconcile", name, "25 3 * * 0", "5 * * * *"),
    "backfill": lambda name: do_step("plan_backfill", name, "45 2 * * *", "none"),
    "backfill of sessions": lambda name: do_step("check_backfill", name, "45 2 * * *", "none"),
    "late queue": lambda name: do_step("plan_backfill", name, "45 2 * * *", "*/10 * * * *"),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Let the tasks find a home without a timeline, and a run of the given type."""
    monkeypatch.setenv("RIVERTWICE_PROJECT", str(Path(__file__).resolve().parents[3]))
    monkeypatch.setenv("RIVERTWICE_HOME", str(tmp_path))

    def by(run_type: str) -> None:
        run = SimpleNamespace(run_type=run_type, conf={}, run_id="r", logical_date=DUE)
        context: dict[str, Any] = {"dag_run": run, "params": {"reason": ""}}
        monkeypatch.setattr("rivertwice.airflow.work.get_current_context", lambda: context)

    return by


@pytest.mark.proves("howto-airflow.md#the-dags")
@pytest.mark.parametrize("verb", FIRST_TASKS)
def test_a_scheduled_run_of_a_stream_that_was_never_started_is_skipped(asked: Callable[[str], None], verb: str) -> None:
    asked("scheduled")
    with pytest.raises(AirflowSkipException, match="flight_delays has no timeline yet"):
        FIRST_TASKS[verb]("flight_delays")


@pytest.mark.parametrize("verb", ["rotate", "backfill"])
def test_one_that_somebody_asked_for_is_not_skipped(asked: Callable[[str], None], verb: str) -> None:
    asked("manual")
    with pytest.raises(AirflowFailException):
        FIRST_TASKS[verb]("flight_delays")


@pytest.mark.proves("howto-airflow.md#the-dags")
@pytest.mark.parametrize(
    ("rare", "often", "at", "turn"),
    [
        ("25 3 * * 0", "5 * * * *", "2026-11-22T03:05:00Z", False),
        ("25 3 * * 0", "5 * * * *", "2026-11-22T04:05:00Z", True),
        ("25 3 * * 0", "5 * * * *", "2026-11-22T05:05:00Z", False),
        ("25 3 * * 0", "5 * * * *", "2026-11-23T04:05:00Z", False),
        ("5 4 * * 0", "5 * * * *", "2026-11-22T04:05:00Z", True),
        ("5 4 * * 0", "5 * * * *", "2026-11-22T05:05:00Z", False),
        ("7 days", "15 minutes", "2026-11-26T00:10:00Z", True),
        ("7 days", "15 minutes", "2026-11-26T00:15:00Z", False),
        ("@weekly", "30 minutes", "2026-11-22T00:20:00Z", True),
        ("@weekly", "30 minutes", "2026-11-22T00:40:00Z", False),
        ("1 day", "@hourly", "2026-11-22T00:00:00Z", True),
        ("1 day", "@hourly", "2026-11-22T01:00:00Z", False),
        ("none", "5 * * * *", "2026-11-22T04:05:00Z", False),
        ("25 3 * * 0", "none", "2026-11-24T03:25:00Z", True),
    ],
)
def test_the_rare_schedule_has_its_turn_once_a_tick(rare: str, often: str, at: str, turn: bool) -> None:
    assert is_turn_of(rare, often, parse_iso(at)) is turn


@given(st.integers(0, 400), st.sampled_from(["5 * * * *", "*/10 * * * *", "20 minutes"]))
def test_no_tick_of_the_rare_schedule_is_lost_or_taken_twice(day: int, often: str) -> None:
    start = DUE + timedelta(days=day)
    step = timedelta(minutes={"5": 60, "*": 10, "2": 20}[often[0]])
    first = start.replace(minute=5) if often[0] == "5" else start.replace(minute=0)
    ticks = [first + n * step for n in range(int(timedelta(days=1) / step))]
    assert sum(is_turn_of("45 2 * * *", often, at) for at in ticks) == 1


def test_care_does_what_is_due_and_what_is_asked_for(
    asked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.tasks.steps._skip_if_nothing_committed", lambda *_: None)
    asked("scheduled")
    assert do_step("check_archive", "flight_delays", "25 * * * *", "*/5 * * * *") == ["--pipeline", "flight_delays"]
    with pytest.raises(
        AirflowSkipException, match=r"archive of flight_delays is not due; its schedule: 35 \* \* \* \*"
    ):
        do_step("check_archive", "flight_delays", "35 * * * *", "*/5 * * * *")
    asked("manual")
    with pytest.raises(AirflowSkipException, match=r"this run is asked for savepoint.take alone"):
        do_step("check_archive", "flight_delays", "25 * * * *", "*/5 * * * *")


@pytest.mark.parametrize(("is_scheduled", "skipped"), [(True, True), (False, False)])
def test_a_scheduled_run_leaves_to_the_next_what_another_is_at_work_on(
    asked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, is_scheduled: bool, skipped: bool
) -> None:
    monkeypatch.setattr("rivertwice.tasks.steps._skip_if_nothing_committed", lambda *_: None)
    monkeypatch.setattr("rivertwice.backfill.plan_if_needed", lambda *_: None, raising=False)
    run = TaskRun("backfill__flight_delays", "r", "plan", DUE, is_scheduled=is_scheduled, at_work=1)
    with pytest.raises(AirflowSkipException, match="is at work on flight_delays") if skipped else nullcontext():
        assert do_step("plan_backfill", "flight_delays", "25 3 * * *", "none", run=run) == ""


@pytest.mark.parametrize(
    ("schedules", "most"),
    [
        (["*/15 * * * *", "35 * * * *"], "*/15 * * * *"),
        (["@hourly", "none", "*/15 * * * *"], "*/15 * * * *"),
        (["6 hours", "10 minutes", "*/15 * * * *"], "10 minutes"),
        (["none", "*/5 * * * *", "*/15 * * * *"], "*/5 * * * *"),
        (["*/1 9-17 * * 1-5", "35 * * * *", "*/15 * * * *"], "*/1 9-17 * * 1-5"),
    ],
)
def test_a_dag_of_several_schedules_follows_the_most_frequent(schedules: list[str], most: str) -> None:
    assert find_most_frequent(schedules) == most


@pytest.mark.parametrize(
    ("schedule", "at", "tick"),
    [
        ("*/15 * * * *", "2026-11-22T03:15:00Z", "2026-11-22T03:30:00Z"),
        ("35 * * * *", "2026-11-22T03:35:00Z", "2026-11-22T04:35:00Z"),
        ("10 minutes", "2026-11-22T03:03:07Z", "2026-11-22T03:13:07Z"),
    ],
)
def test_a_watch_ends_at_the_next_tick(schedule: str, at: str, tick: str) -> None:
    assert Watched.until(schedule, parse_iso(at)) == parse_iso(tick)


def test_a_scheduled_reconcile_in_its_turn_compares_everything(
    asked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.tasks.steps._skip_if_nothing_committed", lambda *_: None)
    asked("scheduled")
    assert do_step("check_reconcile", "flight_delays", "25 3 * * 0", "*/5 * * * *") == [
        "--pipeline",
        "flight_delays",
        "--full",
    ]
    assert do_step("check_reconcile", "flight_delays", "25 4 * * 0", "*/5 * * * *") == ["--pipeline", "flight_delays"]
    asked("manual")
    assert do_step("check_reconcile", "flight_delays", "25 3 * * 0", "*/5 * * * *") == ["--pipeline", "flight_delays"]


def test_a_job_does_what_the_request_asks_for() -> None:
    """Whatever field a request has, its job is given: what a form takes is not dropped on the way."""
    start, end = parse_iso("2013-06-30T04:00:00Z"), parse_iso("2013-07-01T04:00:00Z")
    for name, values in (
        ("reconcile", {"start": start, "end": end, "run": "rc-1", "silent": True}),
        ("reconcile", {"full": True, "reason": "--odd"}),
        ("backfill", {"scope": "range", "start": start, "end": end, "accept_quality": "a strike", "publish": False}),
        ("backfill.plan", {"request": "rq-1", "repair": True, "within": ("a/b", "c/d"), "reason": "why", "dry_run": True}),
        ("savepoint.prove", {"savepoint": "sp-t1-120-0a1b2c3d", "batches": 7, "timeout": 1.5, "or_older": True}),
    ):  # fmt: skip
        act = find_act(name)
        request = parse_request(act, values, "p")
        asked: list[Any] = []
        taken = replace(act, apply=lambda _, again, asked=asked: asked.append(again) or SimpleNamespace())
        with mock.patch.dict(job.__dict__, {"find_act": lambda _, taken=taken: taken}):
            assert job.run_job(name, arguments_of(request)) == 0
        assert asked == [request]


@pytest.mark.proves("howto-airflow.md#airflows-own-backfill")
@pytest.mark.parametrize(
    ("schedule", "at", "start", "end"),
    [
        ("45 2 * * *", "2026-05-03T02:45:00Z", "2026-05-03T00:00:00Z", "2026-05-04T00:00:00Z"),
        ("45 2 * * 0", "2026-05-03T02:45:00Z", "2026-05-03T00:00:00Z", "2026-05-10T00:00:00Z"),
        ("0 0 1 * *", "2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"),
        ("*/10 * * * *", "2026-05-03T02:50:00Z", "2026-05-03T02:50:00Z", "2026-05-03T03:00:00Z"),
        ("5 */6 * * *", "2026-05-03T18:05:00Z", "2026-05-03T18:05:00Z", "2026-05-04T00:05:00Z"),
        ("1 day", "2026-05-03T02:45:00Z", "2026-05-03T00:00:00Z", "2026-05-04T00:00:00Z"),
        ("15 minutes", "2026-05-03T02:45:00Z", "2026-05-03T02:45:00Z", "2026-05-03T03:00:00Z"),
    ],
)
def test_a_run_of_airflows_backfill_is_for_the_period_of_its_tick(schedule: str, at: str, start: str, end: str) -> None:
    assert find_period(schedule, parse_iso(at)) == (parse_iso(start), parse_iso(end))


@pytest.mark.proves("howto-airflow.md#airflows-own-backfill")
@given(
    st.integers(1_577_836_800, 1_893_456_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.sampled_from(["45 2 * * *", "7 3 * * 1,4", "*/10 * * * *", "@hourly", "0 0 1 * *"]),
)
def test_the_periods_of_neighbouring_ticks_meet(at: datetime, schedule: str) -> None:
    first = croniter(schedule, at).get_next(datetime)
    second = croniter(schedule, first).get_next(datetime)
    assert find_period(schedule, first)[1] == find_period(schedule, second)[0]


@pytest.mark.proves("howto-airflow.md#airflows-own-backfill")
@pytest.mark.parametrize("often", ["none", "*/10 * * * *"])
def test_a_run_of_airflows_backfill_asks_for_its_period_alone(asked: Callable[[str], None], often: str) -> None:
    asked("backfill")
    with mock.patch("rivertwice.backfill.plan_if_needed", return_value=None) as planned:
        do_step("plan_backfill", "flight_delays", "45 2 * * *", often)
    (request,) = (call.args[1] for call in planned.call_args_list)
    start, end = find_period("45 2 * * *" if often == "none" else often, DUE)
    assert (request.range.start, request.range.end, request.late_at) == (start, end, None)
