"""Leases on offset ranges and the race clock: who holds what, and how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.instants import from_ms
from rivertwice.log.leases import (
    NO_CLOCK,
    Clock,
    LogState,
    RaceLevel,
    RetentionClaim,
    select_samples,
    view_leases,
)

HOUR = timedelta(hours=1)
NOW = from_ms(100 * 3_600_000)


def log(**changes: object) -> LogState:
    """Kafka has [20, 100) of one partition, the archive [0, 40); Kafka keeps ten hours."""
    state = LogState("t", "id", {0: 20}, {0: 100}, {0: (0, 40)}, retention=10 * HOUR)
    return replace(state, **changes)  # type: ignore[arg-type]


def claim(start: int, end: int | None, *, kafka_only: bool = False) -> RetentionClaim:
    return RetentionClaim("savepoint s", "savepoint", {0: (start, end)}, kafka_only)


def stamped(offset: int, age: timedelta) -> dict[tuple[int, int], int]:
    return {(0, offset): int((NOW - age).timestamp() * 1000)}


def test_the_first_offset_at_risk_is_the_first_that_only_kafka_has() -> None:
    assert claim(10, 80).first_at_risk(0, log()) == 40
    assert claim(50, 80).first_at_risk(0, log()) == 50
    assert claim(10, 40).first_at_risk(0, log()) is None
    assert claim(100, None).first_at_risk(0, log()) is None


def test_the_stream_needs_kafka_even_where_the_archive_has_the_records() -> None:
    assert claim(30, None, kafka_only=True).first_at_risk(0, log()) == 30
    assert select_samples([claim(30, None, kafka_only=True), claim(30, None)], log()) == {(0, 30), (0, 40)}


def test_what_nobody_has_is_lost_and_named_first() -> None:
    stream = RetentionClaim("stream t1", "stream", {0: (5, None)}, kafka_only=True)
    leases = view_leases([claim(0, 60), stream], log(stamps=stamped(40, HOUR)), NOW)
    assert [(one.holder, one.lost, one.level) for one in leases] == [
        ("stream t1", 15, RaceLevel.LOST),
        ("savepoint s", 0, RaceLevel.OK),
    ]
    assert (leases[1].archived, leases[1].kafka) == (40, 20)


def test_a_hole_between_archive_and_kafka_is_lost() -> None:
    #  archive |====|          [0, 40)
    #  Kafka             |====|  [60, 100)
    (lease,) = view_leases([claim(0, 100)], log(begin={0: 60}, stamps=stamped(60, HOUR)), NOW)
    assert (lease.archived, lease.kafka, lease.lost, lease.level) == (40, 40, 20, RaceLevel.LOST)


def test_time_runs_out_in_steps_and_only_for_what_the_archive_lacks() -> None:
    levels = {}
    for hours in (1, 4, 6, 9.5, 30):
        (lease,) = view_leases([claim(30, 90)], log(stamps=stamped(40, hours * HOUR)), NOW)
        levels[hours] = lease.level
    assert levels == {
        1: RaceLevel.OK,
        4: RaceLevel.OK,
        6: RaceLevel.WARNING,
        9.5: RaceLevel.CRITICAL,
        30: RaceLevel.CRITICAL,
    }
    (safe,) = view_leases([claim(0, 40)], log(stamps=stamped(40, 30 * HOUR)), NOW)
    assert (safe.level, safe.clock) == (RaceLevel.OK, NO_CLOCK)


def test_a_topic_kept_for_ever_has_no_clock() -> None:
    (lease,) = view_leases([claim(30, 90)], log(retention=None, stamps=stamped(40, 1000 * HOUR)), NOW)
    assert (lease.level, lease.clock) == (RaceLevel.OK, NO_CLOCK)


def test_the_clock_of_bytes_is_what_is_free_over_the_measured_pace() -> None:
    state = log(retention=None, retention_bytes=10_000, record_bytes={0: 100.0}, per_second={0: 2.0})
    clock = state.clock_at(0, 40, NOW)  # 60 records of 100 bytes lie behind offset 40; 200 bytes come a second
    assert clock == Clock(NOW + timedelta(seconds=20), timedelta(seconds=20), 0.4)
    assert replace(state, per_second={}).clock_at(0, 40, NOW).left is None
    both = replace(state, retention=10 * HOUR, stamps=stamped(40, HOUR))
    assert both.clock_at(0, 40, NOW).left == timedelta(seconds=20)
    assert both.clock_at(0, 40, NOW).share == 0.4


bounds = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair)))


@given(wanted=bounds, archived=bounds, kept=bounds, alone=st.booleans())
def test_every_offset_of_a_claim_is_archived_in_kafka_only_or_lost(
    wanted: tuple[int, int], archived: tuple[int, int], kept: tuple[int, int], alone: bool
) -> None:
    state = LogState("t", "id", {0: kept[0]}, {0: kept[1]}, {0: archived})
    (lease,) = view_leases([RetentionClaim("x", "x", {0: wanted}, alone)], state, NOW)
    offsets = range(*wanted)
    in_archive = [o for o in offsets if not alone and archived[0] <= o < archived[1]]
    in_kafka = [o for o in offsets if o not in in_archive and kept[0] <= o < kept[1]]
    assert (lease.archived, lease.kafka) == (len(in_archive), len(in_kafka))
    assert lease.lost == len(offsets) - len(in_archive) - len(in_kafka)
    assert (lease.level is RaceLevel.LOST) == (lease.lost > 0)


def test_older_segments_of_the_archive_are_served_and_their_hole_is_lost() -> None:
    #  archive  |===|   |====|        [0, 10) and [15, 40)
    #  Kafka           |=========|    [20, 100)
    state = log(archived={0: (15, 40)}, older=({0: (0, 10)},))
    (lease,) = view_leases([claim(0, 50)], state, NOW)
    assert (lease.archived, lease.kafka, lease.lost) == (35, 10, 5)


def test_a_partition_without_a_known_first_offset_is_needed_from_its_begin() -> None:
    assert claim(0, 80).first_at_risk(0, log(begin={}, archived={})) == 0
    assert claim(0, 80).first_at_risk(0, log(begin={}, end={}, archived={})) is None


def test_the_levels_change_below_their_limits_and_not_at_them() -> None:
    levels = []
    for age in (5 * HOUR, 5.001 * HOUR, 9 * HOUR, 9.001 * HOUR):
        (lease,) = view_leases([claim(40, 90)], log(stamps=stamped(40, age)), NOW)
        levels.append(lease.level)
    assert levels == [RaceLevel.OK, RaceLevel.WARNING, RaceLevel.WARNING, RaceLevel.CRITICAL]


def test_a_claim_without_end_reaches_kafkas_end_and_an_older_one_is_empty() -> None:
    (lease,) = view_leases([claim(50, None)], log(), NOW)
    assert (lease.start, lease.end, lease.kafka) == (50, 100, 50)
    (lease,) = view_leases([claim(120, None)], log(), NOW)
    assert (lease.start, lease.end, lease.kafka, lease.lost, lease.level) == (120, 120, 0, 0, RaceLevel.OK)


def test_what_an_older_segment_of_the_archive_holds_is_not_lost() -> None:
    #  older |==|      [0, 10)      hole [10, 20)       archive [20, 40)
    older = log(archived={0: (20, 40)}, older=[{0: (0, 10)}], begin={0: 40})
    (lease,) = view_leases([claim(0, 60)], older, NOW)
    assert (lease.archived, lease.kafka, lease.lost) == (30, 20, 10)
    (stream,) = view_leases([claim(0, 60, kafka_only=True)], older, NOW)
    assert (stream.archived, stream.kafka, stream.lost) == (0, 20, 40)


def test_bytes_run_out_at_the_pace_at_which_they_arrive() -> None:
    by_bytes = log(retention=None, retention_bytes=10_000, record_bytes={0: 100.0}, per_second={0: 2.0})
    clock = by_bytes.clock_at(0, 40, NOW)  # 60 records of 100 bytes lie behind it, 4,000 bytes are free
    assert (clock.left, clock.share) == (timedelta(seconds=20), 0.4)
    assert clock.deadline == NOW + timedelta(seconds=20)
    still = replace(by_bytes, per_second={}).clock_at(0, 40, NOW)
    assert (still.left, still.deadline, still.share) == (None, None, 0.4)
    full = replace(by_bytes, retention_bytes=5_000).clock_at(0, 40, NOW)
    assert (full.left, full.share) == (timedelta(0), 0.0)


def test_of_time_and_bytes_the_one_that_runs_out_first_counts() -> None:
    both = log(stamps=stamped(40, HOUR), retention_bytes=10_000, record_bytes={0: 100.0}, per_second={0: 2.0})
    clock = both.clock_at(0, 40, NOW)
    assert (clock.left, clock.share) == (timedelta(seconds=20), 0.4)
    slow = replace(both, per_second={0: 0.000001}).clock_at(0, 40, NOW)
    assert (slow.left, slow.share) == (9 * HOUR, 0.4)


def test_a_topic_that_keeps_for_ever_has_no_clock() -> None:
    assert not log(retention=None).finite
    assert log().finite
    assert log(retention=None, retention_bytes=1).finite
    assert log(retention=None).clock_at(0, 40, NOW) == NO_CLOCK


def test_a_record_from_the_future_has_all_its_time_left() -> None:
    clock = log(stamps=stamped(40, -20 * HOUR)).clock_at(0, 40, NOW)
    assert (clock.left, clock.share) == (30 * HOUR, 1.0)


def test_the_levels_are_four_and_the_worse_is_the_larger() -> None:
    assert [(level.name, level.value) for level in RaceLevel] == [
        ("OK", 0),
        ("WARNING", 1),
        ("CRITICAL", 2),
        ("LOST", 3),
    ]


def test_a_topic_that_may_keep_no_byte_has_no_time_left() -> None:
    none = log(retention=None, retention_bytes=0, record_bytes={0: 100.0})
    assert none.clock_at(0, 40, NOW).share == 0.0
    one = log(retention=None, retention_bytes=1, record_bytes={0: 0.0})
    assert one.clock_at(0, 40, NOW).share == 1.0
