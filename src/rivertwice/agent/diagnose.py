"""Likely causes of problems, each with the figures that show it. Pure: figures in, findings out.

A symptom may have several causes; all that the figures support are named, the most likely first. No cause is named
that no figure supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rivertwice.agent.figures import Measures
from rivertwice.definition import DefinitionFile

SLOW_START_S = 120.0
SKEW = 0.6
"""A partition that holds more of the lag than this, of at least three, is a hot one."""
BIG_STATE = 1 << 30
SLOW_CHECKPOINT_S = 5.0
"""A checkpoint is two small files after a batch's commit: on a local disk it takes some hundredths of a second."""


@dataclass(frozen=True)
class Diagnosis:
    """One likely cause.

    Attributes:
        symptom: lag, delivery, duplicates, silence, late, disorder, dead, defect, checkpoint, savepoint or retention.
    """

    symptom: str
    evidence: str
    cause: str
    remedy: str


def find_causes(measures: Measures, definition: DefinitionFile) -> list[Diagnosis]:
    """Return the likely causes of all problems; empty when there is none."""
    return [
        *_silence(measures),
        *_lag(measures, definition),
        *_rows(measures, definition),
        *_delivery(measures, definition),
        *_safety(measures),
    ]


def _delivery(measures: Measures, definition: DefinitionFile) -> Iterator[Diagnosis]:
    for sink, failures in measures.delivery_failures.items():
        if failures:
            waiting = measures.delivery_lag.get(sink)
            waiting_text = "its lag is not known" if waiting is None else f"{waiting} batches wait"
            yield Diagnosis(
                "delivery",
                f"sink {sink} failed {failures} times in a row; {waiting_text}",
                "the sink does not answer, or refuses rows; nothing is lost, because the tables have them",
                f"`rivertwice deliver status {measures.pipeline}` names the error and the next attempt",
            )
        delivery = definition.deliver.get(sink)
        if failures and delivery is not None and delivery.promise[0] == "at_least_once":
            yield Diagnosis(
                "duplicates",
                f"sink {sink} can keep at_least_once at most ({delivery.place}), and failed {failures} times in a row",
                "a delivery that the destination took and did not confirm is sent again, so its readers may see rows twice",
                "let the receiver set rows by their key, which makes a repeated row change nothing; or a sink that keeps exactly_once",
            )


def _silence(measures: Measures) -> Iterator[Diagnosis]:
    if measures.desired != "running":
        return
    if measures.state == "given_up":
        yield Diagnosis(
            "silence",
            f"state given_up after {measures.failures} failures in a row",
            "the agent stopped trying: the failure is one that another start does not cure",
            "`rivertwice status` names it; cure it, then `rivertwice start PIPELINE`",
        )
    elif measures.state == "unresponsive":
        yield Diagnosis(
            "silence",
            f"the driver lives and has said nothing for {measures.heartbeat_age_s or 0.0:.0f} s",
            "it hangs, or a signal stopped it or the machine",
            "look at its log; if it hangs, kill its process: the agent starts it again",
        )
    elif measures.state == "down":
        failing = measures.failures > 0
        yield Diagnosis(
            "silence",
            f"the desired state is running, but no driver is running; {measures.failures} failures in a row",
            "the driver fails again and again; the agent waits before the next attempt"
            if failing
            else "no agent is running",
            "`rivertwice status` shows the failure and the next attempt" if failing else "`rivertwice up`",
        )
    elif measures.state == "starting" and (measures.heartbeat_age_s or 0.0) > SLOW_START_S:
        yield Diagnosis(
            "silence",
            f"starting, and silent for {measures.heartbeat_age_s:.0f} s",
            "the start hangs: the checkpoint or Kafka does not answer",
            "look at the end of logs/driver.log",
        )


