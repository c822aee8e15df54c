"""A keeper's error ends nothing: it is told once, as long as it is the same, and the other pipelines are looked at."""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from pathlib import Path

import pytest

from rivertwice.agent.keeper import Keeper
from rivertwice.core.errors import ServiceError
from rivertwice.core.settings import Settings


class Counting(Keeper):
    """Fails for one pipeline in its first three rounds, and ends in the fifth."""

    what, every_s = "counting", 0.0

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        super().__init__(settings, lambda: ["bad", "good"], stop)
        self.looked: list[str] = []
        self.ended = False

    def look(self, name: str, now: datetime) -> None:
        assert now.tzinfo is not None
        self.looked.append(name)
        rounds = self.looked.count("good")
        if name == "good" and rounds == 5:
            self._stopping.set()
        if name == "bad" and rounds < 3:
            message = "no answer" if rounds < 2 else "another answer"
            raise ServiceError(message)

    def end(self) -> None:
        self.ended = True


def test_an_error_is_told_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Counting(Settings(tmp_path, tmp_path), threading.Event())
    with caplog.at_level(logging.WARNING):
        keeper.run()
    assert keeper.looked == ["bad", "good"] * 5
    assert keeper.ended
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "counting of bad is not known now, tried again: ServiceError: no answer",
        "counting of bad is not known now, tried again: ServiceError: another answer",
    ]
