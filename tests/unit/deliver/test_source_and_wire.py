"""What is read from the tables, and what records look like."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from homes.delivery import DeliveryHome, fill
from rivertwice.core.errors import LedgerError, TableDamageError
from rivertwice.deliver.model import DeliveredColumns, DeliveredRecord, Position, RowOrigin
from rivertwice.deliver.plan import Limits, plan_next
from rivertwice.deliver.records import records_of
from rivertwice.deliver.source import StoredSource
from rivertwice.deliver.wire import key_text, plain, position_from_json, position_to_json, value_text

SHAPE = DeliveredColumns("p", "s", "e", ("k",), ("n",))
AT = Position("t2", 7, 3, "x", 9)
START, END = datetime(2013, 7, 1, tzinfo=UTC), datetime(2013, 7, 1, 1, tzinfo=UTC)


def test_a_record_carries_key_values_address_and_what_it_replaces() -> None:
    values = (START, END, "ä", 1)
    key = key_text(SHAPE, values)
    assert key == '{"pipeline":"p","window":["2013-07-01T00:00:00Z","2013-07-01T01:00:00Z"],"keys":{"k":"ä"}}'
    old = DeliveredRecord(
        "correct", key, values, RowOrigin(None, None, "bf-1"), RowOrigin("t1", 4, None), (START, END, "ä", 2)
    )
    assert json.loads(value_text(SHAPE, old, AT)) == {
        "format": 1,
        "op": "correct",
        "pipeline": "p",
        "window": ["2013-07-01T00:00:00Z", "2013-07-01T01:00:00Z"],
        "window_start": "2013-07-01T00:00:00Z",
        "window_end": "2013-07-01T01:00:00Z",
        "keys": {"k": "ä"},
        "values": {"n": 1},
        "from": {"backfill": "bf-1"},
        "replaces": {"timeline": "t1", "batch": 4, "values": {"n": 2}},
        "at": {"timeline": "t2", "batch": 7, "sequence": 3, "step": 9},
    }
    gone = json.loads(
        value_text(SHAPE, DeliveredRecord("withdraw", key, values, None, RowOrigin("t1", 4, None), values), AT)
    )
    assert (gone["values"], gone["from"], gone["replaces"]["values"]) == (None, None, {"n": 1})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+3"), "1000"),
        (float("nan"), "nan"),
        (0.1, 0.1),
        (2**62, 2**62),
        (True, True),
        (date(2013, 7, 1), "2013-07-01"),
        (b"\x00\xff", "00ff"),
        (None, None),
    ],
)
def test_no_value_loses_a_digit(value: object, shown: object) -> None:
    assert plain(value) == shown


def test_a_position_is_read_back_and_another_format_is_refused() -> None:
    text = position_to_json(AT, topic_id="i")
    assert position_from_json(text) == (AT, {"topic_id": "i"})
    with pytest.raises(LedgerError, match="unknown format"):
        position_from_json(text.replace('"format":1', '"format":3'))


@pytest.fixture
def world(tmp_path: Path) -> DeliveryHome:
    return DeliveryHome(tmp_path, "{x: {to: kafka, topic: out, guarantee: exactly_once}}")


def test_batches_that_only_the_changelog_has_are_read_once(world: DeliveryHome) -> None:
    source = StoredSource(world.home)
    assert source.look(None).batches == ()
    fill(world, "t1", range(3), keys=2)
    world.commit("t1", 3, 4, [(3, "a", 1)], copy=False)
    source = StoredSource(world.home)
    view = source.look(None)
    assert [(one.batch, one.rows) for one in view.batches] == [(0, 2), (1, 2), (2, 2), (3, 1)]
    step = plan_next(None, view, Limits(batches=3))
    assert len(records_of(step, None, view, source.shape(view), source)) == 6
    behind = source.look(step.to)
    assert [one.batch for one in behind.batches] == [2, 3]
    assert behind.held_closed_ms == view.batches[2].closed_ms


@pytest.mark.proves("guarantees.md#all-sinks")
def test_a_position_of_another_home_or_of_an_unknown_batch_is_refused(world: DeliveryHome) -> None:
    fill(world, "t1", range(2), keys=1)
    source = StoredSource(world.home)
    born = source.look(None).head.born
    with pytest.raises(LedgerError, match="from another home"):
        source.look(Position("t1", 0, 1, "2000-01-01T00:00:00Z", 1))
    with pytest.raises(LedgerError, match="the ledger does not know it"):
        source.look(Position("t1", 9, 1, born, 1))


@pytest.mark.proves("guarantees.md#all-sinks")
def test_rows_that_the_changelog_lacks_stop_the_delivery(world: DeliveryHome) -> None:
    fill(world, "t1", range(2), keys=2)
    source = StoredSource(world.home)
    view = source.look(None)
    step = plan_next(None, view, Limits())
    wrong = [one.__class__(one.timeline, one.batch, one.closed_ms, one.rows + 1) for one in step.batches]
    with pytest.raises(LedgerError, match="counts 6 rows for batches 0 to 1 of p, the changelog holds 4"):
        records_of(
            step.__class__(step.kind, step.to, step.closed_ms, tuple(wrong)), None, view, source.shape(view), source
        )


@pytest.mark.proves("guarantees.md#all-sinks")
def test_a_publication_that_lost_rows_is_not_delivered_as_if_it_had_fewer(world: DeliveryHome) -> None:
    fill(world, "t1", range(3), 1)
    world.publish(0, 1, [(0, "a", 5)], count=1)
    world.publish(1, 2, [(1, "a", 5)], count=2)
    source = StoredSource(world.home)
    assert source.look(None).seq == 3
    assert source.corrections(frozenset({"bf-2"})) is not None
    with pytest.raises(TableDamageError, match=r"bf-3 \(1 of 2 rows\).*rivertwice admin repair p"):
        source.corrections(frozenset({"bf-2", "bf-3"}))
