"""Figures of a pipeline: measured from heartbeat, ledger, log, checkpoint, savepoints and the newest reconcile."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rivertwice.agent.figures import BatchFigures, Measures
from rivertwice.agent.objectives import ObjectivesView
from rivertwice.agent.view import PipelineView, ScheduleView, Unreadable
from rivertwice.core import PipelineHome, RivertwiceError, Settings, from_ms
from rivertwice.definition import Definition, load_definition
from rivertwice.deliver import sinks_of, view_delivery
from rivertwice.log import Part, StoredOffsets, first_stamps, kafka, name_parts
from rivertwice.quality import failing_by_severity, standing
from rivertwice.reconcile import SERVED, newest_reconcile
from rivertwice.savepoint import ProofState, select_newest, view_recovery
from rivertwice.storage import Remembered, files_below
from rivertwice.timeline import (
    RECENT,
    CommittedBatches,
    DeadLetterSummary,
    LedgerRow,
    LetterState,
    Segment,
    Verdict,
    committed_batches,
    dead_share,
    fields_of,
    head,
    head_path,
    newest_batches,
    summarise_dead_letters,
)

# Figures from ledger rows. Pure.

FULL = 0.95
"""A batch counts as full above this share of its cap: the cap is divided over partitions and rounded down."""


def batch_figures(rows: Sequence[LedgerRow]) -> list[BatchFigures]:
    """Return ledger rows, in the path's order, as figures."""
    return [
        BatchFigures(
            begun_at=from_ms(row.batch_timestamp_ms),
            committed_at=row.committed_at,
            read=row.read,
            bad=row.bad,
            accepted=row.accepted,
            emitted=row.emitted,
            watermark_ms=row.batch_watermark_ms,
            min_event_ms=row.min_event_ms,
            max_event_ms=row.max_event_ms,
            timeline=row.timeline,
            batch=row.batch,
        )
        for row in rows
    ]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of all are not above; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def batch_quantiles(batches: Sequence[BatchFigures]) -> tuple[float | None, float | None, float | None]:
    """Return p50, p95 and p99 seconds of the newest hundred batches that read something."""
    seconds = [batch.seconds for batch in batches if batch.read][-RECENT:]
    return quantile(seconds, 0.5), quantile(seconds, 0.95), quantile(seconds, 0.99)


def backpressure_seconds(batches: Sequence[BatchFigures], cap: int) -> float:
    """Return for how long every batch has been full: from the first of the newest full ones to the newest's commit.

    A full batch means that the log had more than the cap when it was planned, so records waited for the stream.
    """
    since: datetime | None = None
    for batch in reversed(batches):
        if batch.read < FULL * cap:
            break
        since = batch.begun_at
    return 0.0 if since is None else (batches[-1].committed_at - since).total_seconds()


def read_per_second(batches: Sequence[BatchFigures], now: datetime, window_s: float = 60.0) -> float:
    """Return records committed per second of the last minute."""
    recent = [batch for batch in batches[-10_000:] if (now - batch.committed_at).total_seconds() <= window_s]
    return sum(batch.read for batch in recent) / window_s


def newest_event_ms(batches: Sequence[BatchFigures]) -> int | None:
    """Return the largest accepted event time of the newest hundred batches, epoch ms."""
    return max((batch.max_event_ms for batch in batches[-RECENT:] if batch.max_event_ms is not None), default=None)


def disorder_seconds(batches: Sequence[BatchFigures]) -> float | None:
    """Return how far behind the newest event of the batches before it a batch's oldest event is, as the median of the newest hundred.

    A watermark that waits longer drops nothing of such a batch. None before a second batch has accepted something.
    """
    newest: int | None = None
    behind: list[float] = []
    for batch in batches:
        if batch.min_event_ms is None or batch.max_event_ms is None:
            continue
        if newest is not None:
            behind.append(max(0, newest - batch.min_event_ms) / 1000)
        newest = batch.max_event_ms if newest is None else max(newest, batch.max_event_ms)
    return quantile(behind[-RECENT:], 0.5)


