"""Which step of a first load is not done, and whether a process works on it: from what is recorded, not from what a command said."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homes.backfill import HOUR, SQL, YAML, asked, make_home, write_chunk
from homes.first_load import ZONES, make_load
from homes.ledger import NOW
from homes.project import make_project
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.load_state import (
    ARCHIVE,
    BEGIN,
    CLOSE,
    LOOK,
    PUBLISH,
    UnfinishedLoad,
    find_unfinished_load,
    forget_step,
    hold_load,
    note_step,
)
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.errors import LostRaceError
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.timeline.first_load import record_load
from rivertwice.timeline.sequence import last_seq, move_head, publish


@pytest.fixture
def fresh(tmp_path: Path) -> tuple[PipelineHome, Bundle]:
    """A pipeline that never started."""
    settings = make_project(tmp_path, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})
    home, bundle = settings.pipeline("p"), build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    return home, bundle


def step_of(home: PipelineHome) -> int | None:
    unfinished = find_unfinished_load(home)
    return None if unfinished is None else unfinished.step


def test_before_a_load_is_recorded_its_command_notes_the_step(fresh: tuple[PipelineHome, Bundle]) -> None:
    home, _ = fresh
    assert find_unfinished_load(home) is None
    note_step(home, ARCHIVE)
    assert find_unfinished_load(home) == UnfinishedLoad("p", ARCHIVE, None)
    note_step(home, LOOK)
    assert step_of(home) == LOOK
    forget_step(home)
    forget_step(home)
    assert step_of(home) is None


def test_a_noted_step_means_nothing_once_the_stream_began(fresh: tuple[PipelineHome, Bundle]) -> None:
    home, _ = fresh
    note_step(home, ARCHIVE)
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    assert find_unfinished_load(home) is None


def test_a_recorded_load_without_a_head_has_to_begin(fresh: tuple[PipelineHome, Bundle]) -> None:
    home, bundle = fresh
    load = make_load(bundle)
    note_step(home, LOOK)
    record_load(home, load, ZONES)
    assert find_unfinished_load(home) == UnfinishedLoad("p", BEGIN, None, load.id, windows=4, left=4)


@pytest.mark.parametrize(("before", "step"), [(8, PUBLISH), (9, CLOSE)])
def test_windows_are_published_once_the_stream_has_closed_them(before: int, step: int, tmp_path: Path) -> None:
    _, home, bundle = make_home(tmp_path, closed=8)
    record_load(home, make_load(bundle, before_ms=before * HOUR), ZONES)
    unfinished = find_unfinished_load(home)
    assert unfinished is not None
    assert (unfinished.step, unfinished.left) == (step, before)
    expected = "its watermark is 1970-01-01T08:00:00Z" if step == CLOSE else "0 of 8 are published"
    assert expected in unfinished.text


def test_a_load_is_done_when_its_last_window_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
    settings, home, bundle = make_home(tmp_path)
    load = make_load(bundle)
    record_load(home, load, ZONES)
    publish(home, load.covering(last_seq(home) + 1).to_payload(), expected_seq=last_seq(home), now=NOW)
    lefts = []
    for first, end in ((0, 3), (3, 4)):
        plan = save_plan(home, plan_backfill(asked(first, end), observe_backfill(settings, "p")))
        write_chunk(home, plan, 0, *((hour, "a", 10) for hour in range(first, end)))
        audit_backfill(settings, plan)
        publish_backfill(settings, plan)
        unfinished = find_unfinished_load(home)
        lefts.append(None if unfinished is None else (unfinished.step, unfinished.left))
    assert lefts == [(PUBLISH, 1), None]


def test_whoever_holds_the_lock_works_on_the_load(fresh: tuple[PipelineHome, Bundle]) -> None:
    home, _ = fresh
    note_step(home, ARCHIVE)
    with hold_load(home):
        unfinished = find_unfinished_load(home)
        assert unfinished is not None
        assert unfinished.process == f"process {os.getpid()}"
        with (
            pytest.raises(LostRaceError, match=f"process {os.getpid()} does a first load of p already"),
            hold_load(home),
        ):
            pass
    assert find_unfinished_load(home) == replace(unfinished, process=None)


def test_the_sentence_names_the_step_and_the_command() -> None:
    values: dict[str, Any] = {"pipeline": "p", "step": LOOK, "process": None}
    idle, busy = UnfinishedLoad(**values), UnfinishedLoad(**{**values, "process": "process 4711"})
    assert "no process of this host works on it, step 2 of 5: the log's event times are read" in idle.text
    assert "is under way (process 4711), step 2 of 5" in busy.text
    for each in (idle, busy):
        assert "`rivertwice start p --from-batch` continues it" in each.text
