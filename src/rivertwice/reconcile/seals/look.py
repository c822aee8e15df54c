"""Look at what changed since the newest seal, without Spark, and decide how much a reconcile must do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivertwice.config import PipelineHome, Place
from rivertwice.deadletters.amendments import last_amendment
from rivertwice.errors import LostRaceError, TableDamageError
from rivertwice.log.gaps import accepted_gaps
from rivertwice.reconcile.seals.changes import (
    TableChanges,
    find_foreign,
    find_rewritten,
    has_replaced,
    read_changes,
)
from rivertwice.reconcile.seals.fit import select_seal
from rivertwice.reconcile.seals.model import Seal
from rivertwice.reconcile.seals.table import read_seals, times_forgotten
from rivertwice.retry import retry
from rivertwice.store.delta_counts import broken_files
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.intact import require_whole_logs
from rivertwice.timeline.lineage import Segment, path_of
from rivertwice.timeline.sequence import PUBLICATION, Entry, read_sequence, select_head
from rivertwice.timeline.served_stamp import ServedStamp, served_stamp

FULL, INCREMENT, UNCHANGED = "full", "increment", "unchanged"
_LOOKS = 3


@dataclass(frozen=True)
class Look:
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


@dataclass(frozen=True)
class Decision:
    """How much a reconcile does.

    Attributes:
        mode: `full`, `increment` or `unchanged`. reason: in words.
    """

    mode: str
    reason: str


def look_at_changes(home: PipelineHome) -> Look:
    """Return what changed since the newest seal. The tables' versions are read first, so that no later commit is missed.

    Raises:
        LostRaceError: another version began to serve at each of several looks.
    """
    return retry(LostRaceError, tries=_LOOKS)(_look, home)


def _look(home: PipelineHome) -> Look:
    served_stamp(home)  # this host knows which table the version writes, from here on
    place = home.tables.served
    forgotten = times_forgotten(home)
    seals = read_seals(home)
    tables = read_changes(home, seals[-1].versions if seals else None)
    stamp = served_stamp(home)
    entries = read_sequence(home)
    head = select_head(entries)
    path = [] if head is None else path_of(home, head)
    last = newest_batch(home, path)
    seal = select_seal(seals, path)
    if seal is not None and seal is not seals[-1]:
        tables = read_changes(home, seal.versions)
    require_same_table(home.root.name, place, home.tables.served)
    gaps = accepted_gaps(home)
    return Look(
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
        pipeline: its name, for the message.
        before: place of the table that it writes when the look began.
        after: the same, when it ended.

    Raises:
        LostRaceError: it began or ceased to serve meanwhile.
    """
    if before != after:
        message = f"{pipeline} began or ceased to serve while it was looked at; nothing was judged; run it again"
        raise LostRaceError(message)


def require_files(home: PipelineHome) -> None:
    """Check that the data files which the tables' logs name are there with their sizes: rows of before are not read again.

    Raises:
        TableDamageError: the message names table, version or file.
    """
    require_whole_logs(home)
    broken = broken_files(home.tables.served)
    if broken:
        path, how = broken[0]
        message = (
            f"the table served of {home.root.name} lacks data that its log names: {path} {how}; "
            f"`rivertwice served rebuild {home.root.name}` builds it from all rows"
        )
        raise TableDamageError(message)


def decide_mode(look: Look, *, full: bool = False, has_range: bool = False) -> Decision:
    """Decide whether everything is judged, only what changed since the seal, or nothing. Pure.

    Args:
        look: what was seen.
        full: somebody asks for everything.
        has_range: somebody asks for a range of windows.
    """
    seal = look.seal
    asked = _asked_for(full=full, has_range=has_range)
    reason = "; ".join(filter(None, (asked, find_foreign(look.tables)))) if asked else find_broken(look)
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


def find_broken(look: Look) -> str:
    """Return why what the newest seal proved does not hold any more; empty if it does. Pure."""
    seal = look.seal
    if seal is None:
        return "no seal is on the head's path"
    foreign = find_foreign(look.tables)
    if foreign:
        return foreign
    unsealed = gaps_after(seal, look)
    if unsealed:
        return f"timeline {unsealed[0]} began after an accepted gap"
    if look.gaps and new_publications(look):
        return f"a publication since the seal may cover windows of the gap before timeline {look.gaps[0]}"
    if look.amendments != seal.amendments:
        return "decisions about dead letters were made since the seal"
    if (look.stamp is None) != (seal.served is None):
        return "the served table came or went since the seal"
    if look.stamp is not None and seal.served is not None and look.stamp.version != seal.served.version:
        return "another version began or ceased to serve since the seal"
    rewritten = find_rewritten(look.tables)
    if rewritten:
        return rewritten
    if has_replaced(look.tables) and look.sequence == seal.sequence:
        return "rows of the table served were replaced without a publication or a head move"
    return ""


def gaps_after(seal: Seal, look: Look) -> list[str]:
    """Return the timelines that began after an accepted gap and that the seal does not know. Pure.

    A seal after a gap was made once every window of the skipped records was served from a backfill, and settled.
    """
    names = [part.timeline for part in look.path]
    sealed = names.index(seal.timeline) if seal.timeline in names else -1
    return [name for name in look.gaps if names.index(name) > sealed]


def new_publications(look: Look) -> list[Entry]:
    """Return the publications after the seal. Pure."""
    known = 0 if look.seal is None else look.seal.sequence
    return [entry for entry in look.entries if entry.kind == PUBLICATION and entry.seq > known]
