"""A line is appended whole or not at all, also on a disk that takes a part of it."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from rivertwice.storage.log_files import LogFile


@pytest.fixture
def small_disk(monkeypatch):
    """Let the next writes take a part only; returns the number of bytes they take, which may be changed; None: all."""
    room = {"bytes": None, "then": lambda: None}
    write = os.write

    def partial(handle: int, data: bytes) -> int:
        written = write(handle, data if room["bytes"] is None else data[: room["bytes"]])
        room["then"]()
        return written

    monkeypatch.setattr("rivertwice.storage.log_files.os.write", partial)
    return room


def test_a_part_is_taken_back_and_the_next_line_is_whole(tmp_path, small_disk) -> None:
    path = tmp_path / "agent" / "events.jsonl"
    LogFile(path).append(b'{"n":1}\n')
    small_disk["bytes"] = 4
    with pytest.raises(OSError, match="No space left") as full:
        LogFile(path).append(b'{"n":2}\n')
    assert full.value.errno == errno.ENOSPC
    assert path.read_bytes() == b'{"n":1}\n'
    small_disk["bytes"] = None
    LogFile(path).append(b'{"n":3}\n')
    assert path.read_bytes() == b'{"n":1}\n{"n":3}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_part_that_another_process_followed_stays_and_harms_no_line(tmp_path, small_disk) -> None:
    path = tmp_path / "events.jsonl"
    LogFile(path).append(b'{"n":1}\n')

    def another() -> None:
        small_disk["then"] = lambda: None
        with path.open("ab") as file:
            file.write(b"x")

    small_disk |= {"bytes": 4, "then": another}
    with pytest.raises(OSError, match="No space left"):
        LogFile(path).append(b'{"n":2}\n')
    small_disk["bytes"] = None
    LogFile(path).append(b'{"n":3}\n')
    assert path.read_bytes() == b'{"n":1}\n{"n"x\n{"n":3}\n'
