"""When a stream that is waited for has caught up: after the batch that follows the last record of the wait, and not before."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from histories.kinds import definition_files
from homes.ledger import ledger_row
from homes.project import make_project
from rivertwice.agent.awaiting import QUIET, StreamLook, Wait, WaitState, decide_wait, does_rise
from rivertwice.definition.definition import load_definition
from rivertwice.timeline.intent import Heartbeat

NOW = datetime(2026, 1, 5, tzinfo=UTC)
ENDS = {"events": {"0": 100, "1": 50}}
BEAT = Heartbeat(3, 4711, "t1", "running", NOW, batch=7, watermark_ms=5_000, end_offsets=ENDS, batch_s=0.4)
SEEN = StreamLook(has_agent=True, desired="running", given_up=None, epoch=3, beat=BEAT, rises=True)


def at(**changes: object) -> StreamLook:
    return replace(SEEN, beat=replace(BEAT, **changes))


def test_what_is_read_is_not_enough_while_the_watermark_is_to_rise() -> None:
    wait = decide_wait(Wait(ENDS), SEEN)
    assert (wait.state, wait.covered) == (WaitState.WAITS, ("t1", 7))
    assert decide_wait(wait, at(state="idle")).state == WaitState.WAITS


def test_the_batch_after_the_last_record_ends_the_wait() -> None:
    wait = decide_wait(Wait(ENDS), SEEN)
    assert decide_wait(wait, at(batch=8)).state == WaitState.CAUGHT_UP


def test_a_stream_that_never_rests_is_waited_for_no_longer_than_that_batch() -> None:
    further = {"events": {"0": 900, "1": 900}}
    wait = decide_wait(Wait(ENDS), at(end_offsets=further))
    assert decide_wait(wait, at(end_offsets={"events": {"0": 1_000, "1": 999}}, batch=8)).state == WaitState.CAUGHT_UP


def test_no_batch_is_waited_for_if_the_watermark_stays() -> None:
    assert decide_wait(Wait(ENDS), replace(SEEN, rises=False)).state == WaitState.CAUGHT_UP


def test_a_driver_that_found_nothing_to_read_has_caught_up_once_it_rests() -> None:
    assert decide_wait(Wait(ENDS), at(batch_s=None)).state == WaitState.WAITS
    assert decide_wait(Wait(ENDS), at(batch_s=None, state="idle")).state == WaitState.CAUGHT_UP


def test_an_empty_log_is_caught_up_once_the_driver_rests() -> None:
    empty = {"events": {"0": 0, "1": 0}}
    assert (
        decide_wait(Wait(empty), at(batch=None, batch_s=None, end_offsets={}, state="idle")).state
        == WaitState.CAUGHT_UP
    )


@pytest.mark.parametrize("ends", [{}, {"events": {"0": 100}}, {"events": {"0": 100, "1": 49}}])
def test_a_partition_that_is_behind_is_waited_for(ends: dict[str, dict[str, int]]) -> None:
    wait = decide_wait(Wait(ENDS), at(end_offsets=ends, state="idle"))
    assert (wait.state, wait.covered) == (WaitState.WAITS, None)


@pytest.mark.parametrize("seen", [
    replace(SEEN, epoch=None),  # no driver is running: the heartbeat is that of a dead one
    replace(SEEN, epoch=4),  # another driver lives and has not reported yet
    at(state="starting"),
    at(state="failed"),
    replace(SEEN, beat=None),
])  # fmt: skip
def test_only_a_living_drivers_word_counts(seen: StreamLook) -> None:
    assert decide_wait(Wait(ENDS), replace(seen, rises=False)) == Wait(ENDS)


def test_a_restart_does_not_make_the_old_batch_the_one_after() -> None:
    wait = decide_wait(decide_wait(Wait(ENDS), SEEN), replace(SEEN, epoch=None))
    wait = decide_wait(wait, replace(at(epoch=4, batch_s=None), epoch=4))
    assert wait.state == WaitState.WAITS


def test_a_long_rest_ends_the_wait_whatever_the_ledger_says() -> None:
    wait = decide_wait(Wait(ENDS), at(state="idle"))
    wait = decide_wait(wait, at(state="idle", at=NOW + QUIET - timedelta(seconds=1)))
    assert wait.state == WaitState.WAITS
    assert decide_wait(wait, at(state="idle", at=NOW + QUIET)).state == WaitState.CAUGHT_UP


def test_a_rest_that_a_batch_interrupted_begins_again() -> None:
    wait = decide_wait(Wait(ENDS), at(state="idle"))
    wait = decide_wait(wait, at(at=NOW + QUIET))
    assert decide_wait(wait, at(state="idle", at=NOW + QUIET)).state == WaitState.WAITS


@pytest.mark.parametrize(("seen", "words"), [
    (replace(SEEN, given_up="poison: a record"), "the agent has stopped retrying: poison: a record"),
    (replace(SEEN, desired="stopped"), "somebody stopped it"),
    (replace(SEEN, epoch=None, has_agent=False), "no driver and no agent is running"),
])  # fmt: skip
def test_a_stream_that_will_not_catch_up_ends_the_wait_with_the_reason(seen: StreamLook, words: str) -> None:
    wait = decide_wait(Wait(ENDS), seen)
    assert (wait.state, words in wait.reason) == (WaitState.FAILED, True)


def test_a_driver_that_lives_without_an_agent_is_waited_for() -> None:
    assert decide_wait(Wait(ENDS), replace(SEEN, has_agent=False)).state == WaitState.WAITS


@pytest.mark.parametrize(("max_event_ms", "rises"), [(None, False), (60_000, True), (1, False)])
def test_the_ledger_says_whether_the_next_batch_raises_the_watermark(
    tmp_path: Path, max_event_ms: int | None, rises: bool
) -> None:
    settings = make_project(tmp_path, {"histories": definition_files("tumbling")})
    definition = load_definition(settings.definitions / "histories")
    (source,) = definition.streams.values()
    delay_ms = round(source.watermark.total_seconds() * 1000)
    event_ms = None if max_event_ms is None else max_event_ms + delay_ms
    rows = [ledger_row(0, batch_watermark_ms=5_000, min_event_ms=event_ms, max_event_ms=event_ms)]
    assert does_rise(rows, definition, replace(BEAT, batch=0)) is rises
    assert does_rise(rows, definition, BEAT) is True  # its row is not in the ledger yet


def test_a_fold_has_no_watermark_that_could_rise(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {"histories": definition_files("fold")})
    definition = load_definition(settings.definitions / "histories")
    assert does_rise([], definition, BEAT) is False
