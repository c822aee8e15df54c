"""Drivers that end on a full disk: paged once, tried again for as long as it lasts, and never given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rivertwice.agent.backoff import FailureClass, breaks_circuit, full_disk_ends
from rivertwice.agent.decide import ActionKind, decide
from rivertwice.agent.disk import largest_on_disk
from rivertwice.agent.memory import DriverRef, Ended, Memory, lasting_pages, remember_end
from simulated.supervision import NOW, RUNNING, S, failed, seen, start_within

FULL = FailureClass.DISK


def test_the_third_end_on_a_full_disk_is_paged_and_the_starts_go_on() -> None:
    twice = Memory(failures=(failed(FULL, 300), failed(FULL, 200)))
    assert decide(RUNNING, seen(memory=twice), NOW).kind is ActionKind.START
    thrice = replace(twice, failures=(*twice.failures, failed(FULL, 100)))
    action = decide(RUNNING, seen(memory=thrice), NOW)
    assert (action.kind, action.page) == (ActionKind.PAGE, "disk")
    for word in ("3 times in a row", "free space", "continues by itself"):
        assert word in action.reason
    assert decide(RUNNING, seen(memory=replace(thrice, paged=("disk",))), NOW).kind is ActionKind.START


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_a_disk_that_is_full_for_hours_is_never_given_up_and_paged_once() -> None:
    memory, now, pages = Memory(), NOW, 0
    for number in range(60):
        now, action = start_within(memory, now, 62)
        if action.kind is ActionKind.PAGE:
            pages += 1
            memory = replace(memory, paged=(*memory.paged, action.page))
            now, action = start_within(memory, now, 62)
        assert action.kind is ActionKind.START, number
        driver = DriverRef(number, 1.0, None, now)
        memory = replace(memory, driver=driver, last_start_at=now, paged=lasting_pages(memory))
        now += 7 * S
        memory = remember_end(memory, Ended(driver, FULL, False, "No space left on device", None), now)
    assert pages == 1


def test_the_page_is_news_after_another_end_of_the_driver_or_progress() -> None:
    memory = Memory(failures=(failed(FULL, 300), failed(FULL, 200), failed(FULL, 100)), paged=("disk",))
    driver = DriverRef(1, 1.0, None, NOW)
    assert remember_end(memory, Ended(driver, FULL, False, "m", None), NOW).paged == ("disk",)
    assert remember_end(memory, Ended(driver, FailureClass.KILLED, False, "m", None), NOW).paged == ()
    assert remember_end(memory, Ended(driver, FULL, False, "m", None), NOW + timedelta(hours=1)).paged == ()
    assert full_disk_ends([failed(FULL, 30), failed(FULL, 20), failed(FULL, 10, progressed=True)]) == 1


def test_ends_on_a_full_disk_use_up_no_patience_with_another_failure() -> None:
    row = [failed(FULL, age) for age in (90, 80, 70, 60, 50)]
    assert breaks_circuit([*row, failed(FailureClass.STORE, 10)], NOW) is None
    assert breaks_circuit([*row, *(failed(FailureClass.STORE, age) for age in (9, 8, 7, 6, 5))], NOW) is not None


def test_what_takes_a_full_disk_is_named_with_its_size_the_largest_first(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name, megabytes in (("pipelines/p/data", 2), ("archive/flights/0", 9), ("agent/log", 4), ("broker/log", 1)):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_bytes(bytes(1_000_000 * megabytes))
    (home / "airflow").symlink_to(home / "archive")
    said = largest_on_disk(home)
    assert "airflow" not in said  # a link takes nothing
    parts = [part.rsplit(" ", 2) for part in said.split(", ")]
    assert (len(parts), {unit for _, _, unit in parts}) == (3, {"MB"})
    assert [name for name, _, _ in parts if name != "outside of the home"][:2] == ["archive", "agent"]
    assert largest_on_disk(home, patience_s=0) == ""  # nothing is said of what was not counted
