"""What the rows of a table show, as a consumer asks: from which batch, since when, and whether more is committed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rivertwice.core import PipelineHome, Place, RequestError, from_ms, to_iso
from rivertwice.definition import FOREVER_MS, load_bundle_definition
from rivertwice.storage import Remembered, Snapshot, Table, Where
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import path_of
from rivertwice.timeline.sequence import Entry, read_sequence, select_head
from rivertwice.timeline.served_stamp import SERVED_KEY, ServedStamp


@dataclass(frozen=True)
class Status:
    """What a table showed when it was opened.

    Attributes:
        version: of the pipeline: the one whose rows these are, `NAME` or `NAME@v2`.
        commit: number of the table's commit that is read.
        built_at: when the rows were last changed; None: not known any more.
        timeline, batch: the last batch that the rows show; None: the table has no stamp.
        sequence: the newest head move or publication that they show.
        newest_timeline, newest_batch, newest_sequence: the same of what is committed.
        until: windows that end at or before it are in the table; None: it has no stamp, or its rows are final at once (a fold).
        newest_until: windows that end at or before it are closed by what is committed.
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
    until: datetime | None = None
    newest_until: datetime | None = None

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
        return f"{line}; not current: {self._newest}, is committed; {how_served(self.version)}"

    @property
    def _newest(self) -> str:
        return f"batch {self.newest_batch} of {self.newest_timeline}, sequence {self.newest_sequence}"

    def require_current(self) -> None:
        """Check that the rows show all that is committed.

        Raises:
            RequestError: they do not, or the table does not say what it shows.
        """
        if self.batch is None:
            message = (
                f"{self.table} of {self.version} does not say which batch its rows show, so it is not known whether they are current; "
                "only served and provisional say it: leave --require-current (require_current) out"
            )
            raise RequestError(message)
        if not self.is_current:
            message = (
                f"{self.table} of {self.version} is not current: it shows batch {self.batch} of {self.timeline}, sequence "
                f"{self.sequence}, and {self._newest}, is committed; {how_served(self.version)}"
            )
            raise RequestError(message)


def how_served(name: str) -> str:
    """Return what makes a table show all that is committed, as the end of a sentence. Pure."""
    return f"an agent builds it (`rivertwice agent start`), or `rivertwice admin rebuild {name}` does it once"


@dataclass(frozen=True)
class ServedEnd:
    """Up to where the closed windows of a version are in its served table.

    Attributes:
        timeline, batch: the last batch that the table shows; None: it was never built.
        until: windows that end at or before it are in the table; None: none is, or rows are final at once (a fold).
        closed: windows that end at or before it are closed by the newest committed batch.
    """

    timeline: str | None
    batch: int | None
    until: datetime | None
    closed: datetime | None
    is_current: bool


def served_end(home: PipelineHome) -> ServedEnd:
    """Return up to where closed windows are served; what was read is kept while the tables are as they were."""
    tables = home.tables
    places = (tables.served, tables.sequence, tables.changelog)
    return _ENDS.get(str(tables.served), places, lambda: _read_end(home))


def _read_end(home: PipelineHome) -> ServedEnd:
    place = home.tables.served
    table = Table(place).open()
    if table is not None:
        status = status_of(home, "served", place, table, has_stamp=True)
        if status.batch is not None:
            return ServedEnd(
                status.timeline, status.batch, status.until, status.newest_until, status.is_current is True
            )
    newest = _newest_of(read_sequence(home), home)
    closed = None if newest is None else _end_of(home, newest.bundle, newest.batch_watermark_ms)
    return ServedEnd(None, None, None, closed, newest is None)


_ENDS: Remembered[ServedEnd] = Remembered()


def status_of(home: PipelineHome, name: str, place: Place, table: Snapshot, *, has_stamp: bool) -> Status:
    """Return what a table shows that was opened before.

    Args:
        has_stamp: whether its commits say what they show: `served` and `provisional`.
    """
    commit = table.version
    found = table.newest_stamped(SERVED_KEY if has_stamp else None)
    if found is None:
        return Status(name, home.root.name, commit)
    built_at, data = found
    if not has_stamp:
        return Status(name, home.root.name, commit, built_at)
    stamp = ServedStamp(**data)
    entries = read_sequence(home)
    newest = _newest_of(entries, home)
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
        until=_until_of(home, stamp, newest),
        newest_until=None if newest is None else _end_of(home, newest.bundle, newest.batch_watermark_ms),
    )


def _newest_of(entries: list[Entry], home: PipelineHome) -> LedgerRow | None:
    head = select_head(entries)
    return None if head is None else newest_batch(home, path_of(home, head))


def _until_of(home: PipelineHome, stamp: ServedStamp, newest: LedgerRow | None) -> datetime | None:
    """Return the end of the last windows that were closed at a stamp's batch; of that batch one row is read."""
    if newest is not None and (newest.timeline, newest.batch) == (stamp.timeline, stamp.batch):
        return _end_of(home, newest.bundle, newest.batch_watermark_ms)
    rows = Table(home.tables.ledger).read(
        columns=["bundle", "batch_watermark_ms"],
        matching=Where.all(
            [Where("batch").is_between(stamp.batch, stamp.batch), Where("timeline").equals(stamp.timeline)]
        ),
    )
    if rows is None or not rows.num_rows:
        return None
    (row, *_) = rows.to_pylist()
    return _end_of(home, row["bundle"], row["batch_watermark_ms"])


def _end_of(home: PipelineHome, bundle: str, watermark_ms: int) -> datetime | None:
    """Return up to which end windows are closed at a batch's watermark; None before the first, and where no watermark closes them."""
    closed_ms = load_bundle_definition(home.bundles, bundle).window.closed_ms(watermark_ms)
    return from_ms(closed_ms) if 0 < closed_ms < FOREVER_MS else None
