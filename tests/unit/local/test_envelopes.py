"""Records within an envelope, as connectors write them, are looked at and become a definition by their own fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rivertwice.cli.main import cli
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.folds import load_fold
from rivertwice.local.guess import Overrides, make_guess
from rivertwice.local.produce import plan_file
from rivertwice.local.sample import RecordSample, SampleRecord

START_S = 1_450_557_744
MAXWELL = {
    "read": {"database": "shop", "table": "orders", "type": "bootstrap-insert", "ts": START_S, "data": {"id": 1, "shopName": "a", "price": 9.5}},
    "start": {"database": "shop", "table": "orders", "type": "bootstrap-start", "ts": START_S, "data": {}},
    "end": {"database": "shop", "table": "orders", "type": "bootstrap-complete", "ts": START_S, "data": {}},
    "insert": {"database": "shop", "table": "orders", "type": "insert", "ts": START_S + 1, "xid": 940752, "commit": True, "data": {"id": 2, "shopName": "b", "price": 1.25}},
    "update": {
        "database": "shop", "table": "orders", "type": "update", "ts": START_S + 5, "xid": 940786, "xoffset": 1, "data": {"id": 2, "shopName": "b", "price": 2},
        "old": {"price": 1.25},
    },
    "delete": {"database": "shop", "table": "orders", "type": "delete", "ts": START_S + 9, "xid": 940790, "commit": True, "data": {"id": 1, "shopName": "a", "price": 9.5}},
}  # fmt: skip
DDL = {"type": "table-alter", "database": "shop", "table": "orders", "ts": START_S * 1000, "sql": "alter table orders"}


def cloud_event(number: int, **attributes: Any) -> dict[str, Any]:
    """An event as an SDK writes it in structured mode."""
    data = {"orderId": number, "shop": "ab"[number % 2], "amount": 2.5, "eventTime": "2020-01-01T00:00:00Z"}
    return {
        "specversion": "1.0",
        "id": f"A234-1234-{number}",
        "source": "/shops/web",
        "type": "com.example.order.placed",
        "time": f"2026-03-01T00:{number:02}:00.123Z",
        "datacontenttype": "application/json",
        "data": data,
        **attributes,
    }


def write(folder: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / "orders.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def look(file: Path) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["--output", "json", "look", str(file)])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def init(file: Path) -> tuple[Definition, dict[str, Any]]:
    """Return the definition that a file suggests, and the guess."""
    words = ["--output", "json", "--project", str(file.parent / "own"), "init", "orders", "--from-file", str(file)]
    result = CliRunner().invoke(cli, [*words, "--dry-run"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    inner = {each["path"].removeprefix("pipelines/orders/"): each["text"] for each in value["files"]}
    files = {name: text.encode() for name, text in inner.items() if "/" not in name and name.endswith((".yaml", ".sql", ".py"))}  # fmt: skip
    files.pop("rivertwice.yaml")
    files.pop("docker-compose.yml", None)
    return parse_files(files, "orders"), value["guess"]


@pytest.mark.proves("howto-cdc.md#from-maxwell")
def test_what_maxwell_writes_becomes_the_fold_that_keeps_the_table(tmp_path: Path) -> None:
    file = write(tmp_path, [*(MAXWELL[each] for each in ("start", "read", "end", "insert", "update", "delete")), DDL])
    found = look(file)
    assert found["envelope"] == "change events of Maxwell, table shop.orders"
    assert (found["event_time"], found["first"], found["last"]) == ("changed_at", "2015-12-19T20:42:24Z", "2015-12-19T20:42:33Z")  # fmt: skip
    assert (found["records"], found["keys"], found["delays"]) == (4, ["id"], [])
    assert any("a bootstrap's start or end" in each for each in found["warnings"])
    definition, guess = init(file)
    (source,) = definition.sources.values()
    assert guess["gaps"] == []
    assert source.paths == {"id": "data.id", "shop_name": "data.shopName", "price": "data.price", "change": "type", "changed_at": "ts"}  # fmt: skip
    assert (source.event_time, source.epochs, source.envelope) == ("changed_at", {"changed_at": "s"}, "none")
    assert (definition.by, definition.keys, definition.deleted) == (["id"], ["id"], "deleted")


def test_a_delete_of_maxwell_takes_the_row_out_of_the_table(tmp_path: Path) -> None:
    definition, _ = init(write(tmp_path, list(MAXWELL.values())))
    assert definition.fold_py is not None
    fold = load_fold(definition.fold_py)
    event = {"id": 1, "shop_name": "a", "price": 1, "change": "bootstrap-insert", "changed_at": datetime(2026, 1, 1, tzinfo=UTC)}  # fmt: skip
    state, rows = fold(None, event)
    assert rows == [{"shop_name": "a", "price": 1, "deleted": False}]
    state, rows = fold(state, {**event, "change": "delete"})
    assert (state, rows) == (None, [{"shop_name": "a", "price": 1, "deleted": True}])
    assert fold(None, {**event, "change": "delete"}) == (None, [])


@pytest.mark.parametrize(
    ("key", "more", "sure"),
    [
        ('{"database":"shop","table":"orders","pk.shopName":"a","pk.id":1}', {}, "certain"),
        ('["shop","orders",[{"shopName":"a"},{"id":1}]]', {}, "certain"),
        (None, {"primary_key": ["a", 1], "primary_key_columns": ["shopName", "id"]}, "certain"),
        ('{"database":"shop","table":"orders","_uuid":"b5f3"}', {}, "a guess"),
        ('["shop","orders",1]', {}, "a guess"),
        ("?", {}, "a guess"),
    ],
)
def test_the_primary_key_is_what_the_records_of_maxwell_name(key: str | None, more: dict[str, Any], sure: str) -> None:
    values = [{**MAXWELL[each], **more} for each in ("insert", "update", "delete")]
    records = [SampleRecord(0, n, 0, None, key, value) for n, value in enumerate(values)]
    guess = make_guess("orders", RecordSample("topic t", "t", 3, records), Overrides())
    assert guess.table is not None
    assert (guess.keys, guess.table.sure) == (("shop_name", "id") if sure == "certain" else ("id",), sure)


def test_changes_of_several_tables_are_refused_with_what_maxwell_has_to_write(tmp_path: Path) -> None:
    file = write(tmp_path, [MAXWELL["insert"], {**MAXWELL["insert"], "table": "items"}])
    result = CliRunner().invoke(cli, ["look", str(file)])
    assert result.exit_code == 1
    assert "changes of 2 tables (shop.items, shop.orders)" in result.output
    assert "kafka_topic=%{database}.%{table}" in result.output


def test_of_cloud_events_the_fields_are_those_of_data_and_the_time_is_theirs(tmp_path: Path) -> None:
    file = write(tmp_path, [cloud_event(n, type="placed" if n % 3 else "cancelled") for n in range(40)])
    found = look(file)
    assert (found["envelope"], found["event_time"], found["keys"]) == ("CloudEvents", "time", ["shop"])
    assert found["first"] == "2026-03-01T00:00:00.123000Z"
    definition, guess = init(file)
    (source,) = definition.sources.values()
    assert source.schema_ == {
        "time": "timestamp", "type": "string", "order_id": "bigint", "shop": "string", "amount": "decimal(18,2)", "event_time": "timestamp",
        "is_heartbeat": "boolean",
    }  # fmt: skip
    assert source.paths == {"order_id": "data.orderId", "shop": "data.shop", "amount": "data.amount", "event_time": "data.eventTime"}  # fmt: skip
    assert (source.event_time, definition.window.size is not None) == ("time", True)
    assert guess["gaps"] == []


@pytest.mark.parametrize(
    ("data", "path", "name"),
    [
        ({"time": 1, "type": "x"}, "data.time", "time"),
        ({"schema": {"type": "struct"}, "payload": {"price": 5}}, "data.payload.price", "price"),
    ],
)
def test_a_field_of_data_keeps_its_name(data: Mapping[str, Any], path: str, name: str) -> None:
    records = [SampleRecord(0, n, 0, None, None, cloud_event(n, data=data)) for n in range(9)]
    guess = make_guess("orders", RecordSample("topic t", "t", 3, records), Overrides())
    assert guess.sample.paths[name] == path
    assert guess.event_time is not None
    assert guess.sample.paths.get(guess.event_time.name, guess.event_time.name) == "time"


def test_change_events_within_cloud_events_are_said_to_be_readable_without(tmp_path: Path) -> None:
    _, guess = init(write(tmp_path, [cloud_event(n, data={"before": None, "after": {"pk": n}}) for n in range(9)]))
    (found,) = [each for each in guess["findings"] if each["what"] == "table"]
    assert "value.converter=org.apache.kafka.connect.json.JsonConverter" in found["why"]


@pytest.mark.parametrize("strange", [{"data": "text"}, {"data": [1]}, {"subject": {}}, {"specversion": 1}])
def test_what_is_no_cloud_event_in_json_is_a_plain_record(tmp_path: Path, strange: dict[str, Any]) -> None:
    assert look(write(tmp_path, [cloud_event(1), cloud_event(2, **strange)]))["envelope"] is None


def test_what_debezium_writes_is_timed_by_ts_ms_without_a_word(tmp_path: Path) -> None:
    rows = [{"id": n % 3, "status": "new", "at": 1_767_000_000_000_000 + n} for n in range(9)]
    source = {"version": "3.0.0.Final", "connector": "postgresql", "name": "db", "ts_ms": 1, "db": "shop", "table": "orders"}  # fmt: skip
    events = [
        {"before": None, "after": row, "source": source, "transaction": None, "op": "c", "ts_ms": 1_767_000_000_123 + n}
        for n, row in enumerate(rows)
    ]
    file = write(tmp_path, [{"schema": {"type": "struct", "fields": []}, "payload": each} for each in events])
    found = look(file)
    assert (found["envelope"], found["event_time"]) == ("change events of Debezium", "ts_ms")
    assert (found["first"], found["disordered"]) == ("2025-12-29T09:20:00.123000Z", 0)
    definition, _ = init(file)
    (declared,) = definition.sources.values()
    assert (declared.event_time, declared.epochs) == ("ts_ms", {"at": "us"})
    assert list(declared.schema_) == ["id", "status", "at", "ts_ms"]
    sent = list(plan_file(definition, file)._records("mark", datetime(2026, 11, 1, tzinfo=UTC)))
    assert [(each.key, each.timestamp_ms) for each in sent[:2]] == [(b"0", 1_767_000_000_123), (b"1", 1_767_000_000_124)]  # fmt: skip


def test_a_key_that_looks_like_a_time_stays_a_number(tmp_path: Path) -> None:
    rows = [{"id": 1_767_000_000_123 + n, "name": "x"} for n in range(5)]
    definition, _ = init(write(tmp_path, [{"before": None, "after": row, "op": "r", "ts_ms": 1_767_000_000_123} for row in rows]))  # fmt: skip
    (source,) = definition.sources.values()
    assert (definition.keys, source.schema_["id"], source.epochs) == (["id"], "bigint", {})


def test_a_table_with_a_column_ts_ms_is_timed_by_the_event_beside_it(tmp_path: Path) -> None:
    rows = [{"id": n, "ts_ms": n} for n in range(5)]
    file = write(tmp_path, [{"before": None, "after": row, "op": "r", "ts_ms": 1_767_000_000_123} for row in rows])
    definition, _ = init(file)
    (source,) = definition.sources.values()
    assert (source.event_time, source.schema_["ts_ms"]) == ("changed_at", "bigint")
    assert look(file)["last"] == "2025-12-29T09:20:00.123000Z"
