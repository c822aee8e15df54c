"""Folds over two topics, held against loops of their own: every row in the order that was read, the newest row in any order.

The histories are others at each landing. RIVERTWICE_HISTORIES sets how many (20).
"""

from __future__ import annotations

import functools
import json
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from histories.fold_results import (
    VIEWS,
    Loop,
    Row,
    as_read,
    last,
    loop_of_fold,
    loop_of_view,
    newest,
    shuffled,
    topic_by_topic,
)
from histories.kinds import KINDS, LYING, Kind, make_definition
from histories.random_histories import Batch, Record, Run, keyed, order_dependent, random_batches, run_histories
from rivertwice.core.instants import EPOCH
from rivertwice.definition.definition import Definition
from rivertwice.definition.folds import PARTITION_SHIFT
from rivertwice.engine.case_files import Case
from rivertwice.engine.cases import run_case as run_one_case
from rivertwice.engine.relations import rows_schema
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import Gap
from rivertwice.reconcile.gaps import GAP_INDEX, SkippedRange
from rivertwice.reconcile.kinds.read_rows import NEVER_MS
from rivertwice.reconcile.kinds.stateful import StatefulJudge
from rivertwice.reconcile.model import RowId, Values
from rivertwice.reconcile.verdict import judge_stream
from rivertwice.reconcile.view import shape_of
from rivertwice.timeline.verdicts import Verdict
from running.tiers import LANDING

pytestmark = pytest.mark.spark
HISTORIES = int(os.environ.get("RIVERTWICE_HISTORIES", "20"))
CASES: dict[str, tuple[Kind, Loop]] = {
    "fold": (KINDS["fold of sources"], loop_of_fold),
    "view": (KINDS["view of sources"], loop_of_view),
    "lying view": (LYING, functools.partial(loop_of_view, lying=True)),
}


def run_case(spark: SparkSession, name: str, folder: Path) -> tuple[Run, list[Batch]]:
    chance = random.Random(f"{name} in any order {LANDING}")
    batches = keyed(random_batches(chance, HISTORIES), turned=True)
    restarts = [number for number in range(len(batches)) if chance.random() < 0.15]
    return run_histories(spark, make_definition(CASES[name][0]), batches, folder, restarts), batches


def plain(row: RowId, values: Values, columns: tuple[str, ...]) -> Row:
    key = json.loads(row.key)
    shown = {name: value for name, value in zip(columns, values, strict=True) if name != "at"}
    offset = key["record"] & ((1 << PARTITION_SHIFT) - 1)
    assert key["record"] >> PARTITION_SHIFT == 0
    return key["source"], offset, key["row"], {"k": key["k"], **shown}


def check_rows(run: Run, batches: list[Batch], loop: Loop) -> None:
    """Every row that was emitted is the loop's over the records as they were read, and the other way round."""
    expected = sorted(loop(as_read(batches)), key=str)
    columns = run.evidence.shape.columns
    came = [plain(row, one.values, columns) for row, found in run.evidence.stream.items() for one in found]
    assert sorted(came, key=str) == expected
    assert sorted((plain(*one, columns) for one in run.evidence.expected.items()), key=str) == expected
    assert all(verdict.verdict != Verdict.DEFECT for verdict in judge_stream(run.evidence))
    assert set(run.partitions) == {Part("events", 0), Part("others", 0)}
    assert run.total.unexplained == 0


def check_newest(run: Run, batches: list[Batch], loop: Loop) -> set[str]:
    """What depends on the order is named, the rest agrees in its newest row; return the keys that depend on it."""
    told = [
        list(loop(records))
        for records in (as_read(batches), topic_by_topic(batches), topic_by_topic(batches, turned=True))
    ]
    hanging, shown = differing([newest(rows) for rows in told])
    other_ends, _ = differing([last(rows) for rows in told])
    other_ends -= shown  # of keys that are gone in every order
    assert {json.loads(key)["k"] for key in order_dependent(run.evidence).unsettled} == hanging
    newest_of = {values["k"]: (view, offset) for view, offset, _, values in told[0]}
    places = {(one.key, one.partition) for one in as_read(batches)}
    several = {key for key, partition in places if (key, 1 - partition) in places}
    for one in judge_stream(run.evidence):
        key = json.loads(one.row.key)
        if key["k"] not in several:
            assert one.verdict == Verdict.AGREES, one
        elif newest_of[key["k"]] != (key["source"], key["record"]):
            assert (one.verdict, one.reason.split(",")[0]) == (Verdict.NOT_COMPARABLE, "an older row of its key"), one
        elif key["k"] in hanging:
            assert one.verdict == Verdict.NOT_COMPARABLE, one
            assert one.reason.startswith("the newest row of its key depends on the order"), one
        elif key["k"] in other_ends:
            assert (one.verdict, one.reason.split(",")[0]) == (
                Verdict.NOT_COMPARABLE,
                "its key is gone in every order",
            ), one
        else:
            assert one.verdict == Verdict.AGREES, one
    return hanging


def differing(orders: list[dict[str, dict[str, Any]]]) -> tuple[set[str], set[str]]:
    """Return the keys whose rows are not the same in all orders, and all keys."""
    keys = {key for each in orders for key in each}
    return {key for key in keys if any(each.get(key) != orders[0].get(key) for each in orders)}, keys


