"""The rule of each kind of windows, proved on random histories run by Spark as a real stream; planted wrong rows are found.

The histories are others at each landing, except those of `make test`. RIVERTWICE_HISTORIES sets how many of each kind (20).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories.kinds import KINDS, make_definition
from histories.random_histories import SPREAD, Batch, Run, keyed, order_dependent, random_batches, run_histories
from rivertwice.reconcile.evidence import Evidence, IntervalEvidence, ServedEvidence, SessionEvidence
from rivertwice.reconcile.kinds.sessions import SessionJudge
from rivertwice.reconcile.model import RowId, ServedRow, StreamRow
from rivertwice.reconcile.sessions import PublishedSession, PublishedSessions
from rivertwice.reconcile.verdict import judge_served, judge_stream
from rivertwice.timeline.digest import key_text
from rivertwice.timeline.verdicts import Verdict
from running.tiers import LANDING

pytestmark = pytest.mark.spark
HISTORIES = int(os.environ.get("RIVERTWICE_HISTORIES", "20"))
PLANTED = 20
CORE = ("tumbling", "session")
CUTS = (6, 8)  # a micro-batch costs a CPU-second


def run_kind(spark: SparkSession, kind: str, folder: Path) -> Run:
    chance = random.Random(f"{kind} {1 if kind in CORE else LANDING}")
    batches = random_batches(chance, HISTORIES, CUTS)
    batches = keyed(batches, turned=bool(KINDS[kind].more)) if KINDS[kind].folded else batches
    restarts = [number for number in range(len(batches)) if chance.random() < 0.15]
    return run_histories(spark, make_definition(kind), batches, folder, restarts)


_MARKS = {
    "hopping updates": [pytest.mark.faults],  # a row for every batch and window that a record changes: minutes
    **{kind: [pytest.mark.core] for kind in CORE},
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=_MARKS.get(kind, [])) for kind in KINDS],
)
def run(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("histories") / request.param
    return run_kind(spark, request.param, folder)


def is_spread(row: RowId) -> bool:
    """Say whether a fold's key lies in several partitions: see `random_histories.keyed`."""
    return (f'{SPREAD}"' in row.key) != ('"source": ' in row.key)


def check(run: Run) -> None:
    assert list(run.derived.chain.batch) == run.watermarks
    found = judge_stream(run.evidence)
    spread = [one for one in found if one.verdict == Verdict.NOT_COMPARABLE]
    assert all(is_spread(one.row) and run.evidence.order_reason(one.row) == one.reason for one in spread)
    wrong = [one for one in found if one.verdict == Verdict.DEFECT or one.unexplained]
    assert wrong == []
    assert run.findings == []
    assert [one.unexplained for one in (*run.partitions.values(), run.total)] == [0] * (len(run.partitions) + 1)
    served = {
        row: [ServedRow(one.values, "stream", None) for one in rows]
        for row, rows in run.evidence.stream.items()
        if not run.evidence.updates or row.end_ms <= run.evidence.closed_ms
    }
    shown = judge_served(run.evidence, ServedEvidence(served, run.evidence.closed_ms))
    assert [one for one in shown if one.verdict == Verdict.DEFECT] == []
    assert {one.row for one in shown if one.verdict == Verdict.NOT_COMPARABLE} == {one.row for one in spread}


@pytest.mark.proves("guarantees.md#verdicts", "guarantees.md#late-rows")
def test_every_row_of_every_history_is_explained_and_the_balance_is_nought(run: Run) -> None:
    check(run)
    assert run.total.excluded or isinstance(run.evidence, IntervalEvidence)
    assert run.total.dead
    if not run.watermarks[-1]:  # a fold: nothing is late, all that its keys have in one partition agrees
        assert run.total.late == 0
        assert order_dependent(run.evidence).rows
        assert {one.verdict for one in judge_stream(run.evidence)} == {Verdict.AGREES, Verdict.NOT_COMPARABLE}
        return
    assert run.total.late
    late = [one for one in judge_stream(run.evidence) if one.verdict == Verdict.LATE]
    assert late
    assert run.kept


