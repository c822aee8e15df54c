"""Feeding a replay topic: every record at its place, and no more may lack than the ledger says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rivertwice.core.errors import LogGapError
from rivertwice.core.settings import Settings
from rivertwice.log import send
from rivertwice.log.send import feed_replay_topic


class Producer:
    """Takes records and says at which offset each lies."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[tuple[str, bytes]]]] = []

    def produce(self, topic: str, *, partition: int, headers: Any, on_delivery: Any, **_: Any) -> None:
        at = sum(each == partition for each, _ in self.sent)
        self.sent.append((partition, headers))
        on_delivery(None, type("Message", (), {"offset": lambda _: at})())

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> int:
        return 0


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer()
    monkeypatch.setattr(send.kafka, "producer", lambda _: made)
    return made


def records(*offsets: int) -> Iterator[dict[str, Any]]:
    for offset in offsets:
        yield {"partition": 0, "offset": offset, "key": None, "value": b"v", "headers": None, "timestamp_ms": 1}


def test_later_records_move_up_and_carry_their_own_offset(settings: Settings, producer: Producer) -> None:
    assert feed_replay_topic(settings, "s", {0: (10, 20)}, records(10, 11, 14, 15, 18), absent={0: 5}) == 5
    assert [headers for _, headers in producer.sent] == [
        [("rivertwice-offset", str(offset).encode())] for offset in (10, 11, 14, 15, 18)
    ]


@pytest.mark.parametrize(
    ("offsets", "absent"),
    [
        ((10, 12), {}),
        ((10, 11), {}),
        ((10, 12), {0: 2}),
        ((10, 11, 12), {0: 1}),
        ((12,), {0: 1}),
        ((10, 10, 11), {0: 0}),
        ((11, 12), {1: 1}),
    ],
    ids=str,
)
def test_one_absent_record_too_many_or_too_few_is_a_gap(
    settings: Settings, producer: Producer, offsets: tuple[int, ...], absent: dict[int, int]
) -> None:
    with pytest.raises(LogGapError, match="a replay would shift all later offsets"):
        feed_replay_topic(settings, "s", {0: (10, 13)}, records(*offsets), absent=absent)


def test_a_plain_topic_gets_no_header(settings: Settings, producer: Producer) -> None:
    assert feed_replay_topic(settings, "s", {0: (10, 12)}, records(10, 11)) == 2
    assert [headers for _, headers in producer.sent] == [[], []]
