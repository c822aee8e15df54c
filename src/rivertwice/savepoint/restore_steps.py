"""The steps of a restore that touch the stream and the tables (3 to 8); see `restore` for the protocol."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from rivertwice.config import PipelineHome, Settings
from rivertwice.errors import LostRaceError, ServiceError
from rivertwice.instants import to_iso, utc_now
from rivertwice.pipeline.bundle import load_bundle
from rivertwice.processes import own_start
from rivertwice.savepoint import operation as steps
from rivertwice.savepoint.beginning import BEGINNING, make_empty_checkpoint
from rivertwice.savepoint.bundles import equivalent_bundles, load_state_definition
from rivertwice.savepoint.catalogue import Savepoint, download
from rivertwice.savepoint.feed import oldest_offsets, replay_source
from rivertwice.savepoint.operation import Operation, advance
from rivertwice.savepoint.plan import plan_replay
from rivertwice.savepoint.prove import session_of
from rivertwice.savepoint.replay import replay_recorded
from rivertwice.store import delta
from rivertwice.store.files import put_json_if_absent
from rivertwice.stream.lease import lease_owner, require_no_other_host
from rivertwice.stream.seal import SEALED, app_of, is_sealed, seal_timeline
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.ledger import METADATA_KEY, LedgerRow, read_ledger
from rivertwice.timeline.lineage import (
    Fork,
    Segment,
    Timeline,
    create_timeline,
    fork_of,
    load_timeline,
    next_timeline_name,
    path_of,
    select_on_path,
)
from rivertwice.timeline.sequence import head, last_seq, move_head
from rivertwice.waits import Deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str], None]
_BEFORE_SEAL = 16  # commits with a ledger row that are looked at for the batch before a seal
MOVE, MOVED, FORK_AGAIN = "move", "moved", "fork again"


def go_on(
    settings: Settings,
    home: PipelineHome,
    savepoint: Savepoint,
    operation: Operation,
    progress: Progress,
    spark: SparkSession | None,
    drain_seconds: float | None,
) -> Operation:
    """Do the steps that are not done yet, from draining (3; not with None, where a caller keeps the stream at rest) to 8."""
    if operation.step < steps.MOVED and drain_seconds is not None:
        drain_stream(
            home, operation.id, operation.was_running, drain_seconds, progress
        )  # step 3, after every interruption
    if operation.step < steps.DRAINED:
        operation = advance(home, operation, steps.DRAINED)
    if operation.step < steps.CREATED:
        operation = _fork(home, operation)
        operation = _replay(settings, home, savepoint, operation, progress, spark)
        operation = _create(home, operation)
    if operation.step < steps.MOVED:
        operation = _move(home, operation, progress)
    if operation.step < steps.DONE:
        if operation.was_running:  # step 8
            write_intent(home, "running", by=operation.id, now=utc_now())
            progress("the stream is wanted again")
        operation = advance(home, operation, steps.DONE)
        shutil.rmtree(home.scratch / operation.id, ignore_errors=True)
    return operation


def drain_stream(home: PipelineHome, by: str, wanted: bool, seconds: float, progress: Progress) -> None:  # step 3
    """Want the stream stopped and wait until its driver has gone.

    Raises:
        ServiceError: it did not go in time.
    """
    require_no_other_host(home)
    if wanted or lease_owner(home) is not None:
        write_intent(home, "stopped", by=by, now=utc_now())
        put_json_if_absent(home.drain, marker_of(by))
    try:
        owner = lease_owner(home)
        if owner is not None:
            progress(f"draining the driver (epoch {owner.epoch})")
        if not Deadline.after(seconds).wait_until(lambda: lease_owner(home) is None):
            message = (
                f"the driver of {home.root.name} did not stop within {seconds:.0f} s; the stream is wanted stopped and nothing "
                f"else was done; see its log, stop it, and run the {by.partition('-')[0]} again"
            )
            raise ServiceError(message)
    finally:
        home.drain.unlink(missing_ok=True)


def marker_of(by: str) -> dict[str, Any]:
    """Return a drain marker of an operation; it holds while this process lives."""
    return {
        "format": steps.FORMAT,
        "by": by,
        "at": to_iso(utc_now()),
        "pid": os.getpid(),
        "pid_started": own_start(),
    }


def rows_of(home: PipelineHome, operation: Operation) -> list[LedgerRow]:
    """Return the committed batches of the path that the operation began on, as far as the changelog still has them."""
    rows = select_on_path(read_ledger(home), path_of(home, operation.parent))
    return up_to_changelog(rows, operation.parent, last_in_changelog(home, operation.parent))


def last_in_changelog(home: PipelineHome, timeline: str) -> int | None:
    """Return a timeline's last batch that the changelog has, whatever the ledger's table says; None: none of its own."""
    changelog = home.tables.changelog
    applied = delta.applied_version(changelog, app_of(load_timeline(home, timeline).pipeline, timeline))
    if not is_sealed(applied):
        return applied
    found = [LedgerRow.from_json(data) for _, data in delta.commits(changelog, METADATA_KEY, limit=_BEFORE_SEAL)]
    own = [row.batch for row in found if row.timeline == timeline]
    return max(own) if own else SEALED  # its commits are dropped from the log: it was sealed long ago


def up_to_changelog(rows: Sequence[LedgerRow], timeline: str, last: int | None) -> list[LedgerRow]:
    """Return a path's rows without those of its last timeline that the changelog does not have. Pure.

    A changelog that lost its newest commits is behind the ledger's table, which has copies. Forking there would leave out what they read.
    """
    return [row for row in rows if row.timeline != timeline or (last is not None and row.batch <= last)]


def path_in_changelog(path: Sequence[Segment], last: int | None) -> list[Segment]:
    """Return a path whose last timeline ends where the changelog does. Pure."""
    *before, own = path
    end = own.first - 1 if last is None else last
    return [*before, replace(own, last=end if own.last is None else min(own.last, end))]


def plan_fork(operation: Operation, last: int) -> Operation:
    """Return the operation with its fork decided at the parent's last batch; one that had decided so stays as it is."""
    if operation.step >= steps.FORKED and operation.forked_at == last:
        return operation
    return replace(operation, step=steps.FORKED, forked_at=last)


