"""Retention over several topics: each has its claims and its clock; the worst of all is told; a gap of one leaves the other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from homes.ledger import NOW, ledger_row
from rivertwice.agent import archiver
from rivertwice.cli.archive import _text
from rivertwice.core.settings import Settings
from rivertwice.log.gaps import Gap, GapReason
from rivertwice.log.leases import LogState, view_leases
from rivertwice.retention import accept
from rivertwice.retention.summary import summary_of, topics_in
from rivertwice.retention.view import RetentionView, TopicView, claim_stream, observe_claims, unarchived_clock
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import move_head

IDS = {"a": "ia", "b": "ib"}
GENESIS = {"a": {"0": 1}, "b": {"0": 2}}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = Settings(project=tmp_path, home=tmp_path / "home")
    home = found.pipeline("p")
    create_timeline(home, Timeline("p", "t1", None, 0, GENESIS, "b", {}, "c", IDS, NOW))
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    return found


def view(topic: str, begin: int, *, same: bool = True) -> TopicView:
    log = LogState(topic, IDS[topic], {0: begin}, {0: 100}, {})
    return TopicView(log, same, view_leases([claim_stream("t1", {0: 5})], log, NOW), *unarchived_clock(log, NOW))


def test_every_topic_has_its_own_claims(settings: Settings) -> None:
    ends = {"a": {"0": 11}, "b": {"0": 22}}
    append_ledger(settings.pipeline("p"), [ledger_row(0, topic_ids=IDS, start_offsets=GENESIS, end_offsets=ends)])
    found = [(one.topic, one.topic_id, [claim.ranges for claim in one.claims]) for one in observe_claims(settings, "p")]
    assert found == [("a", "ia", [{0: (1, None)}, {0: (1, 11)}]), ("b", "ib", [{0: (2, None)}, {0: (2, 22)}])]


def test_the_worst_of_all_topics_is_told_with_its_topic() -> None:
    plain = RetentionView("p", [view("a", 0), view("b", 20)], []).to_plain(NOW)
    assert [one["topic"] for one in topics_in(plain)] == ["a", "b"]
    assert plain["unarchived"]["records"] == 180
    assert [(lease["topic"], lease["lost"]) for lease in plain["leases"]] == [("b", 15), ("a", 0)]
    assert summary_of(plain) == "stream t1 needs b/0 [5, 100]: 15 records are lost"
    assert "b/0" in _text(plain, None)
    again = RetentionView("p", [view("a", 0), view("b", 0, same=False)], []).to_plain(NOW)
    assert not again["same_topic"]
    assert str(summary_of(again)).startswith("topic b was deleted")


def test_a_single_topics_view_is_as_it_always_was() -> None:
    plain = RetentionView("p", [view("a", 20)], []).to_plain(NOW)
    names = "pipeline at topic same_topic retention_s retention_bytes kafka archive unarchived worst leases gaps"
    assert list(plain) == names.split()
    assert "topic" not in plain["leases"][0]


def test_the_agent_looks_at_every_topic_and_remembers_each(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def looked(_settings: Settings, _name: str, _now: object, *, earlier: object) -> RetentionView:
        seen.append(earlier)
        return RetentionView("p", [view("a", 0), view("b", 0)], [])

    monkeypatch.setattr(archiver, "view_retention", looked)
    monkeypatch.setattr(archiver, "is_archiving", lambda *_: False)
    monkeypatch.setattr(archiver.kafka, "topic_config", lambda _, topic: {"retention.ms": "1"} if topic == "b" else {})
    keeper = archiver.RetentionKeeper(settings, lambda: ["p"], threading.Event())
    assert keeper.look("p", NOW) is not None
    assert keeper.look("p", NOW) is not None  # for one of the topics is finite
    assert [sorted(one) for one in seen] == [[], ["a", "b"]]


def test_behind_a_gap_of_one_topic_the_other_stays_where_it_was(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = Gap("p", "t1", None, "a", "ia", GapReason.EXPIRED, {0: (1, 9)}, {}, 0, None, NOW)
    monkeypatch.setattr(accept.kafka, "begin_offsets", lambda _, topic: {0: {"a": 9, "b": 4}[topic]})
    home = settings.pipeline("p")
    assert accept._begins_after_gap(settings, home, gap, Timeline.load(home, "t1")) == {"a": {"0": 9}, "b": {"0": 2}}
