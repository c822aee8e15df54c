"""Kafka gives offsets that were read to other records: it is noticed wherever the log is read, and there is a way on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homes.project import REPOSITORY
from lab.faults.restored import RestoredBroker, restored_broker
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.timeline.intent import Exit
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.synthetic import flights, make_small_project, produce, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
STORY = flights(160)
OTHERS = flights(200, seed=2)


@dataclass(frozen=True)
class Streamed:
    """A stream over a log that forked. Each test has topics of another name: Spark keeps consumers of a topic in its process."""

    settings: Settings
    name: str

    def command(self, *arguments: str, code: int = 0) -> Any:
        verb = (
            (*arguments[:2], self.name, *arguments[2:]) if arguments[0] in ("savepoint", "admin", "backfill") else None
        )
        return run_command_warm(self.settings, *(verb or (arguments[0], self.name, *arguments[1:])), code=code)

    def refused(self, *arguments: str) -> str:
        done = invoke_warm(self.settings, *arguments)
        assert done.exit_code == 1, done.output
        return done.output

    def refused_start(self) -> str:
        """Start the driver, which must refuse; return what it left for the agent."""
        with pytest.raises(AssertionError):
            run_driver_warm(self.settings, self.name, self.settings.home / "refused.log")
        left = Exit.load(self.settings.pipeline(self.name))
        assert left is not None
        assert (left.clean, left.failure) == (False, "fork"), left
        return left.message

    def judged(self, *arguments: str, passes: bool = True) -> dict[str, Any]:
        self.command("admin", "rebuild")
        report: dict[str, Any] = self.command("reconcile", *arguments, code=0 if passes else 3)
        assert report["gate"]["passed"] == passes, report["gate"]
        assert (report["counts"]["stream"]["DEFECT"], report["counts"]["served"]["DEFECT"]) == (0, 0)
        return report

    def in_kafka(self) -> int:
        return sum(kafka.end_offsets(self.settings, self.name).values())


def closed_window(made: Streamed) -> tuple[str, ...]:
    """The range of the first window that is served."""
    rows = made.command("show", "--limit", "1")["rows"]
    return ("--from", rows[0]["window_start"], "--to", rows[0]["window_end"])


def streamed_over_a_fork(
    broker: RestoredBroker,
    folder: Path,
    name: str,
    *,
    archived: bool = False,
    saved: bool = True,
    others: int = 80,
) -> Streamed:
    """A stream that read 160 records, of which Kafka lost the last 40; it has `others` now, the first of them at their offsets."""
    settings = make_small_project(folder, name, bootstrap=broker.info.bootstrap)
    made = Streamed(settings, name)
    produce(settings, name, STORY[:120])
    run_to_end(settings, name)
    taken = take_savepoint(settings, name, now=utc_now()) if saved else None
    broker.back_up()
    produce(settings, name, STORY[120:])
    run_to_end(settings, name)
    if taken is not None:
        made.command("savepoint", "prove", taken.id)
    if archived:
        made.command("admin", "archive")
    broker.restore()
    produce(settings, name, OTHERS[120 : 120 + others])
    return made


@pytest.mark.proves("howto-log.md#offsets-that-hold-other-records", "guarantees.md#what-everything-needs")
def test_a_stream_over_a_forked_log_stops_and_goes_back_to_before_the_fork(tmp_path: Path) -> None:
    with restored_broker(tmp_path / "broker", REPOSITORY) as broker:
        made = streamed_over_a_fork(broker, tmp_path / "run", "forked")
        message = made.refused_start()
        assert "forked/0@79" in message
        assert "rivertwice savepoint rewind forked" in message

        wrong = made.judged(passes=False)
        assert wrong["counts"]["stream"]["NOT_COMPARABLE"] > 0
        assert wrong["counts"]["stream"]["AGREES"] > 0  # windows that were closed before the fork
        (finding,) = wrong["gate"]["findings"]
        assert "rivertwice savepoint rewind forked" in finding

        window = closed_window(made)
        refused = made.refused("backfill", "plan", made.name, *window)
        assert "forked/0@79 (Kafka has another record there)" in refused
        assert "`rivertwice savepoint rewind forked` goes back" in refused

        after = take_savepoint(made.settings, made.name, now=utc_now())
        refused = made.refused("savepoint", "rewind", made.name, after.id, "--unproved", "--yes")
        assert "records that are lost" in refused
        made.command("savepoint", "rewind", "--yes")
        rows = run_to_end(made.settings, made.name)
        assert rows[-1].timeline == "t2"
        assert sum(row.read for row in rows) == made.in_kafka()
        made.judged()
        made.judged("--full")
        assert made.command("backfill", "plan", *window)["ranges"]


@pytest.mark.proves("howto-log.md#when-kafka-gives-offsets-to-other-records", "guarantees.md#archive")
def test_the_archive_follows_a_forked_log_and_keeps_what_kafka_lost(tmp_path: Path) -> None:
    with restored_broker(tmp_path / "broker", REPOSITORY) as broker:
        made = streamed_over_a_fork(broker, tmp_path / "run", "forked-archived", archived=True)
        settings, name = made.settings, made.name
        assert "--accept-hole" in made.refused("admin", "archive", name)
        wrong = made.judged("--full", passes=False)  # the archive has all that was read; what Kafka has, nobody read
        assert wrong["counts"]["stream"]["NOT_COMPARABLE"] > 0

        made.command("savepoint", "rewind", "--yes")
        run_to_end(settings, name)
        stale = made.judged("--full", passes=False)
        (finding,) = stale["gate"]["findings"]
        assert f"rivertwice admin archive {name} --accept-hole" in finding
        followed = made.command("admin", "archive", "--accept-hole")
        assert sum(followed["ends"].values()) == made.in_kafka()
        assert made.command("admin", "archive")["records"] == 0
        made.judged("--full")
        topic_id = kafka.topic_id(settings, name)
        rows = Table(settings.archive(name)).read(columns=["topic_id"])
        assert rows is not None
        lost = [each for each in rows["topic_id"].to_pylist() if each != topic_id]
        assert len(lost) == 40
        assert {each.partition("~")[0] for each in lost} == {topic_id}


def test_a_stream_without_a_savepoint_from_before_the_fork_begins_again(tmp_path: Path) -> None:
    with restored_broker(tmp_path / "broker", REPOSITORY) as broker:
        made = streamed_over_a_fork(broker, tmp_path / "run", "forked-unsaved", saved=False)
        made.refused_start()
        assert "--from-beginning" in made.refused("savepoint", "rewind", made.name, "--yes")
        made.command("savepoint", "rewind", "--from-beginning", "--yes")
        rows = run_to_end(made.settings, made.name)
        assert {row.timeline for row in rows} == {"t2"}
        assert sum(row.read for row in rows) == made.in_kafka()
        made.judged()


@pytest.mark.proves("howto-log.md#offsets-that-hold-other-records", "failure-modes.md#a-start")
def test_a_batch_that_was_planned_to_the_end_of_a_shorter_log_is_no_damage_of_the_checkpoint(tmp_path: Path) -> None:
    with restored_broker(tmp_path / "broker", REPOSITORY) as broker:
        made = streamed_over_a_fork(broker, tmp_path / "run", "forked-planned", others=10)
        plan_as_spark_does(made)
        assert "savepoint rewind forked-planned" in made.refused_start()
        made.command("savepoint", "rewind", "--yes")
        rows = run_to_end(made.settings, made.name)
        assert sum(row.read for row in rows) == made.in_kafka()
        made.judged()


def plan_as_spark_does(made: Streamed) -> None:
    """Plan the next batch up to the log's end, as a query does that runs while Kafka loses records (`F59/unclean`)."""
    offsets = made.settings.pipeline(made.name).checkpoint("t1") / "offsets"
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    *head, _ = (offsets / str(last)).read_text().splitlines()
    ends = {str(number): end for number, end in kafka.end_offsets(made.settings, made.name).items()}
    (offsets / str(last + 1)).write_text("\n".join([*head, json.dumps({made.name: ends})]))