def checkpoint_seconds(
    batches: Sequence[BatchFigures], timeline: str, ended_at: Callable[[int], datetime | None], now: datetime
) -> tuple[float | None, float]:
    """Return from a batch's commit to the end of its checkpoint, median of the newest hundred, and how long the newest one waits for it.

    A checkpoint that fails, like one that hangs, is one that does not end.

    Args:
        timeline: the head's; batches of others have their checkpoints elsewhere.
        ended_at: when the checkpoint of a batch ended; None if it has not, or is no longer kept.
    """
    own = [batch for batch in batches[-RECENT:] if batch.timeline == timeline]
    ends = {batch.batch: ended_at(batch.batch) for batch in own}
    took = [max(0.0, (at - each.committed_at).total_seconds()) for each in own if (at := ends[each.batch]) is not None]
    is_waiting = bool(own) and ends[own[-1].batch] is None
    wait = max(0.0, (now - own[-1].committed_at).total_seconds()) if is_waiting else 0.0
    return quantile(took, 0.5), wait


LOG = logging.getLogger(__name__)
NEWEST = 1_000
"""Batches whose rows are looked at; sums are over all."""
_NEWEST: Remembered[tuple[list[BatchFigures], StoredOffsets]] = Remembered()  # half a megabyte for each pipeline
_LETTERS: Remembered[DeadLetterSummary] = Remembered()


def measure(settings: Settings, name: str, view: PipelineView, now: datetime) -> Measures:
    """Return the figures of a pipeline at `now`. What cannot be read now stays None, and is logged.

    Raises:
        DefinitionError: its definition cannot be read.
    """
    definition = load_definition(settings.definition_folder(name))
    home = settings.pipeline(name)
    measures = _from_view(name, view, now)
    path = head_path(home)
    committed = committed_batches(home, path)
    tables = (home.tables.ledger, home.tables.changelog)
    batches, ends = _NEWEST.get(
        (str(home.root), tuple(path)), tables, lambda: _read_figures(newest_batches(home, committed, path, NEWEST))
    )
    measures = _from_batches(measures, batches, committed, definition.stream.max_offsets_per_trigger, now)
    measures = _from_log(measures, settings, definition, ends, now)
    measures = _from_dead_letters(measures, home, definition, committed, path, now)
    measures = _from_delivery(measures, settings, name, now)
    measures = _from_checkpoint(measures, home, batches, now)
    measures = _from_savepoints(measures, settings, definition, committed.began_at, now)
    measures = _from_quality(measures, settings, home)
    measures = _from_objectives(measures, home, definition, now)
    return replace(_from_reconcile(measures, home, now), latency_s=_latency(measures))


def _read_figures(rows: Sequence[LedgerRow]) -> tuple[list[BatchFigures], StoredOffsets]:
    return batch_figures(rows), rows[-1].end_offsets if rows else {}


def _from_view(name: str, view: PipelineView, now: datetime) -> Measures:
    worst = None if view.retention is None or isinstance(view.retention, Unreadable) else view.retention.worst
    load = None if view.first_load is None or isinstance(view.first_load, Unreadable) else view.first_load
    return Measures(
        pipeline=name,
        at=now,
        desired=view.desired,
        state=view.state,
        heartbeat_age_s=view.heartbeat_age_s,
        arriving_per_s=view.arriving_per_s,
        catch_up_s=view.catch_up_s,
        failures=view.consecutive_failures,
        overdue_s=_overdue_s(view.by_schedule, now),
        retention_left_share=None if worst is None else worst.get("left_share"),
        first_load_step=None if load is None else load.step,
        first_load_windows=None if load is None else load.windows_left,
    )


def _overdue_s(by_schedule: ScheduleView | None, now: datetime) -> float | None:
    if by_schedule is None:
        return None
    since = by_schedule.overdue_since
    return 0.0 if since is None else (now - since).total_seconds()


