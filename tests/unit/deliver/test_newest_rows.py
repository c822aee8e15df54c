"""Of a fold a sink may hold the newest row of each key: over random histories it holds just what a view of the head shows.

t1 ──0──1──2──3            a: 5, b: 2, c gone
          └──t2──3         a: 4, c: 1        the head moves: a corrected, b as it was, c emitted
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivertwice.core.errors import LedgerError
from rivertwice.core.instants import from_ms
from rivertwice.definition.kinds.stateful import FOREVER_MS
from rivertwice.deliver.model import WITHDRAW, Committed, DeliveredColumns, DeliveredRecord, Newest, Position
from rivertwice.deliver.plan import Limits
from rivertwice.deliver.wire import (
    check_rows,
    key_text,
    position_from_json,
    position_to_json,
    row_selection,
    value_text,
)
from simulated.delivery import WINDOW, Consumer, Deliverer, World

VIEWS = ("users", "orders")
FOLD = DeliveredColumns(
    "p", "window_start", "window_end", ("k",), ("source", "record", "row", "n", "gone"), newest=Newest(VIEWS, "gone")
)
SCHEMA = pa.schema(
    [
        ("_timeline", pa.string()),
        ("_batch", pa.int64()),
        ("window_start", pa.timestamp("us", "UTC")),
        ("window_end", pa.timestamp("us", "UTC")),
        ("source", pa.string()),
        ("record", pa.int64()),
        ("row", pa.int32()),
        ("k", pa.string()),
        ("n", pa.int64()),
        ("gone", pa.bool_()),
    ]
)


@dataclass
class FoldWorld(World):
    """Batches of a fold over two sources; of one batch the first source's rows count before the second's, whatever the table's order."""

    shape: DeliveredColumns = FOLD
    told: dict[tuple[str, int], list[dict[str, object]]] = field(default_factory=dict)

    def change(self, name: str, chance: random.Random) -> None:
        number = self.lines[name].path[-1].first + len(self.batches[name])
        rows = []
        for source in VIEWS:
            for record in sorted(chance.sample(range(100 * number, 100 * number + 50), chance.randint(0, 3))):
                for row in range(chance.choice([1, 1, 2])):
                    at = from_ms(chance.randrange(5) * WINDOW)
                    value = {"k": chance.choice("abc"), "n": chance.randrange(3), "gone": chance.random() < 0.3}
                    address = {"source": source, "record": record, "row": row}
                    rows.append({"window_start": at, "window_end": at, **address, **value})
        self.told[name, number] = rows
        mixed = [{"_timeline": name, "_batch": number, **row} for row in rows]
        chance.shuffle(mixed)
        self.rows += mixed
        self.batches[name].append(Committed(name, number, FOREVER_MS, len(rows)))

    def changelog(self, first: int, last: int) -> pa.Table:
        return pa.Table.from_pylist([row for row in self.rows if first <= row["_batch"] <= last], schema=SCHEMA)

    def shown(self) -> dict[str, tuple[str, int]]:
        """What a view of the head shows, by a loop."""
        found: dict[str, tuple[str, int]] = {}
        for batch in self.path_batches(self.head):
            for row in self.told[batch.timeline, batch.batch]:
                found.pop(str(row["k"]), None)
                if not row["gone"]:
                    found[str(row["k"])] = (str(row["source"]), int(str(row["n"])))
        return found


class Upserting(Consumer):
    """A table that sets and takes away by key, as PostgreSQL does."""

    def take(self, record: DeliveredRecord) -> None:
        if record.old is not None:
            assert self.rows[record.key].values == record.old
        if record.op == WITHDRAW:
            self.rows.pop(record.key, None)
        else:
            self.rows[record.key] = record

    def shown(self) -> dict[str, tuple[str, int]]:
        found = {}
        for text, record in self.rows.items():
            row = dict(zip(FOLD.columns, record.values, strict=True))
            assert json.loads(text) == {"pipeline": "p", "keys": {"k": row["k"]}}
            found[row["k"]] = (row["source"], row["n"])
        return found


