"""What each kind of alert means for the served numbers, and the command to run next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from rivertwice.alerts.model import Cause
from rivertwice.config import Settings
from rivertwice.verdicts import DEFECT, NOT_COMPARABLE

PIPELINE = "{pipeline}"


@dataclass(frozen=True)
class Kind:
    """What is said of every alert of a kind.

    Attributes:
        meaning: what it means for the served numbers.
        verb: arguments of `rivertwice`; `{pipeline}` stands for the pipeline.
    """

    meaning: str
    verb: tuple[str, ...]


_OLD = "what is served stays right, and gets older: no new window is added while this lasts"
_DELAYED = "what is served is right, and newer windows come later than usual"
_STATUS = ("status",)
_DIAGNOSE = ("diagnose", PIPELINE)
_CAUSES = ("verdicts", PIPELINE, "--causes")

STREAM_KINDS: Mapping[str, Kind] = {
    "hung": Kind(_OLD, _DIAGNOSE),
    "stalled": Kind(_OLD, _DIAGNOSE),
    "start_slow": Kind(_OLD, _DIAGNOSE),
    "drain_slow": Kind("what is served stays right; the stream was asked to stop and has not yet", _STATUS),
    "undefined": Kind(_OLD, ("pipelines",)),
    "contended": Kind(
        "what is served is right: only the owner of the lease writes; which host that is changes too often", _STATUS
    ),
    "fell_back": Kind(
        "served numbers are the same: the stream was resumed from a proved savepoint and computes again what came after it",
        ("savepoint", "list", PIPELINE),
    ),
    "given_up": Kind(_OLD, _STATUS),
    "driver_down": Kind(_OLD, _STATUS),
    "killed": Kind(_OLD, _STATUS),
    "drained": Kind(_OLD, _STATUS),
    "poison": Kind(_OLD, _STATUS),
    "out_of_memory": Kind(_OLD, _STATUS),
    "schema": Kind(_OLD, ("lint", PIPELINE)),
    "lease_lost": Kind(_OLD, _STATUS),
    "disk": Kind(_OLD, ("doctor",)),
    "store": Kind(_OLD, _STATUS),
    "checkpoint": Kind(_OLD, ("savepoint", "list", PIPELINE)),
    "fingerprint": Kind(_OLD, ("lint", PIPELINE)),
    "range_mismatch": Kind(_OLD, _STATUS),
    "ledger": Kind(_OLD, ("repair", PIPELINE)),
    "unknown": Kind(_OLD, _STATUS),
}
"""Alerts about a stream that does not run as wanted; all of them are over once it does."""

AGENT_DEAD = "agent_dead"
TASK_FAILED = "task_failed"

KINDS: Mapping[str, Kind] = {
    **STREAM_KINDS,
    AGENT_DEAD: Kind(
        "drivers run on, but a driver that ends is not started again, and `served` is not rebuilt", ("agent", "start")
    ),
    "retention": Kind(
        "what is served is right; records that are not archived in time can never be read again",
        ("retention", PIPELINE),
    ),
    "archive": Kind(
        "what is served is right; a backfill or a reconcile of old windows will miss what Kafka deletes meanwhile",
        ("retention", PIPELINE),
    ),
    "delivery": Kind(
        "the tables are right; the sink has none of the newer batches until it takes them",
        ("deliver", "status", PIPELINE),
    ),
    "delivery_refused": Kind(
        "the tables are right; the sink's readers lack the rows that its destination refused",
        ("deliver", "refused", PIPELINE),
    ),
    "fast": Kind("the tables are right; the fast path's topic gets no rows", ("fast", "status", PIPELINE)),
    "backpressure": Kind(_DELAYED, _DIAGNOSE),
    "lag": Kind(_DELAYED, _DIAGNOSE),
    "latency": Kind(_DELAYED, _DIAGNOSE),
    "savepoint_stale": Kind(
        "what is served is right; after damage of the checkpoint all batches since would be read again",
        ("savepoint", "list", PIPELINE),
    ),
    "dead_share": Kind("served numbers lack the records that could not be decoded", ("dead", "list", PIPELINE)),
    "dead_unattended": Kind(
        "served numbers lack the dead letters until somebody amends them and the window is backfilled",
        ("dead", "list", PIPELINE),
    ),
    "table_damage": Kind(
        "what is served stays as it was: rows that were committed are gone, and no build of `served` leaves them out",
        ("repair", PIPELINE),
    ),
    "damaged_file": Kind(_OLD, _STATUS),
    "disk_full": Kind(_OLD, ("doctor",)),
    "defect": Kind(
        "some served rows are not what the log says; a backfill replaces them",
        ("verdicts", PIPELINE, "--verdict", DEFECT),
    ),
    "finding": Kind(
        "what is recorded of the batches contradicts itself; do not trust the numbers until it is found", _CAUSES
    ),
    "gap": Kind("windows with missing records cannot be compared, and may lack them", ("retention", PIPELINE)),
    "balance": Kind("some records are in no row and no dead letter; the numbers may lack them", _CAUSES),
    "late_share": Kind(
        "served numbers lack records that came too late, until a backfill", ("backfill", "plan", PIPELINE)
    ),
    "not_comparable": Kind(
        "of some rows it is not known whether they are right", ("verdicts", PIPELINE, "--verdict", NOT_COMPARABLE)
    ),
    "nothing_compared": Kind(
        "it is not known whether the rows are right: none could be compared",
        ("verdicts", PIPELINE, "--verdict", NOT_COMPARABLE),
    ),
    "suite": Kind("an expectation about the results does not hold", _CAUSES),
    "suite_errored": Kind("an expectation about the results could not be checked", _CAUSES),
    TASK_FAILED: Kind(
        "the stream runs on; what this task does (savepoint, archive, reconcile, backfill) was not done", _STATUS
    ),
    "test": Kind("none: this is a test of a route", ("alerts",)),
}
_OTHER = Kind("not known for this kind of alert", _STATUS)


def is_about_stream(cause: Cause) -> bool:
    """Say whether an alert is over once its stream runs as wanted.

    A driver that ended for want of deleted records is of kind `retention`, as is a topic that is about to lose some; the
    latter names its topic.
    """
    return cause.kind in STREAM_KINDS or (cause.kind == "retention" and not cause.subject)


def meaning_of(cause: Cause) -> str:
    """Return what an alert means for the served numbers."""
    return KINDS.get(cause.kind, _OTHER).meaning


def next_command(settings: Settings, cause: Cause) -> str:
    """Return the command to run next; it works wherever it is pasted on a host that has the home."""
    words = [
        cause.pipeline if word == PIPELINE else word
        for word in KINDS.get(cause.kind, _OTHER).verb
        if word != PIPELINE or cause.pipeline
    ]
    places = ["--project", str(settings.project), "--home", str(settings.home)]
    return shlex.join(["rivertwice", *places, *words])
