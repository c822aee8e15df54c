"""The one-commit sink: results, ledger row and transaction id of a micro-batch in a single Delta commit.

Protocol of one batch (`foreachBatch`), each step repeatable after a crash:

1. Check the lease: a driver that lost it writes nothing.
2. Read the batch's range from `offsets/N`, which is durable before the batch runs.
3. If the timeline is sealed, stop. If the batch is already committed, compare its recorded range with `offsets/N`:
   equal means a replay after a crash, which is computed (all state must be materialised) and not written; different
   means stop, and so does a digest of the records read that is not the recorded one.
4. Write the versions of tables that the batch read, if there are any; like dead letters they count only once their
   batch is in the ledger. Compute the rows, check that the topic is still the one with which the timeline began, read
   the observed counts, and mark the last record of each partition.
5. Write the dead letters of this range, if there are any, and its late rows, if the policy keeps them; they count only
   once their batch is in the ledger.
6. Commit rows, ledger row and transaction `(pipeline#timeline, batch)` together. The batch is committed now.
7. Copy the ledger row to the ledger table; a crash before it is healed at the next start.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from rivertwice.core import (
    CheckpointError,
    ExecutorLostError,
    LedgerError,
    LogForkError,
    LogGapError,
    PipelineHome,
    RangeMismatchError,
    RivertwiceError,
    ServiceError,
    Settings,
    SparkVersion,
    beside,
    traced,
)
from rivertwice.definition import Definition
from rivertwice.engine import RowsOf
from rivertwice.log import (
    LastRecord,
    LastRecords,
    Marks,
    OffsetRanges,
    Part,
    Parts,
    StoredMarks,
    absent_runs,
    count_runs,
    explain_holes,
    kafka,
    marks_to_plain,
    observe_forks,
    require_no_fork,
)
from rivertwice.storage import NewFile, Table, replace_json
from rivertwice.stream.begin import check_topics
from rivertwice.stream.checkpoint import PlannedBatch, late_watermark_ms, read_planned, start_offsets
from rivertwice.stream.late import select_suspects
from rivertwice.stream.phases import Laps
from rivertwice.stream.result_rows import DriverContext, changelog_rows, check_windows
from rivertwice.stream.seal import check_sealed
from rivertwice.stream.side_rows import SideRows
from rivertwice.timeline import (
    LEDGER_KEY,
    BatchCounts,
    LedgerRow,
    Timeline,
    add_digests,
    append_ledger,
    digest_rows,
    heal_ledger,
    of_changelog,
    parts_between,
    read_ledger,
    total_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


# The result rows of a batch that are more than the driver may hold: executors write them to files, and one commit adds these.
#
# Ordinary batches go through the driver, which is quicker: one job, and no file is written before the commit's own. Spark refuses
# to collect a result above `spark.driver.maxResultSize`. The batch's observations cannot be trusted then, because a part of its tasks
# ran, and would count twice. So the driver notes the batch and ends; the next one finds the note and lets executors write it.

FORMAT = 1
_REFUSED = ("spark.driver.maxResultSize",)


@dataclass(frozen=True)
class WrittenRows:
    """A batch's result rows in files that no commit has added yet.

    Attributes:
        files: of the changelog. count: rows in all. digest: of all rows (`timeline.digest`).
        schema: of the changelog, with `_day`.
    """

    files: Sequence[NewFile]
    count: int
    digest: str
    schema: pa.Schema


def is_refused(error: BaseException) -> bool:
    """Say whether Spark refused to collect a result because it is too large."""
    return any(mark in str(error) for mark in _REFUSED)


def note_large(home: PipelineHome, timeline: str, batch: int) -> None:
    """Remember that executors must write a batch; the note holds for this batch and all later ones of the timeline."""
    replace_json(_note(home), {"format": FORMAT, "timeline": timeline, "batch": batch})


def is_noted(home: PipelineHome, timeline: str, batch: int) -> bool:
    """Say whether executors must write a batch. A note that cannot be read is none: the batch is tried and noted again."""
    try:
        value = json.loads(_note(home).read_text())
        return bool(value["format"] == FORMAT and value["timeline"] == timeline and batch == value["batch"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _note(home: PipelineHome) -> Path:
    return home.root / "large-batch.json"


def write_rows(frame: DataFrame, home: PipelineHome, timeline: str, batch: int, definition: Definition) -> WrittenRows:
    """Let executors write a batch's result rows; they mean what `changelog_rows` of the collected ones would."""
    names = frame.columns
    plain = to_arrow_schema(frame.schema, **SparkVersion.installed().arrow_in_utc)
    start = definition.window.start_column
    schema = changelog_rows(plain.empty_table(), timeline, batch, start).schema

    def stamped(rows: pa.Table) -> pa.Table:
        result = rows.select(names).cast(plain)
        check_windows(result, definition)
        return changelog_rows(result, timeline, batch, start)

    files = Table(home.tables.changelog).write_files(
        frame,
        schema,
        stamped,
        partition_by="_day",
        note=lambda rows: digest_rows(rows, names),
    )
    count = sum(file.rows for file in files)
    return WrittenRows(files, count, add_digests(file.note for file in files), schema)


