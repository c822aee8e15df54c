"""An erasure removes from the ledger what is stored of the bytes of erased records, so that these are not taken for others."""

from __future__ import annotations

from homes.ledger import ledger_row
from rivertwice.log.addresses import Part
from rivertwice.timeline.counts import BatchCounts
from rivertwice.upkeep.rewrite import without_records

ROW = ledger_row(
    1,
    by_topic={"flights": BatchCounts(10, digest=5), "other": BatchCounts(3, digest=6)},
    marks={"flights": {"0": [19, 0, 1, 0]}, "other": {"0": [19, 0, 2, 0]}},
)


def test_the_digest_of_a_topic_goes_where_the_batch_read_an_erased_record() -> None:
    left = without_records(ROW, {Part("flights", 0): [3, 14, 70]})
    assert {topic: counts.digest for topic, counts in left.by_topic.items()} == {"flights": None, "other": 6}
    assert left.by_topic["flights"].read == 10
    assert left.marks == ROW.marks


def test_the_mark_of_an_erased_record_goes() -> None:
    left = without_records(ROW, {Part("flights", 0): [19]})
    assert left.marks == {"other": {"0": [19, 0, 2, 0]}}


def test_a_batch_that_read_none_of_the_records_stays_as_it_is() -> None:
    left = without_records(ROW, {Part("flights", 0): [9, 20], Part("flights", 1): [14]})
    assert left.to_json() == ROW.to_json()
