"""Change events of a database's table become the fold that keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rivertwice.definition.definition import parse_files
from rivertwice.local.changes import guess_table
from rivertwice.local.guess import Overrides, make_guess
from rivertwice.local.sample import RecordSample, SampleRecord
from rivertwice.local.write import pipeline_files


def change(number: int, *, op: str = "u", **row: Any) -> dict[str, Any]:
    values = {"id": number, "shop": "b", "on": True, "price": 1.5, "at": 1_767_000_000_000_000, **row}
    return {"before": values if op == "d" else None, "after": None if op == "d" else values, "op": op, "ts_ms": 5}


def sample(values: list[Mapping[str, Any]], keys: list[str | None]) -> RecordSample:
    records = [SampleRecord(0, n, 0, None, key, value) for n, (value, key) in enumerate(zip(values, keys, strict=True))]
    return RecordSample("topic t", "db.public.orders", 3, records)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("key", "keys", "key_field"),
    [
        (lambda n: json.dumps({"id": n}), ("id",), ["id"]),
        (lambda n: json.dumps({"schema": {}, "payload": {"id": n}}), ("id",), ["id"]),
        (lambda n: json.dumps({"id": n, "shop": "b"}), ("id", "shop"), ["id", "shop"]),
        (lambda n: json.dumps({"id": n, "on": True}), ("id",), None),  # a boolean cannot be read from a key
        (str, ("id",), "id"),
        (lambda _: None, ("id",), None),
        (lambda _: "?", ("id",), None),
    ],
)
def test_a_table_is_guessed_and_its_definition_is_accepted(
    key: Any, keys: tuple[str, ...], key_field: Any, wrapped: bool
) -> None:
    values = [change(n, op="cudr"[n % 4]) for n in range(12)]
    records = [{"schema": {}, "payload": value} for value in values] if wrapped else values
    guess = make_guess("orders", sample(records, [key(n) for n in range(12)]), Overrides())
    assert guess.table is not None
    assert guess.keys == keys
    files = {path.partition("orders/")[2]: text for path, text in pipeline_files(guess).items()}
    assert set(files) == {"pipeline.yaml", "fold.py"}
    definition = parse_files({name: text.encode() for name, text in files.items()}, "orders")
    (source,) = definition.sources.values()
    assert (source.topic, source.partitions, source.envelope) == ("db.public.orders", 3, "debezium")
    assert (source.schema_["at"], source.epochs) == ("timestamp", {"at": "us"})  # what the connector writes as a number
    assert (source.event_time, source.schema_["ts_ms"]) == ("ts_ms", "timestamp")  # declared by the envelope
    assert (source.tombstones, source.key_field) == (("dead", None) if key_field is None else ("delete", key_field))
    assert tuple(definition.keys) == keys


def test_other_records_are_no_change_events() -> None:
    for other in (
        {"op": "c", "ts_ms": 5},
        {"before": None, "after": None, "op": "u", "ts_ms": 1},
        {"after": {"id": 1}, "op": "x", "ts_ms": 1},
    ):
        assert guess_table(sample([change(1), other], [None, None])) is None
