"""Dead letters and the late queue on the page: counts of all, a bounded sample, values only for whom may see them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from homes.ledger import NOW, ledger_row
from rivertwice.backfill.late_queue import DUE, QueuedWindow
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.read.side_rows import (
    SAMPLE,
    SHOWN_CHARS,
    describe_late,
    describe_letters,
    describe_one,
    describe_window,
    shorten,
)
from rivertwice.storage.table import Table
from rivertwice.timeline.dead_letters import DISCARD, Amendment, RecordAddress
from rivertwice.timeline.dead_summary import append_amendments
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import move_head


def stored(offset: int, reason: str = "json", value: bytes = b"broken") -> dict[str, Any]:
    return {
        "_format": 1, "_timeline": "t1", "_batch": 0, "reason": reason, "detail": "at 3", "cluster_id": "c", "topic_id": "id",
        "topic": "flights", "partition": 0, "offset": offset, "record_time": NOW, "key": b"k", "value": value,
        "headers": [{"key": "schema-id", "value": b"flights-1"}],
    }  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    """Thirty letters for json, one for schema with a long value that is no UTF-8; the first is discarded."""
    made = Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")
    create_timeline(made, Timeline("p", "t1", None, 0, {"flights": {"0": 0}}, "b", {}, "c", {"flights": "id"}, NOW))
    move_head(made, "t1", reason="test", expected_seq=0, now=NOW)
    append_ledger(made, [ledger_row(0, bad=31)])
    rows = [*(stored(offset) for offset in range(30)), stored(30, "schema", b"<script>\xff" + b"x" * 500)]
    Table(made.tables.dead_letters).append(pa.Table.from_pylist(rows))
    decided = Amendment(0, DISCARD, "flights", RecordAddress("id", 0, 0), None, "a test", "ada in Airflow", NOW)
    append_amendments(made, [decided], expected_seq=0)
    return made


def test_counts_are_of_all_letters_and_the_sample_is_bounded(home: PipelineHome) -> None:
    shown = to_plain(describe_letters(home, values=True))
    assert shown["counts"] == [
        {"reason": "json", "open": 29, "amended": 0, "discarded": 1},
        {"reason": "schema", "open": 1, "amended": 0, "discarded": 0},
    ]
    assert shown["totals"] == {"open": 30, "amended": 0, "discarded": 1}
    assert (shown["chosen"], len(shown["sample"])) == (31, SAMPLE)
    assert shown["oldest_open"] == "2013-07-02T00:00:00Z"
    assert shown["sample"][0]["decided"] == {
        "kind": "discard", "by": "ada in Airflow", "why": "a test", "at": "2013-07-02T00:00:00Z",
    }  # fmt: skip


def test_a_value_is_text_shortened_and_left_out_without_the_right(home: PipelineHome) -> None:
    (shown,) = to_plain(describe_letters(home, reason="schema", values=True))["sample"]
    assert shown["value"].startswith("<script>\\xffxxx")
    assert shown["value"].endswith("...")
    assert len(shown["value"]) == SHOWN_CHARS + 3
    assert (shown["bytes"], shown["headers"]) == (509, [["schema-id", "flights-1"]])
    (hidden,) = to_plain(describe_letters(home, reason="schema"))["sample"]
    assert (hidden["value"], hidden["key"], hidden["headers"], hidden["place"]) == (None, None, None, "0@30")


def test_letters_are_chosen_by_state_and_reason(home: PipelineHome) -> None:
    assert to_plain(describe_letters(home, state="discarded"))["chosen"] == 1
    assert to_plain(describe_letters(home, state="open", reason="json"))["chosen"] == 29


@pytest.mark.parametrize(
    ("takes", "is_table", "said"),
    [(True, False, "a backfill of its window"), (False, False, "recorded and counted only")],
)
def test_one_letter_says_what_an_amendment_of_it_does(
    home: PipelineHome, takes: bool, is_table: bool, said: str
) -> None:
    kind = SimpleNamespace(takes_cures=takes)
    definition: Any = SimpleNamespace(
        by_topic={"flights": ("flights", SimpleNamespace(is_table=is_table))}, window=SimpleNamespace(kind=kind)
    )
    shown = to_plain(describe_one(home, "0@30", definition, values=True))
    assert said in shown["then"]
    assert len(shown["value"]) == 512
    with pytest.raises(RequestError, match="no dead letter"):
        to_plain(describe_one(home, "0@31", definition, values=True))


def test_a_stream_that_never_ran_has_no_late_policy(tmp_path: Path) -> None:
    shown = to_plain(describe_late(Settings(tmp_path, tmp_path / "home").pipeline("p"), NOW))
    assert (shown["policy"], shown["text"]) == (None, "its stream was never started")


def test_a_window_of_the_late_queue_says_since_when_and_until_when() -> None:
    window = QueuedWindow(0, 3_600_000, 7, NOW, NOW + timedelta(minutes=1), DUE, NOW + timedelta(minutes=11))
    assert to_plain(describe_window(window)) == {
        "start": "1970-01-01T00:00:00Z", "end": "1970-01-01T01:00:00Z", "state": "due", "records": 7,
        "first_at": "2013-07-02T00:00:00Z", "last_at": "2013-07-02T00:01:00Z", "due_at": "2013-07-02T00:11:00Z",
    }  # fmt: skip


def test_three_dots_say_that_a_text_was_cut() -> None:
    assert (shorten("abc", 3), shorten("abcd", 3), shorten(None, 3)) == ("abc", "abc...", None)
