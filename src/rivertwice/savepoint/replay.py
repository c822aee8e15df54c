"""Replay recorded batches over a restored checkpoint, each with exactly its recorded offset range.

Only identical ranges give identical output: other batch boundaries drop other late rows. So the first batch runs over
the recorded `offsets/N`, put in place before the query starts; Spark then replays just that range. The next batches run
in the same query: from inside `foreachBatch` the source is given the end of the next batch, through the field that
Spark's own available-now trigger uses. Where that cannot be done, the query is started once per batch. In both cases
every batch is checked: its range and watermark against the ledger, its rows against the ledger's digest. At the end
the checkpoint contains the recorded `offsets/N`, byte for byte. No table is written.

Where the results do not depend on how records are cut into batches, one batch of Spark replays many recorded ones (`merged`).
"""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rivertwice.core import Deadline, Measured, Progress, ReplayMismatchError, RivertwiceError, Settings
from rivertwice.definition import Definition
from rivertwice.engine import RowsOf, aggregate_functions, batch_rows, compile_stream, with_confs
from rivertwice.savepoint.merged import (
    FEWEST,
    SNAPSHOTS,
    LoggedBatches,
    Step,
    find_obstacle,
    find_unfit_rows,
    link_checkpoint,
    one_by_one,
    renumber,
    split_rows,
)
from rivertwice.savepoint.plan import ReplayTopics, count_one_run, plan_watermarks
from rivertwice.savepoint.state_files import put_text, repartition_state
from rivertwice.stream import (
    KnownVersions,
    end_query,
    kafka_stream,
    last_number,
    note_sets,
    partitions_of,
    read_planned,
    read_sets,
    steer_source,
    with_partitions,
)
from rivertwice.timeline import LedgerRow, digest_rows, rule_of, watermarks_after

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_STUCK_S = 10.0  # a query that waits this long for data will not run the recorded batch by itself
_WAITING = "Waiting for data to arrive"


@dataclass(frozen=True)
class ReplayedBatch:
    """One batch that was replayed and is equal to its ledger row."""

    batch: int
    digest: str
    emitted: int
    read: int
    seconds: float


