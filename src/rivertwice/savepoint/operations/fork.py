"""Where a restore leaves its parent: the last batch in the changelog, whatever the checkpoint and the ledger's table contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from rivertwice.config import PipelineHome
from rivertwice.pipeline.bundle import load_bundle
from rivertwice.savepoint.operations.record import FORKED, Restore
from rivertwice.store import delta
from rivertwice.stream.damage import newest_rows_of_run
from rivertwice.stream.seal import SEALED, app_of, is_sealed
from rivertwice.timeline.committed import CommittedBatches, committed_batches, every_batch, newest_batches
from rivertwice.timeline.ledger import METADATA_KEY, LedgerRow, read_ledger
from rivertwice.timeline.lineage import Fork, Segment, Timeline, fork_of, load_timeline, path_of, select_on_path

_BEFORE_SEAL = 16  # commits with a ledger row that are looked at for the batch before a seal


@dataclass(frozen=True)
class ParentBatches:
    """The committed batches of a timeline's path, as far as the changelog still has them.

    They are held in columns, from the process's cursor. Whole rows are read where they are asked for, from a batch on, so what
    looks only at the end of the path costs the same after any number of batches.

    Attributes:
        parent: the timeline.
        path: its path, which ends where the changelog does.
        committed: the batches of the path.
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
    """Return a timeline's last batch in the changelog, whatever the ledger's table contains; None if it has none of its own."""
    changelog = home.tables.changelog
    applied = delta.applied_version(changelog, app_of(load_timeline(home, timeline).pipeline, timeline))
    if not is_sealed(applied):
        return applied
    recent = [LedgerRow.from_json(data) for _, data in delta.commits(changelog, METADATA_KEY, limit=_BEFORE_SEAL)]
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
    if restore.step >= FORKED and restore.forked_at == last:
        return restore
    return replace(restore, step=FORKED, forked_at=last)


def is_same_fork(line: Timeline, restore: Restore) -> bool:
    """Say whether a child's record, which is final, leaves the parent where the restore forks now. Pure."""
    return line.parent == Fork(restore.parent, restore.forked_at if restore.forked_at is not None else -1)


def plan_child(home: PipelineHome, parent: Timeline, last: LedgerRow, restore: Restore, now: datetime) -> Timeline:
    """Return the record of the child: with the parent's definition, or for an upgrade with the new one."""
    line = fork_of(parent, last, restore.child, now)
    if restore.partitions is not None:
        line = replace(line, shuffle_partitions=restore.partitions)
    if restore.bundle is None:
        return line
    fingerprint = load_bundle(home.bundles, restore.bundle).fingerprint.hashes()
    return replace(line, bundle=restore.bundle, fingerprint=fingerprint)
