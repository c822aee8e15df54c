"""Curves: 300 steps of any range, peaks kept, gaps where nothing was known; the ledger completes what the ring lacks."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from homes.ledger import ledger_row
from homes.project import make_project
from homes.savepoint import add_timeline
from rivertwice.agent.ring import RingSample, ring_file, write_sample
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import to_iso, to_ms
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.read.marks import MOST, CurveEvent, ends_of, find_marks, restarts_of, select_marks
from rivertwice.read.series import describe_series, from_batches
from rivertwice.timeline.committed import table_of
from rivertwice.timeline.ledger import append_ledger
from simulated.facts import NOW, ago

NAME = "flights"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = make_project(tmp_path, {})
    made.pipeline(NAME).root.mkdir(parents=True)
    return made


def batch(number: int, minutes_ago: float, **changes: Any) -> Any:
    at = ago(minutes=minutes_ago)
    values = {
        "committed_at": at,
        "batch_timestamp_ms": to_ms(at) - 2_000,
        "batch_watermark_ms": to_ms(at) - 60_000,
        "read": 120,
    }
    return ledger_row(number, **{**values, "emitted": 12, **changes})


def known(series: dict[str, Any], curve: str, which: str = "most") -> dict[int, float]:
    """Return the known steps of a curve by their number from the end."""
    values = series["curves"].get(curve, {}).get(which, [])
    return {place - len(values): value for place, value in enumerate(values) if value is not None}


def test_a_peak_of_one_sample_is_seen_in_a_week(settings: Settings) -> None:
    home = settings.pipeline(NAME)
    for minutes in range(0, 120, 2):
        lag = 9_000.0 if minutes == 60 else 1.0
        write_sample(
            ring_file(home), RingSample(ago(minutes=minutes), "running", True, {"lag": lag}, {"t/0": int(lag)})
        )
    for name in ("6h", "24h", "7d"):
        series = to_plain(describe_series(home, name, ["t/0"], NOW))
        assert max(known(series, "lag").values()) == 9_000
        assert min(known(series, "lag", "least").values()) == 1
        assert len(series["times"]) == 300
        assert max(value for value in series["parts"]["t/0"] if value is not None) == 9_000
        assert len(json.dumps(series)) < 60_000


def test_steps_without_a_sample_are_gaps(settings: Settings) -> None:
    home = settings.pipeline(NAME)
    for minutes in (0, 30):
        write_sample(ring_file(home), RingSample(ago(minutes=minutes), "running", True, {"lag": 5.0}))
    series = to_plain(describe_series(home, "1h", [], NOW))
    assert set(known(series, "lag")) == {-1, -151}
    assert [state for state in series["states"] if state] == ["running", "running"]
    assert series["from_ledger"] == []


def test_a_range_that_is_not_known_is_refused(settings: Settings) -> None:
    with pytest.raises(RequestError, match="none of 1h, 6h, 24h, 7d"):
        to_plain(describe_series(settings.pipeline(NAME), "1y", [], NOW))


def test_the_ledger_has_what_happened_before_the_agent_kept_samples(settings: Settings) -> None:
    home = settings.pipeline(NAME)
    add_timeline(home, "t1")
    append_ledger(home, [batch(1, 50), batch(2, 49.99), batch(3, 10)])
    write_sample(ring_file(home), RingSample(ago(minutes=10), "running", True, {"read_per_s": 77.0, "batch_s": 9.0}))
    series = to_plain(describe_series(home, "1h", [], NOW))
    read, seconds = known(series, "read_per_s"), known(series, "batch_s")
    assert read[-251] + read.get(-250, 0) == 20.0, "two batches of 120 records in a step of 12 s"
    assert read[-150] == 0.0, "no batch came, so no record was read"
    assert -290 not in read, "before the first batch nothing is known"
    assert read[-51] == 77.0, "the ring comes first"
    assert seconds == {**dict.fromkeys(seconds, 2.0), -51: 9.0}
    assert set(series["from_ledger"]) >= {"read_per_s", "batch_s", "watermark_delay_s"}
    assert set(known(series, "watermark_delay_s").values()) == {60.0}


def test_batches_after_now_and_an_empty_ledger_tell_nothing() -> None:
    import numpy as np

    times = np.arange(0, 3600, 12)
    empty = table_of([])
    assert from_batches(empty, times, 12, NOW) == {}


def test_restarts_are_where_the_epoch_changes() -> None:
    rows = [batch(number, 50 - number, epoch=epoch) for number, epoch in ((1, 1), (2, 1), (3, 2), (4, 4))]
    marks = restarts_of(table_of(rows))
    assert [mark.text for mark in marks] == [
        f"driver of epoch {epoch}: its first batch is {first}" for epoch, first in ((1, 1), (2, 3), (4, 4))
    ]
    assert restarts_of(pa.table({"epoch": pa.array([], pa.int64()), "batch": [], "committed_at": []})) == []


def test_an_end_that_an_agent_on_a_full_disk_says_at_each_look_is_one() -> None:
    end = {
        "at": to_iso(NOW),
        "kind": "exit",
        "pipeline": NAME,
        "message": "no room",
        "class": "disk",
        "epoch": 2,
        "pid": 7,
    }
    lines = [json.dumps(end), json.dumps(end), json.dumps(end | {"epoch": 3, "pid": 9})]
    assert len(list(ends_of(lines, NAME))) == 2
    older = json.dumps({key: end[key] for key in end.keys() - {"epoch", "pid"}})
    assert len(list(ends_of([older, older], NAME))) == 2, "without them they may be of two drivers"


def test_ends_of_drivers_are_the_pipeline_s_and_torn_lines_are_left_out() -> None:
    event = {"at": to_iso(NOW), "kind": "exit", "pipeline": NAME, "class": "killed", "message": "return code -9"}
    lines = [
        't": "exit"}',
        json.dumps(event),
        json.dumps({**event, "pipeline": "other"}),
        json.dumps({"kind": "exit"}),
        '["exit"]',
    ]
    assert list(ends_of(lines, NAME)) == [CurveEvent(NOW, "end", "the driver ended as killed: return code -9")]


def test_marks_are_of_the_range_and_the_newest() -> None:
    marks = [CurveEvent(ago(minutes=minutes), "end", str(minutes)) for minutes in range(MOST + 50)]
    chosen = select_marks(marks, ago(hours=9), NOW)
    assert len(chosen) == MOST
    assert (chosen[0].text, chosen[-1].text) == (str(MOST), "1")
    assert select_marks(marks, NOW, NOW + timedelta(hours=1))[0].at == NOW


def test_a_pipeline_that_never_ran_has_no_mark_and_no_curve(settings: Settings) -> None:
    assert find_marks(settings, NAME, ago(hours=1), NOW) == []
    assert to_plain(describe_series(settings.pipeline(NAME), "7d", [], NOW))["curves"] == {}
