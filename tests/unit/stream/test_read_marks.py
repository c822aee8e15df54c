"""When a running driver compares the last records that it read with Kafka's: at a new leader, and every five minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.ledger import ledger_row
from rivertwice.core.errors import ExecutorLostError, LogForkError, ServiceError
from rivertwice.core.settings import Settings
from rivertwice.log.addresses import Part
from rivertwice.log.marks import Fork, LastRecord, Marks
from rivertwice.stream import sink
from rivertwice.stream.failures import FORK, classify_failure
from rivertwice.stream.sink import CHECK_EVERY_S, ReadMarks, check_same_records
from rivertwice.timeline.counts import BatchCounts

P0, P1 = Part("flights", 0), Part("flights", 1)
OLD = {P0: LastRecord(9, 0, 1, 4), P1: LastRecord(9, 0, 2, 4)}


class Kafka:
    """What Kafka has at the marks, and what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forked = False
        self.answers = True
        self.compared: list[Marks] = []
        self.clock = 0.0
        monkeypatch.setattr(sink, "observe_forks", self._observe)
        monkeypatch.setattr(sink.time, "monotonic", lambda: self.clock)

    def _observe(self, _settings: Settings, _ids: object, marks: Marks) -> list[Fork]:
        if not self.answers:
            message = "no answer"
            raise ServiceError(message)
        self.compared.append(dict(marks))
        return [Fork(P0, marks[P0], "Kafka has another record there")] if self.forked else []


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


def marks_that_read(monkeypatch: pytest.MonkeyPatch, read: Marks) -> ReadMarks:
    marks = ReadMarks(Settings(Path(), Path("home")), "p", {"flights": "id"}, OLD)
    monkeypatch.setattr(marks._last, "read", lambda _: dict(read))
    return marks


def test_a_batch_keeps_the_marks_of_the_partitions_that_it_did_not_read(
    monkeypatch: pytest.MonkeyPatch, kafka: Kafka
) -> None:
    marks = marks_that_read(monkeypatch, {P0: LastRecord(12, 7, 5, 4)})
    marks.begin({P0: (10, 13)})
    assert marks.advance() == {"flights": {"0": [12, 7, 5, 4], "1": [9, 0, 2, 4]}}
    assert kafka.compared == []  # the leader is the same


def test_a_new_leader_makes_the_records_before_it_be_compared(monkeypatch: pytest.MonkeyPatch, kafka: Kafka) -> None:
    marks = marks_that_read(monkeypatch, {P0: LastRecord(12, 7, 5, 5)})
    marks.begin({P0: (10, 13)})
    marks.advance()
    assert kafka.compared == [OLD]
    kafka.forked = True
    again = marks_that_read(monkeypatch, {P0: LastRecord(12, 7, 5, 5)})
    again.begin({P0: (10, 13)})
    with pytest.raises(LogForkError, match=r"flights/0@9 .*savepoint rewind p") as refused:
        again.advance()
    assert classify_failure(refused.value) == FORK


def test_every_five_minutes_is_compared_and_silence_is_no_fork(monkeypatch: pytest.MonkeyPatch, kafka: Kafka) -> None:
    marks = marks_that_read(monkeypatch, {})
    marks.check_when_due()
    assert kafka.compared == []
    kafka.clock += CHECK_EVERY_S
    kafka.answers = False
    marks.check_when_due()
    kafka.answers = kafka.forked = True
    marks.check_when_due()  # asked a moment ago
    kafka.clock += CHECK_EVERY_S
    with pytest.raises(LogForkError):
        marks.check_when_due()
    assert "savepoint rewind p" in str(marks.explain())


@pytest.mark.proves("guarantees.md#changelog")
def test_a_committed_batch_is_computed_again_only_from_the_records_that_it_read() -> None:
    row = ledger_row(3, by_topic={"flights": BatchCounts(10, digest=7)})
    check_same_records(row, {"flights": BatchCounts(10, digest=7)})
    check_same_records(ledger_row(3, by_topic={"flights": BatchCounts(10)}), {"flights": BatchCounts(10, digest=8)})
    with pytest.raises(LogForkError, match="batch 3 is committed, and its offsets of topic flights hold other records"):
        check_same_records(row, {"flights": BatchCounts(10, digest=8)})
    with pytest.raises(ExecutorLostError, match="counted 14"):  # tasks that ran twice cancel their records' digests
        check_same_records(row, {"flights": BatchCounts(14, digest=8)})
