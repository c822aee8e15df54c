"""One session for all steps of a command: started when one is needed, given back while nothing needs it, stopped at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rivertwice.core.settings import Settings
from rivertwice.engine import session as engine
from rivertwice.engine.session import spark_on_demand


class Session:
    """Stands for a session: its settings, and whether it was stopped."""

    def __init__(self) -> None:
        self.conf = self
        self.values = {"kept": "before"}
        self.stopped = 0

    def get(self, key: str, default: str | None) -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def unset(self, key: str) -> None:
        del self.values[key]

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """The sessions that were started, in order; none runs before."""
    sessions: list[Session] = []

    def start(*_: Any, **__: Any) -> Session:
        sessions.append(Session())
        return sessions[-1]

    monkeypatch.setattr(engine, "spark_session", start)
    monkeypatch.setattr(engine.SparkSession, "getActiveSession", lambda: None)
    return sessions


def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path / "home")


def test_every_step_gets_the_session_that_the_first_one_started(tmp_path: Path, started: list[Session]) -> None:
    with spark_on_demand(settings(tmp_path), "test") as spark:
        assert started == []
        sessions: list[object] = [spark(), spark()]
        assert sessions == [started[0], started[0]]
        assert started[0].stopped == 0
    assert [session.stopped for session in started] == [1]


def test_a_further_step_after_a_session_was_given_back_starts_another(tmp_path: Path, started: list[Session]) -> None:
    with spark_on_demand(settings(tmp_path), "test") as spark:
        spark.release()
        assert started == []
        spark()
        spark.release()
        spark.release()
        assert [session.stopped for session in started] == [1]
        spark()
        assert [session.stopped for session in started] == [1, 0]
    assert [session.stopped for session in started] == [1, 1]


def test_a_session_that_ran_before_is_given_back_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borrowed = Session()

    def start(*_: Any, extra: dict[str, str], **__: Any) -> Session:
        borrowed.values |= extra
        return borrowed

    monkeypatch.setattr(engine, "spark_session", start)
    monkeypatch.setattr(engine.SparkSession, "getActiveSession", lambda: borrowed)
    with spark_on_demand(settings(tmp_path), "test", extra={"kept": "ours", "new": "ours"}) as spark:
        spark()
        assert borrowed.values == {"kept": "ours", "new": "ours"}
        spark.release()
        assert borrowed.values == {"kept": "before"}
        spark()
        assert borrowed.values == {"kept": "ours", "new": "ours"}
    assert (borrowed.values, borrowed.stopped) == ({"kept": "before"}, 0)