def test_sessions_that_came_apart_without_a_dropped_record_are_named(run: Run, request: pytest.FixtureRequest) -> None:
    if "session" not in request.node.callspec.id:
        assert not isinstance(run.evidence, SessionEvidence)
        return
    assert isinstance(run.evidence, SessionEvidence)
    torn = [group for group in run.evidence.groups.values() if group.split and not group.late]
    assert torn
    assert all(len(group.parts) > 1 for group in torn)


def known_sessions(batches: Sequence[Batch], ends: dict[int, int], gap_ms: int) -> dict[RowId, tuple[int, int, int]]:
    """Return the sessions of the records below some offsets, worked out in Python: address to count, sum, largest value."""
    by_key: dict[str, list[tuple[int, int]]] = {}
    for one in (record for batch in batches for record in batch):
        if one.event_s is not None and one.value != 7 and one.offset < ends[one.partition]:
            by_key.setdefault(one.key, []).append((round(one.event_s * 1000), one.value))
    found = {}
    for key, records in by_key.items():
        runs: list[list[tuple[int, int]]] = []
        for at, value in sorted(records):
            if runs and at - runs[-1][-1][0] <= gap_ms:
                runs[-1].append((at, value))
            else:
                runs.append([(at, value)])
        for run in runs:
            values = [value for _, value in run]
            row = RowId(run[0][0], run[-1][0] + gap_ms, key_text(["k"], [key]))
            found[row] = (len(values), sum(values), max(values))
    return found