@pytest.mark.proves("architecture.md#the-laws", "guarantees.md#folds-and-views")
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_read_order_and_what_depends_on_it_is_named(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    run, batches = run_case(spark, name, tmp_path)
    loop = CASES[name][1]
    check_rows(run, batches, loop)
    if name == "fold":
        assert order_dependent(run.evidence).unsettled == {}
        assert {one.verdict for one in judge_stream(run.evidence)} == {Verdict.AGREES, Verdict.NOT_COMPARABLE}
        return
    hanging = check_newest(run, batches, loop)
    assert bool(hanging) == (name == "lying view")
    assert {finding.kind for finding in run.findings} == ({"order"} if hanging else set())
    chance = random.Random(f"{name} shuffled")
    same = [newest(loop(shuffled(chance, batches))) == newest(loop(as_read(batches))) for _ in range(20)]
    assert all(same) == (name == "view")


def event(ident: str, source: str, value: int) -> dict[str, Any]:
    fields = {"k": "a", "v": value} if source == "events" else {"j": "a", "w": value}
    at = "1970-01-01T00:00:01Z"
    return {"id": ident, "source": source, "at": at, "value": {**fields, "at": at}}


@pytest.mark.parametrize(("kind", "hangs"), [(KINDS["view of sources"], False), (LYING, True)])
def test_a_case_says_first_that_a_newest_row_depends_on_the_order(kind: Kind, hangs: bool, spark: SparkSession) -> None:
    tops = (0, 0) if hangs else (2, 3)
    rows = [
        {"record": "one", "n": 0, "total": 2, "top": tops[0]},
        {"record": "two", "n": 3, "total": 302, "top": tops[1]},
    ]
    batches = [[event("one", "others", 2)], [event("two", "events", 3)]]
    case = Case.model_validate(
        {"name": "c", "description": "c", "batches": batches, "expect": {"batch": rows, "stream": rows}}
    )
    found = run_one_case(spark, make_definition(kind), case).differences
    if not hangs:
        assert found == []
        return
    assert found == [
        'order: the newest row of {"k": "a"} depends on the order, against order: any: top is 0 as it was read, 1 folded events, then others'
    ]


def test_what_an_accepted_gap_skipped_is_folded_before_the_next_batch(
    spark: SparkSession,
) -> None:
    definition = make_definition("fold of sources")
    #        batch (of what the gap left out the one behind it), topic, offset, key, value
    read = [
        (0, 0, 0, "a", 1),
        (0, 0, 1, "b", 2),
        (0, 1, 0, "a", 2),
        (1, 0, 2, "a", 3),
        (1, 1, 3, "b", 2),
        (1, 1, 4, "a", 5),
    ]
    left_out = [(1, 1, 1, "b", 3), (1, 1, 2, "b", 1)]
    gap = Gap("histories", "t1", 0, "others", "id", "expired", {0: (1, 3)}, {0: (1, 3)}, 0, None, EPOCH)
    jumps = [SkippedRange(1, gap, {Part("others", 0): 3})]
    rule = StatefulJudge(spark, definition, frames(spark, definition, read, left_out), jumps)

    def shown(table: pa.Table) -> list[Row]:
        return sorted(
            (
                (row["source"], row["record"], row["row"], {name: row[name] for name in ("k", "n", "total", "top")})
                for row in table.to_pylist()
            ),
            key=str,
        )

    def expected_rows(records: list[tuple[int, int, int, str, int]]) -> list[Row]:
        ordered = [Record(topic, offset, key, 1.0, value) for _, topic, offset, key, value in records]
        return sorted(loop_of_fold(ordered), key=str)

    assert shown(rule.expected(definition)) == expected_rows(sorted(read))
    whole = shown(rule.truth(definition))
    assert whole == expected_rows([*sorted(read[:3]), *left_out, *sorted(read[3:])])
    assert [row for row in whole if row[3]["k"] == "a"] == [
        row for row in expected_rows(sorted(read)) if row[3]["k"] == "a"
    ]
    assert rule.windows_with_skipped_records() == {0}
    reasons = set(rule.order_dependent_rows(shape_of(definition)).rows.values())
    assert len(reasons) == 2
    assert all("are in events/0, others/0" in reason for reason in reasons)


def frames(spark: SparkSession, definition: Definition, read: Any, left_out: Any) -> dict[str, DataFrame]:
    """Return the accepted rows of both views as a reconcile has them."""
    at = EPOCH + timedelta(seconds=1)
    rows: dict[str, list[tuple[Any, ...]]] = {view: [] for view in definition.sources}
    for skipped, records in ((False, read), (True, left_out)):
        for index, topic, offset, key, value in records:
            where = GAP_INDEX if skipped else index
            rows[VIEWS[topic]].append((key, at, value, 0, offset, at, where, NEVER_MS, 0))
    more = "_index int, _late_ms bigint, _group int"
    return {
        view: spark.createDataFrame(rows[view], f"{rows_schema(source)}, {more}")
        for view, source in definition.sources.items()
    }