class _Replay:
    """State of one replay: which row is expected next, and the results so far."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        result: DataFrame,
        rows_of: RowsOf,
        checkpoint: Path,
        steps: Sequence[Step],
        end_column: str,
        override: ReplayTopics | None,
        progress: Progress,
        deadline: Deadline | None,
        next_watermarks: Mapping[int, int],
        output_mode: Literal["append", "update"],
        keep: Callable[[LedgerRow, pa.Table], None],
    ) -> None:
        self._keep = keep
        self._deadline = deadline
        self._output_mode = output_mode
        self._spark = spark
        self._settings = settings
        self._result = result
        self._rows_of = rows_of
        self._checkpoint = checkpoint
        self._steps = steps
        self._at = 0
        self._end_column = end_column
        self._override = override
        self._next_watermarks = next_watermarks
        self._progress = progress
        self._query: Any = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._until = 0
        self._clock = time.monotonic()
        self.done: list[ReplayedBatch] = []

    @property
    def left(self) -> Sequence[Step]:
        """The steps that are not done."""
        return self._steps[self._at :]

    def run(self, count: int) -> None:
        """Take up to `count` further steps with one query; at least one, or raise."""
        first = self._at
        self._until = first + count
        put_offsets(self._checkpoint, self._steps[first], self._override)
        self._started.clear()
        self._error = None
        self._query = (
            self._result.writeStream.outputMode(self._output_mode)
            .queryName("rivertwice-replay")
            .option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._batch)
            .start()
        )
        self._started.set()
        self._stay()
        if self.is_over():
            return
        committed = last_number(self._checkpoint / "commits")
        wanted = self._steps[self._at - 1].number if self._at else None
        if self._at == first or committed != wanted:
            message = (
                f"the replay stopped at batch {committed}, expected {self._steps[first].number} to be replayed and batch "
                f"{wanted} to be the last one finished; the checkpoint copy is not usable; run it again"
            )
            raise ReplayMismatchError(message)

    def is_over(self) -> bool:
        """Say whether the replay's time has passed."""
        return self._deadline is not None and self._deadline.left() == 0

    def _stay(self) -> None:
        quiet_since: float | None = None
        while True:
            if self.is_over():
                self._query.stop()
                return
            try:
                if self._query.awaitTermination(0.2):  # also true while its last batch is still being committed
                    self._query.awaitTermination()
                    return
            except Exception as error:
                if self._error is not None:
                    raise self._error from error
                raise
            waiting = self._query.status["message"] == _WAITING
            quiet_since = (quiet_since or time.monotonic()) if waiting else None
            if quiet_since and time.monotonic() - quiet_since > _STUCK_S:
                _log.warning("the query waits for data before the recorded batch; it is started again")
                self._query.stop()
                return

    def _batch(self, frame: Any, batch: int) -> None:
        try:
            self._started.wait()
            step = self._steps[self._at]
            self._take(step, batch, self._rows_of(frame, batch))
            self._at += 1
            following = self._steps[self._at] if self._at < self._until and not self.is_over() else None
            execution = self._query._jsq.streamingQuery()
            if batch in self._next_watermarks and not steer_watermark(execution, self._next_watermarks[batch]):
                following = None
            if following is None or not steer_source(
                self._spark, self._settings, execution, self._shifted(following.last)
            ):
                end_query(self._spark, execution)
        except BaseException as error:
            self._error = error  # py4j passes only its text on
            raise

    def _take(self, step: Step, batch: int, table: pa.Table) -> None:
        """Compare the result rows of a step with the ledger, and note its recorded batches as replayed."""
        planned = read_planned(self._checkpoint, batch)
        assert planned is not None, "it runs"
        _require(
            step.last,
            ("number", batch, step.number),
            ("range end", planned.end_offsets, self._shifted(step.last)),
            ("watermark", planned.batch_watermark_ms, step.last.batch_watermark_ms),
        )
        found = []
        for row, own in zip(step.rows, split_rows(table, self._end_column, step.rows), strict=True):
            digest = digest_rows(own, own.column_names)
            _require(row, ("digest", digest, row.digest))
            self._keep(row, own)
            found.append((row, digest, own.num_rows))
        now = time.monotonic()
        each_s = (now - self._clock) / len(step.rows)
        self._clock = now
        self.done += [ReplayedBatch(row.batch, digest, emitted, row.read, each_s) for row, digest, emitted in found]
        at, of = len(self.done), sum(len(each.rows) for each in self._steps)
        read = sum(row.read for row in step.rows)
        what, equal = f"batch {step.last.batch} replayed", "equal"
        if len(step.rows) > 1:
            what, equal = f"batches {step.rows[0].batch} to {step.last.batch} replayed", "each equal"
        line = f"{what}: {read} records, {table.num_rows} rows, {equal} ({at} of {of})"
        self._progress(Measured(line, "replay", at, of))

    def _shifted(self, row: LedgerRow) -> Any:
        return row.end_offsets if self._override is None else self._override.shift(row.end_offsets)


def _require(row: LedgerRow, *values: tuple[str, object, object]) -> None:
    """Check quantities of a recorded batch: each with the value now and the recorded one."""
    differences = [
        f"{quantity} {now!r}, recorded {recorded!r}" for quantity, now, recorded in values if now != recorded
    ]
    if differences:
        message = (
            f"replaying batch {row.batch} of timeline {row.timeline} over its recorded range gave another result: "
            f"{'; '.join(differences)}; the savepoint, the definition or the log has changed; "
            "use another savepoint and run a reconcile"
        )
        raise ReplayMismatchError(message)


def replay_recorded(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    checkpoint_dir: Path,
    rows: Sequence[LedgerRow],
    *,
    before: Sequence[LedgerRow] = (),
    topic_override: ReplayTopics | None = None,
    progress: Progress,
    one_query: bool = True,
    merge: bool = True,
    deadline: Deadline | None = None,
    keep: Callable[[LedgerRow, pa.Table], None] = lambda *_: None,
) -> list[ReplayedBatch]:
    """Replay `rows` over the checkpoint copy in `checkpoint_dir`, whose last batch is the one before the first of `rows`.

    Args:
        definition: the definition whose state the checkpoint holds.
        checkpoint_dir: a trimmed copy; it is changed, and its last batch is the last row's afterwards.
        rows: the recorded batches, in order, without a gap.
        before: the ledger of the rows' path, from its beginning; needed for several sources.
        topic_override: reads replay topics instead of the definition's topics.
        one_query: False starts the query once per batch (the slower way, for comparison).
        merge: replay many recorded batches by one of Spark's where that can be done.
        keep: is called with every batch's result rows after they were compared with the ledger.

    Returns:
        the batches that were replayed and are equal: all of `rows`, or fewer if the deadline passed. The checkpoint cannot
        be used then.

    Raises:
        ReplayMismatchError: a batch gave another output, range or watermark than was recorded.
    """
    if not rows:
        return []
    run = _Run(spark, settings, definition, rows, before or rows, topic_override, progress, deadline, keep)
    merged = run.in_few_batches(checkpoint_dir) if merge and one_query else None
    return run.one_by_one(checkpoint_dir, one_query=one_query) if merged is None else merged