def with_late_copies(chance: random.Random, batches: list[Batch]) -> list[Batch]:
    """Return the batches; the last one also has records that lie in sessions of the first third, so that some published ones change."""
    early = [one for batch in batches[: len(batches) // 3] for one in batch if one.event_s is not None]
    end = 1 + max(one.offset for batch in batches for one in batch if one.partition == 0)
    copies = [
        replace(one, partition=0, offset=end + number, value=5) for number, one in enumerate(chance.sample(early, 30))
    ]
    return [*batches[:-1], [*batches[-1], *copies]]


def test_published_sessions_are_explained_and_a_forged_one_is_a_defect(spark: SparkSession, tmp_path: Path) -> None:
    #  two publications: at a third and at two thirds of the log, each of what was settled then and starts in every other second
    chance = random.Random(f"published sessions {LANDING}")
    batches = with_late_copies(chance, random_batches(chance, HISTORIES, CUTS))
    run = run_histories(spark, make_definition("session"), batches, tmp_path / "histories", [])
    gap_ms, evidence = 15_000, run.evidence
    claims: dict[str, list[PublishedSession]] = {}
    ends: dict[int, dict[str, dict[int, int]]] = {}
    to_serve: dict[RowId, tuple[int, int, int]] = {}
    published: dict[RowId, int] = {}
    for seq, share in ((2, 1 / 3), (3, 2 / 3)):
        index = int(len(run.watermarks) * share)
        mine = {part.partition: end for part, (_, end) in run.derived.ranges[index].items()}
        ends[seq] = {"events": mine}
        for row, values in known_sessions(batches, mine, gap_ms).items():
            if row.end_ms + gap_ms <= run.watermarks[index] and (row.start_ms // 1000) % 2:
                claims.setdefault(row.key, []).append(PublishedSession(row.start_ms, row.end_ms, seq))
                published[row], to_serve[row] = seq, values
    newest = {
        row: values
        for row, values in to_serve.items()
        if not any(one.seq > published[row] and one.overlaps(row.start_ms, row.end_ms) for one in claims[row.key])
    }
    streamed = {
        row: rows[0].values
        for row, rows in evidence.stream.items()
        if not any(one.overlaps(row.start_ms, row.end_ms) for one in claims.get(row.key, ()))
    }
    rows = {row: [ServedRow(values, "published", "bf")] for row, values in newest.items()}
    rows |= {row: [ServedRow(values, "stream", None)] for row, values in streamed.items()}
    shown = PublishedSessions(claims, ends, evidence.closed_ms)
    assert isinstance(run.judge, SessionJudge)
    sessions = run.judge.served_sessions(evidence.shape, run.batches, shown, evidence.expected)
    over = frozenset(
        row
        for row in {*evidence.truth, *rows}
        if any(one.overlaps(row.start_ms, row.end_ms) for one in claims.get(row.key, ()))
    )
    served = ServedEvidence(rows, evidence.closed_ms, published_rows=over, sessions=sessions)
    found = {one.row: one for one in judge_served(evidence, served)}
    assert [
        one for one in found.values() if one.verdict in (Verdict.DEFECT, Verdict.NOT_COMPARABLE) or one.unexplained
    ] == []
    changed = sorted({session.truth for session in sessions.values()})
    assert changed
    assert {found[row].verdict for row in changed} <= {Verdict.LATE, Verdict.OPEN}
    for victim in chance.sample(sorted(row for row in newest if row in found), 10):
        count, *rest = newest[victim]
        forged = {**rows, victim: [ServedRow((count + 1, *rest), "published", "bf")]}
        defects = [
            one.row for one in judge_served(evidence, replace(served, rows=forged)) if one.verdict == Verdict.DEFECT
        ]
        assert defects == [victim]
        lost = {row: values for row, values in rows.items() if row != victim}
        gone = {one.row: one.verdict for one in judge_served(evidence, replace(served, rows=lost))}
        assert gone[victim] == Verdict.DEFECT


Plant = Callable[[random.Random, dict[RowId, list[StreamRow]]], RowId]


def alter(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice(sorted(stream))
    count, *rest = stream[row][0].values
    stream[row] = [replace(stream[row][0], values=(count + 1, *rest))]
    return row


def alter_sum(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice(sorted(stream))
    count, total, *rest = stream[row][0].values
    stream[row] = [replace(stream[row][0], values=(count, total - 1, *rest))]
    return row


def delete(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice(sorted(stream))
    del stream[row]
    return row


def duplicate(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice(sorted(stream))
    stream[row] = stream[row] * 2
    return row


def stretch(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice([row for row in sorted(stream) if row._replace(end_ms=row.end_ms - 1) not in stream])
    moved = row._replace(end_ms=row.end_ms - 1)
    stream[moved] = stream.pop(row)
    return moved


def rename(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice(sorted(stream))
    other = row._replace(key=row.key.replace("h", "x").replace("H", "X"))
    stream[other] = stream.pop(row)
    return other


def move(chance: random.Random, stream: dict[RowId, list[StreamRow]]) -> RowId:
    row = chance.choice(sorted(stream))
    one = stream[row][0]
    stream[row] = [replace(one, is_due=False)]
    return row


PLANTS = (alter, alter_sum, delete, duplicate, stretch, rename, move)


@pytest.mark.proves("guarantees.md#verdicts")
def test_every_planted_wrong_row_is_a_defect_and_no_rightful_row_is(run: Run) -> None:
    chance = random.Random(7)
    rightful = {one.row: one.verdict for one in judge_stream(run.evidence)}
    for number in range(PLANTED):
        plant = PLANTS[number % len(PLANTS)]
        stream = {row: list(rows) for row, rows in run.evidence.stream.items()}
        victim = plant(chance, stream)
        evidence: Evidence = replace(run.evidence, stream=stream)
        found = {one.row: one.verdict for one in judge_stream(evidence)}
        assert found[victim] == Verdict.DEFECT, (plant.__name__, victim)
        others = {row for row, verdict in found.items() if verdict == Verdict.DEFECT} - {victim}
        assert others <= set(run.evidence.stream) - set(stream), (plant.__name__, victim, others)
        assert {row for row, verdict in rightful.items() if verdict == Verdict.DEFECT} == set()
