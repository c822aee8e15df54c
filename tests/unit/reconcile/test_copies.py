"""What the log cannot show is compared with its other copy: ledger with commits, publication with plan, served with its sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from homes.backfill import HOUR, emitted, result
from homes.ledger import NOW, ledger_row
from rivertwice.backfill.model import BackfillPlan
from rivertwice.core.instants import from_ms
from rivertwice.reconcile.copies import (
    PublishedCopies,
    check_ledger_copies,
    check_publications,
    check_served_rows,
    heal_rows,
)
from rivertwice.reconcile.frames import addresses
from rivertwice.reconcile.model import DefectFinding, RowColumns
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.serving import Publication, select_served

ROWS: list[LedgerRow] = [ledger_row(number) for number in range(4)]
LINE = Timeline("p", "t1", None, 0, {}, "b", {}, "c", {"flights": "id"}, NOW)
COPIES = PublishedCopies(
    commits=ROWS,
    table=frozenset(("t1", number) for number in range(4)),
    timelines={"t1": LINE},
    known=["t1"],
    applied={"t1": 3},
)
OLD = replace(COPIES, commits=())


def check(rows: list[LedgerRow], copies: PublishedCopies = COPIES) -> list[str]:
    table = frozenset((row.timeline, row.batch) for row in rows)
    copies = replace(copies, table=table)
    path = sorted((row for row in heal_rows(rows, copies) if row.timeline == "t1"), key=lambda row: row.batch)
    found = check_ledger_copies("p", rows, path, copies)
    assert all(finding.kind == "ledger" for finding in found)
    return [finding.message for finding in found]


def test_a_ledger_that_its_commits_agree_with_raises_nothing() -> None:
    assert check(ROWS) == []
    assert check(ROWS, OLD) == []
    assert check(ROWS[:3], replace(OLD, applied={"t1": 3})) == []  # the newest row is copied after its commit
    assert check(ROWS[:3]) == []
    assert check(ROWS, replace(OLD, applied={"t1": 1 << 62})) == []  # sealed


CHANGES: dict[str, Any] = {
    "pipeline": "q",
    "epoch": 0,
    "bundle": "c",
    "cluster_id": "d",
    "topic_ids": {"flights": "di"},
    "batch_timestamp_ms": 7,
    "references": {"a": 1},
    "committed_at": NOW + timedelta(seconds=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_field_that_is_not_in_the_log_is_compared_with_the_commit(name: str) -> None:
    changes: dict[str, Any] = {name: CHANGES[name]}
    changed = [*ROWS[:2], replace(ROWS[2], **changes), ROWS[3]]
    (message,) = check(changed)
    assert message.startswith(f"ledger of batch 2: {name} is ")
    assert heal_rows(changed, COPIES)[2].bundle == "b"


@pytest.mark.parametrize("name", ["pipeline", "cluster_id", "topic_ids", "epoch"])
def test_without_a_commit_the_timelines_record_and_neighbours_are_read(name: str) -> None:
    changes: dict[str, Any] = {name: CHANGES[name]}
    (message,) = check([*ROWS[:2], replace(ROWS[2], **changes), ROWS[3]], OLD)
    assert message.startswith(f"ledger of batch 2: {name} is ")


def test_the_batch_s_own_offsets_file_tells_its_timestamp() -> None:
    rows = [replace(row, offsets_text='v1\n{"batchTimestampMs":5}\n{}') for row in ROWS]
    assert len(check(rows, OLD)) == 4


def test_missing_or_renamed_rows_are_named_and_judged_as_committed() -> None:
    gone = [*ROWS[:1], *ROWS[2:]]
    assert check(gone) == ["the ledger has no row for batch 1 of t1, which the changelog holds"]
    assert [row.batch for row in heal_rows(gone, COPIES)] == [0, 2, 3, 1]
    assert check(gone, OLD) == ["the ledger goes from batch 0 of t1 to batch 2 of t1"]
    renamed = [ROWS[0], replace(ROWS[1], timeline="t9"), *ROWS[2:]]
    assert "the ledger holds batch 1 of timeline t9, which has no record" in check(renamed)
    numbered = [ROWS[0], replace(ROWS[1], batch=99), *ROWS[2:]]
    assert "the ledger holds batch 99 of timeline t1, which has no such batch in the changelog" in check(numbered)
    assert [row.batch for row in heal_rows(numbered, COPIES)] == [0, 2, 3, 1]


PUBLICATION = Publication(2, "bf-1", ((0, HOUR),), "s", "b", {"flights": {0: 40}})


class Plan:
    ranges, semantics, bundle, as_of, amendments, sessions = ((0, HOUR),), "s", "b", {"flights": {0: 40}}, 0, None


PLANS = {"bf-1": cast(BackfillPlan, Plan)}


def test_a_publication_is_compared_with_its_plan_where_this_home_has_one() -> None:
    assert check_publications([PUBLICATION], PLANS) == []
    assert check_publications([replace(PUBLICATION, amendments=9)], {}) == []
    (damaged,) = check_publications([PUBLICATION], {"bf-1": "plan.json of bf-1 was changed"})
    assert "plan.json of bf-1 was changed" in damaged.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ranges", ((0, 2 * HOUR),)),
        ("semantics", "t"),
        ("bundle", "c"),
        ("as_of", {"flights": {0: 41}}),
        ("amendments", 1),
        ("sessions", True),
    ],
)
def test_each_altered_field_of_a_publication_is_named(name: str, value: Any) -> None:
    changes: dict[str, Any] = {name: value}
    (finding,) = check_publications([replace(PUBLICATION, **changes)], PLANS)
    assert finding.kind == "publications"
    assert f"publication 2 of bf-1: {name} is {value}" in finding.message


SHAPE = RowColumns(keys=("k",), columns=("n",), count_column="n")
STREAM = pa.concat_tables([emitted("t1", 1, (0, "a", 3), (0, "b", 4)), emitted("t1", 2, (1, "a", 5))])
CORRECTIONS = result((0, "a", 6), (0, "b", 4)).append_column("_backfill", pa.array(["bf-1", "bf-1"]))


def served(stream: pa.Table = STREAM, corrections: pa.Table = CORRECTIONS) -> pa.Table:
    return select_served(stream, corrections, [PUBLICATION], semantics={"s"}, closed_ms=2 * HOUR)


def changed(table: pa.Table, place: int, **values: Any) -> pa.Table:
    rows = table.to_pylist()
    rows[place] |= values
    return pa.Table.from_pylist(rows, schema=table.schema)


def compare(
    shown: pa.Table, chosen: pa.Table, wrong: Callable[[pa.Table], Any] = lambda _: set()
) -> list[DefectFinding]:
    return check_served_rows(shown, chosen, SHAPE, set(), wrong(shown))


def test_what_is_served_as_its_sources_give_it_raises_nothing() -> None:
    assert compare(served(), served()) == []
    assert compare(served().take([2, 0, 1]), served()) == []


@pytest.mark.proves("guarantees.md#verdicts")
def test_an_altered_correction_is_named_though_what_is_served_is_right() -> None:
    (finding,) = compare(served(), served(corrections=changed(CORRECTIONS, 0, n=7)))
    assert finding.kind == "corrections"
    assert '"k": "a"' in finding.message
    assert "n 6" in finding.message
    assert "n 7" in finding.message
    (gone,) = compare(served(), served(corrections=CORRECTIONS.slice(1)))
    assert "changelog and corrections give nothing" in gone.message


def test_a_forged_served_row_of_a_publication_is_named_as_served() -> None:
    forged = changed(served(), 0, n=9)
    (finding,) = compare(forged, served(), wrong=lambda shown: {addresses(shown, SHAPE)[0]})
    assert finding.kind == "served"


def test_a_row_of_the_stream_is_checked_here_only_for_its_batch() -> None:
    assert from_ms(HOUR) == served()["window_start"].to_pylist()[2]
    (finding,) = compare(changed(served(), 2, _batch=7), served())
    assert finding.kind == "served"
    assert "_batch 7" in finding.message
    assert compare(changed(served(), 2, n=7), served()) == []
    everything = set(addresses(served(), SHAPE))
    assert check_served_rows(changed(served(), 2, _batch=7), served(), SHAPE, everything, set()) == []