def _from_batches(
    measures: Measures, batches: Sequence[BatchFigures], committed: CommittedBatches, cap: int, now: datetime
) -> Measures:
    if not batches:
        return measures
    p50, p95, p99 = batch_quantiles(batches)
    event_ms = newest_event_ms(batches)
    return replace(
        measures,
        read_per_s=round(read_per_second(batches, now), 3),
        batch_p50_s=p50,
        batch_p95_s=p95,
        batch_p99_s=p99,
        backpressure_s=backpressure_seconds(batches, cap)
        if measures.overdue_s is None
        else None,  # a run reads full batches
        disorder_s=disorder_seconds(batches),
        watermark_lag_s=(now - from_ms(batches[-1].watermark_ms)).total_seconds() if batches[-1].watermark_ms else None,
        event_lag_s=None if event_ms is None else (now - from_ms(event_ms)).total_seconds(),
        read_total=committed.total("read"),
        bad_total=committed.total("bad"),
        accepted_total=committed.total("accepted"),
        emitted_total=committed.total("emitted"),
        dead_share=dead_share(batches),
    )


def _from_log(
    measures: Measures,
    settings: Settings,
    definition: Definition,
    committed: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> Measures:
    lags: dict[Part, int] = {}
    oldest: int | None = None
    try:
        for source in definition.sources.values():
            ends = kafka.end_offsets(settings, source.topic)
            begins = kafka.begin_offsets(settings, source.topic)
            done = {int(partition): int(offset) for partition, offset in committed.get(source.topic, {}).items()}
            starts = {partition: max(done.get(partition, 0), begins.get(partition, 0)) for partition in ends}
            for partition, end in ends.items():
                lags[Part(source.topic, partition)] = max(0, end - starts[partition])
            stamps = first_stamps(settings, source.topic, starts)
            oldest = min([*stamps.values(), *([] if oldest is None else [oldest])], default=None)
    except RivertwiceError as error:
        LOG.warning("the lag of %s is not known now: %s", measures.pipeline, error)
        return measures
    age = 0.0 if oldest is None else max(0.0, (now - from_ms(oldest)).total_seconds())
    named = {name: lags[part] for part, name in name_parts(lags).items()}
    return replace(measures, lag_records=sum(lags.values()), lag_s=age, partition_lag=named)


def _from_dead_letters(
    measures: Measures,
    home: PipelineHome,
    definition: Definition,
    committed: CommittedBatches,
    path: Sequence[Segment],
    now: datetime,
) -> Measures:
    tables, fields = home.tables, None
    if (
        measures.dead_share
    ):  # otherwise the newest ones would not be reported, and their bytes need not be read at each look
        fields = fields_of(definition)
    summary = _LETTERS.get(
        (str(home.root), tuple(path), fields is not None),
        (tables.ledger, tables.changelog, tables.dead_letters, tables.amendments),
        lambda: summarise_dead_letters(home, committed, fields),
    )
    oldest = 0.0 if summary.oldest_open is None else (now - summary.oldest_open).total_seconds()
    return replace(
        measures, dead_open=summary.total(LetterState.OPEN), dead_oldest_s=oldest, dead_newest=summary.newest
    )


def _from_delivery(measures: Measures, settings: Settings, name: str, now: datetime) -> Measures:
    sinks = view_delivery(settings, name, sinks_of(settings, name))
    since = {each.sink: each.waits_since for each in sinks if each.waits_since is not None}
    first = min(since, key=lambda sink: since[sink], default=None)
    waited = None if any(each.lag_batches is None for each in sinks) else 0.0
    if first is not None:
        waited = max(0.0, (now - since[first]).total_seconds())
    return replace(
        measures,
        delivery_wait_s=waited,
        delivery_waits="" if first is None else f"the sink is {first}",
        delivery_lag={each.sink: each.lag_batches for each in sinks if each.lag_batches is not None},
        delivery_failures={each.sink: each.consecutive_failures for each in sinks},
        delivery_refused={each.sink: each.refused for each in sinks if each.refused is not None},
    )


def sizes_below(folder: Path) -> dict[Path, int]:
    """Return path relative to the folder to bytes, for every file below it that still exists."""
    sizes = {}
    for path in files_below(folder):
        try:
            sizes[path.relative_to(folder)] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes


def _from_checkpoint(
    measures: Measures, home: PipelineHome, batches: Sequence[BatchFigures], now: datetime
) -> Measures:
    name = head(home)
    if name is None:
        return measures
    folder = home.checkpoint(name)
    sizes = sizes_below(folder)
    state = sum(size for path, size in sizes.items() if path.parts[0] == "state")
    if sizes:  # without any file the checkpoint begins again, or is on another host
        took, waits = checkpoint_seconds(batches, name, lambda batch: _written_at(folder / "commits" / str(batch)), now)
        measures = replace(measures, checkpoint_s=took, checkpoint_wait_s=waits)
    return replace(
        measures,
        checkpoint_bytes=sum(sizes.values()),
        checkpoint_files=len(sizes),
        state_bytes=state if sizes else None,
    )


def _written_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except FileNotFoundError:
        return None


def _from_savepoints(
    measures: Measures, settings: Settings, definition: Definition, first: datetime | None, now: datetime
) -> Measures:
    objective = definition.stream.recovery
    measures = replace(measures, recovery_objective_s=None if objective is None else objective.total_seconds())
    try:
        view = view_recovery(settings, definition.name)
    except RivertwiceError as error:
        LOG.warning("the savepoints of %s are not known now: %s", measures.pipeline, error)
        return measures
    savepoints = view.savepoints
    measures = replace(measures, recovery_s=None if view.estimate is None else view.estimate.seconds)
    newest = select_newest(savepoints, proved=True)
    if newest is None:
        age = None if first is None else (now - first).total_seconds()
        return replace(measures, unproved=len(savepoints), savepoint_age_s=age)
    since = newest.manifest.created_at
    return replace(
        measures,
        savepoint_age_s=(now - since).total_seconds(),
        savepoint_bytes=newest.manifest.size,
        unproved=sum(each.manifest.created_at > since and each.status != ProofState.PROVED for each in savepoints),
    )


def _from_reconcile(measures: Measures, home: PipelineHome, now: datetime) -> Measures:
    run = newest_reconcile(home)
    if run is None:
        return measures
    return replace(
        measures,
        late_share=run["balance"]["total"]["late_share"],
        reconcile_age_s=(now - run["created_at"]).total_seconds(),
        defects=sum(counts.get(Verdict.DEFECT, 0) for counts in run["counts"].values()),
        served_defects=run["counts"].get(SERVED, {}).get(Verdict.DEFECT, 0),
    )


def _from_quality(measures: Measures, settings: Settings, home: PipelineHome) -> Measures:
    try:
        return replace(measures, quality_failing=failing_by_severity(standing(settings, home)))
    except RivertwiceError as error:
        LOG.warning("the data quality of %s is not known now: %s", measures.pipeline, error)
        return measures


def _from_objectives(measures: Measures, home: PipelineHome, definition: Definition, now: datetime) -> Measures:
    if not definition.slo.model_dump(exclude_none=True):
        return measures
    budgets = ObjectivesView.read(home, definition, now).budgets
    left = {
        each.objective: {str(days): round(1 - used, 4) for days, used in each.burn.items()}
        for each in budgets
        if each.burn
    }
    return replace(measures, budget_left=left)


def _latency(measures: Measures) -> float | None:
    """Return the least a record that arrives now must wait: how long the oldest one has waited already, or a median batch."""
    if measures.overdue_s is not None:
        return measures.overdue_s
    known = [seconds for seconds in (measures.lag_s, measures.batch_p50_s) if seconds is not None]
    return max(known) if measures.lag_s is not None and known else None
