"""The page's list of windows: gravest first, each with its causes by address."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rivertwice.orchestration.page_data import describe_windows

NOON = datetime(2013, 6, 30, 12, tzinfo=UTC)


def verdict(hour: int, pair: str, word: str, late: int = 0) -> dict[str, Any]:
    start = NOON.replace(hour=hour)
    return {"window_start": start, "key": '{"origin":"JFK"}', "pair": pair, "verdict": word, "late": late, "reason": ""}


def late(hour: int, offset: int, pair: str = "stream") -> dict[str, Any]:
    return {
        "window_start": NOON.replace(hour=hour), "key": '{"origin":"JFK"}', "pair": pair, "cause": "late", "topic": "flights",
        "partition": 2, "offset": offset, "batch": 7, "event_time": NOON, "late_watermark_ms": 1372593600000, "detail": "",
    }  # fmt: skip


def test_windows_that_agree_in_every_pair_are_left_out() -> None:
    assert describe_windows([verdict(12, "stream", "AGREES"), verdict(12, "served", "AGREES")], []) == {
        "total": 0,
        "rows": [],
    }


def test_a_repaired_window_shows_late_in_the_stream_and_agrees_as_served() -> None:
    shown = describe_windows(
        [verdict(12, "stream", "LATE", 2), verdict(12, "served", "AGREES")], [late(12, 5), late(12, 9)]
    )
    (row,) = shown["rows"]
    assert (row["stream"], row["served"], row["late"], row["key"]) == ("LATE", "AGREES", 2, "JFK")
    assert [cause["address"] for cause in row["causes"]] == ["flights-2@5", "flights-2@9"]


def test_a_row_without_a_verdict_of_its_own_has_that_of_its_window() -> None:
    others = {**verdict(12, "served", "AGREES"), "key": None, "rows": 7}
    waiting = {**verdict(13, "stream", "OPEN"), "key": None, "rows": 2}
    shown = describe_windows([verdict(12, "stream", "LATE", 2), others, waiting], [])
    assert [(row["key"], row["stream"], row["served"]) for row in shown["rows"]] == [
        ("JFK", "LATE", "AGREES"),
        ("2 rows", "OPEN", None),
    ]


def test_an_address_that_both_pairs_name_is_shown_once() -> None:
    (row,) = describe_windows([verdict(12, "stream", "LATE", 1)], [late(12, 5), late(12, 5, "served")])["rows"]
    assert len(row["causes"]) == 1


def test_the_gravest_come_first_and_the_rest_is_counted() -> None:
    verdicts = [
        verdict(1, "stream", "OPEN"),
        verdict(2, "stream", "LATE", 1),
        verdict(3, "stream", "LATE", 9),
        verdict(4, "served", "DEFECT"),
    ]
    shown = describe_windows(verdicts, [late(3, offset) for offset in range(9)], limit=3)
    assert [row["start"][11:13] for row in shown["rows"]] == ["04", "03", "02"]
    assert shown["total"] == 4
    assert shown["rows"][1]["more"] == 6
