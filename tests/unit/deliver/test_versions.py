"""Sinks at a switch between versions: one step changes what was delivered to what serves now, and equal rows do not come again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from homes.delivered_versions import AT, SecondVersion, serve
from homes.delivery import DeliveryHome
from rivertwice.core.errors import RequestError
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.deliver.deliver import Delivered, Deliverer
from rivertwice.deliver.model import WITHDRAW, DeliveredRecord, DeliveryBatch, Position
from rivertwice.deliver.note import read_note
from rivertwice.deliver.status import sinks_of, view_delivery
from rivertwice.deliver.wire import position_from_json, position_to_json, value_text
from rivertwice.versions.begin import drop_version

SINK = "{out: {to: kafka, topic: out, guarantee: exactly_once}}"
Table = dict[tuple[int, str], int]


class Folding:
    """A sink that holds each key's row, as any reader would, and counts what it was sent."""

    def __init__(self) -> None:
        self.position: Position | None = None
        self.rows: dict[str, DeliveredRecord] = {}
        self.sent: list[DeliveredRecord] = []
        self.parcels: list[DeliveryBatch] = []

    def open(self, *_: object) -> Position | None:
        return self.position

    def deliver(self, parcel: DeliveryBatch, set_aside: object = None) -> None:
        del set_aside
        assert parcel.before == self.position
        for record in parcel.records:
            held = self.rows.get(record.key)
            assert (record.old is None) == (held is None)
            if record.op == WITHDRAW:
                del self.rows[record.key]
            else:
                self.rows[record.key] = record
        self.sent += parcel.records
        self.parcels.append(parcel)
        self.position = parcel.after

    def forget(self) -> None:
        self.position = None

    def close(self) -> None:
        return

    def holds(self) -> Table:
        values = [record.values for record in self.rows.values()]
        return {(int(start.timestamp()) // 3600, k): n for start, _, k, n, *_ in values}


def deliver(settings: Settings, sink: Folding) -> Delivered:
    finish = threading.Event()
    finish.set()
    asked = sinks_of(settings, "p")["out"]
    return Deliverer(settings, "p", "out", asked, sink=sink).run(threading.Event(), finish)  # type: ignore[arg-type]


@pytest.fixture
def first(tmp_path: Path) -> DeliveryHome:
    home = DeliveryHome(tmp_path, SINK)
    for hour in range(4):
        home.commit("t1", hour, hour + 1, [(hour, "a", hour), (hour, "b", 10)])
    home.served()
    return home


def second_of(first: DeliveryHome) -> SecondVersion:
    """Return a version that counts a hundred more for key `a`."""
    new = SecondVersion(first, {"transform.sql": ("count(*)", "count(*) + if(k = 'a', 100, 0)")})
    for hour in range(4):
        new.commit("t1", hour, hour + 1, [(hour, "a", 100 + hour), (hour, "b", 10)])
    return new


@pytest.mark.proves("guarantees.md#all-sinks")
def test_a_sink_changes_by_one_step_to_the_version_that_serves(first: DeliveryHome) -> None:
    sink = Folding()
    deliver(first.settings, sink)
    assert sink.holds() == first.served()
    new = second_of(first)
    assert deliver(first.settings, sink).records == 0  # it runs beside
    serve(first, "p@v2")
    done = deliver(first.settings, sink)
    assert (done.steps, done.records) == (1, 4)  # those of key b are the same
    assert {record.op for record in sink.sent[-4:]} == {"correct"}
    assert sink.holds() == new.served()
    assert (sink.position.version, read_note(first.home, "out").position) == ("p@v2", sink.position)
    assert '"version":"p@v2"' in value_text(sink.parcels[-1].shape, sink.sent[-1], sink.position)
    assert sink.parcels[-1].shape.pipeline == "p"

    first.commit("t1", 4, 5, [(4, "a", 4)])  # it goes on beside, and delivers nothing
    new.commit("t1", 4, 5, [(4, "a", 104)])
    assert deliver(first.settings, sink).records == 1
    new.publish(0, 1, [(0, "a", 7)])
    deliver(first.settings, sink)
    assert sink.holds() == new.served()

    serve(first, "p")
    deliver(first.settings, sink)
    assert sink.holds() == first.served()
    assert sink.position.version == ""
    assert deliver(first.settings, sink).records == 0


def test_rows_with_other_columns_are_all_sent(first: DeliveryHome) -> None:
    sink = Folding()
    deliver(first.settings, sink)
    edits = {
        "transform.sql": ("count(*) AS n", "count(*) AS n, 2 * count(*) AS twice"),
        "pipeline.yaml": ("columns: {n: {compare: exact}}", "columns: {n: {compare: exact}, twice: {}}"),
    }
    new = SecondVersion(first, edits)
    for hour in range(4):
        new.commit_wide(hour, hour + 1, [(hour, "a", hour), (hour, "b", 10)], {"twice": [2 * hour, 20]})
    serve(first, "p@v2")
    done = deliver(first.settings, sink)
    assert (done.steps, done.records) == (1, 8)
    assert all(record.values[-1] == 2 * record.values[-2] for record in sink.rows.values())
    assert sink.parcels[-1].schema is not None
    assert "twice" in sink.parcels[-1].schema.names
    serve(first, "p")
    assert deliver(first.settings, sink).records == 8
    assert sink.holds() == first.served()


def renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns(["origin" if name == "k" else name for name in table.column_names])


def split(table: pa.Table) -> pa.Table:
    return table.append_column("j", pa.array(["x"] * table.num_rows))


OTHER_KEYS: dict[str, tuple[dict[str, tuple[str, str]], Callable[[pa.Table], pa.Table]]] = {
    "renamed": (
        {"pipeline.yaml": ("keys: [k]", "keys: [origin]"), "transform.sql": ("end, k,", "end, k AS origin,")},
        renamed,
    ),
    "one more": (
        {"pipeline.yaml": ("keys: [k]", "keys: [k, j]"), "transform.sql": ("end, k,", "end, k, 'x' AS j,")},
        split,
    ),
}


@pytest.mark.parametrize("change", OTHER_KEYS)
def test_rows_with_other_keys_take_the_place_of_all_that_was_delivered(first: DeliveryHome, change: str) -> None:
    sink = Folding()
    deliver(first.settings, sink)
    old = set(sink.rows)
    edits, shape = OTHER_KEYS[change]
    new = SecondVersion(first, edits)
    for hour in range(4):
        new.commit_as(hour, hour + 1, [(hour, "a", hour), (hour, "b", 10)], shape)
    serve(first, "p@v2")
    done = deliver(first.settings, sink)
    assert (done.steps, done.records) == (1, 16)
    withdrawn = [record for record in sink.sent[-16:] if record.op == WITHDRAW]
    assert {record.key for record in withdrawn} == old
    assert not old & set(sink.rows)
    assert len(sink.rows) == 8
    for record in withdrawn:  # readers get the keys and values by which they know the row
        told = json.loads(value_text(sink.parcels[-1].shape, record, sink.position))
        assert (list(told["keys"]), list(told["replaces"]["values"])) == (["k"], ["n"])
    serve(first, "p")
    assert deliver(first.settings, sink).records == 16
    assert set(sink.rows) == old
    assert sink.holds() == first.served()


def test_rows_whose_window_columns_have_other_names_are_the_same_rows(first: DeliveryHome) -> None:
    sink = Folding()
    deliver(first.settings, sink)
    edits = {
        "pipeline.yaml": ("{size: 1 hour}", "{size: 1 hour, start_column: s, end_column: e}"),
        "transform.sql": (
            "window.start AS window_start, window.end AS window_end",
            "window.start AS s, window.end AS e",
        ),
    }
    new = SecondVersion(first, edits)
    names = {"window_start": "s", "window_end": "e"}

    def shape(table: pa.Table) -> pa.Table:
        return table.rename_columns([names.get(name, name) for name in table.column_names])

    for hour in range(4):
        new.commit_as(hour, hour + 1, [(hour, "a", hour), (hour, "b", 10)], shape)
    held = set(sink.rows)
    serve(first, "p@v2")
    deliver(first.settings, sink)
    assert {record.op for record in sink.parcels[-1].records} == {"correct"}  # its columns are others, so each is sent
    assert set(sink.rows) == held


def test_a_position_says_its_version_and_an_old_one_reads_as_the_first() -> None:
    old = '{"batch":7,"born":"x","format":1,"number":9,"seq":3,"timeline":"t2"}'
    position, more = position_from_json(old)
    assert (position, more) == (Position("t2", 7, 3, "x", 9), {})
    assert position_to_json(position) == old
    later = replace(position, version="p@v2")
    assert position_from_json(position_to_json(later)) == (later, {})


def test_a_version_is_not_dropped_while_a_sink_has_its_rows(first: DeliveryHome) -> None:
    sink = Folding()
    deliver(first.settings, sink)
    second_of(first)
    serve(first, "p@v2")
    deliver(first.settings, sink)
    serve(first, "p")
    with pytest.raises(RequestError, match="sink out of p still has the rows of p@v2"):
        drop_version(first.settings, "p@v2", by="test", now=AT)
    (seen,) = to_plain(view_delivery(first.settings, "p", sinks_of(first.settings, "p")))
    assert (seen["version"], seen["on_head_path"]) == ("p@v2", False)
    deliver(first.settings, sink)
    drop_version(first.settings, "p@v2", by="test", now=AT)
    assert to_plain(view_delivery(first.settings, "p@v2", sinks_of(first.settings, "p@v2"))) == []
