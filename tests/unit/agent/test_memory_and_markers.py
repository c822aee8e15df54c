"""What the agent remembers survives a round trip; whose drain marker holds; which exit record belongs to whom."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.agent.backoff import Failure, FailureClass
from rivertwice.agent.memory import (
    KEPT_FAILURES,
    DriverRef,
    Ended,
    Intended,
    Memory,
    load_memory,
    remember_end,
    save_memory,
)
from rivertwice.agent.observe import START_LINE, observe, read_drain
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.timeline.intent import Exit, Heartbeat

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GONE = DriverRef(pid=2**22 - 3, pid_started=1.0, epoch=3, since=NOW)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
memories = st.builds(
    Memory,
    driver=st.none() | st.builds(DriverRef, st.integers(1), st.floats(0, 1e10), st.none() | st.integers(1), instants),
    failures=st.lists(
        st.builds(
            Failure, instants, st.sampled_from(FailureClass), st.booleans(), st.none() | st.integers(1), st.text()
        ),
        max_size=3,
    ).map(tuple),
    position=st.none() | st.tuples(st.sampled_from(["t1", "t2"]), st.integers(0)),
    broken_at=st.none() | instants,
    broken_because=st.text(),
    paged=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    last_start_at=st.none() | instants,
    intended=st.none() | st.builds(Intended, st.text(), st.text(), instants, st.booleans()),
)


@given(memories)
def test_a_memory_survives_its_file(memory: Memory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder), Path(folder))
        save_memory(settings, "p", memory)
        assert load_memory(settings, "p") == memory


def test_no_memory_and_a_memory_of_an_unknown_format_are_empty(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path)
    assert load_memory(settings, "p") == Memory()
    save_memory(settings, "p", Memory(position=("t1", 1)))
    path = tmp_path / "agent" / "pipelines" / "p.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    assert load_memory(settings, "p") == Memory()


@pytest.mark.proves("howto-stream.md#how-a-failure-is-answered")
def test_a_clean_end_forgets_failures_and_another_end_is_counted() -> None:
    memory = Memory(driver=GONE, position=("t1", 5), paged=("hung",))
    crash = Ended(GONE, FailureClass.KILLED, clean=False, message="m", position=("t1", 5))
    once = remember_end(memory, crash, NOW)
    assert (once.driver, once.paged) == (None, ())
    assert [failure.progressed for failure in once.failures] == [False]
    twice = remember_end(replace(once, driver=GONE), replace(crash, position=("t1", 6)), NOW)
    assert [failure.progressed for failure in twice.failures] == [False, True]
    assert twice.position == ("t1", 6)
    assert remember_end(twice, replace(crash, clean=True), NOW).failures == ()
    for _ in range(2 * KEPT_FAILURES):
        twice = remember_end(twice, crash, NOW)
    assert len(twice.failures) == KEPT_FAILURES


def me() -> dict[str, Any]:
    return {"pid": os.getpid(), "pid_started": psutil.Process().create_time()}


@pytest.mark.parametrize(
    ("title", "content", "age_s", "by_agent", "held"),
    [
        ("the agent's own never holds", {"by": "agent", **me()}, 1, True, False),
        ("a restore's holds while its process lives", {"by": "restore-1", **me()}, 5000, False, True),
        (
            "a dead restore's does not hold",
            {"by": "restore-1", "pid": os.getpid(), "pid_started": 1.0},
            1,
            False,
            False,
        ),
        ("an empty one holds for a while", None, 100, False, True),
        ("but not for ever", None, 700, False, False),
        ("one that is not valid JSON is like an empty one", "touched by hand", 100, False, True),
    ],
)
def test_a_drain_marker_holds_as_long_as_somebody_needs_it(
    tmp_path: Path, title: str, content: Any, age_s: float, by_agent: bool, held: bool
) -> None:
    home = PipelineHome(tmp_path)
    assert read_drain(home, NOW) is None
    home.drain.write_text("" if content is None else content if isinstance(content, str) else json.dumps(content))
    os.utime(home.drain, (NOW.timestamp() - age_s,) * 2)
    drain = read_drain(home, NOW)
    assert drain is not None, title
    assert (drain.by_agent, drain.held) == (by_agent, held)


def ended_of(settings: Settings, driver: DriverRef, returncode: int | None = None) -> Ended:
    _, ended = observe(settings, "p", Memory(driver=driver), {driver.pid: returncode}.get, NOW + timedelta(seconds=9))
    assert ended is not None
    return ended


def test_only_the_record_of_the_same_epoch_explains_an_end(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path)
    home = settings.pipeline("p")
    Exit(2, NOW, "fingerprint", "of an older driver", clean=False).save(home)
    assert ended_of(settings, GONE, -9).failure is FailureClass.KILLED
    Exit(3, NOW, "fingerprint", "of this one", clean=False).save(home)
    assert ended_of(settings, GONE, 1).failure is FailureClass.FINGERPRINT


def test_a_driver_without_a_lease_is_explained_by_a_later_record(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path)
    home = settings.pipeline("p")
    unleased = replace(GONE, epoch=None)
    Exit(0, NOW - timedelta(seconds=1), "schema", "earlier", clean=False).save(home)
    assert ended_of(settings, unleased, 1).failure is FailureClass.UNKNOWN
    Exit(0, NOW + timedelta(seconds=1), "lease_lost", "this one", clean=False).save(home)
    assert ended_of(settings, unleased, 1).failure is FailureClass.LEASE_LOST


def test_only_the_log_since_the_last_start_is_searched_for_signs(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path)
    log = settings.pipeline("p").logs / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{START_LINE}a\nOutOfMemoryError\n{START_LINE}b\nbatch 1\nthe last words\n")
    found = ended_of(settings, GONE, 1)
    assert found.failure is FailureClass.UNKNOWN
    assert "the last words" in found.message


def test_a_heartbeat_of_the_same_epoch_says_how_far_the_driver_came(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path)
    home = settings.pipeline("p")
    Heartbeat(2, 1, "t1", "running", NOW, batch=8).save(home)
    assert ended_of(settings, GONE).position is None
    Heartbeat(3, 1, "t1", "running", NOW, batch=9).save(home)
    assert ended_of(settings, GONE).position == ("t1", 9)
