"""To whom results go: sinks with what answers their state, and expectations with the history of their runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from homes.delivery import DeliveryHome
from rivertwice.deliver.note import Note, write_note
from rivertwice.read.problems import BAD, CALM, GOOD, WARN
from rivertwice.read.results_page import MOST_RUNS, expectations_of, view_results

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)


def judged(run: int, expectation: str, state: str, **changes: Any) -> dict[str, Any]:
    row = dict.fromkeys(
        (
            "column",
            "observed",
            "unexpected",
            "examples",
            "failing",
            "since",
            "error",
            "reason",
            "window_start",
            "window_end",
        )
    )
    at = NOW + timedelta(hours=run)
    return row | {
        "run": f"rc-{run}", "subject": "windows", "created_at": at, "expectation": expectation, "type": "expect_x", "severity": "critical",
        "state": state, "because": f"{expectation} holds", **changes,
    }  # fmt: skip


def test_an_expectation_has_the_state_of_the_newest_run_and_its_history_oldest_first() -> None:
    rows = [
        judged(3, "b", "failed", unexpected=2),
        judged(3, "a", "passed"),
        judged(2, "b", "passed"),
        judged(2, "gone", "failed"),
    ]
    failing, passing = expectations_of(rows, "p")  # one that the suite has no more is not shown
    assert (failing.id, failing.tone, failing.state, [each.state for each in failing.history]) == (
        "b",
        BAD,
        "failed",
        ["passed", "failed"],
    )
    assert "2 rows are not so" in failing.text
    assert failing.next == "rivertwice quality p --accept b --reason '...'"
    assert (passing.id, passing.tone, passing.text, passing.next) == ("a", GOOD, "", "")


def test_what_a_person_accepted_asks_for_nothing_and_says_why() -> None:
    accepted = judged(3, "a", "accepted", reason="a strike", created_at=NOW + timedelta(hours=3, minutes=1))
    (row,) = expectations_of([accepted, judged(3, "a", "failed", unexpected=2)], "p")
    assert (row.tone, row.state, row.next) == (CALM, "accepted", "")
    assert [(each.state, each.reason) for each in row.history] == [("failed", ""), ("accepted", "a strike")]


def test_a_warning_is_yellow_and_the_history_is_bounded() -> None:
    rows = [judged(run, "a", "failed", severity="warning", unexpected=1) for run in reversed(range(100))]
    (row,) = expectations_of(rows, "p")
    assert row.tone == WARN
    assert [each.run for each in row.history] == [f"rc-{run}" for run in range(100 - MOST_RUNS, 100)]


def test_a_sink_that_fails_is_red_with_its_error_and_next_attempt(tmp_path: Path) -> None:
    made = DeliveryHome(tmp_path, "{loads: {to: kafka, topic: loads, guarantee: at_least_once}}")
    write_note(made.home, "loads", Note(failures=3, error="no broker answers", next_attempt=NOW))
    page = view_results(made.settings, made.definition)
    (sink,) = page.sinks
    assert (sink.tone, sink.word, sink.view.next_attempt, sink.next) == (BAD, "no broker answers", NOW, "")
    assert (page.fast, page.expectations) == (None, ())
