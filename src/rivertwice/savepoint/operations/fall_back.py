"""Replace a damaged live checkpoint by the newest proved savepoint; served rows do not change.

Usage: python -m rivertwice.savepoint.operations.fall_back --pipeline NAME [--since ISO]
The agent starts it when a driver ends with class `checkpoint`. It is an ordinary restore (`restore`): recorded ranges are
replayed and compared up to the last committed batch, a child timeline forks there and becomes the head. What differs:

1. If the head moved since the damage was noticed, nothing is done.
2. A restore that was interrupted is resumed.
3. The newest proved savepoint on the head's path is taken. One that is damaged, or whose replay gives another result, is
   skipped, by name, in favour of the next older one.
4. The intent is not changed: the agent starts no driver meanwhile, and a person's `stop` stays in force.

The result is written to `operations/fall-back.json`. Exit codes: 0 restored, 1 refused.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rivertwice.core import (
    LostRaceError,
    PipelineHome,
    Progress,
    RivertwiceError,
    SavepointError,
    ServiceError,
    Settings,
    own_start,
    parse_iso,
    retry_for,
    run_process,
    utc_now,
)
from rivertwice.savepoint.catalogue import ProofState, Savepoint, survey_savepoints
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.engine import ShownStep
from rivertwice.savepoint.operations.record import FallBackReport, OperationStep, read_restores, write_fall_back
from rivertwice.savepoint.operations.restore import RestorePlan, RestoreReport, restore_savepoint, show_restore
from rivertwice.savepoint.operations.steps import RESTORE
from rivertwice.savepoint.plan import is_on_path
from rivertwice.stream import lease_owner
from rivertwice.timeline import Entry, EntryKind, Segment, head_path, read_sequence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("rivertwice.fallback")
PATIENCE_S = 600.0  # how long another process that restores this pipeline may take to end


@dataclass(frozen=True)
class FallBackResult:
    """How a fall-back went.

    Attributes:
        report: the report of the restore; None if the head had moved already.
        passed_over: savepoint id to the reason why it could not be used.
    """

    report: RestoreReport | None
    passed_over: dict[str, str]

    def describe(self, seconds: float) -> str:
        """Return in one sentence what the fall-back did."""
        passed = "".join(f"; {name} was passed over: {why}" for name, why in self.passed_over.items())
        if self.report is None:
            return f"another restore moved the head meanwhile{passed}"
        report = self.report
        return (
            f"the damaged checkpoint of timeline {report.parent} was replaced from proved savepoint {report.savepoint}: "
            f"{report.replayed} recorded batches replayed and equal, timeline {report.timeline} continues after batch "
            f"{report.forked_at}; nothing served changed ({seconds:.1f} s){passed}"
        )


@dataclass(frozen=True)
class Candidate:
    """A savepoint that a fall-back would try: its batch, how many batches would be replayed, and why it is refused, if it is."""

    savepoint: str
    batch: int | None
    replay: int | None
    refusal: str | None


@dataclass(frozen=True)
class FallBackPlan:
    """What a fall-back would do; nothing is done.

    Attributes:
        candidates: savepoints in the order in which they would be tried.
        savepoint: the one that would be taken; None if none can be used.
        message: the expected result in one sentence; without a savepoint, what a person can do.
    """

    pipeline: str
    candidates: tuple[Candidate, ...]
    savepoint: str | None
    resumes: str | None
    steps: tuple[ShownStep, ...]
    message: str


def select_candidates(savepoints: Sequence[Savepoint], path: Sequence[Segment]) -> list[Savepoint]:
    """Return the savepoints that a fall-back may use, best first: proved, on the head's path, newest batch first. Pure."""
    fitting = [
        savepoint
        for savepoint in savepoints
        if savepoint.status == ProofState.PROVED and is_on_path(savepoint.manifest, path)
    ]
    return sorted(
        fitting,
        key=lambda savepoint: (savepoint.manifest.batch, savepoint.manifest.created_at, savepoint.id),
        reverse=True,
    )


def moved_since(entries: Sequence[Entry], since: datetime | None, now: datetime) -> str | None:
    """Return the timeline that became the head after `since`, or None. Pure.

    A move with an instant after `now` was made before the clock was set back, so it does not count.
    """
    moves = [
        entry
        for entry in entries
        if entry.kind == EntryKind.HEAD and since is not None and since < entry.created_at <= now
    ]
    return str(moves[-1].payload["timeline"]) if moves else None


def fall_back(
    settings: Settings,
    pipeline: str,
    *,
    since: datetime | None = None,
    progress: Progress,
    spark: SparkSession | None = None,
    patience_s: float = PATIENCE_S,
) -> FallBackResult:
    """Restore the newest proved savepoint that can be used.

    Args:
        since: when the damage was noticed; None restores in any case.
        spark: the session to use; None starts the pipeline's own.
        patience_s: how long to wait for another process that restores.

    Raises:
        SavepointError: no proved savepoint can be used; the message names each and the remedy.
        RivertwiceError: the restore was refused for another reason (definition, log, topic).
    """
    home = settings.pipeline(pipeline)

    def look_and_try() -> FallBackResult:
        moved = moved_since(read_sequence(home), since, utc_now())
        if moved is not None and not _unfinished(home):
            progress(f"the head moved to {moved} since; nothing more is to be done")
            return FallBackResult(None, {})
        owner = lease_owner(home)
        if owner is not None:
            message = (
                f"driver pid {owner.pid} of {pipeline} lives: there is nothing to fall back from; nothing was done"
            )
            raise ServiceError(message)
        return _try_all(settings, home, progress, spark)

    # Another process restores now: its result is looked at again.
    trying = retry_for(
        LostRaceError, seconds=patience_s, every_s=2.0, say=lambda error: progress(f"{error}; tried again")
    )
    return trying(look_and_try)