# The log of a running stream: whether its topics and its records are still those that were read, and where it has holes.

_log = logging.getLogger(__name__)
CHECK_EVERY_S = 300.0  # a check costs a fifth of a CPU-second


class ReadMarks:
    """The last record that was read of each partition, over all queries of one driver."""

    def __init__(
        self, settings: Settings, pipeline: str, topic_ids: Mapping[str, str] | None = None, marks: Marks | None = None
    ) -> None:
        """Take the ids of the timeline's topics, and the marks of the newest committed batch."""
        self._settings = settings
        self._pipeline = pipeline
        self._topic_ids = dict(topic_ids or {})
        self._marks = dict(marks or {})
        self._last = LastRecords(settings)
        self._reading: Future[dict[Part, LastRecord]] | None = None
        self._checked_at = time.monotonic()

    def check(self) -> None:
        """Refuse a log that has not these records any more.

        Raises:
            LogForkError: Kafka gave their offsets to other records, or none.
            ServiceError: Kafka does not answer.
        """
        self._checked_at = time.monotonic()
        require_no_fork(observe_forks(self._settings, self._topic_ids, self._marks), self._pipeline)

    def check_when_due(self) -> None:
        """Check every five minutes; if Kafka does not answer, at the next turn.

        Raises:
            LogForkError: as for `check`.
        """
        if time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        try:
            self.check()
        except ServiceError as error:
            _log.warning("whether Kafka still has the records that were read is not known yet: %s", error)

    def explain(self) -> str | None:
        """Return that Kafka has not these records any more, or None. It never raises for the log's state: a failure is handled."""
        try:
            self.check()
        except LogForkError as error:
            return str(error)
        except RivertwiceError as error:
            _log.warning("whether Kafka still has the records that were read is not known: %s", error)
        return None

    def begin(self, parts: Parts) -> None:
        """Read the last records of a batch that reads `parts`, beside its work: Kafka's answer takes as long as a small batch's write."""
        self._reading = beside(lambda: self._last.read(parts), "marks")

    def advance(self) -> StoredMarks:
        """Return the marks after the batch that was begun. If a partition has a new leader, those before it are checked first.

        Raises:
            LogForkError: as for `check`.
            ServiceError: Kafka does not answer.
        """
        assert self._reading is not None, "a batch was begun"
        read = self._reading.result()
        if any(part in self._marks and mark.epoch > self._marks[part].epoch for part, mark in read.items()):
            self.check()
        self._marks = {**self._marks, **read}
        return marks_to_plain(self._marks)


def check_same_records(row: LedgerRow, read: Mapping[str, BatchCounts]) -> None:
    """Check that a batch that is computed again read the records that it read before. Pure.

    Raises:
        LogForkError: the digest of a topic's records differs.
        ExecutorLostError: records were counted twice, so their digest says nothing.
    """
    for topic, counts in row.by_topic.items():
        if (again := read.get(topic, counts).read) > counts.read:
            message = (
                f"batch {row.batch} is committed with {counts.read} records of topic {topic}, and Spark counted {again} when it was "
                "computed again: an executor was lost inside it; nothing was changed: the agent starts the stream again"
            )
            raise ExecutorLostError(message)
        before, now = counts.known_digest, read.get(topic, counts).known_digest
        if before is not None and now is not None and before != now:
            message = (
                f"batch {row.batch} is committed, and its offsets of topic {topic} hold other records now than it read (digest {now:x}, recorded "
                f"{before:x}), so its state cannot be made again; `rivertwice savepoint rewind {row.pipeline}` "
                "goes back to the newest proved savepoint from before that and reads the log again"
            )
            raise LogForkError(message)


