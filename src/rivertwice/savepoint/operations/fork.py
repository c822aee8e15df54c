"""Where a restore leaves its parent, and how the parent's driver is drained: the last batch in the changelog counts."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from rivertwice.core import Deadline, PipelineHome, Progress, ServiceError, is_alive, utc_now
from rivertwice.definition import load_bundle
from rivertwice.savepoint.operations.record import OperationStep, Restore
from rivertwice.storage import Table, put_json_if_absent, read_json, replace_json
from rivertwice.stream import (
    SEALED,
    is_sealed,
    lease_owner,
    lock_file,
    marker_of,
    newest_rows_of_run,
    require_no_other_host,
    stream_app,
)
from rivertwice.timeline import (
    LEDGER_KEY,
    CommittedBatches,
    Fork,
    LedgerRow,
    Segment,
    Timeline,
    committed_batches,
    every_batch,
    newest_batches,
    path_of,
    read_ledger,
    select_on_path,
    write_intent,
)

_BEFORE_SEAL = 16  # commits with a ledger row that are looked at for the batch before a seal


@dataclass(frozen=True)
class ParentBatches:
    """The committed batches of a timeline's path, as far as the changelog still has them.

    They are held in columns, from the process's cursor. Whole rows are read where they are asked for, from a batch on, so what
    looks only at the end of the path costs the same after any number of batches.

    Attributes:
        path: its path, which ends where the changelog does.
        every: those of all timelines.
    """

    home: PipelineHome
    parent: str
    path: tuple[Segment, ...]
    committed: CommittedBatches
    every: pa.Table

    @property
    def newest(self) -> int | None:
        """The number of the last batch; None if there is none."""
        return int(self.committed.numbers[-1]) if len(self.committed) else None

    def last(self) -> LedgerRow | None:
        """Read the row of the last batch; None if there is none."""
        rows = newest_batches(self.home, self.committed, self.path, 1)
        return rows[-1] if rows else None

    def count_after(self, batch: int) -> int:
        """Return how many batches have larger numbers."""
        return len(self.committed) - len(self.committed.before(batch + 1))

    def after(self, batch: int) -> list[LedgerRow]:
        """Read the rows of the batches with larger numbers, in order."""
        if not self.count_after(batch):
            return []
        return select_on_path(read_ledger(self.home, first_batch=batch + 1), self.path)

    def of_run(self) -> list[LedgerRow]:
        """Read the rows with which the parent's checkpoint is compared (`stream.damage.newest_rows_of_run`)."""
        return newest_rows_of_run(self.home, self.committed, self.path)


def read_parent(home: PipelineHome, parent: str) -> ParentBatches:
    """Return the committed batches of a timeline's path, as far as the changelog still has them.

    The ledger is read before the changelog is asked: a batch that is committed in between is not one of them.
    """
    every = every_batch(home)
    path = tuple(path_in_changelog(path_of(home, parent), last_in_changelog(home, parent)))
    return ParentBatches(home, parent, path, committed_batches(home, path, every), every)


def last_in_changelog(home: PipelineHome, timeline: str) -> int | None:
    """Return a timeline's last batch in the changelog, whatever the ledger's table contains; None if it has none itself."""
    changelog = home.tables.changelog
    applied = Table(changelog).applied_version(stream_app(Timeline.load(home, timeline).pipeline, timeline))
    if not is_sealed(applied):
        return applied
    recent = [LedgerRow.from_json(data) for _, data in Table(changelog).commits(LEDGER_KEY, limit=_BEFORE_SEAL)]
    own = [row.batch for row in recent if row.timeline == timeline]
    return max(own) if own else SEALED  # its commits are dropped from the log: it was sealed long ago


def path_in_changelog(path: Sequence[Segment], last: int | None) -> list[Segment]:
    """Return a path whose last timeline ends where the changelog does. Pure.

    The ledger's table has copies of commits that a damaged changelog has lost. A fork after those would leave their records out.
    """
    *before, own = path
    end = own.first - 1 if last is None else last
    return [*before, replace(own, last=end if own.last is None else min(own.last, end))]


def plan_fork(restore: Restore, last: int) -> Restore:
    """Return the restore with its fork decided at the parent's last batch; an equal decision stays as it is. Pure."""
    if restore.step >= OperationStep.FORKED and restore.forked_at == last:
        return restore
    return replace(restore, step=OperationStep.FORKED, forked_at=last)


def is_same_fork(line: Timeline, restore: Restore) -> bool:
    """Say whether a child's record, which is final, leaves the parent where the restore forks now. Pure."""
    return line.parent == Fork(restore.parent, restore.forked_at if restore.forked_at is not None else -1)


def plan_child(home: PipelineHome, parent: Timeline, last: LedgerRow, restore: Restore, now: datetime) -> Timeline:
    """Return the record of the child: with the parent's definition, or for an upgrade with the new one."""
    line = parent.fork(last, restore.child, now)
    if restore.partitions is not None:
        line = replace(line, shuffle_partitions=restore.partitions)
    if restore.bundle is None:
        return line
    fingerprint = load_bundle(home.bundles, restore.bundle).fingerprint.hashes()
    return replace(line, bundle=restore.bundle, fingerprint=fingerprint)


# Stop a stream for an operation, and keep it stopped.

DRAIN_S = 120.0  # a driver drains in half a second; one that is stuck in a batch may take longer
_POLL_S = 0.1


def drain_stream(home: PipelineHome, by: str, wanted: bool, seconds: float, progress: Progress) -> None:
    """Record that the desired state is stopped, and wait until its driver has ended.

    Raises:
        ServiceError: the driver did not end in time.
    """
    require_no_other_host(home)
    if wanted or lease_owner(home) is not None:
        write_intent(home, "stopped", by=by, now=utc_now())
        put_json_if_absent(home.drain, marker_of(by, utc_now()))
    try:
        owner = lease_owner(home)
        if owner is not None:
            progress(f"draining the driver (epoch {owner.epoch})")
        if not Deadline.after(seconds).wait_until(lambda: lease_owner(home) is None):
            message = (
                f"the driver of {home.root.name} did not stop within {seconds:.0f} s; the desired state is stopped and nothing "
                f"else was done; see its log, stop it, and run the {by.partition('-')[0]} again"
            )
            raise ServiceError(message)
    finally:
        home.drain.unlink(missing_ok=True)


def block_stream(home: PipelineHome, by: str) -> None:
    """Let only the operation's own driver start."""
    replace_json(home.drain, marker_of(by, utc_now()))


def release_stream(home: PipelineHome, by: str) -> None:
    """Remove the operation's own drain marker; another's stays."""
    marker = read_json(home.drain)
    if marker is not None and marker.get("by") == by:
        home.drain.unlink(missing_ok=True)


def end_catching_up(home: PipelineHome, child: str, seconds: float) -> None:
    """End a driver that still catches up on `child`, at a batch boundary.

    Raises:
        ServiceError: it does not end in time.
    """
    owner = lease_owner(home)
    if owner is None or owner.timeline != child:
        return
    if is_alive(owner.pid, owner.pid_started):  # else another process has its number now
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGTERM)
    lock = lock_file(home)
    if not Deadline.after(seconds).wait_until(
        lambda: not is_alive(owner.pid, owner.pid_started, lock=lock), every=_POLL_S
    ):
        message = (
            f"the driver that catches up on {child} (pid {owner.pid}) did not end within {seconds:.0f} s; nothing was changed; "
            "see logs/rewind.log, end it and run this again"
        )
        raise ServiceError(message)