def _try_all(settings: Settings, home: PipelineHome, progress: Progress, spark: SparkSession | None) -> FallBackResult:
    pipeline = home.root.name
    survey = survey_savepoints(home)
    passed_over = dict(survey.damaged)
    for name, why in passed_over.items():
        progress(f"{name} is passed over: {why}")
    interrupted = _unfinished(home)
    names = [interrupted] if interrupted is not None else []
    names += [
        candidate.id for candidate in select_candidates(survey.sound, head_path(home)) if candidate.id != interrupted
    ]
    for name in names:
        try:
            report = restore_savepoint(settings, pipeline, name, progress=progress, spark=spark, keep_intent=True)
        except SavepointError as error:  # a fault of this savepoint: damaged, deleted, or different from the ledger
            progress(f"{name} is passed over: {error}")
            passed_over[name] = str(error)
            if _unfinished(home):
                abandon_operation(settings, pipeline, RESTORE)
        else:
            return FallBackResult(report, passed_over)
    raise SavepointError(describe_none(pipeline, survey.sound, passed_over))


def show_fall_back(settings: Settings, pipeline: str) -> FallBackPlan:
    """Return which savepoint would replace a damaged checkpoint now; nothing is done.

    Bytes of savepoints are read, and recorded batches compared, only by the fall-back itself.
    """
    home = settings.pipeline(pipeline)
    survey = survey_savepoints(home)
    tried = [Candidate(name, None, None, why) for name, why in survey.damaged.items()]
    interrupted = _unfinished(home)
    names = [savepoint.id for savepoint in select_candidates(survey.sound, head_path(home))]
    taken: RestorePlan | None = None
    for name in names if interrupted is None else [interrupted]:
        plan = show_restore(settings, pipeline, name, unproved=interrupted is not None)
        tried.append(Candidate(name, plan.batch, plan.replay, plan.refusal))
        if taken is None and plan.refusal is None:
            taken = plan
    refused = {candidate.savepoint: candidate.refusal for candidate in tried if candidate.refusal is not None}
    return FallBackPlan(
        pipeline=pipeline,
        candidates=tuple(tried),
        savepoint=None if taken is None else taken.savepoint,
        resumes=None if taken is None else taken.resumes,
        steps=() if taken is None else taken.steps,
        message=describe_none(pipeline, survey.sound, refused)
        if taken is None
        else f"{taken.savepoint} would be taken: {taken.replay} recorded batches replayed, each compared with the ledger",
    )


def _unfinished(home: PipelineHome) -> str | None:
    names = [restore.savepoint for restore in read_restores(home) if restore.step < OperationStep.DONE]
    return names[-1] if names else None


def describe_none(pipeline: str, savepoints: Sequence[Savepoint], passed_over: dict[str, str]) -> str:
    """Return the message if no proved savepoint can be used: why, and what a person can do."""
    tried = "; ".join(f"{name}: {why}" for name, why in passed_over.items())
    unproved = [savepoint.id for savepoint in savepoints if savepoint.status != ProofState.PROVED]
    way = (
        f"restore one that is not proved, every batch is compared all the same (`rivertwice savepoint restore {pipeline} "
        f"{unproved[-1]} --unproved`)"
        if unproved
        else f"let its state be made again of all recorded batches (`rivertwice savepoint restore {pipeline} --from-beginning`)"
    )
    return (
        f"{pipeline} has no proved savepoint that can take the damaged checkpoint's place"
        f"{f' ({tried})' if tried else ''}; the stream stands and what is served stays as it is; {way}"
    )


def main(argv: list[str] | None = None) -> int:
    """Fall back once; return the exit code."""
    parser = argparse.ArgumentParser(prog="rivertwice.savepoint.operations.fall_back", description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    parser.add_argument("--since", default=None, help="when the damage was noticed, ISO 8601")
    arguments = parser.parse_args(argv)
    settings = Settings.from_env()
    home = settings.pipeline(arguments.pipeline)
    since = None if arguments.since is None else parse_iso(arguments.since)
    began = time.monotonic()
    fallen, refusal = None, ""
    try:
        fallen = fall_back(settings, arguments.pipeline, since=since, progress=_log.info)
    except RivertwiceError as error:
        refusal = str(error)
        _log.error("%s: %s", error.reason, error)
    except Exception as error:
        refusal = f"{type(error).__name__}: {str(error)[:2000]}"
        _log.exception("the fall-back of %s failed", arguments.pipeline)
    seconds = round(time.monotonic() - began, 3)
    done = fallen.report if fallen is not None else None
    report = FallBackReport(
        pid=os.getpid(),
        pid_started=own_start(),
        at=utc_now(),
        restored=fallen is not None,
        message=refusal if fallen is None else fallen.describe(seconds),
        seconds=seconds,
        savepoint=None if done is None else done.savepoint,
        timeline=None if done is None else done.timeline,
        forked_at=None if done is None else done.forked_at,
        replayed=None if done is None else done.replayed,
        passed_over={} if fallen is None else fallen.passed_over,
    )
    write_fall_back(home, report)
    _log.info("%s", report.message)
    return 0 if report.restored else 1


if __name__ == "__main__":
    run_process(main)