class BatchLog:
    """Checks of the log from which batches are read."""

    def __init__(self, settings: Settings, context: DriverContext) -> None:
        self._settings = settings
        self._context = context
        self._askers = {topic: kafka.topic_id_asker(settings, topic) for topic in context.definition.topics}

    def check(self) -> None:
        """Refuse the records that were just read if they may belong to another topic.

        Raises:
            LogGapError: a topic was deleted and created again since the timeline began.
        """
        current = {topic: ask() for topic, ask in self._askers.items()}
        check_topics(self._context.timeline.topic_ids, current, self._context.definition.name)

    def absent(self, topic: str, ranges: OffsetRanges) -> dict[int, int]:
        """Return partition to how many offsets of a topic's ranges hold no record, as a second reader counts them.

        Raises:
            LedgerError: the topic is compacted, or the range is gone: the batch cannot be counted.
        """
        try:
            return count_runs(absent_runs(self._settings, topic, ranges))
        except LogGapError as error:
            message = f"the batch cannot be counted, and nothing was committed: {error}"
            raise LedgerError(message) from error

    def explain_holes(self, topic: str, ranges: OffsetRanges) -> str:
        """Return which offsets of a topic's ranges have no record, for a message."""
        return explain_holes(self._settings, topic, ranges)


def check_replay(recorded: LedgerRow | None, planned: PlannedBatch, start: Any) -> LedgerRow:
    """Return the ledger row of a committed batch, which may be skipped only if its range is the same.

    Raises:
        RangeMismatchError: its range differs, or the ledger does not contain the batch.
    """
    if recorded is None:
        message = (
            f"batch {planned.batch} is committed in the changelog, but the ledger has no row for it; the stream stops; "
            "restore the ledger from the changelog's history or fork a new timeline from a savepoint"
        )
        raise RangeMismatchError(message)
    same = (
        recorded.start_offsets == start
        and recorded.end_offsets == planned.end_offsets
        and recorded.batch_watermark_ms == planned.batch_watermark_ms
    )
    if not same:
        message = (
            f"batch {planned.batch} of timeline {recorded.timeline} is committed with range {recorded.start_offsets} to "
            f"{recorded.end_offsets}, but the checkpoint plans {start} to {planned.end_offsets}: skipping it would lose "
            "records, so the stream stops; this checkpoint was rewound, restore a savepoint into a new timeline instead"
        )
        raise RangeMismatchError(message)
    return recorded


def is_applied(applied: int | None, batch: int) -> bool:
    """Say whether the changelog contains a batch already, given the newest applied batch of its transaction id."""
    return applied is not None and applied >= batch


def check_own(line: Timeline, batch: int) -> None:
    """Refuse a batch of the parent: a child's checkpoint has finished all of them.

    Raises:
        CheckpointError: it comes before the timeline's first batch, so `commits` lost files.
    """
    if batch < line.first_batch:
        message = (
            f"the checkpoint of timeline {line.timeline} runs batch {batch}, but the timeline begins with batch "
            f"{line.first_batch}: files of the checkpoint are missing; nothing was committed; the agent falls back to the "
            "newest proved savepoint"
        )
        raise CheckpointError(message)


def check_counts(
    counts: BatchCounts,
    row_ranges: dict[int, tuple[int, int]],
    batch: int,
    absent: Callable[[dict[int, tuple[int, int]]], dict[int, int]] = lambda _: {},
    explain: Callable[[dict[int, tuple[int, int]]], str] = lambda _: "",
) -> dict[int, int]:
    """Check that every offset of the range was read once, or holds no record; return partition to how many hold none.

    Args:
        counts: what Spark read of one topic.
        row_ranges: partition to half-open range of the batch.
        absent: counts, by another reader, the offsets that transactions leave without a record; called only if offsets are left.
        explain: names the offsets without a record; called only for the error.

    Raises:
        LedgerError: an offset is not accounted for.
        ExecutorLostError: more was counted than there is. Spark adds up the counts of every run of a task, and a task runs again if
            the executor that holds its output is lost.
    """
    covered = sum(end - start for start, end in row_ranges.values())
    holes = absent(row_ranges) if counts.read < covered else {}
    without = sum(holes.values())
    if counts.read > covered - without or counts.bad + counts.accepted > counts.read:
        message = (
            f"batch {batch} covers {covered - without} records, and Spark counted {counts.read} records, {counts.bad} of them bad and "
            f"{counts.accepted} accepted: an executor was lost inside the batch, its tasks ran again on another one, and both runs "
            "were counted; nothing was committed: the agent starts the stream again, which computes the batch again"
        )
        raise ExecutorLostError(message)
    if counts.read != covered - without or counts.read != counts.bad + counts.accepted:
        message = (
            f"batch {batch} covers {covered} offsets, of which {without} hold no record because of transactions, but {counts.read} "
            f"records were read, {counts.bad} of them bad and {counts.accepted} accepted; nothing was committed: "
            f"{explain(row_ranges)}; start the stream again; if it ends here again, `rivertwice reconcile` says what the log holds"
        )
        raise LedgerError(message)
    return {partition: number for partition, number in holes.items() if number}


