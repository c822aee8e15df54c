"""A fold's rows as a table: newest by key, at an instant, history."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from homes.backfill import add_timeline
from homes.one_source import events_yaml
from homes.project import make_project
from rivertwice.cli.main import cli
from rivertwice.cli.results import parse_key
from rivertwice.core.errors import RequestError
from rivertwice.definition.bundle import build_bundle
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.savepoint.operations.rewind_plan import compare_emitted
from rivertwice.storage.table import Table
from rivertwice.timeline.key_view import as_folded, check_request, folded_views, select_rows
from rivertwice.timeline.sequence import move_head
from rivertwice.timeline.served_stamp import SERVED_KEY, ServedStamp

YAML = (
    events_yaml("{k: bigint, at: timestamp}", partitions=2)
    + """
window: {fold: 1 day, at: at}
by: [k]
state: {n: bigint}
keys: [k]
deleted: gone
columns: {at: {}, n: {}, gone: {}}
types: {at: timestamp, n: bigint, gone: boolean}
"""
)
FOLD = "def fold(state, event):\n    return None, []\n"


def define() -> Definition:
    return parse_files({"pipeline.yaml": YAML.encode(), "fold.py": FOLD.encode()}, "p")


def at(hour: int) -> datetime:
    return datetime(2024, 1, 1, hour, tzinfo=UTC)


def served() -> pa.Table:
    #        batch, record, row, k, hour, n, gone
    rows = [
        (1, 3, 0, 42, 12, 30, False),
        (0, 0, 0, 42, 10, 10, False),
        (0, 1, 0, 7, 11, 1, False),
        (0, 2, 0, 42, 9, 20, False),  # an event that came late counts where it came
        (1, 3, 1, 42, 12, 31, False),
        (2, 4, 0, 7, 13, 1, True),
        (2, 5, 0, 100, 14, 5, False),
    ]
    names = ("_batch", "record", "row", "k", "at", "n", "gone")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["at"] = [at(hour) for hour in columns["at"]]
    return pa.table({**columns, "at": pa.array(columns["at"], pa.timestamp("us", "UTC"))})


def shown(**asked: object) -> list[tuple[int, int]]:
    return [(row["k"], row["n"]) for row in select_rows(served(), define(), **asked)]  # type: ignore[arg-type]


@pytest.mark.proves("guarantees.md#folds-and-views")
def test_each_keys_newest_row_is_shown_in_order_and_no_removed_key() -> None:
    assert shown() == [(42, 31), (100, 5)]


@pytest.mark.proves("guarantees.md#folds-and-views")
def test_an_event_exactly_at_the_instant_counts() -> None:
    assert shown(at=at(12)) == [(7, 1), (42, 31)]
    assert shown(at=at(11)) == [(7, 1), (42, 20)]
    assert shown(at=datetime(2024, 1, 1, 9, 59, 59, tzinfo=UTC)) == [(42, 20)]
    assert shown(at=at(8)) == []


def test_a_history_has_every_row_in_log_order_with_its_address() -> None:
    assert shown(key={"k": 42}, history=True) == [(42, 10), (42, 20), (42, 30), (42, 31)]
    assert shown(key={"k": 7}, history=True) == [(7, 1), (7, 1)]
    last = select_rows(served(), define(), key={"k": 42})[0]
    assert (last["partition"], last["offset"], last["row"]) == (0, 3, 1)


def test_a_batch_holds_the_first_sources_rows_before_the_next_ones() -> None:
    text = YAML.replace("  events:", "  second: &other").replace("topic: events", "topic: b")
    text = text.replace("window:", "  first: {<<: *other, topic: a}\nwindow:")
    both = parse_files({"pipeline.yaml": text.encode(), "fold.py": FOLD.encode()}, "p")
    rows = served().append_column("source", pa.array(["first", "second", "first", "first", "first", "first", "second"]))
    turned = rows.set_column(rows.schema.get_field_index("record"), "record", pa.array([0, 9, 1, 2, 3, 4, 5]))
    history = select_rows(turned, both, key={"k": 42}, history=True)
    assert [(row["source"], row["offset"]) for row in history] == [
        ("second", 9), ("first", 2), ("first", 0), ("first", 3),
    ]  # fmt: skip
    same = turned.set_column(0, "_batch", pa.array([0] * 7))
    every = select_rows(same, both, history=True)
    assert [(row["source"], row["offset"]) for row in every] == [
        ("second", 5), ("second", 9), ("first", 0), ("first", 1), ("first", 2), ("first", 3), ("first", 4),
    ]  # fmt: skip
    assert {row["k"]: row["n"] for row in select_rows(same, both)} == {42: 31, 100: 5}


def test_a_rewind_of_any_order_compares_each_keys_newest_row() -> None:
    text = YAML.replace("by: [k]", "by: [k]\norder: any")
    any_order = parse_files({"pipeline.yaml": text.encode(), "fold.py": FOLD.encode()}, "p")
    old = as_folded(served(), folded_views(any_order))
    later = [at(23)] * 7
    new = old.set_column(old.schema.get_field_index("at"), "at", pa.array(later, pa.timestamp("us", "UTC")))
    windows = {name: pa.array(later, pa.timestamp("us", "UTC")) for name in ("window_start", "window_end")}
    old, new = (pa.table({**dict(zip(t.schema.names, t.columns, strict=True)), **windows}) for t in (old, new))
    found = compare_emitted(old, new, any_order)
    assert (found.same, found.differs, found.only_old, found.only_new) == (3, 0, 0, 0)
    found = compare_emitted(old, new.slice(0, 3), any_order)
    assert (found.same, found.differs, found.only_old, found.only_new) == (0, 2, 1, 0)
    assert [(one.row, one.old["n"], one.new.get("n")) for one in found.examples] == [
        ({"k": 100}, 5, None), ({"k": 42}, 31, 20), ({"k": 7}, 1, 1)
    ]  # fmt: skip


@pytest.fixture
def show(tmp_path: Path) -> Callable[..., Result]:
    """Return the command `show` of a fold whose served table has the rows above."""
    settings = make_project(tmp_path, {"p": {"pipeline.yaml": YAML, "fold.py": FOLD}})
    home, bundle = settings.pipeline("p"), build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    add_timeline(home, bundle, "t1", None, 0)
    move_head(home, "t1", reason="first start", expected_seq=0, now=at(0))
    Table(home.tables.served).append(served(), metadata={SERVED_KEY: ServedStamp(1, "t1", 2).plain()})
    return lambda *words: CliRunner().invoke(cli, ["show", "p", *words], env=settings.to_env())


@pytest.mark.proves("howto-folds.md#read-it", "cli.md#results")
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (("--by-key",), [(42, 31, 3), (100, 5, 5)]),
        (("--by-key", "--limit", "1"), [(100, 5, 5)]),
        (("--by-key", "--key", '{"k": 42}'), [(42, 31, 3)]),
        (("--at", "2024-01-01T11:00:00Z"), [(7, 1, 1), (42, 20, 2)]),
        (("--history", "--key", '{"k": 7}'), [(7, 1, 1), (7, 1, 4)]),
        (("--history", "--at", "2024-01-01T11:00:00Z", "--by-key"), [(42, 10, 0), (7, 1, 1), (42, 20, 2)]),
    ],
)
def test_show_has_a_folds_rows_by_key(show: Callable[..., Result], words: tuple[str, ...], rows: list[Any]) -> None:
    result = show(*words, "-o", "json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert [(row["k"], row["n"], row["offset"]) for row in value["rows"]] == rows
    assert (value["pipeline"], value["shows"]["batch"]) == ("p", 2)
    assert show(*words).output.splitlines()[-1] == f"{len(rows)} of {value['total']} rows, up to batch t1/2"


@pytest.mark.parametrize(
    "words",
    [
        ("--table", "served"),
        ("--from", "2024-01-01"),
        ("--columns", "n"),
        ("--order", "oldest"),
        ("--require-current",),
    ],
)
def test_an_option_of_tables_does_not_go_with_rows_by_key(show: Callable[..., Result], words: tuple[str, ...]) -> None:
    result = show("--history", *words)
    assert result.exit_code == 2
    assert f"{words[0]} does not go with --by-key, --at or --history" in result.output


def test_a_key_is_a_json_object_of_key_columns() -> None:
    assert parse_key(None) is None
    assert parse_key('{"k": 42}') == {"k": 42}
    for text in ("42", "k=42", "[]"):
        with pytest.raises(RequestError, match="is not a JSON object"):
            parse_key(text)
    with pytest.raises(RequestError, match="names 'x', which is not a key"):
        check_request(define(), {"x": 1})
