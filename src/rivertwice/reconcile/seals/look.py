"""Look at what changed since the newest seal, without Spark, and decide how much a reconcile must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivertwice.core import LostRaceError, PipelineHome, Place, TableDamageError, retry
from rivertwice.log import accepted_gaps
from rivertwice.reconcile.seals.model import Seal, read_seals, times_forgotten
from rivertwice.reconcile.seals.scope import Scope
from rivertwice.storage import Table, TableChange
from rivertwice.timeline import (
    Entry,
    EntryKind,
    FirstLoad,
    LedgerRow,
    Segment,
    ServedStamp,
    last_amendment,
    newest_batch,
    path_of,
    read_sequence,
    read_served_stamp,
    require_whole_logs,
    select_head,
)

# Whose commits came to the tables since a seal: the stream's and our own jobs', or another program's. Pure except for the reading.

WATCHED = ("changelog", "ledger", "served", "corrections", "dead_letters", "late_rows", "sequence", "amendments")
"""Tables whose rows verdicts depend on."""
OWN, REPLACED, REWRITTEN, FOREIGN = "own", "replaced", "rewritten", "foreign"
_WITHOUT_ROWS = frozenset(
    {"CREATE TABLE", "OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMN", "ADD FEATURE"}
)
_SERVED = "served"


@dataclass(frozen=True)
class TableChanges:
    """What happened to one table since a seal.

    Attributes:
        version: newest Delta version. since: the seal's.
        changes: the commits between; None: their log entries are gone.
    """

    table: str
    version: int
    since: int
    changes: Sequence[TableChange] | None


def read_changes(home: PipelineHome, versions: Mapping[str, int] | None) -> list[TableChanges]:
    """Return the commits that came to each watched table after a version; with None, the tables' versions alone.

    A table that did not exist has the version -1.
    """
    if versions is None:
        newest = {table: Table(getattr(home.tables, table)).version() for table in WATCHED}
        return [TableChanges(table, version, version, ()) for table, version in newest.items()]
    tables = []
    for table in WATCHED:
        since = versions.get(table, -1)
        version, changes = Table(getattr(home.tables, table)).changes_since(since)
        tables.append(TableChanges(table, version, since, changes))
    return tables


def classify_change(table: str, change: TableChange) -> str:
    """Say what a commit did: appended (own), replaced some rows, rewrote rows, or was made by another program (foreign)."""
    if change.operation in _WITHOUT_ROWS:
        return OWN
    if change.is_repair:
        return REWRITTEN
    if not change.is_ours and _SERVED not in change.keys:
        return FOREIGN
    if change.operation == "WRITE" and change.mode.lower() == "append":
        return OWN
    return REPLACED if table == "served" and change.is_partial and _SERVED in change.keys else REWRITTEN


def find_foreign(tables: Sequence[TableChanges]) -> str | None:
    """Return which commits another program made, so rows that were compared before may have changed; None: there are none."""
    commits = [
        f"version {change.version} of the table {each.table} ({change.operation or 'no operation named'})"
        for each in tables
        for change in each.changes or ()
        if classify_change(each.table, change) == FOREIGN
    ]
    if not commits:
        return None
    return f"another program made {commits[0]}{f' and {len(commits) - 1} more commits' if commits[1:] else ''}"


def find_rewritten(tables: Sequence[TableChanges]) -> str | None:
    """Return why rows that were compared before may be others now, though rivertwice itself wrote them; None: they are not."""
    for each in tables:
        if each.changes is None:
            return f"commits of the table {each.table} after version {each.since} are not kept any more"
        kinds = {classify_change(each.table, change): change.version for change in each.changes}
        if REWRITTEN in kinds:
            return f"version {kinds[REWRITTEN]} of the table {each.table} replaced rows that had been compared"
    return None


def has_replaced(tables: Sequence[TableChanges]) -> bool:
    """Say whether some rows of `served` were replaced, as a publication or a head move does."""
    return any(classify_change(each.table, change) == REPLACED for each in tables for change in each.changes or ())


# Whether a run can build on a seal: it lies on the head's path, the definition judges as it did, and what is served fits. Pure.


class NotIncrementalError(Exception):
    """What changed since the seal cannot be judged apart from the rest; the message says why."""


def select_seal(seals: Sequence[Seal], path: Sequence[Segment]) -> Seal | None:
    """Return the newest seal on a path, None without one.

    Args:
        seals: oldest first.
        path: the head's; after a head move, the newest seal below the fork is on it.
    """
    on_path = [seal for seal in seals if any(part.contains(seal.timeline, seal.batch) for part in path)]
    return on_path[-1] if on_path else None


def require_sealed_batch(seal: Seal, tail: Sequence[LedgerRow]) -> None:
    """Check that the ledger of the path, from the seal's batch number on, begins with the seal's batch.

    Raises:
        NotIncrementalError: it does not.
    """
    if not tail or (tail[0].timeline, tail[0].batch) != (seal.timeline, seal.batch):
        message = f"the ledger has no row for the batch of the {seal.name}"
        raise NotIncrementalError(message)


def require_same_meaning(seal: Seal, meanings: Sequence[str]) -> None:
    """Check that one definition made all windows that are judged, and that it judges as it did at the seal.

    Args:
        meanings: `meaning_of` each definition of the batches that are read.

    Raises:
        NotIncrementalError: it is not so.
    """
    if len(meanings) > 1:
        message = "several definitions made the windows that are not settled"
        raise NotIncrementalError(message)
    if meanings[0] != seal.meaning:
        message = "the definition judges otherwise than at the seal"
        raise NotIncrementalError(message)


def require_no_loaded(load: FirstLoad | None, scope: Scope) -> None:
    """Check that no window that is judged was loaded by batch: the records of such a window are in no batch of the ledger.

    Raises:
        NotIncrementalError: a publication since the seal covers such a window.
    """
    if load is not None and any(low < load.before_ms and load.since_ms < high for low, high in scope.ranges):
        message = "a publication since the seal covers windows of the first load by batch, whose records the stream did not read"
        raise NotIncrementalError(message)


def require_stamp(seal: Seal, stamp: ServedStamp | None, rows: Sequence[LedgerRow], sequence: int) -> None:
    """Check that what is served can be judged by the seal, the batches and the sequence that were read.

    Args:
        stamp: of the served rows that are judged; None: there are none.
        sequence: the newest entry that was read, before the served rows.

    Raises:
        NotIncrementalError: the table came since, or shows a batch or an entry that was not read.
    """
    if (stamp is None) != (seal.served is None):
        message = "the served table came or went since the seal"
        raise NotIncrementalError(message)
    if stamp is None:
        return
    if (stamp.timeline, stamp.batch) not in {(row.timeline, row.batch) for row in rows}:
        message = "the served table shows a batch from before the windows that are not settled"
        raise NotIncrementalError(message)
    if stamp.sequence > sequence:
        message = f"the served table shows entry {stamp.sequence} of the sequence, which came while the run began"
        raise NotIncrementalError(message)


FULL, INCREMENT, UNCHANGED = "full", "increment", "unchanged"
_LOOKS = 3


@dataclass(frozen=True)
class ChangesSinceSeal:
    """What was seen.

    Attributes:
        path: the head's. last: (timeline, batch) of its last committed batch; None before the first.
        entries: the sequence. amendments: the newest decision about dead letters.
        stamp: what the served table shows. gaps: timelines of the path that began after an accepted gap.
        seal: the newest seal on the path. tables: what happened to the tables since it.
        forgotten: how often all seals had been removed.
    """

    path: Sequence[Segment] = ()
    last: tuple[str, int] | None = None
    entries: Sequence[Entry] = ()
    amendments: int = 0
    stamp: ServedStamp | None = None
    gaps: Sequence[str] = ()
    seal: Seal | None = None
    tables: Sequence[TableChanges] = ()
    forgotten: int = 0

    @property
    def sequence(self) -> int:
        """Newest head move or publication."""
        return self.entries[-1].seq if self.entries else 0

    @property
    def versions(self) -> Mapping[str, int]:
        """Table to its Delta version before anything of it was read."""
        return {each.table: each.version for each in self.tables}

    def find_broken(self) -> str:
        """Return why what the newest seal proved does not hold any more; empty if it does. Pure."""
        seal = self.seal
        if seal is None:
            return "no seal is on the head's path"
        foreign = find_foreign(self.tables)
        if foreign:
            return foreign
        unsealed = gaps_after(seal, self)
        if unsealed:
            return f"timeline {unsealed[0]} began after an accepted gap"
        if self.gaps and self.new_publications():
            return f"a publication since the seal may cover windows of the gap before timeline {self.gaps[0]}"
        if self.amendments != seal.amendments:
            return "decisions about dead letters were made since the seal"
        if (self.stamp is None) != (seal.served is None):
            return "the served table came or went since the seal"
        if self.stamp is not None and seal.served is not None and self.stamp.version != seal.served.version:
            return "another version began or ceased to serve since the seal"
        rewritten = find_rewritten(self.tables)
        if rewritten:
            return rewritten
        if has_replaced(self.tables) and self.sequence == seal.sequence:
            return "rows of the table served were replaced without a publication or a head move"
        return ""

    def new_publications(self) -> list[Entry]:
        """Return the publications after the seal. Pure."""
        known = 0 if self.seal is None else self.seal.sequence
        return [entry for entry in self.entries if entry.kind == EntryKind.PUBLICATION and entry.seq > known]


@dataclass(frozen=True)
class Decision:
    """How much a reconcile does.

    Attributes:
        mode: `full`, `increment` or `unchanged`. reason: in words.
    """

    mode: str
    reason: str


def look_at_changes(home: PipelineHome) -> ChangesSinceSeal:
    """Return what changed since the newest seal. The tables' versions are read first, so that no later commit is missed.

    Raises:
        LostRaceError: another version began to serve at each of several looks.
    """
    return retry(LostRaceError, tries=_LOOKS)(_look, home)


def _look(home: PipelineHome) -> ChangesSinceSeal:
    read_served_stamp(home)  # this host knows which table the version writes, from here on
    place = home.tables.served
    forgotten = times_forgotten(home)
    seals = read_seals(home)
    tables = read_changes(home, seals[-1].versions if seals else None)
    stamp = read_served_stamp(home)
    entries = read_sequence(home)
    head = select_head(entries)
    path = [] if head is None else path_of(home, head)
    last = newest_batch(home, path)
    seal = select_seal(seals, path)
    if seal is not None and seal is not seals[-1]:
        tables = read_changes(home, seal.versions)
    require_same_table(home.root.name, place, home.tables.served)
    gaps = accepted_gaps(home)
    return ChangesSinceSeal(
        path=path,
        last=None if last is None else (last.timeline, last.batch),
        entries=entries,
        amendments=last_amendment(home),
        stamp=stamp,
        gaps=[part.timeline for part in path if part.timeline in gaps],
        seal=seal,
        tables=tables,
        forgotten=forgotten,
    )


def require_same_table(pipeline: str, before: Place, after: Place) -> None:
    """Check that versions and stamp of `served` were read of one table. Pure.

    Args:
        before: place of the table that it writes when the look began.
        after: the same, when it ended.

    Raises:
        LostRaceError: it began or ceased to serve meanwhile.
    """
    if before != after:
        message = f"{pipeline} began or ceased to serve while it was looked at; run it again"
        raise LostRaceError(message)


def require_files(home: PipelineHome) -> None:
    """Check that the data files which the tables' logs name are there with their sizes: rows of before are not read again.

    Raises:
        TableDamageError: the message names table, version or file.
    """
    require_whole_logs(home)
    broken = Table(home.tables.served).broken_files()
    if broken:
        path, how = broken[0]
        message = (
            f"the table served of {home.root.name} lacks data that its log names: {path} {how}; "
            f"`rivertwice admin rebuild {home.root.name}` builds it from all rows"
        )
        raise TableDamageError(message)


def decide_mode(look: ChangesSinceSeal, *, full: bool = False, has_range: bool = False) -> Decision:
    """Decide whether everything is judged, only what changed since the seal, or nothing. Pure."""
    seal = look.seal
    asked = _asked_for(full=full, has_range=has_range)
    reason = "; ".join(filter(None, (asked, find_foreign(look.tables)))) if asked else look.find_broken()
    if seal is None or reason:
        return Decision(FULL, reason)
    is_same = look.last == (seal.timeline, seal.batch) and look.sequence == seal.sequence and look.stamp == seal.served
    if is_same:
        return Decision(UNCHANGED, f"nothing new since the {seal.name}")
    if seal.whole:
        return Decision(FULL, f"there is something new since the {seal.name}, and its rows are judged as a whole")
    return Decision(INCREMENT, f"starts at the {seal.name}")


def _asked_for(*, full: bool, has_range: bool) -> str:
    if full:
        return "everything was asked for"
    return "a range was asked for" if has_range else ""


def gaps_after(seal: Seal, look: ChangesSinceSeal) -> list[str]:
    """Return the timelines that began after an accepted gap and that the seal does not know. Pure.

    A seal after a gap was made once every window of the skipped records was served from a backfill, and settled.
    """
    names = [part.timeline for part in look.path]
    sealed = names.index(seal.timeline) if seal.timeline in names else -1
    return [name for name in look.gaps if names.index(name) > sealed]
