"""Small batches are interpreted, large ones compiled; the choice is made from the batch before."""

from __future__ import annotations

from typing import Any

from rivertwice.engine.session import NO_CODE_TEXT
from rivertwice.stream.driver import INTERPRETED_RECORDS, Interpreting


class Session:
    """Stands for the session of a query: keeps what is set, and how often."""

    def __init__(self) -> None:
        self.confs: dict[str, str] = {}
        self.calls = 0
        self.conf: Any = self

    def set(self, name: str, value: str) -> None:
        self.confs[name] = value
        self.calls += 1

    def unset(self, name: str) -> None:
        del self.confs[name]
        self.calls += 1


def test_the_next_batch_is_planned_by_the_size_of_the_last_one() -> None:
    session: Any = Session()
    chosen = Interpreting()
    chosen.choose(session, INTERPRETED_RECORDS + 1)
    assert session.confs == {}
    chosen.choose(session, INTERPRETED_RECORDS)
    assert session.confs == NO_CODE_TEXT
    chosen.choose(session, 0)
    assert session.calls == len(NO_CODE_TEXT)  # nothing is set again while nothing changes
    chosen.choose(session, INTERPRETED_RECORDS + 1)
    assert session.confs == {}
