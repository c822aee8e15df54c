"""Runs of a fast path are stretches without holes; what was sent is compared with what is expected as sets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from rivertwice.core.errors import DefinitionError, LedgerError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, parse_files, read_files
from rivertwice.deliver.fast import FastRun, meaning_of, plan_run, read_runs, record_run
from rivertwice.deliver.fast_compare import compare_sets, stretches

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FOLDER = REPOSITORY / "pipelines" / "examples" / "fraud_scores"


def plan(runs: list[FastRun], meaning: str, committed: dict[int, int] | None, topic_id: str = "id") -> FastRun:
    return plan_run(
        runs,
        bundle="b" + meaning,
        meaning=meaning,
        topic_id=topic_id,
        committed=committed,
        ends={0: 100, 1: 50},
        sent_from={0: 7},
        now=NOW,
    )


def changed(**texts: str) -> Definition:
    files = read_files(FOLDER)
    for name, change in texts.items():
        file = {"yaml": "pipeline.yaml", "fast": "fast.sql", "fold": "fold.py"}[name]
        before, _, after = change.partition(" -> ")
        assert before.encode() in files[file]
        files[file] = files[file].replace(before.encode(), after.encode())
    return parse_files(files, "fraud_scores")


@pytest.mark.proves("guarantees.md#fast-path")
def test_the_first_run_begins_at_the_end_and_resumes_the_same_meaning(tmp_path: Path) -> None:
    first = plan([], "m1", None)
    assert (first.number, first.begins) == (1, {0: 100, 1: 50})
    assert plan([first], "m1", {0: 120, 1: 60}) is first
    second = plan([first], "m2", {0: 120})
    assert (second.number, second.begins) == (2, {0: 120, 1: 50})
    with pytest.raises(LedgerError, match="created again"):
        plan([first], "m1", None, topic_id="other")
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    for run in (first, second, first):
        record_run(home, run)
    assert read_runs(home) == [first, second]


def test_every_offset_belongs_to_one_run() -> None:
    first, second = plan([], "m1", None), plan([plan([], "m1", None)], "m2", {0: 120, 1: 50, 2: 5})
    assert stretches([first, second], {0: 130, 1: 70, 2: 9}) == [
        (first, {0: (100, 120), 2: (0, 5)}),
        (second, {0: (120, 130), 1: (50, 70), 2: (5, 9)}),
    ]


@pytest.mark.proves("guarantees.md#fast-path")
def test_rows_are_compared_as_sets_within_what_is_judged() -> None:
    expected = [(0, 3, "a"), (0, 5, "b"), (1, 4, "c")]
    same = compare_sets(expected, [*expected, (0, 5, "b"), (0, 10, "later")], {0: (3, 10), 1: (0, 5)})
    assert (same.exact, same.sent, same.again, same.ahead) == (True, 3, 1, 1)
    other = compare_sets(expected, [(0, 3, "a"), (0, 5, "other"), (0, 1, "before")], {0: (3, 10), 1: (0, 5)})
    assert not other.exact
    assert (other.missing, other.unexpected) == (["0@5", "1@4"], ["0@1", "0@5"])


def test_only_what_shapes_a_row_is_its_meaning() -> None:
    plain = meaning_of(changed())
    assert meaning_of(changed(fold="LIMIT = 3 -> LIMIT = 4")) == plain
    assert meaning_of(changed(fast="-- S19: what -> -- What")) == plain
    assert meaning_of(changed(fast="> 0.9 -> > 0.8")) != plain
    assert meaning_of(changed(yaml="min: 0, max: 1 -> min: 0, max: 2")) != plain


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("topic: fraud-alerts -> topic: transactions", "would come back as records"),
        ("key: card_id} -> key: card_id, interval: 1 s}", "none below 5 s"),
        ("fast: {topic: fraud-alerts, key: card_id} -> ", "there is fast.sql but no fast"),
    ],
)
def test_a_fast_path_that_cannot_be_is_refused(yaml: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        changed(yaml=yaml)


def test_a_fast_path_without_its_sql_is_refused() -> None:
    files = {name: data for name, data in read_files(FOLDER).items() if name != "fast.sql"}
    with pytest.raises(DefinitionError, match=r"there is fast but no fast\.sql"):
        parse_files(files, "fraud_scores")
