"""Where a stream begins after a first load, on random logs: no record of its windows lies before, and none of the others is lost."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories.kinds import make_definition
from rivertwice.backfill.load import all_records, require_apart, to_map
from rivertwice.backfill.load_plan import (
    LEAST_BLOCK,
    MOST_ZONES,
    LoadPlan,
    LogMap,
    ask_for,
    block_size,
    cut_pieces,
    explain_load,
    find_unloaded,
    plan_load,
    refuse_load,
)
from rivertwice.backfill.ranges import covering
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import EPOCH, from_ms, to_ms
from rivertwice.log.addresses import count
from rivertwice.log.history import LakeHistory, LakeTable
from rivertwice.storage.lake import LakeFile
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.serving import Publication

SECOND = 1000
DELAY = 20 * SECOND
KINDS = {"tumbling": (60, 60), "hopping": (60, 20), "joined intervals": (80, 20)}
"""Kind to length and step of its windows in seconds."""
Log = dict[int, list[int | None]]
"""Partition to the event time (ms) of each record, None for one that is not accepted; the first offset of partition p is 10 p."""

logs = st.dictionaries(
    st.integers(0, 2),
    st.lists(st.one_of(st.none(), st.integers(0, 900 * SECOND), st.integers(600 * SECOND, 700 * SECOND)), max_size=40),
    min_size=1,
)


def map_of(log: Log, block: int) -> LogMap:
    """Return the map as the Spark job gives it."""
    rows: dict[tuple[int, int, str | None], list[int]] = {}
    for partition, records in log.items():
        for number, event_ms in enumerate(records):
            at = 10 * partition + number - number % block
            rows.setdefault((partition, at, None if event_ms is not None else "malformed"), []).append(event_ms or 0)
    table = pa.Table.from_pylist(
        [
            {"_partition": p, "_at": at, "_reason": reason, "rows": len(times), "low": min(times), "high": max(times)}
            for (p, at, reason), times in rows.items()
        ],
        pa.schema(
            [("_partition", pa.int32()), ("_at", pa.int64()), ("_reason", pa.string())]
            + [(name, pa.int64()) for name in ("rows", "low", "high")]
        ),
    )
    return to_map("events", {p: (10 * p, 10 * p + len(records)) for p, records in log.items()}, block, table)


def starts_of(event_ms: int, size: int, step: int) -> list[int]:
    last = event_ms // step * step
    return list(range(last, last - size, -step))


@pytest.mark.parametrize("kind", KINDS)
@given(log=logs, block=st.integers(1, 7))
def test_the_stream_reads_every_record_of_the_windows_it_makes(kind: str, log: Log, block: int) -> None:
    size, step = (seconds * SECOND for seconds in KINDS[kind])
    plan = plan_load(make_definition(kind), map_of(log, block))
    events = [event_ms for records in log.values() for event_ms in records if event_ms is not None]
    if isinstance(plan, str):
        if events:
            before = (max(0, max(events) - DELAY) - size) // step * step + step
            firsts = [records[:block] for records in log.values() if records]
            assert min(starts_of(min(events), size, step)) >= before or all(
                any(event_ms is not None and event_ms >= before for event_ms in first) for first in firsts
            )
        return
    assert plan.closed_ms == max(0, max(events) - DELAY)
    assert plan.before_ms - step + size <= plan.closed_ms < plan.before_ms + size
    left_out = 0
    for partition, records in log.items():
        first, begin = 10 * partition, plan.ranges[partition][1]
        for number, event_ms in enumerate(records):
            if first + number >= begin or event_ms is None:
                continue
            left_out += 1
            for start in starts_of(event_ms, size, step):
                assert plan.since_ms <= start < plan.before_ms
    assert plan.accepted == left_out
    assert plan.accepted + sum(plan.rejected.values()) == plan.records == count(plan.ranges)
    assert plan.records + plan.streamed == sum(map(len, log.values()))
    assert plan.since_ms == min(starts_of(min(events), size, step))


@pytest.mark.parametrize("kind", KINDS)
@given(log=logs)
def test_blocks_of_one_record_leave_out_all_that_can_be(kind: str, log: Log) -> None:
    plan = plan_load(make_definition(kind), map_of(log, 1))
    if isinstance(plan, str):
        return
    for partition, (start, begin) in plan.ranges.items():
        after = log[partition][begin - start :]
        assert not after or (after[0] is not None and after[0] >= plan.before_ms)


def test_a_log_without_a_closed_window_has_nothing_to_load() -> None:
    definition = make_definition("tumbling")
    assert plan_load(definition, map_of({0: [None]}, 2)) == "topic events has no record that histories accepts"
    assert "no window of histories is closed" in str(plan_load(definition, map_of({0: [0, 70 * SECOND]}, 2)))
    one_block = map_of({0: [0, 600 * SECOND]}, 2)
    assert "begins with records of windows that are open" in str(plan_load(definition, one_block))


def test_a_partition_without_a_record_of_an_open_window_is_left_out() -> None:
    plan = plan_load(make_definition("tumbling"), map_of({0: [0, 600 * SECOND], 1: [5, 7, None], 2: []}, 1))
    assert isinstance(plan, LoadPlan)
    assert plan.ranges == {0: (0, 1), 1: (10, 13), 2: (20, 20)}
    assert (plan.accepted, plan.rejected, plan.streamed) == (3, {"malformed": 1}, 1)
    assert "rejected   1 of the records" in explain_load("p", plan)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("session", "its windows are"),
        ("fold", "its windows are"),
        ("joined sources", "several sources"),
        ("as-of intervals", "several sources"),
        ("tumbling updates", "emit: updates"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_to_do(kind: str, why: str) -> None:
    with pytest.raises(RequestError, match=f"{why}.*`rivertwice start histories --from-batch` lets the stream"):
        refuse_load(make_definition(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_loaded_is_not_refused(kind: str) -> None:
    refuse_load(make_definition(kind))


def test_a_long_log_has_no_more_blocks_than_a_driver_can_hold() -> None:
    assert block_size(10) == LEAST_BLOCK
    assert 10**9 // block_size(10**9) <= MOST_ZONES


def test_the_archive_adds_older_records_only_where_it_meets_kafka() -> None:
    retained = {0: (10, 20), 1: (10, 20), 2: (10, 20), 3: (0, 0)}
    archived = {0: (2, 15), 1: (2, 8), 2: (3, 3)}
    assert all_records(retained, archived) == {0: (2, 20), 1: (10, 20), 2: (10, 20), 3: (0, 0)}


def test_what_came_after_the_archive_is_left_to_the_stream() -> None:
    retained = {0: (10, 20), 1: (10, 20), 2: (0, 5), 3: (0, 0)}
    archived = {0: (2, 15), 1: (10, 30)}  # partition 2 got its first records meanwhile
    assert all_records(retained, archived, only_archived=True) == {0: (2, 15), 1: (10, 20), 2: (0, 0), 3: (0, 0)}


@given(
    step=st.integers(1, 5),
    passes=st.integers(1, 4),
    first=st.integers(0, 50),
    windows=st.integers(1, 40),
    most=st.integers(1, 9),
)
def test_the_requests_of_all_pieces_ask_for_every_window(
    step: int, passes: int, first: int, windows: int, most: int
) -> None:
    size, step = step * passes * SECOND, step * SECOND
    since, before = first * step, (first + windows) * step
    pieces = cut_pieces([(since, before)], step, most)
    assert sum(end - start for start, end in pieces) == before - since
    assert all(end - start <= most * step for start, end in pieces)
    for start, end in pieces:
        request = ask_for("p", (start, end), size, step)
        assert request.range is not None
        ((low, high),) = covering([(to_ms(request.range.start), to_ms(request.range.end))], size, step)
        assert low <= start
        assert high == end
        assert low == start or end - start < size


LOAD = FirstLoad("p", "t1", "b", {"semantics": "s"}, "c", "t", "id", {0: (0, 9)}, 0, 100, 120, 9, {}, "test", EPOCH)


def published(seq: int, backfill: str, *ranges: tuple[int, int], semantics: str = "s") -> Publication:
    return Publication(seq, backfill, ranges, semantics, "b", {"t": {0: 9}})


def test_windows_are_unloaded_until_a_backfill_that_serves_publishes_them() -> None:
    serving = frozenset({"s"})
    cover = LOAD.covering(1)
    assert find_unloaded(LOAD, [cover], serving) == ((0, 100),)
    some = [cover, published(2, "bf-1", (20, 40)), published(3, "bf-2", (0, 10), semantics="other")]
    assert find_unloaded(LOAD, some, serving) == ((0, 20), (40, 100))
    assert find_unloaded(LOAD, [*some, published(4, "bf-3", (0, 200))], serving) == ()
    assert replace(LOAD, before_ms=90).cover != LOAD.cover


def lake_of(rows: int, end: int) -> LakeHistory:
    asked = LakeTable("delta", "/lake/events", "default", 7, {"at": "seen"}, None, None, "seen", EPOCH)
    files = [LakeFile("/lake/events/a.parquet", 1, rows)]
    return LakeHistory("events", "id", asked, end, pa.schema([]), files, [""])


@given(
    old=st.lists(st.integers(0, 600 * SECOND), min_size=1, max_size=20),
    new=st.lists(st.integers(500 * SECOND, 1500 * SECOND), min_size=1, max_size=20),
    block=st.integers(1, 9),
)
def test_no_block_has_records_of_a_history_and_of_the_log_and_the_stream_reads_none_of_the_history(
    old: list[int], new: list[int], block: int
) -> None:
    history = lake_of(len(old), end=10)
    low, end = history.ranges[0]
    times = dict(enumerate([*old, *new], start=low))
    rows: dict[int, list[int]] = {}
    for offset, event_ms in times.items():
        rows.setdefault(offset - (offset - end) % block, []).append(event_ms)
    table = pa.table(
        {
            "_partition": [0] * len(rows),
            "_at": list(rows),
            "_reason": pa.nulls(len(rows), pa.string()),
            "rows": [len(own) for own in rows.values()],
            "low": [min(own) for own in rows.values()],
            "high": [max(own) for own in rows.values()],
        }
    )
    mapped = to_map("events", {0: (low, end + len(new))}, block, table, {0: end})
    assert [at for zone in mapped.zones for at in range(zone.start, zone.end)] == list(times)
    assert not any(zone.start < end < zone.end for zone in mapped.zones)
    for zone in mapped.zones:
        own = [times[at] for at in range(zone.start, zone.end)]
        assert (zone.accepted, zone.min_event_ms, zone.max_event_ms) == (len(own), min(own), max(own))
    definition = make_definition("tumbling")
    plain = plan_load(definition, mapped)
    if isinstance(plain, str) or plain.ranges[0][1] < end:
        with pytest.raises(RequestError, match="a stream reads Kafka alone; wait until the log has records that close"):
            plan_load(definition, replace(mapped, history=history))
        return
    plan = plan_load(definition, replace(mapped, history=history))
    assert isinstance(plan, LoadPlan)
    assert plan == replace(plain, history=history)
    assert plan.ranges[0][1] >= end
    assert plan.history_ms == max(old)
    assert f"{len(old)} rows of snapshot 7 of delta table /lake/events" in explain_load("p", plan)


def test_a_record_of_the_log_from_before_the_end_of_the_history_is_named_with_an_end_that_fits() -> None:
    def first(ms: int | None) -> dict[str, object] | None:
        return None if ms is None else {"time": from_ms(ms), "_partition": 1, "_offset": ms}

    kind = pa.struct([("time", pa.timestamp("us", "UTC")), ("_partition", pa.int32()), ("_offset", pa.int64())])
    history = replace(lake_of(3, 0), table=replace(lake_of(3, 0).table, until=from_ms(5000)))
    require_apart(history, "events", pa.table({"first": pa.array([first(5000), None, first(7000)], kind)}))
    require_apart(history, "events", pa.table({"first": pa.array([None], kind)}))
    with pytest.raises(
        RequestError, match=r"events/1@3000 of 1970-01-01T00:00:03Z.*let `until` be 1970-01-01T00:00:03Z"
    ):
        require_apart(history, "events", pa.table({"first": pa.array([first(4000), first(3000)], kind)}))