@dataclass(frozen=True)
class _Run:
    """What both ways of a replay have in common; the attributes are the arguments of `replay_recorded`."""

    spark: SparkSession
    settings: Settings
    definition: Definition
    rows: Sequence[LedgerRow]
    before: Sequence[LedgerRow]
    override: ReplayTopics | None
    progress: Progress
    deadline: Deadline | None
    keep: Callable[[LedgerRow, pa.Table], None]

    def one_by_one(self, checkpoint: Path, *, one_query: bool) -> list[ReplayedBatch]:
        """Replay each recorded batch by one of Spark's."""
        watermarks = plan_watermarks(self.before, self.rows, rule_of(self.definition))
        replay = self._replay(checkpoint, one_by_one(self.rows), watermarks)
        with self._topics_in(checkpoint):
            while replay.left:
                if replay.is_over():
                    return replay.done
                alike = _lay_out(self.spark, checkpoint, [step.last for step in replay.left])
                several = len(self.definition.sources) > 1
                replay.run(count_one_run(alike, several=several) if one_query else 1)
        for row in self.rows:  # Spark has purged the oldest of a long replay
            path = checkpoint / "offsets" / str(row.batch)
            if path.exists():
                put_text(path, read_sets(checkpoint).text_to_kafka(row.offsets_text))
        _show_changes(checkpoint, self.rows)
        return replay.done

    def in_few_batches(self, checkpoint: Path) -> list[ReplayedBatch] | None:
        """Replay many recorded batches by each of Spark's; None: it cannot be done, and the checkpoint is as before."""
        reason = find_unfit_rows(checkpoint, self.rows) or find_obstacle(
            self.definition, aggregate_functions(self.spark, self.definition)
        )
        if reason is None:
            work = checkpoint.parent / f".{checkpoint.name}.merged"
            try:
                shutil.rmtree(work, ignore_errors=True)
                link_checkpoint(checkpoint, work)
                done = self._merge(work)
            except (RivertwiceError, Py4JError, PySparkException, OSError) as error:
                reason = str(error).strip().partition("\n")[0][:400]
            else:
                shutil.rmtree(checkpoint)
                work.rename(checkpoint)
                return done
            finally:
                shutil.rmtree(work, ignore_errors=True)
        if len(self.rows) >= FEWEST:
            self.progress(f"the recorded batches are replayed one by one: {reason}")
        return None

    def _merge(self, work: Path) -> list[ReplayedBatch]:
        log = LoggedBatches(self.spark, self.settings, self.definition, work, self.rows)
        steps = log.plan()
        many = "one batch" if len(steps) == 1 else f"{len(steps)} batches"
        self.progress(f"the log has what the {len(self.rows)} recorded batches read; Spark replays them in {many}")
        watermarks = {step.number: after.last.batch_watermark_ms for step, after in itertools.pairwise(steps)}
        replay = self._replay(work, steps, watermarks, only=log.only_in_time)
        with with_confs(self.spark, SNAPSHOTS), self._topics_in(work):
            while replay.left and not replay.is_over():
                replay.run(len(replay.left))
        if not replay.left:
            (next_ms,) = watermarks_after(self.rows, rule_of(self.definition))
            renumber(work, steps, next_ms=next_ms, retained=self.definition.stream.min_batches_to_retain)
        return replay.done

    def _replay(
        self,
        checkpoint: Path,
        steps: Sequence[Step],
        watermarks: Mapping[int, int],
        only: Callable[[DataFrame], DataFrame] | None = None,
    ) -> _Replay:
        topics, definition = self.override, self.definition
        sets = note_sets(checkpoint, self.settings, definition.topics)
        raw = kafka_stream(
            self.spark,
            self.settings,
            definition,
            replayed=None if topics is None else topics.names,
            bases=None if topics is None else topics.bases,
            max_offsets=0,
            with_offsets=topics is not None and topics.has_absent,
            sets=sets,
        )
        versions = KnownVersions(
            self.settings, self.settings.pipeline(definition.name), definition, self.rows[-1].timeline
        )
        return _Replay(
            self.spark,
            self.settings,
            compile_stream(self.spark, definition, raw, only=only),
            batch_rows(definition, versions),
            checkpoint,
            steps,
            definition.window.end_column,
            topics,
            self.progress,
            self.deadline,
            watermarks,
            definition.output_mode,
            self.keep,
        )

    @contextmanager
    def _topics_in(self, checkpoint: Path) -> Iterator[None]:
        """Let the checkpoint have read the replay topics, if there are any, for the block; an error leaves it so."""
        if self.override is None:
            yield
            return
        aside = checkpoint.parent / f".{checkpoint.name}.recorded"
        _shift_checkpoint(checkpoint, self.rows[0].batch - 1, self.override, aside)
        yield
        _unshift_checkpoint(checkpoint, aside)


