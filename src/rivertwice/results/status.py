"""What the rows of a table show, as a consumer asks: from which batch, since when, and whether more is committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rivertwice.config import PipelineHome, Place
from rivertwice.instants import to_iso
from rivertwice.store import delta
from rivertwice.store.delta_read import newest_stamped
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.lineage import path_of
from rivertwice.timeline.sequence import read_sequence, select_head
from rivertwice.timeline.served_stamp import METADATA_KEY, ServedStamp


@dataclass(frozen=True)
class Status:
    """What a table showed when it was opened.

    Attributes:
        table: its name.
        version: of the pipeline: the one whose rows these are, `NAME` or `NAME@v2`.
        commit: number of the table's commit that is read.
        built_at: when the rows were last changed; None: not known any more.
        timeline, batch: the last batch that the rows show; None: the table has no stamp.
        sequence: the newest head move or publication that they show.
        newest_timeline, newest_batch, newest_sequence: the same of what is committed.
        run: of verdicts and causes: the reconcile for which they hold.
    """

    table: str
    version: str
    commit: int
    built_at: datetime | None = None
    timeline: str | None = None
    batch: int | None = None
    sequence: int | None = None
    newest_timeline: str | None = None
    newest_batch: int | None = None
    newest_sequence: int | None = None
    run: str | None = None

    @property
    def is_current(self) -> bool | None:
        """Whether the rows show all batches and publications that are committed; None: the table has no stamp."""
        shown = (self.timeline, self.batch, self.sequence)
        newest = (self.newest_timeline, self.newest_batch, self.newest_sequence)
        return None if self.batch is None else shown == newest

    def describe(self) -> str:
        """Return it as a line for people."""
        since = (
            ""
            if self.built_at is None
            else f", {'built' if self.batch is not None else 'changed'} {to_iso(self.built_at)}"
        )
        head = f"{self.table} of {self.version}"
        if self.run is not None:
            head += f", reconcile {self.run}"
        if self.batch is None:
            return f"{head}{since}"
        line = f"{head} as of batch {self.batch} of {self.timeline}, sequence {self.sequence}{since}"
        if self.is_current:
            return line
        newest = f"batch {self.newest_batch} of {self.newest_timeline}, sequence {self.newest_sequence}"
        return f"{line}; not current: {newest}, is committed, and the agent builds it next (`rivertwice status`)"


def status_of(home: PipelineHome, name: str, place: Place, table: delta.Table, *, has_stamp: bool) -> Status:
    """Return what a table shows that was opened before.

    Args:
        home: of the version whose rows they are.
        name: of the table.
        place: of the table.
        table: the open handle.
        has_stamp: whether its commits say what they show: `served` and `provisional`.
    """
    commit = int(table.version())
    found = newest_stamped(place, table, METADATA_KEY if has_stamp else None)
    if found is None:
        return Status(name, home.root.name, commit)
    built_at, data = found
    if not has_stamp:
        return Status(name, home.root.name, commit, built_at)
    stamp = ServedStamp(**data)
    entries = read_sequence(home)
    head = select_head(entries)
    newest = None if head is None else newest_batch(home, path_of(home, head))
    return Status(
        name,
        home.root.name,
        commit,
        built_at,
        stamp.timeline,
        stamp.batch,
        stamp.sequence,
        None if newest is None else newest.timeline,
        None if newest is None else newest.batch,
        entries[-1].seq if entries else None,
    )
