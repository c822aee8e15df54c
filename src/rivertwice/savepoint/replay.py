"""Replay recorded batches over a restored checkpoint, each with exactly its recorded offset range.

Only identical ranges give identical output: other batch boundaries drop other late rows. So the first batch runs over
the recorded `offsets/N`, put in place before the query starts; Spark then replays just that range. The next batches run
in the same query: from inside `foreachBatch` the source is given the end of the next batch, through the field that
Spark's own available-now trigger uses. Where that cannot be done, the query is started once per batch. In both cases
every batch is checked: its range and watermark against the ledger, its rows against the ledger's digest. At the end
the checkpoint contains the recorded `offsets/N`, byte for byte. No table is written.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from py4j.protocol import Py4JError

from rivertwice.core import Deadline, Measured, Progress, ReplayMismatchError, Settings
from rivertwice.definition import Definition
from rivertwice.engine import RowsOf, batch_rows, compile_stream
from rivertwice.savepoint.plan import ReplayTopics, count_one_run, plan_watermarks
from rivertwice.savepoint.state_files import put_text, repartition_state
from rivertwice.stream import (
    KnownVersions,
    kafka_stream,
    last_number,
    parse_offsets,
    partitions_of,
    steer_source,
    terminated_state,
    with_partitions,
)
from rivertwice.timeline import LedgerRow, digest_rows, rule_of

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
        result: DataFrame,
        rows_of: RowsOf,
        checkpoint: Path,
        rows: Sequence[LedgerRow],
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
        self._result = result
        self._rows_of = rows_of
        self._checkpoint = checkpoint
        self._rows = rows
        self._override = override
        self._next_watermarks = next_watermarks
        self._progress = progress
        self._terminated = terminated_state(spark)
        self._query: Any = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._until = 0
        self._clock = time.monotonic()
        self.done: list[ReplayedBatch] = []

    def run(self, count: int) -> None:
        """Replay up to `count` further batches with one query; at least one, or raise."""
        first = len(self.done)
        self._until = first + count
        put_offsets(self._checkpoint, self._rows[first], self._override)
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
        wanted = self._rows[len(self.done) - 1].batch if self.done else None
        if len(self.done) == first or committed != wanted:
            message = (
                f"the replay stopped at batch {committed}, expected {self._rows[first].batch} to be replayed and batch "
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
            row = self._rows[len(self.done)]
            table = self._rows_of(frame, batch)
            digest = digest_rows(table, table.column_names)
            self._compare(row, batch, digest)
            self._keep(row, table)
            now = time.monotonic()
            self.done.append(ReplayedBatch(batch, digest, table.num_rows, row.read, now - self._clock))
            self._clock = now
            at, of = len(self.done), len(self._rows)
            line = f"batch {batch} replayed: {row.read} records, {table.num_rows} rows, equal ({at} of {of})"
            self._progress(Measured(line, "replay", at, of))
            following = self._rows[len(self.done)] if len(self.done) < self._until and not self.is_over() else None
            execution = self._query._jsq.streamingQuery()
            if batch in self._next_watermarks and not steer_watermark(execution, self._next_watermarks[batch]):
                following = None
            if following is None or not steer_source(self._spark, execution, self._shifted(following)):
                execution.state().set(self._terminated)
        except BaseException as error:
            self._error = error  # py4j passes only its text on
            raise

    def _shifted(self, row: LedgerRow) -> Any:
        return row.end_offsets if self._override is None else self._override.shift(row.end_offsets)

    def _compare(self, row: LedgerRow, batch: int, digest: str) -> None:
        planned = parse_offsets((self._checkpoint / "offsets" / str(batch)).read_text(), batch)
        differences = [
            f"{quantity} {is_now!r}, recorded {recorded!r}"
            for quantity, is_now, recorded in (
                ("number", batch, row.batch),
                ("range end", planned.end_offsets, self._shifted(row)),
                ("watermark", planned.batch_watermark_ms, row.batch_watermark_ms),
                ("digest", digest, row.digest),
            )
            if is_now != recorded
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
        keep: is called with every batch's result rows after they were compared with the ledger.

    Returns:
        the batches that were replayed and are equal: all of `rows`, or fewer if the deadline passed. The checkpoint cannot
        be used then.

    Raises:
        ReplayMismatchError: a batch gave another output, range or watermark than was recorded.
    """
    if not rows:
        return []
    replayed, bases = (None, None) if topic_override is None else (topic_override.names, topic_override.bases)
    moved = topic_override is not None and topic_override.has_absent
    raw = kafka_stream(spark, settings, definition, replayed=replayed, bases=bases, max_offsets=0, with_offsets=moved)
    result = compile_stream(spark, definition, raw)
    aside = checkpoint_dir.parent / f".{checkpoint_dir.name}.recorded"
    if topic_override is not None:
        _shift_checkpoint(checkpoint_dir, rows[0].batch - 1, topic_override, aside)
    watermarks = plan_watermarks(before or rows, rows, rule_of(definition))
    versions = KnownVersions(settings, settings.pipeline(definition.name), definition, rows[-1].timeline)
    rows_of = batch_rows(definition, versions)
    replay = _Replay(
        spark,
        result,
        rows_of,
        checkpoint_dir,
        rows,
        topic_override,
        progress,
        deadline,
        watermarks,
        definition.output_mode,
        keep,
    )
    while len(replay.done) < len(rows):
        if replay.is_over():
            return replay.done
        left = rows[len(replay.done) :]
        alike = _lay_out(spark, checkpoint_dir, left)
        replay.run(count_one_run(alike, several=len(definition.sources) > 1) if one_query else 1)
    if topic_override is not None:
        _unshift_checkpoint(checkpoint_dir, aside)
    for row in rows:  # Spark has purged the oldest of a long replay
        if (checkpoint_dir / "offsets" / str(row.batch)).exists():
            put_offsets(checkpoint_dir, row, None)
    _show_changes(checkpoint_dir, rows)
    return replay.done


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


def put_offsets(checkpoint: Path, row: LedgerRow, override: ReplayTopics | None) -> None:
    """Put a batch's recorded offsets in place; an existing checksum file belongs to other bytes and is deleted."""
    text = row.offsets_text if override is None else override.shift_text(row.offsets_text)
    put_text(checkpoint / "offsets" / str(row.batch), text)


def _shift_checkpoint(checkpoint: Path, batch: int, override: ReplayTopics, aside: Path) -> None:
    """Rewrite the copy as if its last two batches had read the replay topics; keep the originals in `aside`."""
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for number in (batch - 1, batch):
        path = checkpoint / "offsets" / str(number)
        if path.exists():
            shutil.copyfile(path, aside / path.name)
            put_text(path, override.shift_text(path.read_text()))
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