def _lay_out(spark: SparkSession, checkpoint: Path, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Give the state the number of partitions that the first of `rows` was recorded with; return the rows that have the same.

    The stream's state was rewritten between two batches if they recorded different numbers; so the replayed one is, too.
    """
    numbers = [partitions_of(row.offsets_text) for row in rows]
    before = checkpoint / "offsets" / str(rows[0].batch - 1)
    if numbers[0] is not None and before.exists():
        repartition_state(spark, checkpoint, rows[0].batch - 1, numbers[0])
    return [row for row, _ in takewhile(lambda each: each[1] == numbers[0], zip(rows, numbers, strict=True))]


def _show_changes(checkpoint: Path, rows: Sequence[LedgerRow]) -> None:
    """Let the offsets of a batch after which the state was rewritten have the new number, as in the stream's own checkpoint."""
    for row in rows:
        path, number = checkpoint / "offsets" / str(row.batch - 1), partitions_of(row.offsets_text)
        if number is not None and path.exists():
            text = path.read_text()
            if partitions_of(text) not in (None, number):
                put_text(path, with_partitions(text, number))


def put_offsets(checkpoint: Path, step: Step, override: ReplayTopics | None) -> None:
    """Put the recorded offsets of a step's end in place."""
    recorded = step.last.offsets_text
    text = read_sets(checkpoint).text_to_kafka(recorded) if override is None else override.shift_text(recorded)
    put_text(checkpoint / "offsets" / str(step.number), text)


def _shift_checkpoint(checkpoint: Path, batch: int, override: ReplayTopics, aside: Path) -> None:
    """Rewrite the copy as if its last two batches had read the replay topics; keep the originals in `aside`."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for number in (batch - 1, batch):
        path = checkpoint / "offsets" / str(number)
        if path.exists():
            shutil.copyfile(path, aside / path.name)
            put_text(path, override.shift_text(read_sets(checkpoint).text_to_log(path.read_text())))
    if (checkpoint / "sources").exists():
        (checkpoint / "sources").rename(aside / "sources")


def _unshift_checkpoint(checkpoint: Path, aside: Path) -> None:
    shutil.rmtree(checkpoint / "sources", ignore_errors=True)
    if (aside / "sources").exists():
        (aside / "sources").rename(checkpoint / "sources")
    for path in aside.iterdir():
        put_text(checkpoint / "offsets" / path.name, path.read_text())
    shutil.rmtree(aside)


def steer_watermark(execution: Any, watermark_ms: int) -> bool:
    """Raise a running query's watermark to at least this value from its next batch on; return False if this Spark cannot.

    This is only correct while the query is inside `foreachBatch`, as for its source.
    """
    try:
        tracker = execution.watermarkTracker()
        tracker.setWatermark(max(watermark_ms, tracker.currentWatermark()))
    except Py4JError as error:
        _log.info("the watermark cannot be steered (%s); every batch starts a new query", str(error)[:300])
        return False
    return True
