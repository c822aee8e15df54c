"""A source's heartbeats: how a definition declares them, and the one that closes the last windows of a file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homes.one_source import INTERVAL, INTERVAL_SQL, INTERVAL_YAML, WINDOWS_YAML
from rivertwice.core.errors import DefinitionError
from rivertwice.core.instants import EPOCH, to_iso
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.fingerprint import fingerprint_of
from rivertwice.local.produce import ClosingHeartbeat, heartbeat_record

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
SQL = "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n FROM events GROUP BY window(at, '1 hour'), k"


def define(
    heartbeat: str = "", *, rows: str | None = None, change: tuple[str, str] = ("", ""), sql: str = SQL
) -> Definition:
    text = WINDOWS_YAML.replace("WINDOW", "{size: 1 hour}").replace("KEYS", "[k]")
    text = text.replace("d: double", "d: double, beat: boolean, kind: string, n2: bigint").replace(*change)
    text = text.replace("    max_future", f"    {heartbeat}\n    max_future")
    files = {"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}
    return parse_files(files if rows is None else {**files, "rows.sql": rows.encode()}, "p")


def test_heartbeats_are_left_out_like_rows_that_rows_sql_leaves_out() -> None:
    assert define().rows_sql is None
    beating = define("heartbeat: {beat: true, kind: it's, n2: 7}")
    assert beating.rows_sql == "SELECT * FROM events WHERE NOT (`beat` <=> true AND `kind` <=> 'it\\'s' AND `n2` <=> 7)"
    both = define("heartbeat: {beat: true}", rows="SELECT * FROM events WHERE k <> 'x' -- others\n")
    assert both.rows_sql == (
        "SELECT * FROM (SELECT * FROM events WHERE k <> 'x' -- others\n) AS events WHERE NOT (`beat` <=> true)"
    )
    changes = fingerprint_of(define()).changes_to(fingerprint_of(beating))
    assert [(change.component, change.touches) for change in changes] == [("rows", ("semantics",))]


@pytest.mark.parametrize(
    ("heartbeat", "words"),
    [
        ("heartbeat: {absent: true}", "'absent' is absent in schema"),
        ("heartbeat: {beat: 1}", "heartbeat has beat: 1, but 'beat' is boolean in schema"),
        ("heartbeat: {d: 1}", "'d' is double in schema"),
        ("heartbeat: {kind: true}", "heartbeat has kind: true, but 'kind' is string in schema"),
    ],
)
def test_a_heartbeat_that_no_record_can_be_is_refused(heartbeat: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        define(heartbeat)


def test_intervals_have_no_heartbeats() -> None:
    text = INTERVAL_YAML.replace("WINDOW", INTERVAL).replace("KEYS", "[k, at]")
    text = text.replace("    max_future", "    heartbeat: {k: beat}\n    max_future")
    with pytest.raises(DefinitionError, match="source 'events' has a heartbeat, but intervals"):
        parse_files({"pipeline.yaml": text.encode(), "transform.sql": INTERVAL_SQL.encode()}, "p")


HOPPING = ("{size: 1 hour}", "{size: 1 hour, slide: 15 minutes}"), SQL.replace("'1 hour'", "'1 hour', '15 minutes'")
SESSION = (
    ("{size: 1 hour}", "{session: 1 hour}"),
    SQL.replace("window.", "session_window.").replace("BY window", "BY session_window"),
)
KINDS = {"tumbling": (("", ""), SQL), "hopping": HOPPING, "session": SESSION}


@pytest.mark.parametrize("kind", KINDS)
@given(newest=st.integers(0, 10**16).map(lambda micros: EPOCH + timedelta(microseconds=micros)))
def test_the_closing_heartbeat_moves_the_watermark_past_every_window_that_has_a_record(
    kind: str, newest: datetime
) -> None:
    change, sql = KINDS[kind]
    definition = define("heartbeat: {beat: true}", change=change, sql=sql)
    closing = ClosingHeartbeat.after(definition, newest)
    watermark = closing.at - definition.source[1].watermark
    assert closing.closed_until > newest
    assert closing.closed_until <= newest + definition.window.length
    last = newest + timedelta(hours=1) if kind == "session" else closing.closed_until
    assert last <= watermark <= closing.closed_until + timedelta(milliseconds=1)


def test_a_heartbeat_has_its_values_its_time_and_plain_values_for_the_rest_that_is_required() -> None:
    _, source = define("heartbeat: {beat: true, kind: hb}").source
    record = heartbeat_record(source, NOW, NOW + timedelta(hours=1))
    assert json.loads(record.value) == {"k": "", "at": to_iso(NOW), "beat": True, "kind": "hb"}
    assert record.timestamp_ms == (NOW - EPOCH) // timedelta(milliseconds=1) + 3_600_000
    nested = ("    required: [k]", "    required: [k, n2]\n    paths: {at: meta.ts, n2: meta.n}\n    epochs: {at: s}")
    definition = define("heartbeat: {beat: true}", change=nested)
    closing = ClosingHeartbeat.after(definition, NOW)
    assert closing.at == closing.closed_until + timedelta(hours=1, seconds=1)  # whole seconds, as the records have them
    record = heartbeat_record(definition.source[1], closing.at, NOW)
    seconds = (closing.at - EPOCH) // timedelta(seconds=1)
    assert json.loads(record.value) == {"k": "", "meta": {"ts": seconds, "n": 0}, "beat": True}