@pytest.mark.proves("guarantees.md#all-sinks")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_sink_of_newest_rows_holds_what_a_view_shows(seed: int) -> None:
    chance = random.Random(seed)
    world, consumer = FoldWorld(), Upserting(FOLD)
    world.begin("t1")
    world.move_head("t1")
    deliverer = Deliverer(world, chance.choice([Limits(), Limits(batches=1), Limits(batches=3, rows=4)]), consumer)
    for _ in range(chance.randint(1, 25)):
        batches = world.path_batches(world.head)
        if not batches or chance.random() < 0.7:
            world.change(world.head, chance)
        else:
            name, fork = f"t{len(world.lines) + 1}", chance.choice([batches[-1], chance.choice(batches)])
            world.begin(name, (world.head, fork.batch))
            for _ in range(chance.randrange(3)):
                world.change(name, chance)
            world.move_head(name)
        deliverer.stumble(chance)
        if chance.random() < 0.3:
            deliverer.to_end()
            assert consumer.shown() == world.shown()
    deliverer.to_end()
    assert consumer.shown() == world.shown()


def test_a_moving_head_names_what_a_key_was_and_leaves_equal_rows() -> None:
    world, consumer = FoldWorld(), Upserting(FOLD)
    world.begin("t1")
    world.move_head("t1")
    commit(world, "t1", ("a", 1, False), ("b", 2, False), ("c", 9, False))
    commit(world, "t1", ("a", 5, False), ("c", 9, True))
    deliverer = Deliverer(world, Limits(), consumer)
    deliverer.to_end()
    assert {key: n for key, (_, n) in consumer.shown().items()} == {"a": 5, "b": 2}
    world.begin("t2", ("t1", 0))
    world.move_head("t2")
    seen: list[DeliveredRecord] = []
    consumer.take, taken = lambda record: (seen.append(record), taken(record))[-1], consumer.take  # type: ignore[method-assign]
    deliverer.to_end()
    assert [(one.op, one.values[2]) for one in seen] == [("correct", "a"), ("emit", "c")]
    assert {key: n for key, (_, n) in consumer.shown().items()} == {"a": 1, "b": 2, "c": 9}


def commit(world: FoldWorld, name: str, *changes: tuple[str, int, bool]) -> None:
    number = world.lines[name].path[-1].first + len(world.batches[name])
    rows = [
        {
            "window_start": from_ms(0),
            "window_end": from_ms(0),
            "source": "users",
            "record": 10 * number + place,
            "row": 0,
            "k": key,
            "n": n,
            "gone": gone,
        }
        for place, (key, n, gone) in enumerate(changes)
    ]
    world.told[name, number] = rows
    world.rows += [{"_timeline": name, "_batch": number, **row} for row in rows]
    world.batches[name].append(Committed(name, number, FOREVER_MS, len(rows)))


def test_a_row_of_a_key_that_is_gone_tells_its_key_and_no_values() -> None:
    values = (from_ms(0), from_ms(1000), "a", "users", 7, 0, None, True)
    record = DeliveredRecord(WITHDRAW, key_text(FOLD, values), values, None)
    told = json.loads(value_text(FOLD, record, Position("t1", 3, 0, "born", 1)))
    assert (told["op"], told["keys"], told["values"], told["replaces"]) == ("withdraw", {"k": "a"}, None, None)
    assert record.key == '{"pipeline":"p","keys":{"k":"a"}}'


def test_a_sink_that_holds_other_rows_is_not_gone_on_with() -> None:
    history = DeliveredColumns("p", "window_start", "window_end", ("source", "record", "row", "k"), ("n", "gone"))
    position = Position("t1", 3, 0, "born", 1)
    for held, asked, words in (
        (history, FOLD, "rows: all, and the definition says rows: newest"),
        (FOLD, history, "rows: newest, and"),
    ):
        _, more = position_from_json(position_to_json(position, **row_selection(held)))
        check_rows(held, more, "board")
        with pytest.raises(LedgerError, match=words):
            check_rows(asked, more, "board")
