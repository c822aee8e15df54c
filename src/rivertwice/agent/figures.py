"""The figures of one pipeline at one instant. Plain values; None is "not known", never a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class BatchFigures:
    """One committed micro-batch of the head's path, as the ledger has it.

    Attributes:
        begun_at: when Spark planned it. committed_at: when it was in the changelog.
        read, bad, accepted, emitted: rows.
        watermark_ms: epoch ms. min_event_ms, max_event_ms: accepted event times, epoch ms, None if it accepted nothing.
        timeline, batch: as in the ledger, by which the checkpoint's files are named.
    """

    begun_at: datetime
    committed_at: datetime
    read: int
    bad: int
    accepted: int
    emitted: int
    watermark_ms: int
    min_event_ms: int | None
    max_event_ms: int | None
    timeline: str
    batch: int

    @property
    def seconds(self) -> float:
        """Seconds from its plan to its commit."""
        return max((self.committed_at - self.begun_at).total_seconds(), 0.0)


@dataclass(frozen=True)
class Measures:
    """What is true of a pipeline's stream now. Seconds are `_s`, bytes `_bytes`, shares between 0 and 1.

    Attributes:
        desired, state: as `rivertwice status` shows them.
        lag_records: records in the log beyond the committed offsets.
        lag_s: age of the oldest record that waits, by its own timestamp; 0 if none waits.
        arriving_per_s, read_per_s: records added to the log, and committed, per second of the last minute.
        catch_up_s: until nothing waits any more, at this pace.
        batch_p50_s, batch_p95_s, batch_p99_s: seconds of the newest hundred batches with records.
        latency_s: what a record that arrives now must expect at least: `lag_s`, or one median batch; of a stream by schedule `overdue_s`.
        overdue_s: of a stream by schedule: for how long a run is overdue that was not asked for, or has not read to the log's end; 0 if
            none is. None: it runs all the time.
        backpressure_s: how long every batch has been full to `max_offsets_per_trigger`.
        checkpoint_s: from a batch's commit to the end of its checkpoint, median of the newest hundred batches.
        checkpoint_wait_s: for how long the newest committed batch has waited for its checkpoint; 0 if it has it.
        disorder_s: how far behind the newest event before it a batch's oldest one is, median of the newest hundred batches.
        watermark_lag_s: now less the watermark. event_lag_s: now less the newest accepted event time (time drift).
        read_total, bad_total, accepted_total, emitted_total: rows over all batches of the head's path.
        dead_share: bad among read over the newest hundred batches, or over the newest records if much larger there.
        dead_open: dead letters that were neither amended nor discarded; dead_oldest_s: age of the oldest one's batch. dead_newest: what
            the newest ones have in common, in words.
        late_share: late pairs among all, as the newest reconcile proved it; reconcile_age_s: how old that is.
        defects: DEFECT verdicts of it; served_defects: those of what is served.
        budget_left: declared objective to days (1, 7, 30) to the share of that budget that is left; below 0 it is overdrawn.
        quality_failing: severity to expectations of the pipeline's own suite that fail over what is served; empty: it has none.
        checkpoint_bytes, checkpoint_files: live checkpoint of the head.
        state_bytes: the state in it alone.
        savepoint_age_s, savepoint_bytes: newest proved savepoint; without one the age is the first batch's, for all
            batches since would have to be read again.
        unproved: savepoints that are newer than it.
        recovery_s: what a fall-back to the newest proved savepoint would take now; recovery_objective_s: what it may take.
        failures: driver failures in a row.
        retention_left_share: share that is left of the time until Kafka deletes what only Kafka has; the worst of all claims.
        first_load_step: the step of a first load by batch that is not done; None if there is none.
        first_load_windows: windows of it that are not published yet; None before they are known.
        delivery_lag: sink to committed batches that it does not have yet; a sink whose position is not known is left out.
        delivery_wait_s: how long rows have waited for a sink that took none, of the sink that waits longest; 0 if none waits.
        delivery_waits: that sink, in words.
        delivery_failures: sink to its failures in a row.
        delivery_refused: sink to the deliveries that its destination refused permanently and that were not discarded.
        partition_lag: name of a partition to records that wait there (`0`, or `topic/0` if there are several topics).
    """

    pipeline: str
    at: datetime
    desired: str | None = None
    state: str = "down"
    heartbeat_age_s: float | None = None
    lag_records: int | None = None
    lag_s: float | None = None
    arriving_per_s: float | None = None
    read_per_s: float | None = None
    catch_up_s: float | None = None
    batch_p50_s: float | None = None
    batch_p95_s: float | None = None
    batch_p99_s: float | None = None
    latency_s: float | None = None
    overdue_s: float | None = None
    backpressure_s: float | None = None
    checkpoint_s: float | None = None
    checkpoint_wait_s: float | None = None
    disorder_s: float | None = None
    watermark_lag_s: float | None = None
    event_lag_s: float | None = None
    read_total: int = 0
    bad_total: int = 0
    accepted_total: int = 0
    emitted_total: int = 0
    dead_share: float | None = None
    dead_open: int = 0
    dead_oldest_s: float | None = None
    dead_newest: str = ""
    late_share: float | None = None
    reconcile_age_s: float | None = None
    defects: int | None = None
    served_defects: int | None = None
    checkpoint_bytes: int | None = None
    checkpoint_files: int | None = None
    state_bytes: int | None = None
    savepoint_age_s: float | None = None
    savepoint_bytes: int | None = None
    unproved: int = 0
    recovery_s: float | None = None
    recovery_objective_s: float | None = None
    failures: int = 0
    retention_left_share: float | None = None
    first_load_step: int | None = None
    first_load_windows: int | None = None
    budget_left: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    quality_failing: Mapping[str, int] = field(default_factory=dict)
    partition_lag: Mapping[str, int] = field(default_factory=dict)
    delivery_wait_s: float | None = None
    delivery_waits: str = ""
    delivery_lag: Mapping[str, int] = field(default_factory=dict)
    delivery_failures: Mapping[str, int] = field(default_factory=dict)
    delivery_refused: Mapping[str, int] = field(default_factory=dict)
