"""The plan of a selection of windows: the one that the command makes, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homes.backfill import HOUR, make_home
from homes.sessions import make_session_home, write_reconcile
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.core.errors import RequestError, ServiceError
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.read.selection import NEEDS_JOB, PLANNED, REFUSED, UNREACHABLE, preview_backfill
from simulated.sessions import World


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka holds the whole log."""
    monkeypatch.setattr(kafka, "topic_exists", lambda *_: True)
    monkeypatch.setattr(kafka, "topic_id", lambda *_: "id")
    monkeypatch.setattr(kafka, "begin_offsets", lambda *_: {0: 0})
    monkeypatch.setattr(kafka, "end_offsets", lambda *_: {0: 100})


def preview(settings: Settings, start: int | None, end: int | None) -> Any:
    low, high = (None if hour is None else from_ms(hour * HOUR) for hour in (start, end))
    return to_plain(preview_backfill(settings, "p", low, high))


def test_the_preview_is_the_plan_that_the_command_makes(tmp_path: Path, broker: None) -> None:
    settings, _, _ = make_home(tmp_path)
    shown = preview(settings, 2, 4)
    asked = BackfillRequest("p", TimeRange(from_ms(2 * HOUR), from_ms(4 * HOUR)), "manual")
    plan = plan_backfill(asked, observe_backfill(settings, "p"))
    assert shown["state"] == PLANNED
    assert (shown["plan"]["id"], shown["plan"]["windows"], shown["plan"]["records"]) == (plan.id, 2, plan.records)
    assert shown["command"] == ("rivertwice backfill plan p --from 1970-01-01T02:00:00Z --to 1970-01-01T04:00:00Z")
    assert shown["changes"] is None  # no reconcile has judged them
    assert not settings.pipeline("p").backfills.exists()


def test_windows_that_are_open_are_refused_with_the_reason(tmp_path: Path, broker: None) -> None:
    settings, _, _ = make_home(tmp_path)
    shown = preview(settings, 100, 101)
    assert (shown["state"], "is closed" in shown["why"]) == (REFUSED, True)


def test_without_a_range_and_without_a_stale_window_there_is_no_plan(tmp_path: Path, broker: None) -> None:
    settings, _, _ = make_home(tmp_path)
    shown = preview(settings, None, None)
    assert (shown["state"], "no window of p is stale" in shown["why"]) == (REFUSED, True)
    with pytest.raises(RequestError, match="needs both its ends"):
        preview(settings, 2, None)


def test_a_broker_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        message = "Kafka at localhost:1 does not answer"
        raise ServiceError(message)

    monkeypatch.setattr(kafka, "topic_exists", fail)
    settings, _, _ = make_home(tmp_path)
    shown = preview(settings, 2, 4)
    assert (shown["state"], "does not answer" in shown["why"]) == (UNREACHABLE, True)


def test_sessions_need_a_job_and_their_stale_ones_are_counted(tmp_path: Path, broker: None) -> None:
    world = World()
    for batch in ([("a", 0, 1)], [("c", 3200, 1)], [("b", 6000, 5)], [("c", 12000, 1)], []):
        world.commit(batch)
    settings, home, _ = make_session_home(tmp_path, world)
    rows = [row for _, row in world.emitted]
    write_reconcile(home, [("LATE", row) for row in rows])
    shown = to_plain(preview_backfill(settings, "p", None, None))
    assert (shown["state"], f"{len(rows)} sessions" in shown["why"]) == (NEEDS_JOB, True)