class Sink:
    """Writes batches; one per driver."""

    def __init__(
        self,
        context: DriverContext,
        rows: RowsOf,
        observe: Callable[[], Mapping[str, BatchCounts]],
        side: SideRows,
        log: BatchLog,
        marks: ReadMarks,
        *,
        takes_frame: bool = False,
        is_large: bool = False,
    ) -> None:
        """Create a sink.

        Args:
            rows: computes the result rows of a batch (`compile.batch_rows`).
            observe: returns the running batch's observed counts by topic, once its rows are computed.
            takes_frame: whether a batch's frame is its result, so that executors may write it (`compile.is_result`).
            is_large: every batch has too many rows for the driver, so executors write them if they may.
        """
        self._context = context
        self._rows = rows
        self._observe = observe
        self._side = side
        self._log = log
        self._marks = marks
        self._takes_frame = takes_frame
        self._is_large = is_large
        self._changelog = Table(
            context.home.tables.changelog, partition_by=["_day"], skip_by=of_changelog(context.definition)
        )
        self._ledger: Table | None = None
        self._fresh = True  # only a driver's first batch can have been tried by another driver
        self.laps = Laps()
        """Seconds of the newest batch by step: look, tables, rows, check, side, commit, ledger; the driver adds next."""
        self.files = 0
        """Files that its commit added to the changelog."""

    @traced(
        "batch",
        lambda self, frame, batch: {
            "pipeline": self._context.definition.name,
            "timeline": self._context.timeline.timeline,
            "batch": batch,
        },
        lambda row: {"read": row.read, "accepted": row.accepted, "bad": row.bad, "emitted": row.emitted},
    )
    def write(self, frame: Any, batch: int) -> LedgerRow:
        """Write one micro-batch and return its ledger row; see the module's protocol.

        Raises:
            LeaseLostError: another driver owns the pipeline, or a restore sealed the timeline.
            CheckpointError: the batch was not planned, or belongs to the parent.
            RangeMismatchError: the batch is committed already, with another range.
            LedgerError: the counts or windows of the batch are wrong; nothing was committed.
            LogGapError: a topic was deleted and created again, or holds other records than were read of it.
        """
        context = self._context
        self.laps, self.files = Laps(), 0
        laps = self.laps
        context.lease.check()  # step 1
        planned = read_planned(context.checkpoint, batch)  # step 2
        if planned is None:
            message = f"batch {batch} runs without offsets/{batch}; the checkpoint is damaged; restore a savepoint"
            raise CheckpointError(message)
        check_own(context.timeline, batch)
        start = start_offsets(context.checkpoint, batch)
        done = self._changelog.applied_version(context.app)
        check_sealed(done, context.timeline.timeline)
        if is_applied(done, batch):  # step 3
            laps.done("look")
            return self._replay(frame, planned, start)
        parts = parts_between(start, planned.end_offsets)
        self._marks.begin(parts)
        laps.done("look")
        tables = self._side.write_versions(batch, parts)  # step 4
        laps.done("tables")
        rows = self._compute(frame, batch)
        laps.done("rows")
        self._log.check()
        counts = {**self._observe(), **tables}
        row = self._ledger_row(planned, start, counts, rows)
        row = dataclasses.replace(row, absent=self._checked(row, counts), marks=self._marks.advance())
        laps.done("check")
        row = self._write_side(row, counts)  # step 5
        laps.done("side")
        context.lease.check()
        self.files = self._commit(row, rows)  # step 6
        laps.done("commit")
        self._ledger = append_ledger(context.home, [row], self._ledger)  # step 7
        laps.done("ledger")
        return row

    def _checked(self, row: LedgerRow, by_topic: Mapping[str, BatchCounts]) -> dict[str, dict[str, int]]:
        """Check the counts of a batch; return topic to partition to how many offsets hold no record."""
        absent = {}
        for topic, counts in by_topic.items():
            holes = check_counts(
                counts,
                row.ranges(topic),
                row.batch,
                functools.partial(self._log.absent, topic),
                functools.partial(self._log.explain_holes, topic),
            )
            if holes:
                absent[topic] = {str(partition): number for partition, number in holes.items()}
        return absent

    def _compute(self, frame: Any, batch: int) -> pa.Table | WrittenRows:
        """Return the batch's result rows, or what executors wrote of them if they are too many for the driver."""
        context = self._context
        home, timeline = context.home, context.timeline.timeline
        if self._takes_frame and (self._is_large or is_noted(home, timeline, batch)):
            return write_rows(frame, home, timeline, batch, context.definition)
        try:
            rows = self._rows(frame, batch)
        except Exception as error:
            if self._takes_frame and is_refused(error):
                note_large(home, timeline, batch)
                _log.warning(
                    "the rows of batch %s are too many for the driver; at the next start executors write them", batch
                )
            raise
        check_windows(rows, context.definition)
        return rows

    def _commit(self, row: LedgerRow, rows: pa.Table | WrittenRows) -> int:
        """Commit a batch; return how many files it adds: one for each day of its rows, or those that executors wrote."""
        context = self._context
        transactions, metadata = {context.app: row.batch}, {LEDGER_KEY: row.to_json()}
        if isinstance(rows, WrittenRows):
            self._changelog.append_files(rows.files, rows.schema, transactions=transactions, metadata=metadata)
            return len(rows.files)
        start_column = context.definition.window.start_column
        stamped = changelog_rows(rows, context.timeline.timeline, row.batch, start_column)
        self._changelog.append(stamped, transactions=transactions, metadata=metadata)
        return len(stamped["_day"].unique())

    def _replay(self, frame: Any, planned: PlannedBatch, start: Any) -> LedgerRow:
        """Compute a batch that is committed already, for its state only, and return its ledger row."""
        context, batch = self._context, planned.batch
        # Another driver may have committed it after this one's start, and been killed before the ledger's copy.
        heal_ledger(context.home)
        committed = (row for row in read_ledger(context.home, batch) if row.timeline == context.timeline.timeline)
        recorded = next((row for row in committed if row.batch == batch), None)
        row = check_replay(recorded, planned, start)
        self._compute(frame, batch)
        self.laps.done("rows")
        self._log.check()  # otherwise the state could be made from another topic's records
        check_same_records(row, self._observe())
        _log.info("batch %s of %s is committed already; replayed for its state only", batch, context.app)
        return row

    def _write_side(self, row: LedgerRow, counts: Mapping[str, BatchCounts]) -> LedgerRow:
        """Write a batch's dead letters and late rows; return its ledger row with the number of the latter."""
        context, batch, fresh = self._context, row.batch, self._fresh
        if row.bad or fresh:
            bad = {topic: topic_counts.bad for topic, topic_counts in counts.items() if topic_counts.bad}
            self._side.write_dead(batch, row.parts(), bad)
        if context.definition.late.keeps_rows:
            late_ms = late_watermark_ms(context.checkpoint, batch)
            suspects = select_suspects(context.definition, counts, late_ms)
            late = self._side.write_late(batch, row.parts(), late_ms, suspects) if suspects or fresh else 0
            row = dataclasses.replace(row, late_rows=late)
        self._fresh = False
        return row

    def _ledger_row(
        self, planned: PlannedBatch, start: Any, by_topic: Mapping[str, BatchCounts], rows: pa.Table | WrittenRows
    ) -> LedgerRow:
        context = self._context
        counts = total_of(by_topic.values())
        return LedgerRow(
            pipeline=context.definition.name,
            timeline=context.timeline.timeline,
            batch=planned.batch,
            epoch=context.lease.epoch,
            bundle=context.bundle,
            cluster_id=context.timeline.cluster_id,
            topic_ids=dict(context.timeline.topic_ids),
            start_offsets=start,
            end_offsets=planned.end_offsets,
            offsets_text=planned.text,
            batch_watermark_ms=planned.batch_watermark_ms,
            batch_timestamp_ms=planned.batch_timestamp_ms,
            read=counts.read,
            bad=counts.bad,
            accepted=counts.accepted,
            min_event_ms=counts.min_event_ms,
            max_event_ms=counts.max_event_ms,
            emitted=rows.count if isinstance(rows, WrittenRows) else rows.num_rows,
            digest=rows.digest if isinstance(rows, WrittenRows) else digest_rows(rows, rows.column_names),
            references={},
            committed_at=context.now(),
            by_topic=dict(by_topic),
        )
