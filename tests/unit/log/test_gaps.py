"""Gaps: found, bounded, recorded once, accepted once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms
from rivertwice.log.gaps import Acceptance, Gap, GapReason, accepted_gaps, bound_event_time, find_gap, record_acceptance

NOW = from_ms(1_000_000)
GAP = Gap("p", "t1", 7, "events", "id", GapReason.EXPIRED, {0: (70, 90), 2: (5, 6)}, {0: (70, 80)}, 500, 2_000_000, NOW)


@pytest.mark.proves("guarantees.md#what-everything-needs")
def test_a_stream_before_kafkas_begin_has_a_gap_of_the_records_between() -> None:
    assert find_gap({0: 70, 1: 3}, {0: 90, 1: 3}, {0: 95, 1: 3}) == (GapReason.EXPIRED, {0: (70, 90)})
    assert find_gap({0: 70, 1: 3}, {0: 70, 1: 0}, {0: 70, 1: 3}) is None


def test_a_log_that_ends_before_the_streams_place_ran_backwards() -> None:
    assert find_gap({0: 70, 1: 3}, {0: 0, 1: 0}, {0: 60, 1: 3}) == (GapReason.BACKWARDS, {0: (60, 70)})
    assert find_gap({0: 70, 1: 3}, {0: 0}, {0: 70}) == (GapReason.BACKWARDS, {1: (0, 3)})


def test_a_lost_records_latest_event_time_is_bounded_by_its_timestamp() -> None:
    ranges, hour = {0: (1, 2), 1: (4, 9)}, 3_600_000
    stamped_by_broker = {"message.timestamp.type": "LogAppendTime"}
    assert bound_event_time(stamped_by_broker, ranges, {0: 50, 1: 80}, 100, 7) == 87
    assert bound_event_time(stamped_by_broker, ranges, {0: 50}, 100, 7) == 107  # nothing behind one gap: until now
    limited = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(hour)}
    assert bound_event_time(limited, ranges, {0: 50, 1: 80}, 100, 7) == hour + 107
    unlimited = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
    assert bound_event_time(unlimited, ranges, {0: 50, 1: 80}, 100, 7) is None


def test_a_gap_is_recorded_once_and_a_larger_one_is_another(tmp_path: Path) -> None:
    home = PipelineHome(tmp_path)
    assert GAP.record(home)
    assert not replace(GAP, noted_at=from_ms(2_000_000)).record(home)
    grown = replace(GAP, ranges={0: (70, 91), 2: (5, 6)}, noted_at=from_ms(3_000_000))
    assert grown.record(home)
    assert Gap.recorded(home) == [GAP, grown]
    assert Gap.load(home, GAP.id) == GAP


def test_an_acceptance_names_the_timeline_behind_the_gap_and_is_final(tmp_path: Path) -> None:
    home = PipelineHome(tmp_path)
    GAP.record(home)
    assert Acceptance.load(home, GAP.id) is None
    assert record_acceptance(home, Acceptance(GAP.id, "t2", "cli", NOW))
    assert not record_acceptance(home, Acceptance(GAP.id, "t3", "cli", NOW))
    assert accepted_gaps(home) == {"t2": GAP}


@pytest.mark.parametrize("name", ["gap-1", "../gap-0123456789ab", "gap-0123456789ab\n", "gap-0123456789AB"])
def test_what_is_no_gap_id_names_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="not a valid gap id"):
        Gap.load(PipelineHome(tmp_path), name)


def test_the_message_names_partition_offsets_loss_and_remedy() -> None:
    text = GAP.message()
    assert "partition 0 [70, 90), partition 2 [5, 6)" in text
    assert "the archive has partition 0 [70, 80)" in text
    assert "11 are lost for ever" in text
    assert f"rivertwice start p --accept-gap {GAP.id}" in text
