"""A dead letter is amended, amended again and discarded: each time its rows are named, and a backfill makes what is served true."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from histories.random_histories import Record, places_of, random_batches
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.prepare import make_plan
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import EPOCH, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.run import reconcile
from rivertwice.timeline.dead_cure import problem_with
from rivertwice.timeline.dead_letters import DeadLetter
from rivertwice.timeline.dead_summary import amend, discard, read_letters
from rivertwice.timeline.served import rebuild_served
from running.tiers import in_turn
from streams.kinds import NAME, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@dataclass(frozen=True)
class Desk:
    """What an operator does, one call for each command."""

    spark: SparkSession
    settings: Settings

    @property
    def home(self) -> PipelineHome:
        return self.settings.pipeline(NAME)

    def judge(self) -> ReconcileReport:
        rebuild_served(self.home, load_definition(self.settings.definitions / NAME))
        report = reconcile(self.spark, self.settings, NAME, full=True, now=utc_now(), progress=lambda _: None)
        for counts in report.counts.values():
            assert (counts["DEFECT"], counts["NOT_COMPARABLE"]) == (0, 0), report.verdicts
        assert report.total.unexplained == 0
        assert report.gate.passed
        return report

    def backfill(self) -> None:
        request = BackfillRequest(NAME, None, "test")
        plan = save_plan(self.home, make_plan(self.settings, request, lambda: self.spark))
        compute_backfill(self.spark, self.settings, plan)
        audit_backfill(self.settings, plan)
        publish_backfill(self.settings, plan)

    def letter_of(self, record: Record) -> DeadLetter:
        place = places_of(load_definition(self.settings.definitions / NAME))[record.partition]
        wanted = (place.topic, place.partition, record.offset)
        letters = {(one.topic, one.address.partition, one.address.offset): one for one in read_letters(self.home)}
        return letters[wanted]

    def amend(self, broken: Record, record: Record, value: int) -> None:
        assert record.event_s is not None
        at = to_iso(EPOCH + timedelta(milliseconds=round(record.event_s * 1000)))
        cure = json.dumps({"k": record.key, "at": at, "v": value}).encode()
        definition = load_definition(self.settings.definitions / NAME)
        amend(
            self.home,
            self.letter_of(broken),
            cure,
            lambda one, data: problem_with(self.spark, definition, one, data),
            why="test",
            by="test",
            now=utc_now(),
        )

    def check_repaired(self) -> tuple[ReconcileReport, ReconcileReport]:
        """Judge, find what is served stale for an amendment, backfill, and find nothing stale; return both reports."""
        before = self.judge()
        assert before.counts["served"]["LATE"] > 0
        assert [one for one in before.verdicts if one.pair == "served" and one.dead]
        self.backfill()
        after = self.judge()
        assert after.counts["served"]["LATE"] == 0
        return before, after


@pytest.mark.proves("guarantees.md#dead-letters")
@pytest.mark.faults
def test_an_amendment_reaches_the_truth_and_a_backfill_serves_it(
    spark: SparkSession, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    (kind,) = in_turn(["tumbling", "hopping", "joined intervals", "session"])
    settings = make_kind_project(tmp_path, broker, topic, kind, batch=150)
    batches = random_batches(random.Random(f"amendments {kind}"), 20)
    records = [record for batch in batches for record in batch]
    send(settings, load_definition(settings.definitions / NAME), records)
    run_to_end(settings, tmp_path / "driver.log")
    desk = Desk(spark, settings)
    desk.judge()
    desk.backfill()
    clean = desk.judge()
    assert clean.counts["served"]["LATE"] == 0

    broken = next(one for one in records if one.event_s is None)
    fine = [one for one in records if one.event_s is not None]
    first, last = fine[len(fine) // 4], fine[len(fine) // 3]

    desk.amend(broken, first, 9)
    stale, _ = desk.check_repaired()
    assert [one for one in stale.verdicts if one.pair == "stream" and one.dead]
    desk.amend(broken, first, 8)  # the same row, another value: no record is missing, yet it is not what it should be
    desk.check_repaired()
    desk.amend(broken, last, 8)  # another window: the old one has a record too many now
    desk.check_repaired()
    discard(desk.home, [desk.letter_of(broken)], why="test", by="test", now=utc_now())
    _, repaired = desk.check_repaired()
    assert repaired.counts["stream"] == clean.counts["stream"]
