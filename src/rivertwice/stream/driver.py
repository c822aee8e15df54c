"""The streaming driver: one process per pipeline, started by the agent, never by a task of Airflow.

Usage: python -m rivertwice.stream.driver --pipeline NAME [--until-end | --catch-up GOAL]
It drains at a batch boundary on SIGTERM or while the marker file `drain` exists, and exits 0. So it does once it has read to the log's end,
with --until-end or by the definition's `stream.mode: scheduled`: what the log had at the start, and one batch more to close windows. Every other end writes
`exit.json` with a class and exits 1.
"""

from __future__ import annotations

import argparse
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivertwice.core import Deadline, PipelineHome, ServiceError, Settings, TopicName, is_alive, run_process, utc_now
from rivertwice.definition import Bundle, Definition, build_bundle, load_bundle_definition
from rivertwice.engine import (
    NO_CODE_TEXT,
    batch_rows,
    buckets_at_genesis,
    compile_stream,
    is_result,
    metric_names,
    spark_session,
    watermark_confs,
    with_buckets,
)
from rivertwice.log import StoredOffsets, TopicSets, archive_stream, kafka, marks_from_plain
from rivertwice.stream.begin import FIRST, begin_again, describe_added, require_checked, resolve_timeline
from rivertwice.stream.checkpoint import Goal, covers, is_asked_to_drain, note_sets, partitions_of
from rivertwice.stream.damage import check_checkpoint, newest_rows_of_run, sweep_unplanned
from rivertwice.stream.failures import DRAINED, FORK, POISON, RETENTION, STORE, UNKNOWN, classify_failure
from rivertwice.stream.gaps import added_partitions, check_reach, explain_loss, reads_on_from_archive
from rivertwice.stream.heartbeat import HeartbeatThread, LogEnds, lag_of
from rivertwice.stream.lease import Lease, acquire_lease
from rivertwice.stream.load_stage import Stage, hold_for_watermark, plan_stage, write_initial_offsets
from rivertwice.stream.phases import PhaseKeeper
from rivertwice.stream.placing import Placing
from rivertwice.stream.result_rows import DriverContext
from rivertwice.stream.side_rows import SideRows
from rivertwice.stream.sink import BatchLog, ReadMarks, Sink
from rivertwice.stream.source import end_query, fill_log_end, kafka_stream, set_polling
from rivertwice.stream.throwing import explain_throw
from rivertwice.stream.versions import KnownVersions
from rivertwice.timeline import (
    BatchCounts,
    Exit,
    Heartbeat,
    LedgerRow,
    StreamLoad,
    Timeline,
    WatermarkRule,
    by_table,
    committed_batches,
    head,
    heal_ledger,
    newest_batches,
    path_of,
    renew_properties,
    require_rows,
    require_whole_logs,
    rule_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# For how long a query has had nothing to do, by what Spark says of it now and then. Pure.

_WAITING = ("Waiting for next trigger", "Waiting for data to arrive")
_LOOKING = "Getting offsets from "
"""Spark asks the log for its ends. It does so ten times a second when nothing waits, and on a slow machine most of that time."""


class QuietClock:
    """Measures a query's quiet time. It begins when the query waits, continues while it looks at the log, and ends with a batch."""

    def __init__(self) -> None:
        """Create a clock of a query that is busy."""
        self._since: float | None = None
        self.is_waiting = False
        """Whether the query waited at the last look: only then does a stop interrupt nothing."""

    @property
    def is_quiet(self) -> bool:
        """Whether no batch ran at the last look."""
        return self._since is not None

    def look(self, status: Mapping[str, Any], now_s: float) -> float:
        """Take a status of the query (`StreamingQuery.status`); return its quiet time in seconds, 0 while a batch runs.

        Args:
            status: with `isTriggerActive` and `message`.
            now_s: a monotonic clock.
        """
        self.is_waiting = not status["isTriggerActive"] and status["message"] in _WAITING
        if self.is_waiting and self._since is None:
            self._since = now_s
        elif not self.is_waiting and not status["message"].startswith((_LOOKING, *_WAITING)):
            self._since = None
        return 0.0 if self._since is None else now_s - self._since


# In how many partitions a stream keeps its state: frozen by a timeline's first batch, changed by an upgrade alone.


def running_partitions(home: PipelineHome, line: Timeline) -> int | None:
    """Return the number of partitions of a timeline's state; None before its first batch, which takes the definition's."""
    if line.shuffle_partitions:
        return line.shuffle_partitions
    path = path_of(home, line.timeline)
    newest = newest_batches(home, committed_batches(home, path), path, 1)
    return partitions_of(newest[-1].offsets_text) if newest else None


# What the driver takes from a running query's execution: a batch's observations, and the state that ends its loop.


def observed_counts(query: StreamingQuery, definition: Definition) -> dict[str, BatchCounts]:
    """Return the running batch's observations by topic of the streams, after its rows were computed and before its commit.

    They are read from the execution itself: the progress event comes later, and does not come if the driver dies.
    """
    metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()

    def numbers(name: str) -> list[int | None]:
        # One call for the row and one for its text: each call to the JVM costs more than a batch's counts do.
        values = metrics.apply(name).mkString(",").split(",")
        return [None if value == "null" else int(value) for value in values]

    counts: dict[str, BatchCounts] = {}
    for view, source in definition.streams.items():
        names = metric_names(definition, view)
        (read, bad, digest), (accepted, min_event_ms, max_event_ms) = map(numbers, names)
        counts[source.topic] = BatchCounts(read or 0, bad or 0, accepted or 0, min_event_ms, max_event_ms, digest)
    return counts


_log = logging.getLogger(__name__)
_POLL_SECONDS: Any = 0.2  # PySpark takes fractions, though its annotation does not allow them
# While batches run, and after half a minute without one; each look is three calls to the JVM.
_POLL_BUSY_SECONDS: Any = 0.5
_ASKS_MS, _ASKS_SELDOM_MS, _SELDOM_AFTER_S = 100, 500, 30.0
"""How often a query without a record asks Kafka: an idle stream costs the asking and little else."""
SPARK_UI = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.killEnabled": "false"}
INTERPRETED_RECORDS = 5_000
"""A batch of no more records than this costs less where Spark interprets its plan than where it compiles it."""
_JOIN_EVERY_S = 10.0  # how often new topics are looked for, where a source reads a pattern of topics
_DYING_S = 1.0  # a driver sees that its JVM is gone a little earlier than the system says so
_QUIET_S = 5.0  # a batch without records, which a rising watermark causes, comes well before


class Interpreting:
    """Lets Spark interpret the plans of small batches, with the same results.

    Each batch is planned again, and compiling code for a few records costs more than it saves.
    """

    def __init__(self) -> None:
        """Begin with a query that compiles, as Spark does by itself."""
        self._is_on = False

    def choose(self, session: SparkSession, read: int) -> None:
        """Choose for the next batch, by the records of the last one.

        Args:
            session: the query's own, that of a batch's frame.
        """
        wanted = read <= INTERPRETED_RECORDS
        if wanted != self._is_on:
            for name, value in NO_CODE_TEXT.items():
                if wanted:
                    session.conf.set(name, value)
                else:
                    session.conf.unset(name)
            self._is_on = wanted


def join_topics(settings: Settings, topics: Iterable[str]) -> None:
    """Let topics that are new in Kafka join the patterns among `topics`.

    Raises:
        ServiceError: Kafka does not answer.
    """
    for pattern in (topic for topic in topics if TopicName(topic).is_pattern):
        joined = kafka.join_topics(settings, pattern, utc_now())
        if joined:
            _log.info("%s joined %s; they are read from their first record", ", ".join(joined), pattern)


class Driver:
    """Runs one pipeline's stream until it drains or fails."""

    def __init__(
        self,
        settings: Settings,
        bundle: Bundle,
        lease: Lease,
        *,
        until_end: bool,
        goal: Goal | None = None,
        own_jvm: bool = False,
    ) -> None:
        """Create a driver that already owns the lease; with a goal it runs the goal's timeline up to the goal.

        Args:
            own_jvm: it takes no part in its group, as a version beside the one that serves, and a run to a goal.
        """
        self._settings = settings
        self._bundle = bundle
        self._definition = definition = bundle.definition
        self._home: PipelineHome = settings.pipeline(definition.name)
        self._lease = lease
        self._until_end = until_end
        self._log_end: LogEnds = {}
        self._has_read_end = False
        self.at_end = False
        """Whether it ended by itself, once it had read to the log's end."""
        self._goal = goal
        self._group = None if own_jvm or goal is not None or not self._home.serves else definition.stream.group
        self._is_quiet = True
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._sets = TopicSets(())
        self._numbers: dict[str, list[int]] = {}
        self._has_grown = False
        """Whether a topic joined that the running query does not read."""
        self._looks_at = 0.0
        self._marks = ReadMarks(settings, definition.name)
        self._phases = PhaseKeeper(self._home, lease.epoch)
        self._explain_throw: Callable[[], str | None] = lambda: None
        beat = Heartbeat(lease.epoch, lease.owner.pid, lease.owner.timeline, "starting", utc_now(), read=0, emitted=0)
        self.heartbeat = HeartbeatThread(
            self._home,
            beat,
            lambda: {topic: kafka.end_offsets(settings, topic) for topic in definition.topics},
            utc_now,
            asked_to_drain=lambda: is_asked_to_drain(self._home, None if goal is None else goal.by),
            report=None
            if goal is not None
            else kafka.position_reporter(settings, f"rivertwice.{self._home.root.name}"),
        )

    def run(self) -> None:
        """Start the query and wait until it has ended; raise the error that made it fail."""
        self.heartbeat.start()
        bundle = self._bundle
        self._require_checked(bundle)
        bundle.save(self._home.bundles)
        line = self._open_timeline(bundle)
        self._definition = self._frozen(line)
        self._resume(line, bundle)
        check_reach(self._settings, self._home, self._definition, line, utc_now(), record=self._goal is None)
        spark = self._session()
        checkpoint = self._home.checkpoint(line.timeline)
        context = DriverContext(self._home, self._definition, line, bundle.id, checkpoint, self._lease, utc_now)
        load = StreamLoad.load(self._home)
        if self._until_end:
            self._log_end = {topic: kafka.stable_ends(self._settings, topic) for topic in self._definition.topics}
        while not self.heartbeat.draining.is_set():
            stage = plan_stage(self._settings, context, load)
            self._start(spark, replace(context, definition=stage.definition), stage)
            self._stay(self._running(), stage)
            if not stage.ends_by_itself and not self._has_grown:
                return

    def _open_timeline(self, bundle: Bundle) -> Timeline:
        """Return the timeline to run, after a check that the tables have all committed rows and a repair of the ledger."""
        require_whole_logs(self._home)
        healed = heal_ledger(self._home)
        if healed:
            _log.info("healed %s ledger rows from the changelog's commits", healed)
        renewed = renew_properties(self._home, by_table(self._home, self._definition))
        if renewed:
            _log.info("tables with new properties, which make their commits cheap: %s", ", ".join(renewed))
        wanted = None if self._goal is None else self._goal.timeline
        line = resolve_timeline(self._settings, self._home, self._definition, bundle, utc_now(), timeline=wanted)
        for topic in self._definition.topics:
            added = added_partitions(line, kafka.end_offsets(self._settings, topic), topic)
            if added:
                _log.warning("%s", describe_added(self._definition, topic, added, line.timeline))
        return line

    def _frozen(self, line: Timeline) -> Definition:
        """Return the definition with what the timeline froze; an edited value is named, and what makes it count."""
        definition = self._definition
        partitions, running = definition.stream.shuffle_partitions, running_partitions(self._home, line)
        if running not in (None, partitions):
            text = "stream.shuffle_partitions is %s, but %s keeps its state in %s; `rivertwice upgrade %s` rewrites the state"
            _log.warning(text, partitions, line.timeline, running, definition.name)
        wanted = buckets_at_genesis(definition)
        if wanted != line.fold_buckets and "fold_buckets" in definition.stream.model_fields_set:
            text = "stream.fold_buckets is %s, but %s began with %s, which stays: the state is laid out by it"
            _log.warning(text, wanted, line.timeline, line.fold_buckets)
        return with_buckets(definition, line.fold_buckets)

    def _resume(self, line: Timeline, bundle: Bundle) -> None:
        """Check that Kafka has what was read and that the checkpoint continues there, and report that position in the heartbeat."""
        # An earlier driver's, or the parent timeline's.
        path = path_of(self._home, line.timeline)
        committed = newest_rows_of_run(self._home, require_rows(self._home, line.timeline), path)
        if committed:
            last = committed[-1]
            self.heartbeat.resume(last.end_offsets, last.batch, last.batch_watermark_ms)
            marks = marks_from_plain(last.marks)
        else:
            self.heartbeat.resume(line.genesis, None, None)
            marks = {}
        self._marks = ReadMarks(self._settings, self._definition.name, line.topic_ids, marks)
        # Before the checkpoint and the reach: a query that ran while the log got shorter has planned a batch to the log's end, which looks
        # like damage. Of a log that ends too early the marks say more.
        self._marks.check()

        def rule_of_row(row: LedgerRow) -> WatermarkRule:
            own = row.bundle == bundle.id
            return rule_of(self._definition if own else load_bundle_definition(self._home.bundles, row.bundle))

        check_checkpoint(self._home, line, committed, rule_of_row)
        if sweep_unplanned(self._home, line, committed, self._lease.check):
            _log.info("no batch of %s was ever planned: its checkpoint begins again", line.timeline)

    def _sink(self, spark: SparkSession, context: DriverContext, stage: Stage) -> Sink:
        versions = KnownVersions(self._settings, self._home, self._definition, context.timeline.timeline)
        return Sink(
            context,
            batch_rows(self._definition, versions),
            observe=lambda: observed_counts(self._running(), self._definition),
            side=SideRows(spark, self._settings, context),
            log=BatchLog(self._settings, context),
            marks=self._marks,
            takes_frame=is_result(self._definition),
            is_large=stage.is_large,
        )

    def _start(self, spark: SparkSession, context: DriverContext, stage: Stage) -> None:
        """Start the query of a stage; from now on a thread of the JVM writes batches."""
        self._started.clear()
        self._has_grown = False
        self._sets = note_sets(context.checkpoint, self._settings, context.definition.topics)
        self._numbers = self._find_numbers(self._sets)
        sink = self._sink(spark, context, stage)
        result = compile_stream(spark, context.definition, self._source(spark, context, stage))
        placing = Placing(spark, self._settings, context, self.heartbeat.placed)
        interpreting = Interpreting()

        def write(frame: Any, batch: int) -> None:
            try:
                row = sink.write(frame, batch)
                self._phases.committed(row, sink.laps.seconds, sink.files)
                self._committed(row)
                interpreting.choose(frame.sparkSession, row.read)
                is_over = self._ends_after(spark, stage, row)
                goes_on = not is_over and not self._has_grown and not self._ending.is_set()
                if goes_on and not self.heartbeat.draining.is_set():
                    placing.place_next(self._running()._jsq.streamingQuery(), row.end_offsets)
                sink.laps.done("next")
            except BaseException as error:
                self._error = error  # py4j passes only its text on
                self._explain_throw = functools.partial(explain_throw, spark, self._settings, context, batch, error)
                raise
            execution = self._running()._jsq.streamingQuery()
            fill_log_end(spark, execution)
            if is_over or self._has_grown or self.heartbeat.draining.is_set():
                end_query(spark, execution)

        def begin(write_batch: Callable[[Any, int], None]) -> StreamingQuery:
            return (
                result.writeStream.outputMode(self._definition.output_mode)
                .queryName(self._definition.name)
                .option("checkpointLocation", str(context.checkpoint))
                .trigger(
                    processingTime=f"{0 if stage.ends_by_itself or self._until_end else self._definition.stream.trigger_seconds} seconds"
                )
                .foreachBatch(write_batch)
                .start()
            )

        if stage.archive is None:
            placing.place_first(begin)
        self._query = begin(write)
        self._started.set()
        self.heartbeat.say("running")

    def _ends_after(self, spark: SparkSession, stage: Stage, row: LedgerRow) -> bool:
        """Say whether a stage's query ends after a batch, or after one more, in which it closes windows (`_ending`)."""
        if not stage.is_over(row.end_offsets):
            return False
        if not self.heartbeat.draining.is_set():
            execution = self._running()._jsq.streamingQuery()
            if hold_for_watermark(spark, self._settings, execution, stage, row):
                self._ending.set()
                return False
        self._leave(stage)
        return True

    def _leave(self, stage: Stage) -> None:
        self._ending.clear()
        if stage.ends_driver:
            self.heartbeat.draining.set()

    def _source(self, spark: SparkSession, context: DriverContext, stage: Stage) -> DataFrame:
        sets = self._sets
        if stage.archive is None:
            return kafka_stream(spark, self._settings, context.definition, genesis=context.timeline.genesis, sets=sets)
        write_initial_offsets(context)
        batch = stage.archive
        _log.info("Kafka has deleted the next records: %s of the archive's are read", batch.records)
        return archive_stream(spark, replace(batch, start=sets.to_kafka(batch.start), end=sets.to_kafka(batch.end)))

    def _look_for_topics(self, now_s: float) -> None:
        """Let new topics join the patterns that the stream reads; it reads them from its next query on."""
        if not self._sets or self._has_grown or now_s < self._looks_at:
            return
        self._looks_at = now_s + _JOIN_EVERY_S
        try:
            join_topics(self._settings, self._definition.topics)
            now = TopicSets.load(self._settings, self._definition.topics)
            self._has_grown = self._find_numbers(now) != self._numbers
        except ServiceError as error:  # the query waits for Kafka, too; what is new joins at a later look
            _log.warning("new topics could not be looked for: %s", error)

    def _find_numbers(self, sets: TopicSets) -> dict[str, list[int]]:
        """Return topic to its partitions, if one is a pattern: then Spark is told what to read, and finds no new partition itself."""
        topics = self._definition.topics if sets else ()
        return {topic: [*(sets.numbers(topic) or kafka.find_parts(self._settings, topic))] for topic in topics}

    def classify(self, error: BaseException) -> str:
        """Return the class of a failure. What Kafka deleted during a load is not a loss if the archive has it: the next start reads it."""
        failure = classify_failure(error)
        if failure == UNKNOWN and self._is_quiet and self._has_lost_group():
            return STORE
        if failure == RETENTION and self._marks.explain() is not None:
            return FORK
        if failure == RETENTION and reads_on_from_archive(self._settings, self._definition, utc_now()):
            return STORE
        return failure

    def _has_lost_group(self) -> bool:
        """Say whether the JVM of the group has ended, or ends now."""
        owner = self._lease.owner
        return owner.group is not None and Deadline.after(_DYING_S).wait_until(
            lambda: not is_alive(owner.jvm_pid, owner.jvm_started), every=0.05
        )

    def explain(self, failure: str) -> str | None:
        """Return why the stream failed, if more is known than the error's own text, or None.

        Args:
            failure: class of the failure, see `classify_failure`.
        """
        if failure in (UNKNOWN, STORE) and self._has_lost_group():
            return f"the JVM of the group ended; read {self._lease.owner.group}/log"
        if failure == FORK:
            return self._marks.explain()
        if failure == RETENTION and self._goal is None:
            return explain_loss(self._settings, self._definition, utc_now())
        return self._explain_throw() if failure == POISON else None

    def _require_checked(self, bundle: Bundle) -> None:
        """Refuse a definition that the checks refuse, before any part of it is stored. The verdict is stored, so it is made once.

        A definition that the fingerprint refuses is not checked, because it does not start anyway.
        """
        name = (None if self._goal is None else self._goal.timeline) or head(self._home)
        if name is not None and Timeline.load(self._home, name).fingerprint != bundle.fingerprint.hashes():
            return
        verdict = require_checked(self._settings, bundle, self._session, name, utc_now())
        for question in verdict.unchecked:
            _log.warning("%s: %s", self._definition.name, question)
        for finding in verdict.findings:
            _log.error(
                "%s ran before it was checked and continues, but is not exact: %s", self._definition.name, finding
            )

    def _session(self) -> SparkSession:
        """Return the process's Spark session; it is started when it is first needed."""
        pins = self._definition.stream
        name = self._definition.name
        spark = spark_session(
            self._settings,
            f"rivertwice-{name}",
            shuffle_partitions=pins.shuffle_partitions,
            group=None if self._group is None else (self._group, name),
            waits=self.heartbeat.waits,
            extra={
                "spark.sql.streaming.minBatchesToRetain": str(pins.min_batches_to_retain),
                "spark.sql.streaming.pollingDelay": f"{_ASKS_MS}ms",
                **watermark_confs(self._definition),
                **(SPARK_UI if self._settings.spark_ui else {}),
            },
        )
        jvm: Any = spark._jvm
        self._lease.record_jvm(
            int(jvm.java.lang.ProcessHandle.current().pid()), spark.conf.get("rivertwice.group", None)
        )
        self.heartbeat.shows(spark.sparkContext.uiWebUrl)
        self._phases.cores = int(spark.sparkContext.defaultParallelism) if self._settings.spark_is_local else None
        return spark

    def _running(self) -> StreamingQuery:
        self._started.wait()
        assert self._query is not None
        return self._query

    def _committed(self, row: LedgerRow) -> None:
        self.heartbeat.committed(row)
        if self._until_end and self._has_read_end:
            self._leave_at_end()  # records that come without a pause must not keep it running
        self._has_read_end = self._until_end and self._covers_end(row.end_offsets)
        if self._goal is not None and self._goal.is_reached_by(row.end_offsets, row.batch_watermark_ms):
            self.heartbeat.draining.set()
        _log.info(
            "batch %s: %s read, %s bad, %s emitted, watermark %s",
            row.batch,
            row.read,
            row.bad,
            row.emitted,
            row.batch_watermark_ms,
        )

    def _covers_end(self, position: StoredOffsets) -> bool:
        """Say whether what the log had at the start is read; an open transaction is not waited for."""
        return lag_of(position, self._log_end) == 0

    def _leave_at_end(self) -> None:
        if not self.heartbeat.draining.is_set():
            self.at_end = True
            self.heartbeat.draining.set()

    def _stay(self, query: StreamingQuery, stage: Stage) -> None:
        quiet, seldom = QuietClock(), False
        while True:
            try:
                pause = _POLL_SECONDS if quiet.is_quiet and not seldom else _POLL_BUSY_SECONDS
                if query.awaitTermination(pause):  # also true while the last batch is still being committed
                    query.awaitTermination()
                    self._phases.look(query)
                    return
            except Exception as error:
                if self._error is not None:
                    raise self._error from error
                raise
            self._phases.look(query)
            self._lease.check()  # an idle stream has no batch that would notice a lost lease
            self._marks.check_when_due()
            self._look_for_topics(time.monotonic())
            quiet_s = quiet.look(query.status, time.monotonic())
            if seldom != (quiet_s > _SELDOM_AFTER_S):
                seldom = not seldom
                set_polling(query._jsq.streamingQuery(), _ASKS_SELDOM_MS if seldom else _ASKS_MS)
            self._is_quiet = quiet.is_quiet
            self.heartbeat.say("idle" if quiet.is_quiet else "running")
            if (
                self._until_end
                and quiet_s > 1.0
                and (self._covers_end(self.heartbeat.beat.end_offsets) or self.heartbeat.caught_up())
            ):
                self._leave_at_end()
            if self._goal and quiet_s > _QUIET_S and covers(self.heartbeat.beat.end_offsets, self._goal.offsets):
                self.heartbeat.draining.set()  # no record is left that could raise the watermark
            is_ending = self._ending.is_set() or self._has_grown or self.heartbeat.draining.is_set()
            if is_ending and quiet.is_waiting and quiet_s > 0.4:
                query.stop()
                self._phases.look(query)
                if self._ending.is_set():  # no watermark rose, so no batch without records came
                    self._leave(stage)
                return


def main(argv: list[str] | None = None) -> int:
    """Run the driver; return the process's exit code."""
    parser = argparse.ArgumentParser(prog="rivertwice.stream.driver", description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline, for instance flight_delays")
    parser.add_argument("--until-end", action="store_true", help="drain once everything in the log is committed")
    parser.add_argument("--catch-up", type=Goal.from_text, help="run another timeline as far as this goal (JSON)")
    parser.add_argument("--own-jvm", action="store_true", help="take no part in the JVM of a group (stream.group)")
    arguments = parser.parse_args(argv)
    settings = Settings.from_env()
    home = settings.pipeline(arguments.pipeline)
    try:
        bundle = build_bundle(settings.definition_folder(arguments.pipeline))
        goal: Goal | None = arguments.catch_up
        join_topics(settings, bundle.definition.topics)
        lease = acquire_lease(home, goal.timeline if goal else head(home) or FIRST, utc_now())
        again = None if goal else begin_again(settings, home, bundle, utc_now())
        if again is not None:
            _log.warning("the definition changed before a batch was committed: the stream begins again, as %s", again)
            lease.release()
            lease = acquire_lease(home, again, utc_now())
    except Exception as error:
        _log.exception("the stream of %s did not start", arguments.pipeline)
        Exit(0, utc_now(), classify_failure(error), str(error)[:4000], clean=False).save(home)
        return 1
    until_end = arguments.until_end or (goal is None and bundle.definition.stream.runs_at is not None)
    driver = Driver(settings, bundle, lease, until_end=until_end, goal=goal, own_jvm=arguments.own_jvm)
    signal.signal(signal.SIGTERM, lambda *_: driver.heartbeat.draining.set())
    signal.signal(signal.SIGINT, lambda *_: driver.heartbeat.draining.set())
    try:
        driver.run()
    except BaseException as error:
        failure = driver.classify(error)
        named = driver.explain(failure)
        _log.exception("the stream of %s failed (%s): %s", arguments.pipeline, failure, named or "see below")
        Exit(lease.epoch, utc_now(), failure, (named or str(error))[:4000], clean=False).save(home)
        driver.heartbeat.finish("failed")
        lease.release()
        return 1
    said = "read to the end of the log" if driver.at_end else "drained at a batch boundary"
    Exit(lease.epoch, utc_now(), DRAINED, said, clean=True, at_end=driver.at_end).save(home)
    driver.heartbeat.finish("stopped")
    lease.release()
    return 0


if __name__ == "__main__":
    run_process(main)