def _lag(measures: Measures, definition: DefinitionFile) -> Iterator[Diagnosis]:
    if not measures.lag_records or measures.state not in ("running", "idle"):
        return
    pins = definition.stream
    lag = f"{measures.lag_records} records wait"
    if measures.backpressure_s:
        batch = measures.batch_p50_s or 0.0
        if pins.trigger_seconds > batch:
            yield Diagnosis(
                "lag",
                f"{lag}; batches are full and take {batch:.2f} s of a trigger of {pins.trigger_seconds:g} s",
                "the stream waits between full batches",
                f"shorten stream.trigger, or raise max_offsets_per_trigger above {pins.max_offsets_per_trigger}",
            )
        else:
            yield Diagnosis(
                "lag",
                f"{lag}; every batch of {measures.backpressure_s:.0f} s was full to {pins.max_offsets_per_trigger} records",
                "the cap of a batch is reached: a batch costs much the same whether it is full or not",
                "raise stream.max_offsets_per_trigger; larger batches forgive more lateness, so reconcile afterwards",
            )
    busy = [partition for partition, lag in measures.partition_lag.items() if lag]
    worst = max(measures.partition_lag.values(), default=0)
    if len(measures.partition_lag) >= 3 and worst > SKEW * measures.lag_records:
        hot = [partition for partition, lag in measures.partition_lag.items() if lag == worst]
        yield Diagnosis(
            "lag",
            f"{worst} of {measures.lag_records} waiting records are in partition {hot[0]}",
            "one partition gets most of the records: its key is hot, or its producer fell behind and caught up",
            "look at the keys of that partition; the watermark waits for none, so a lagging partition is dropped as late",
        )
    if (
        measures.catch_up_s is None
        and (measures.arriving_per_s or 0.0) > (measures.read_per_s or 0.0)
        and not measures.backpressure_s
    ):
        partitions = sum(source.partitions for source in definition.sources.values())
        yield Diagnosis(
            "lag",
            f"{measures.arriving_per_s:g} records a second arrive, {measures.read_per_s or 0:g} are read, batches are not full",
            "the batches themselves are too slow",
            f"more cores, up to one per partition ({partitions}); a smaller state; `make bench` shows what a record costs",
        )
    if busy and measures.lag_s and measures.state == "idle":
        yield Diagnosis(
            "lag",
            f"{lag} for {measures.lag_s:.0f} s while the driver says idle",
            "the records are in an open transaction, or in a topic that was created again",
            "`rivertwice admin retention` shows topic ids; an aborted or committed transaction frees its records",
        )


def _rows(measures: Measures, definition: DefinitionFile) -> Iterator[Diagnosis]:
    if measures.late_share is not None and measures.late_share > definition.late.alert_share:
        delay = max(source.watermark for source in definition.sources.values())
        yield Diagnosis(
            "late",
            f"late share {measures.late_share:.1%} of the newest reconcile, alert at {definition.late.alert_share:.1%}",
            "records come later than the watermark waits, or one partition lags behind the others",
            f"a longer watermark than {delay.total_seconds():g} s, or a backfill; the reconcile names every late record",
        )
    if (
        measures.watermark_lag_s is not None and measures.disorder_s is not None
    ):  # a stream without watermark forgives any order
        waits_s = max(source.watermark for source in definition.sources.values()).total_seconds()
        if measures.disorder_s > waits_s:
            yield Diagnosis(
                "disorder",
                f"half of the newest batches have events {measures.disorder_s:g} s or more behind the newest one before; the watermark "
                f"waits {waits_s:g} s",
                "records are not read in the order of event time: partitions or producers are apart, the key spreads what belongs "
                "together, or event_time is not the field that increases",
                "key records by what must be in order; check event_time; `rivertwice advise` shows what another watermark would drop",
            )
    if measures.dead_share:
        yield Diagnosis(
            "dead",
            f"{measures.dead_share:.2%} of the newest records are dead letters, {measures.bad_total} in all; {measures.dead_newest}",
            "records that cannot be decoded or break a rule: a producer's schema has changed, or is wrong",
            "`rivertwice dead list` gives reason and bytes of each; amend or discard them, nothing of them is lost",
        )
    if measures.defects:
        yield Diagnosis(
            "defect",
            f"{measures.defects} DEFECT verdicts in the newest reconcile",
            "the stream published what the log does not explain, or a table was changed from outside",
            "`rivertwice verdicts --verdict DEFECT` names the rows and the fields",
        )


def _safety(measures: Measures) -> Iterator[Diagnosis]:
    if measures.state_bytes is not None and measures.state_bytes > BIG_STATE:
        yield Diagnosis(
            "checkpoint",
            f"the state has {measures.state_bytes / 1e9:.1f} GB",
            "many keys, long windows or a long watermark are kept open at once",
            "shorten window or watermark, drop keys that are not read; a faster disk for the checkpoint",
        )
    checkpoint_s = max(measures.checkpoint_s or 0.0, measures.checkpoint_wait_s or 0.0)
    if checkpoint_s > SLOW_CHECKPOINT_S:
        waiting = f", and {measures.checkpoint_wait_s:.1f} s now" if measures.checkpoint_wait_s else ""
        yield Diagnosis(
            "checkpoint",
            f"a checkpoint ends {measures.checkpoint_s or 0.0:.1f} s after its batch's commit (median){waiting}",
            "the disk of the checkpoint is slow or full, or it is a network share; the next batch waits for it",
            "a local SSD for the home; shorter windows or fewer keys, which write less state",
        )
    if measures.unproved:
        yield Diagnosis(
            "savepoint",
            f"{measures.unproved} savepoints are newer than the newest proved one",
            "proofs fail or do not fit into their budget",
            "`rivertwice savepoint list` shows why; `rivertwice savepoint prove ID`",
        )
    if measures.retention_left_share is not None and measures.retention_left_share < 0.5:
        yield Diagnosis(
            "retention",
            f"{measures.retention_left_share:.0%} of the time is left until Kafka deletes what only Kafka has",
            "the archive is behind, or a savepoint or backfill holds an old range",
            "`rivertwice admin archive PIPELINE`; `rivertwice admin retention` names who needs what",
        )
