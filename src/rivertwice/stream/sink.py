"""The one-commit sink: results, ledger row and transaction id of a micro-batch in a single Delta commit.

Protocol of one batch (`foreachBatch`), each step repeatable after a crash:

1. Check the lease: a driver that lost it writes nothing.
2. Read the batch's range from `offsets/N`, which is durable before the batch runs.
3. If the timeline is sealed, stop. If the batch is already committed, compare its recorded range with `offsets/N`:
   equal means a replay after a crash, which is computed (all state must be materialised) and not written; different
   means stop.
4. Write the versions of tables that the batch read, if there are any; like dead letters they count only once their
   batch is in the ledger. Compute the rows, check that the topic is still the one with which the timeline began, and read
   the observed counts.
5. Write the dead letters of this range, if there are any, and its late rows, if the policy keeps them; they count only
   once their batch is in the ledger.
6. Commit rows, ledger row and transaction `(pipeline#timeline, batch)` together. The batch is committed now.
7. Copy the ledger row to the ledger table; a crash before it is healed at the next start.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.errors import CheckpointError, LedgerError, RangeMismatchError
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.interval_rows import RowsOf
from rivertwice.store import delta
from rivertwice.stream.batch_log import BatchLog
from rivertwice.stream.checkpoint import PlannedBatch, late_watermark_ms, read_planned, start_offsets
from rivertwice.stream.context import FORMAT, DriverContext
from rivertwice.stream.late import select_suspects
from rivertwice.stream.seal import check_sealed
from rivertwice.stream.side_rows import SideRows
from rivertwice.timeline.counts import BatchCounts, total_of
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import METADATA_KEY, LedgerRow, append_ledger, parts_between, read_ledger
from rivertwice.timeline.lineage import Timeline

_log = logging.getLogger(__name__)


def changelog_rows(rows: pa.Table, timeline: str, batch: int, start_column: str = "window_start") -> pa.Table:
    """Return result rows stamped for the changelog: _format, _timeline, _batch, _day, then the result columns."""
    count = rows.num_rows
    stamps = {
        "_format": pa.array([FORMAT] * count, pa.int32()),
        "_timeline": pa.array([timeline] * count, pa.string()),
        "_batch": pa.array([batch] * count, pa.int64()),
        "_day": pc.strftime(rows.column(start_column), "%Y-%m-%d").cast(pa.string()),
    }
    arrays = [*stamps.values(), *(rows.column(name) for name in rows.column_names)]
    fields = [pa.field(name, values.type) for name, values in stamps.items()]
    fields += [pa.field(field.name, field.type) for field in rows.schema]
    return pa.table(arrays, schema=pa.schema(fields))


def check_windows(rows: pa.Table, definition: Definition) -> None:
    """Raise LedgerError if a result row's window is not the definition's."""
    window = definition.window
    size_us = window.length // timedelta(microseconds=1)
    start = rows.column(window.start_column).cast(pa.int64())
    end = rows.column(window.end_column).cast(pa.int64())
    differs = pc.not_equal if window.kind.is_aligned else pc.less
    wrong = pc.sum(differs(pc.subtract(end, start), size_us).cast(pa.int64())).as_py() or 0
    if wrong:
        message = (
            f"{wrong} result rows of {definition.name} have windows that are not {window.text}, as the definition says; "
            "nothing was committed; make pipeline.yaml and transform.sql agree"
        )
        raise LedgerError(message)


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
    explain: Callable[[dict[int, tuple[int, int]]], str] = lambda _: "",
) -> None:
    """Raise LedgerError unless every offset of the range was read once (plain topics have no holes).

    `explain` names the offsets without a record; it is called only for the error.
    """
    expected = sum(end - start for start, end in row_ranges.values())
    if counts.read != expected or counts.read != counts.bad + counts.accepted:
        message = (
            f"batch {batch} covers {expected} offsets, but {counts.read} records were read, {counts.bad} of them bad and "
            f"{counts.accepted} accepted; nothing was committed; a compacted or transactional topic cannot be counted: "
            f"{explain(row_ranges)}; copy the committed records to a plain topic and stream that"
        )
        raise LedgerError(message)


class Sink:
    """Writes batches; one per driver."""

    def __init__(
        self,
        context: DriverContext,
        rows: RowsOf,
        observe: Callable[[], Mapping[str, BatchCounts]],
        side: SideRows,
        log: BatchLog,
    ) -> None:
        """Create a sink.

        Args:
            context: what stays the same over all batches.
            rows: computes the result rows of a batch (`compile.batch_rows`).
            observe: returns the running batch's observed counts by topic, once its rows are computed.
            side: writes a batch's side rows.
            log: the log from which the batches are read.
        """
        self._context = context
        self._rows = rows
        self._observe = observe
        self._side = side
        self._log = log
        self._fresh = True  # only a driver's first batch can have been tried by another driver

    def write(self, frame: Any, batch: int) -> LedgerRow:
        """Write one micro-batch and return its ledger row; see the module's protocol.

        Raises:
            LeaseLostError: another driver owns the pipeline, or a restore sealed the timeline.
            CheckpointError: the batch was not planned, or belongs to the parent.
            RangeMismatchError: the batch is committed already, with another range.
            LedgerError: the counts or windows of the batch are wrong; nothing was committed.
            LogGapError: a topic was deleted and created again.
        """
        context = self._context
        context.lease.check()  # step 1
        planned = read_planned(context.checkpoint, batch)  # step 2
        if planned is None:
            message = f"batch {batch} runs without offsets/{batch}; the checkpoint is damaged; restore a savepoint"
            raise CheckpointError(message)
        check_own(context.timeline, batch)
        start = start_offsets(context.checkpoint, batch)
        done = delta.applied_version(context.home.tables.changelog, context.app)
        check_sealed(done, context.timeline.timeline)
        if is_applied(done, batch):  # step 3
            return self._replay(frame, planned, start)
        tables = self._side.write_versions(batch, parts_between(start, planned.end_offsets))  # step 4
        rows = self._rows(frame, batch)
        self._log.check()
        counts = {**self._observe(), **tables}
        row = self._ledger_row(planned, start, counts, rows)
        for topic, topic_counts in counts.items():
            check_counts(topic_counts, row.ranges(topic), batch, functools.partial(self._log.explain_holes, topic))
        check_windows(rows, context.definition)
        row = self._write_side(row, counts)  # step 5
        context.lease.check()
        delta.append(  # step 6
            context.home.tables.changelog,
            changelog_rows(rows, context.timeline.timeline, batch, context.definition.window.start_column),
            transactions={context.app: batch},
            metadata={METADATA_KEY: row.to_json()},
            partition_by=["_day"],
        )
        append_ledger(context.home, [row])  # step 7
        return row

    def _replay(self, frame: Any, planned: PlannedBatch, start: Any) -> LedgerRow:
        """Compute a batch that is committed already, for its state only, and return its ledger row."""
        context, batch = self._context, planned.batch
        committed = (row for row in read_ledger(context.home, batch) if row.timeline == context.timeline.timeline)
        recorded = next((row for row in committed if row.batch == batch), None)
        row = check_replay(recorded, planned, start)
        self._rows(frame, batch)
        self._log.check()  # otherwise the state could be made from another topic's records
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
        self, planned: PlannedBatch, start: Any, by_topic: Mapping[str, BatchCounts], rows: pa.Table
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
            emitted=rows.num_rows,
            digest=digest_rows(rows, rows.column_names),
            references={},
            committed_at=context.now(),
            by_topic=dict(by_topic),
        )
