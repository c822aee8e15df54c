"""Where the time of batches goes: phases that add up, reasons that a figure supports, advice that names a setting and what it brings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homes.project import FLIGHTS, make_project
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import parse_iso
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.read.time_advice import Usual, advise, phases_of, reason_of
from rivertwice.read.where_time import spans_of, steps_of
from rivertwice.timeline.batch_times import LIMIT, BatchTimes, batches_file

AT = parse_iso("2026-01-01T00:00:00Z")
SPARK = {"latestOffset": 10, "queryPlanning": 90, "getBatch": 1, "walCommit": 4, "addBatch": 880, "commitOffsets": 5}
SINK = {"look": 5, "tables": 0, "rows": 600, "check": 20, "side": 0, "commit": 40, "ledger": 10, "next": 5}
STATE = {
    "updated": 60,
    "removed": 9,
    "memory": 4000,
    "update_ms": 30,
    "remove_ms": 20,
    "commit_ms": 40,
    "partitions": 2,
}
PLAIN = BatchTimes(
    "t1", 7, 1, AT, 1000, 500, 9, SPARK, SINK, STATE, slots=2, files=1, parts=4, part="0", part_share=0.3
)
USUAL = Usual(500, 1.0)


def batches(count: int, one: BatchTimes = PLAIN, pause_s: float = 0.0) -> list[BatchTimes]:
    step = timedelta(milliseconds=one.ms, seconds=pause_s)
    return [replace(one, batch=number, at=AT + number * step) for number in range(count)]


def test_the_phases_of_a_batch_add_up_to_it() -> None:
    phases = phases_of(PLAIN)
    assert phases["rows"] == 0.6
    assert phases["plan"] == 0.105
    assert sum(phases.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (PLAIN, "read, decode, transform and state took 60 %"),
        (replace(PLAIN, state={**STATE, "commit_ms": 1_420}), "took 60 %: the state's commit took at least 71 %"),
        (replace(PLAIN, state={**STATE, "update_ms": 700}), "what goes into and out of the state took at least 36 %"),
        (replace(PLAIN, sink={**SINK, "commit": 700, "rows": 90}, files=41), "the commit took 71 %: it wrote 41 files"),
        (replace(PLAIN, read=9_000, part_share=0.93), "it read 9,000 records, and most batches read 500"),
        (replace(PLAIN, read=1_400, part_share=0.93), "partition 0 had 93 % of its records"),
        (replace(PLAIN, read=1_400, part_share=1.0, parts=1), "read, decode, transform and state took 60 %"),
    ],
)  # fmt: skip
def test_a_reason_is_the_phase_that_took_most_and_what_a_figure_says_of_it(times: BatchTimes, said: str) -> None:
    reason = reason_of(times, USUAL, is_first=False)
    assert said in reason
    assert ("partition" in reason) == ("partition" in said)


def test_the_first_batch_of_a_driver_says_so() -> None:
    assert reason_of(PLAIN, USUAL, is_first=True).endswith("the driver's first batch, which loads code and state")


def test_a_batch_in_two_steps_is_spread_and_the_time_between_has_a_name() -> None:
    first, second, third = batches(3, pause_s=2.0)
    third = replace(third, epoch=2)
    spans = spans_of([first, second, third], third.end + timedelta(seconds=1))
    steps = steps_of(spans, 1.5)
    whole = (spans[-1][1] - spans[0][0]).total_seconds()
    assert sum(sum(step.seconds.values()) for step in steps) == pytest.approx(whole, abs=0.01)
    sums = {name: sum(step.seconds.get(name, 0) for step in steps) for name in ("idle", "no driver", "rows")}
    assert sums == pytest.approx({"idle": 3.0, "no driver": 2.0, "rows": 1.8})
    assert all(sum(step.seconds.values()) <= 1.501 for step in steps)
    assert all(
        steps_of([(AT, AT + timedelta(seconds=3, microseconds=1), {"idle": 3.000001})], 1.0)[-1].seconds.values()
    )


@pytest.fixture
def definition(tmp_path: Path) -> Definition:
    """The flights, in batches that are not full."""
    made = make_project(tmp_path, {"flight_delays": FLIGHTS})
    return with_stream(load_definition(made.definitions / "flight_delays"), max_offsets_per_trigger=10_000)


def with_stream(definition: Definition, **pins: Any) -> Definition:
    return definition.model_copy(update={"stream": definition.stream.model_copy(update=pins)})


def test_small_batches_without_a_pause_get_a_trigger_and_what_it_brings(definition: Definition) -> None:
    (advice,) = advise(batches(60), [], definition)
    assert (advice.setting, advice.now, advice.to) == ("stream.trigger", "0 s", "5 s")
    assert "100 % of the time" in advice.why
    assert "12 batches a minute instead of 60, so about 80 % less work" in advice.brings
    assert advise(batches(60, pause_s=3), [3.0] * 59, definition) == []
    assert advise(batches(19), [], definition) == []


def test_full_batches_get_a_larger_limit_and_not_a_trigger(definition: Definition) -> None:
    (advice,) = advise(batches(60), [], with_stream(definition, max_offsets_per_trigger=500))
    assert (advice.setting, advice.now, advice.to) == ("stream.max_offsets_per_trigger", "500", "2000")
    assert "about 30 % less time" in advice.brings  # 40 % of a batch does not grow with its records


def test_more_partitions_than_cores_cost_commits_of_the_state(definition: Definition) -> None:
    many = replace(PLAIN, read=5_000, state={**STATE, "commit_ms": 1_000, "partitions": 8}, slots=2)
    (advice,) = advise(batches(60, many), [], definition)
    assert (advice.setting, advice.now, advice.to) == ("stream.shuffle_partitions", "8", "2")
    assert "about 38 % less time" in advice.brings


def test_a_slow_checkpoint_asks_for_a_local_disk(definition: Definition) -> None:
    slow = replace(PLAIN, read=5_000, spark={**SPARK, "commitOffsets": 2_000}, ms=3_000)
    (advice,) = advise(batches(60, slow), [], definition)
    assert advice.setting == "RIVERTWICE_HOME"


def test_long_pauses_let_the_driver_rest(definition: Definition) -> None:
    (advice,) = advise(batches(60), [7200.0], definition)
    assert (advice.setting, advice.to) == ("stream.hibernate", "10 minutes")
    assert advise(batches(60), [7200.0], with_stream(definition, hibernate=timedelta(minutes=5))) == []


def test_the_file_stays_small_and_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    home = PipelineHome(tmp_path)
    for number in range(1_500):
        replace(PLAIN, batch=number, at=AT + timedelta(seconds=number)).record(home)
    path = batches_file(home)
    sizes = [each.stat().st_size for each in tmp_path.glob("batches.jsonl*")]
    assert (len(sizes), max(sizes) < LIMIT + 1_000) == (2, True)
    kept = BatchTimes.newest(home)
    assert kept[-1].batch == 1_499
    assert [each.batch for each in kept] == list(range(kept[0].batch, 1_500))
    with path.open("ab") as file:
        file.write(b'{"format":1,"timel\n{"format":9}\nnull\n')
    assert BatchTimes.newest(home) == kept