def is_same_fork(line: Timeline, operation: Operation) -> bool:
    """Say whether a child's record, which is final, leaves the parent where the operation forks now."""
    return line.parent == Fork(operation.parent, operation.forked_at if operation.forked_at is not None else -1)


def decide_move(operation: Operation, head_now: str | None, last: int) -> str:
    """Return `move`, `moved` if the child is the head already, or `fork again` if the parent went on after the fork.

    Raises:
        LostRaceError: another timeline is the head.
    """
    if head_now == operation.child:
        return MOVED
    if head_now != operation.parent:
        raise LostRaceError(_moved_on(operation, f"head {head_now}"))
    return MOVE if last == operation.forked_at else FORK_AGAIN


def _fork(home: PipelineHome, operation: Operation) -> Operation:  # step 4
    planned = plan_fork(operation, rows_of(home, operation)[-1].batch)
    if planned is operation:
        return operation
    return advance(home, operation, planned.step, forked_at=planned.forked_at)


def _replay(
    settings: Settings,
    home: PipelineHome,
    savepoint: Savepoint,
    operation: Operation,
    progress: Progress,
    spark: SparkSession | None,
) -> Operation:  # step 5
    target = home.checkpoint(operation.child)
    if operation.step >= steps.REPLAYED and target.exists():
        return operation
    shutil.rmtree(target, ignore_errors=True)  # of an attempt that forked earlier
    work = home.scratch / operation.id / secrets.token_hex(4)  # a killed attempt's JVM may still write into its own
    if operation.savepoint == BEGINNING:
        make_empty_checkpoint(work)
    else:
        download(savepoint, work)
    definition = load_state_definition(home, savepoint.manifest)
    rows = rows_of(home, operation)
    plan = plan_replay(
        savepoint.manifest,
        rows,
        until=operation.forked_at or 0,
        begin=oldest_offsets(settings, definition, savepoint.manifest, archive_only=operation.rewritten_by is not None),
        bundles=equivalent_bundles(home, savepoint.manifest, rows),
    )
    progress(f"replaying {len(plan.rows)} recorded batches after batch {savepoint.manifest.batch}")
    if plan.rows:
        session = spark or session_of(settings, definition)
        name = f"rivertwice-replay-{operation.id}"
        with replay_source(
            session, settings, definition, savepoint.manifest, plan, name=name, progress=progress
        ) as topics:
            replay_recorded(
                session, settings, definition, work, plan.rows, before=rows, topic_override=topics, progress=progress
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    work.rename(target)
    return advance(home, operation, steps.REPLAYED, replayed=len(plan.rows))


def plan_child(home: PipelineHome, parent: Timeline, last: LedgerRow, operation: Operation) -> Timeline:
    """Return the record of the child: the parent's definition, or of an upgrade the new one."""
    line = fork_of(parent, last, operation.child, utc_now())
    if operation.bundle is None:
        return line
    return replace(
        line, bundle=operation.bundle, fingerprint=load_bundle(home.bundles, operation.bundle).fingerprint.hashes()
    )


def _create(home: PipelineHome, operation: Operation) -> Operation:  # step 6
    parent = load_timeline(home, operation.parent)
    last = rows_of(home, operation)[-1]
    if last.batch != operation.forked_at:
        raise LostRaceError(_moved_on(operation, f"batch {last.batch}"))
    create_timeline(home, plan_child(home, parent, last, operation))
    if not is_same_fork(load_timeline(home, operation.child), operation):  # recorded by an attempt that forked earlier
        _fork_again(home, operation, last.batch)
    return advance(home, operation, steps.CREATED)


def _fork_again(home: PipelineHome, operation: Operation, last: int) -> NoReturn:
    advance(home, operation, steps.CHECKED, child=next_timeline_name(home), forked_at=None, replayed=0)
    raise LostRaceError(_moved_on(operation, f"batch {last}"))


def _move(home: PipelineHome, operation: Operation, progress: Progress) -> Operation:  # step 7
    seen = last_seq(home)
    if decide_move(operation, head(home), (last := rows_of(home, operation)[-1].batch)) == MOVE:
        seal_timeline(home, load_timeline(home, operation.parent).pipeline, operation.parent)
        last = rows_of(home, operation)[-1].batch
    found = decide_move(operation, head(home), last)
    if found == FORK_AGAIN:  # the child's record is final, so another child is needed
        _fork_again(home, operation, last)
    if found == MOVE:
        what = "restore from" if operation.bundle is None else f"upgrade to bundle {operation.bundle[:12]} from"
        reason = f"{what} {operation.savepoint} ({operation.id})"
        move_head(home, operation.child, reason=reason, expected_seq=seen, now=utc_now())
        progress(f"the head moved from {operation.parent} to {operation.child}")
    return advance(home, operation, steps.MOVED)


def _moved_on(operation: Operation, what: str) -> str:
    return (
        f"{operation.id} forked {operation.parent} at batch {operation.forked_at}, but meanwhile it has {what}: somebody "
        "started the stream or moved the head by hand; nothing served changed; run the restore again"
    )
