"""The ring of samples: its size is fixed, and what a crash, a full disk or a second writer leaves is a gap at most."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from rivertwice.agent import ring
from rivertwice.agent.ring import CURVES, HEAD, LEVELS, SIZE, SLOT, SLOTS, RingSample, lags_of, read_level, write_sample

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
HOUR, SIX, DAY, WEEK, MONTH = LEVELS


def sample(at: datetime, lag: float = 0.0, **changes: object) -> RingSample:
    values = {"state": "running", "wanted": True, "values": {"lag": lag}, "parts": {}}
    return RingSample(at, **{**values, **changes})  # type: ignore[arg-type]


def test_a_step_keeps_the_least_the_largest_and_the_mean(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    for second, lag in ((0, 4.0), (6, 10.0), (12, 1.0)):
        write_sample(path, sample(NOW + timedelta(seconds=second), lag))
    first, second_slot = read_level(path, HOUR, NOW + timedelta(seconds=12))
    assert (first["least"][0], first["most"][0], first["mean"][0], first["samples"]) == (4.0, 10.0, 7.0, 2)
    assert second_slot["most"][0] == 1.0
    (six,) = read_level(path, SIX, NOW + timedelta(seconds=12))
    assert (six["least"][0], six["most"][0], six["mean"][0]) == (1.0, 10.0, 5.0)


def test_the_file_keeps_its_size_and_each_level_its_span(tmp_path: Path) -> None:
    """Eight days of a sample a minute: the week has 300 slots, the hour only its last 60 minutes."""
    path = tmp_path / "samples.ring"
    at = NOW - timedelta(days=8)
    while at <= NOW:
        write_sample(path, sample(at, 1.0))
        at += timedelta(minutes=5)
    assert path.stat().st_size == SIZE
    week = read_level(path, WEEK, NOW)
    assert len(week) == 300
    assert week["start"][0] >= NOW.timestamp() - WEEK.span.total_seconds() - WEEK.step_s
    assert len(read_level(path, HOUR, NOW)) == 12
    assert len(read_level(path, MONTH, NOW)) == 81
    assert read_level(path, HOUR, NOW + timedelta(hours=2)).size == 0, "what is older than the span is not shown"


def test_a_slot_that_was_written_in_part_is_a_gap_and_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    write_sample(path, sample(NOW, 7.0))
    offset = HOUR.offset_of(HOUR.start_of(NOW))
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * 100, offset + 40)
    assert read_level(path, HOUR, NOW).size == 0
    assert len(read_level(path, SIX, NOW)) == 1, "the other levels are whole"
    write_sample(path, sample(NOW, 8.0))
    assert read_level(path, HOUR, NOW)["most"][0][0] == 8.0


def test_two_agents_that_write_at_once_leave_whole_slots(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    instants = [NOW + timedelta(seconds=second) for second in range(0, 600, 3)]
    write_sample(path, sample(NOW, 1.0))  # whoever makes the file second gives it its name
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda lag: [write_sample(path, sample(at, lag)) for at in instants], (1.0, 2.0)))
    slots = read_level(path, HOUR, instants[-1])
    assert len(slots) == 50
    assert set(slots["most"][:, 0]) <= {1.0, 2.0}


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "samples.ring"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        write_sample(path, sample(NOW))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(ring, "has_room", lambda _: False)
    with pytest.raises(OSError, match="No space left"):
        write_sample(path, sample(NOW))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * SIZE])
def test_a_file_of_another_format_has_no_samples_and_is_made_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "samples.ring"
    path.write_bytes(content)
    assert read_level(path, HOUR, NOW).size == 0
    write_sample(path, sample(NOW))
    assert len(read_level(path, HOUR, NOW)) == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_partition_has_its_lag_and_the_surplus_is_one_curve(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    names = [f"flights/{number:02}" for number in range(40)]
    write_sample(path, sample(NOW, parts={name: number for number, name in enumerate(names)}))
    lags = lags_of(read_level(path, HOUR, NOW), names)
    assert list(lags) == [*names[:31], "others"]
    assert [float(lags[name][0]) for name in names[:31]] == [float(number) for number in range(31)]
    assert lags["others"][0] == sum(range(31, 40))


def test_a_partition_that_came_later_is_not_known_before(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    write_sample(path, sample(NOW, parts={"flights/0": 3}))
    write_sample(path, sample(NOW + timedelta(seconds=12), parts={"flights/0": 0, "flights/1": 5}))
    lags = lags_of(read_level(path, HOUR, NOW + timedelta(seconds=12)), ("flights/0", "flights/1"))
    assert lags["flights/0"].tolist() == [3.0, 0.0]
    assert np.isnan(lags["flights/1"][0])
    assert lags["flights/1"][1] == 5.0


def test_a_figure_that_is_not_known_stays_unknown(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    write_sample(path, sample(NOW, values={"batch_s": 0.5}))
    (slot,) = read_level(path, HOUR, NOW)
    known = dict(zip(CURVES, slot["known"].tolist(), strict=True))
    assert known == {**dict.fromkeys(CURVES, 0), "batch_s": 1}
    assert np.isnan(slot["mean"][CURVES.index("lag")])


def test_a_step_keeps_the_worst_state_of_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.ring"
    for second, state in enumerate(("running", "down", "starting")):
        write_sample(path, sample(NOW + timedelta(seconds=second), state=state))
    assert ring.STATES[int(read_level(path, HOUR, NOW)["state"][0])] == "down"


def test_the_size_is_what_the_page_of_the_format_says() -> None:
    assert HEAD + len(LEVELS) * SLOTS * SLOT.itemsize == SIZE
    assert SIZE == 887_744
