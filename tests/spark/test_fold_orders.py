"""Folds over two topics, held against loops of their own: every row in the order that was read, the newest row in any order.

RIVERTWICE_HISTORIES sets how many histories (20); those marked `faults` run a hundred.
"""

from __future__ import annotations

import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fold_loops import Loop, Row, as_read, loop_of_fold, loop_of_view, newest, shuffled, topic_by_topic
from histories import SPREAD, Batch, Run, keyed, random_batches, run_histories
from history_kinds import KINDS, LYING, Kind, make_definition
from rivertwice.log.addresses import Part
from rivertwice.pipeline.case_files import Case
from rivertwice.pipeline.cases import run_case as run_one_case
from rivertwice.pipeline.fold_run import PARTITION_SHIFT
from rivertwice.reconcile.model import AGREES, DEFECT, NOT_COMPARABLE, RowId, Values
from rivertwice.reconcile.verdict import judge_stream

pytestmark = pytest.mark.spark
HISTORIES = int(os.environ.get("RIVERTWICE_HISTORIES", "20"))
CASES: dict[str, tuple[Kind, Loop]] = {
    "fold": (KINDS["fold of sources"], loop_of_fold),
    "view": (KINDS["view of sources"], loop_of_view),
    "lying view": (LYING, functools.partial(loop_of_view, lying=True)),
}


def run_case(spark: SparkSession, name: str, folder: Path, histories: int) -> tuple[Run, list[Batch]]:
    chance = random.Random(f"{name} in any order")
    batches = keyed(random_batches(chance, histories), turned=True)
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
    owed = sorted(loop(as_read(batches)), key=str)
    columns = run.evidence.shape.columns
    came = [plain(row, one.values, columns) for row, found in run.evidence.stream.items() for one in found]
    assert sorted(came, key=str) == owed
    assert sorted((plain(*one, columns) for one in run.evidence.expected.items()), key=str) == owed
    assert all(verdict.verdict != DEFECT for verdict in judge_stream(run.evidence))
    assert set(run.partitions) == {Part("events", 0), Part("others", 0)}
    assert run.total.unexplained == 0


def check_newest(run: Run, batches: list[Batch], loop: Loop) -> set[str]:
    """What hangs on the order is named, the rest agrees in its newest row; return the keys that hang on it."""
    ours, *others = (
        newest(loop(records))
        for records in (as_read(batches), topic_by_topic(batches), topic_by_topic(batches, turned=True))
    )
    keys = {key for each in (ours, *others) for key in each}
    hanging = {key for key in keys if any(each.get(key) != ours.get(key) for each in others)}
    assert {json.loads(key)["k"] for key in run.evidence.apart.unsettled} == hanging
    last = {values["k"]: (view, offset) for view, offset, _, values in loop(as_read(batches))}
    for one in judge_stream(run.evidence):
        key = json.loads(one.row.key)
        lone = key["k"].endswith(SPREAD)
        is_newest = last[key["k"]] == (key["source"], key["record"])
        agrees = lone or (is_newest and key["k"] not in hanging)
        assert one.verdict == (AGREES if agrees else NOT_COMPARABLE), one
        if is_newest and key["k"] in hanging:
            assert one.reason.startswith("the newest row of its key hangs on the order")
        elif not agrees:
            assert one.reason.startswith("an older row of its key")
    return hanging


def check_case(spark: SparkSession, name: str, folder: Path, histories: int) -> None:
    run, batches = run_case(spark, name, folder, histories)
    loop = CASES[name][1]
    check_rows(run, batches, loop)
    if name == "fold":
        assert run.evidence.apart.unsettled == {}
        assert {one.verdict for one in judge_stream(run.evidence)} == {AGREES, NOT_COMPARABLE}
        return
    hanging = check_newest(run, batches, loop)
    assert bool(hanging) == (name == "lying view")
    assert {finding.kind for finding in run.findings} == ({"order"} if hanging else set())
    chance = random.Random(f"{name} shuffled")
    same = [newest(loop(shuffled(chance, batches))) == newest(loop(as_read(batches))) for _ in range(20)]
    assert all(same) == (name == "view")


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_order_that_was_read_and_what_hangs_on_it_is_named(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    check_case(spark, name, tmp_path, HISTORIES)


def event(ident: str, source: str, value: int) -> dict[str, Any]:
    fields = {"k": "a", "v": value} if source == "events" else {"j": "a", "w": value}
    at = "1970-01-01T00:00:01Z"
    return {"id": ident, "source": source, "at": at, "value": {**fields, "at": at}}


@pytest.mark.parametrize(("kind", "hangs"), [(KINDS["view of sources"], False), (LYING, True)])
def test_a_case_tells_before_anything_runs_that_a_newest_row_hangs_on_the_order(
    kind: Kind, hangs: bool, spark: SparkSession
) -> None:
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
        'order: the newest row of {"k": "a"} hangs on the order, against order: any: top is 0 as it was read, 1 folded events, then others'
    ]


@pytest.mark.faults
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_histories_over_two_topics_are_those_of_the_loops(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    check_case(spark, name, tmp_path, 100)
