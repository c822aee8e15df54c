"""Intervals: what a definition may say of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from homes.one_source import INTERVAL, INTERVAL_SQL, INTERVAL_YAML, define_interval
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.definition.kinds import KINDS
from rivertwice.definition.kinds.intervals import Intervals

INTERVALS = next(kind for kind in KINDS if isinstance(kind, Intervals))


def test_an_interval_s_window_reaches_back_and_ahead_and_steps_by_every() -> None:
    window = define_interval().window
    assert window.kind == INTERVALS
    assert (window.length, window.step, window.passes) == (timedelta(minutes=8), timedelta(minutes=1), 8)
    assert window.text == "intervals of 1 minute that see 5 minutes before and 2 minutes after"


def test_intervals_need_keys_and_no_count_column_and_no_row_filter() -> None:
    with pytest.raises(DefinitionError, match="intervals need keys"):
        define_interval(keys="[]")
    with pytest.raises(DefinitionError, match="rows of intervals are not counted"):
        define_interval(extra="count_column: v\n")
    with pytest.raises(DefinitionError, match=r"intervals take no rows\.sql"):
        define_interval(rows="SELECT * FROM events WHERE v > 1")


def test_functions_over_an_order_and_distinct_counts_are_left_to_the_plan() -> None:
    sql = "SELECT window_start, window_end, k, at, lag(v) OVER (PARTITION BY window_start ORDER BY record) AS v FROM events"
    assert define_interval(sql=sql).window.kind == INTERVALS
    counted = "SELECT window_start, window_end, k, at, count(DISTINCT v) AS v FROM events GROUP BY ALL"
    assert define_interval(sql=counted).window.kind == INTERVALS
    with pytest.raises(DefinitionError, match="reads the clock"):
        define_interval(sql=INTERVAL_SQL.replace("v FROM", "now() AS v FROM"))


@pytest.mark.parametrize("other", ["every: 2 minutes", "lookback: 4 minutes", "lookahead: 1 minute", "at: seen_at"])
def test_another_reach_is_another_meaning(other: str) -> None:
    name = other.partition(":")[0]
    parts = dict(part.split(": ") for part in INTERVAL.strip("{}").split(", "))
    parts |= {name: other.partition(": ")[2]}
    if name == "every":
        parts |= {"lookback": "4 minutes"}
    window = "{" + ", ".join(f"{key}: {value}" for key, value in parts.items()) + "}"
    keys = "[k, at, seen_at]"
    changes = fingerprint_of(define_interval(keys=keys)).changes_to(fingerprint_of(define_interval(window, keys=keys)))
    assert [change.component for change in changes] == ["window"]
    assert set(changes[0].touches) == {"state", "semantics"}


TABLE = """
  names:
    topic: names
    role: table
    table_keys: [k]
    partitions: 1
    schema: {k: string, name: string, changed_at: timestamp}
    required: [k]
    event_time: changed_at
    max_future: 1 hour
window: WINDOW"""


def with_table(old: str = "", new: str = "", window: str = INTERVAL) -> Definition:
    table = TABLE.replace(old, new) if old else TABLE
    text = (
        INTERVAL_YAML.replace("window: WINDOW", table.lstrip("\n")).replace("WINDOW", window).replace("KEYS", "[k, at]")
    )
    return parse_files({"pipeline.yaml": text.encode(), "transform.sql": INTERVAL_SQL.encode()}, "p")


def test_a_table_stands_beside_a_stream_and_moves_no_watermark() -> None:
    definition = with_table()
    assert list(definition.streams) == ["events"]
    assert list(definition.tables) == ["names"]
    assert definition.topics == ["events", "names"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    table_keys: [k]\n", "", "a table needs table_keys"),
        ("table_keys: [k]", "table_keys: [name]", "'name', which must be a required field"),
        ("    max_future", "    watermark: 1 s\n    max_future", "a table moves no watermark"),
        ("role: table", "role: stream", "table_keys is .'k'., but the source is not a table"),
        ("    role: table\n    table_keys: [k]\n", "", "source .names. has no watermark"),
        ("name: string", "valid_to: string", "has the name of a column that intervals add"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        with_table(old, new)


def test_tables_alone_and_windows_of_several_sources_are_refused() -> None:
    with pytest.raises(DefinitionError, match="windows and sessions take exactly one"):
        with_table(window="{size: 1 minute}\ncount_column: v")
    text = (
        INTERVAL_YAML.replace("watermark: 1 minute", "role: table\n    table_keys: [k]")
        .replace("WINDOW", INTERVAL)
        .replace("KEYS", "[k, at]")
    )
    with pytest.raises(DefinitionError, match="every source is a table"):
        parse_files({"pipeline.yaml": text.encode(), "transform.sql": INTERVAL_SQL.encode()}, "p")
