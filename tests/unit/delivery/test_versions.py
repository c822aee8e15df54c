"""Sinks at a switch between versions: one step changes what was delivered to what serves now, and equal rows do not come again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from homes.delivered_versions import AT, SecondVersion, serve
from homes.delivery import DeliveryHome
from rivertwice.config import Settings
from rivertwice.delivery.asked import sinks_of
from rivertwice.delivery.deliver import Delivered, Deliverer
from rivertwice.delivery.model import WITHDRAW, DeliveredRecord, Parcel, Position
from rivertwice.delivery.note import read_note
from rivertwice.delivery.status import view_delivery
from rivertwice.delivery.wire import position_from_json, position_to_json, value_text
from rivertwice.errors import RequestError
from rivertwice.versions.begin import drop_version

SINK = "{hook: {to: webhook, url_env: TEST_HOOK, guarantee: at_least_once}}"
Table = dict[tuple[int, str], int]


class Folding:
    """A sink that holds each key's row, as any reader would, and counts what it was sent."""

    def __init__(self) -> None:
        self.position: Position | None = None
        self.rows: dict[str, DeliveredRecord] = {}
        self.sent: list[DeliveredRecord] = []
        self.parcels: list[Parcel] = []

    def open(self, *_: object) -> Position | None:
        return self.position

    def deliver(self, parcel: Parcel, set_aside: object = None) -> None:
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
    asked = sinks_of(settings, "p")["hook"]
    return Deliverer(settings, "p", "hook", asked, sink=sink).run(threading.Event(), finish)  # type: ignore[arg-type]


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
    assert (sink.position.version, read_note(first.home, "hook").position) == ("p@v2", sink.position)
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
    with pytest.raises(RequestError, match="sink hook of p still has the rows of p@v2"):
        drop_version(first.settings, "p@v2", by="test", now=AT)
    (seen,) = view_delivery(first.settings, "p", sinks_of(first.settings, "p"))
    assert (seen["version"], seen["on_head_path"]) == ("p@v2", False)
    deliver(first.settings, sink)
    drop_version(first.settings, "p@v2", by="test", now=AT)
    assert view_delivery(first.settings, "p@v2", sinks_of(first.settings, "p@v2")) == []
