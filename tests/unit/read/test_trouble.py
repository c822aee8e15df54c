"""The list of what does not agree: open trouble first, what waits after it, what was repaired folded away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rivertwice.core.plain import to_plain
from rivertwice.read.trouble import describe_cause, sort_trouble

NOON = datetime(2013, 6, 30, 12, tzinfo=UTC)
JFK = '{"origin": "JFK"}'


def verdict(hour: int, pair: str, word: str, late: int = 0, key: str | None = JFK, rows: int = 1) -> dict[str, Any]:
    start, end = NOON.replace(hour=hour), NOON.replace(hour=hour + 1)
    return {
        "window_start": start, "window_end": end, "key": key, "pair": pair, "verdict": word, "late": late,
        "reason": f"{pair} {word}", "rows": rows,
    }  # fmt: skip


def both(hour: int, served: str, stream: str, late: int = 0) -> list[dict[str, Any]]:
    return [verdict(hour, "served", served, late), verdict(hour, "stream", stream, late)]


def test_seventy_repaired_rows_do_not_hide_what_is_open() -> None:
    repaired = [each for hour in range(20) for each in both(hour, "AGREES", "LATE", 9)]
    found = sort_trouble([*repaired, *both(20, "LATE", "LATE", 1)], [verdict(21, "stream", "OPEN", key=None, rows=2)])
    assert [row.start.hour for row in found.open] == [20]
    assert [(row.start.hour, row.rows) for row in found.waiting] == [(21, 2)]
    assert found.totals == {"open": 1, "repaired": 20, "waiting": 1}
    assert [row.start.hour for row in found.repaired][:2] == [19, 18]


def test_open_trouble_is_ordered_by_the_verdict_then_by_late_records() -> None:
    rows = [
        *both(1, "LATE", "LATE", 1), *both(2, "LATE", "LATE", 9), *both(3, "DEFECT", "DEFECT"), *both(4, "NOT_COMPARABLE", "AGREES"),
    ]  # fmt: skip
    assert [row.start.hour for row in sort_trouble(rows, []).open] == [3, 4, 2, 1]


def test_a_row_of_the_stream_alone_is_repaired_if_others_agree() -> None:
    found = sort_trouble([verdict(5, "stream", "LATE", 2)], [])
    assert (found.open, len(found.repaired)) == ((), 1)


def test_the_reason_is_that_of_what_is_served() -> None:
    (row,) = sort_trouble(both(5, "LATE", "DEFECT"), []).open
    assert row.reason == "served LATE"


def test_the_rest_is_counted() -> None:
    rows = [each for hour in range(9) for each in both(hour, "LATE", "LATE")]
    found = sort_trouble(rows, [], limit=2)
    assert (len(found.open), found.totals["open"]) == (2, 9)


def test_a_window_that_is_open_in_both_pairs_waits_once() -> None:
    waiting = [verdict(8, pair, "OPEN", key=None, rows=rows) for pair, rows in (("stream", 3), ("served", 2))]
    assert [row.rows for row in sort_trouble([], waiting).waiting] == [3]


def test_a_cause_names_the_record_by_its_address() -> None:
    cause = {
        "cause": "late", "topic": "flights", "partition": 2, "offset": 5, "batch": 7, "event_time": NOON,
        "late_watermark_ms": 1372593600000, "detail": "",
    }  # fmt: skip
    described = to_plain(describe_cause(cause))
    assert (described["address"], described["watermark"]) == ("flights/2@5", "2013-06-30T12:00:00Z")
    assert (
        to_plain(describe_cause({**cause, "offset": None, "event_time": None, "late_watermark_ms": None}))["address"]
        is None
    )
