"""What the ledger says a window's batches read, and how late and refused records are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from homes.ledger import ledger_row
from rivertwice.core.instants import from_ms
from rivertwice.log.addresses import Part
from rivertwice.read.explain_model import OffsetRange, Published
from rivertwice.read.explain_records import Late, describe_dead, describe_late, gather_reads, late_of_causes
from rivertwice.timeline.committed import CommittedBatches
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.dead_letters import Amendment, DeadLetter, RecordAddress

END = datetime(2026, 1, 1, 1, tzinfo=UTC)
PART = Part("flights", 0)
PATH = CommittedBatches.of([ledger_row(1), ledger_row(2)])


def counted(low: int, high: int) -> BatchCounts:
    return BatchCounts(10, 0, 10, low, high)


def test_neighbouring_batches_are_one_range_and_a_late_one_another() -> None:
    reads = gather_reads([ledger_row(1), ledger_row(2), ledger_row(7)], [], 0, 100)
    assert (reads.batches, reads.first, reads.last, reads.records) == (3, "t1/1", "t1/7", 30)
    assert reads.ranges == (OffsetRange("flights", 0, 10, 30), OffsetRange("flights", 0, 70, 80))
    assert reads.has(PART, 29)
    assert not reads.has(PART, 30)
    assert not reads.has(Part("others", 0), 29)


def test_a_topic_without_a_record_of_the_window_is_left_out() -> None:
    row = ledger_row(1, by_topic={"flights": counted(500, 900)})
    assert gather_reads([row], [], 0, 500).ranges == ()
    assert gather_reads([row], [], 0, 501).records == 10


def test_what_a_first_load_took_is_among_the_ranges() -> None:
    reads = gather_reads([], [("flights", 1, (0, 40))], 0, 100)
    assert (reads.batches, reads.ranges) == (0, (OffsetRange("flights", 1, 0, 40),))


def test_a_late_record_is_told_once_with_how_late_it_was() -> None:
    late = Late(PART, 15, END - timedelta(minutes=5), END + timedelta(minutes=2), ("t1", 1))
    published = Published("bf-1", 2, END, None, {"flights": {0: 15}})
    (told,) = describe_late([late, late], PATH, END, published)
    assert (told.place, told.late_s, told.batch, told.read_at) == (
        "flights/0@15",
        120.0,
        "t1/1",
        ledger_row(1).committed_at,
    )
    assert not told.is_served
    (told,) = describe_late([late], PATH, END, Published("bf-1", 2, END, None, {"flights": {0: 16}}))
    assert told.is_served


def test_a_late_record_of_a_batch_that_the_head_left_has_no_batch() -> None:
    (told,) = describe_late([Late(PART, 15, END, END, ("t9", 1))], PATH, END, None)
    assert (told.batch, told.read_at, told.is_served) == (None, None, False)


def test_only_causes_that_name_a_late_record_give_one() -> None:
    usual = {"topic": "flights", "partition": 0, "offset": 15, "batch": 2, "event_time": END, "late_watermark_ms": 7}
    causes = [{**usual, "cause": "late"}, {**usual, "cause": "dead"}, {**usual, "cause": "late", "topic": None}]
    assert late_of_causes(causes, PATH) == [Late(PART, 15, END, from_ms(7), ("t1", 2))]


def test_refused_records_of_the_row_come_first_with_their_decision() -> None:
    amendment = Amendment(4, "amend", "flights", RecordAddress("id", 0, 16), b"{}", "typed wrongly", "me", END)

    def letter(offset: int, decision: Amendment | None) -> DeadLetter:
        address = RecordAddress("id", 0, offset)
        return DeadLetter("flights", address, "t1", 1, "json", "not JSON", END, None, None, None, decision)

    told = describe_dead([letter(15, None), letter(16, amendment)], {"flights/0@16": True})
    assert [(each.place, each.state, each.is_of_row, each.amendment) for each in told] == [
        ("flights/0@16", "amended", True, 4),
        ("flights/0@15", "open", None, None),
    ]
    assert told[0].why == "typed wrongly"
