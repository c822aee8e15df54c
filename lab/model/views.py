"""What a reconcile sees: its look at what changed, and the view of the head from a seal, or from the first batch."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.model.process import point
from lab.model.reads import (
    Log,
    Records,
    amended_records,
    emitted_rows,
    ledger_rows,
    loaded_records,
    read_log,
    served_rows,
)
from lab.model.stream import DELAY_MS, WINDOW_MS, Address
from lab.model.world import World
from rivertwice.core.errors import LedgerError
from rivertwice.reconcile.seals.look import INCREMENT, ChangesSinceSeal, Decision, NotIncrementalError
from rivertwice.reconcile.seals.model import Seal
from rivertwice.reconcile.seals.scope import Scope, Zones
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.served_rows import publications_of
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.timeline.serving import Publication

LOOK_BACK = 3  # batches; the product's is 64
SEALS_READ = point("reconcile: seals read")
VERSIONS_READ = point("reconcile: versions of the tables read")
STAMP_READ = point("reconcile: stamp of served read")
SEQUENCE_READ = point("reconcile: sequence read")
PATH_READ = point("reconcile: path and last batch read")
DECIDED = point("reconcile: decided")
SERVED_READ = point("reconcile: served read")
ENTRIES_READ = point("reconcile: sequence read again")
LEDGER_READ = point("reconcile: ledger read")
ROWS_READ = point("reconcile: rows read")
LOG_READ = point("reconcile: log read")


@dataclass
class View:
    """What a run looks at.

    Attributes:
        rows: batches; the first `sealed` of them were compared before.
        late_ms: watermark by which the records of each batch were late.
        sequence: newest entry that was read. publications: of the entries that were read.
        stamp, served: what the served table shows; None: there is none.
        scope: windows that are judged; None: all.
        log: the records of the batches. amended: dead letters of the whole path that were given a value. loaded: records that a first
            load left out; none from a seal, which counts them.
    """

    rows: Sequence[LedgerRow]
    late_ms: Sequence[int]
    sequence: int
    publications: Sequence[Publication]
    semantics: frozenset[str]
    stamp: ServedStamp | None
    served: Mapping[int, frozenset[Address]] | None
    emitted: Mapping[int, frozenset[Address]] = field(default_factory=dict)
    sealed: int = 0
    scope: Scope | None = None
    log: Log = field(default_factory=dict)
    amended: Records = field(default_factory=list)
    loaded: Records = field(default_factory=list)

    @property
    def last(self) -> LedgerRow:
        """The last batch."""
        return self.rows[-1]

    @property
    def served_ms(self) -> int | None:
        """Windows that end at or before it are served; None: there is no served table."""
        if self.stamp is None:
            return None
        batch = (self.stamp.timeline, self.stamp.batch)
        return next(row.batch_watermark_ms for row in self.rows if (row.timeline, row.batch) == batch)

    def judges(self, end: int) -> bool:
        """Say whether a window is judged."""
        return self.scope is None or self.scope.contains(end - WINDOW_MS)


@dataclass(frozen=True)
class Looked:
    """A look, the seals that were there, and which contents of the tables were the newest when their versions were read."""

    looked: ChangesSinceSeal
    seals: Sequence[Seal]
    contents: int


def look_at(world: World, *, full: bool) -> Generator[int, None, tuple[Looked, Decision]]:
    """Do what `look_at_changes` does, in its order."""
    rules, known = world.rules, world.reconciles
    world.own_stamp()
    place = world.served_place()
    forgotten, seals = known.forgotten, list(known.seals)
    yield SEALS_READ
    contents = len(world.tables.history) - 1
    tables = world.tables.changes(seals[-1].versions if seals else None)
    yield VERSIONS_READ
    stamp = _stamp(world)
    yield STAMP_READ
    entries = list(world.sequence)
    yield SEQUENCE_READ
    head = rules.select_head(entries)
    path = [] if head is None else rules.trace_path(head, world.timelines.__getitem__)
    rows = rules.select_on_path(world.read_ledger(), path)
    yield PATH_READ
    seal = rules.select_seal(seals, path)
    if seal is not None and seal is not seals[-1]:
        tables = world.tables.changes(seal.versions)
    rules.require_same_table("model", place, world.served_place())
    looked = ChangesSinceSeal(
        path=path,
        last=(rows[-1].timeline, rows[-1].batch) if rows else None,
        entries=entries,
        amendments=len(world.tables.now.amended),
        stamp=stamp,
        seal=seal,
        tables=tables,
        forgotten=forgotten,
    )
    decision = rules.decide_mode(looked, full=full)
    yield DECIDED
    return Looked(looked, seals, contents), decision


def _stamp(world: World) -> ServedStamp | None:
    return world.own_stamp()


def observe(world: World, look: ChangesSinceSeal, decision: Decision) -> Generator[int, None, View]:
    """Return what a run looks at: from its seal on if it can be built on, else everything."""
    if decision.mode == INCREMENT:
        try:
            return (yield from _observe_part(world, look))
        except NotIncrementalError:
            pass
    return (yield from _observe_head(world))


def _observe_head(world: World) -> Generator[int, None, View]:
    """Do what `observe_head` does, in its order."""
    stamp = _stamp(world)
    served = None if stamp is None else served_rows(world)
    yield SERVED_READ
    entries = list(world.sequence)
    head = world.rules.select_head(entries)
    path = [] if head is None else world.rules.trace_path(head, world.timelines.__getitem__)
    yield ENTRIES_READ
    rows = ledger_rows(world, world.rules.select_on_path(world.read_ledger(), path))
    if not rows:
        message = "no batch is committed yet"
        raise LedgerError(message)
    if stamp is not None and (stamp.timeline, stamp.batch) not in {(row.timeline, row.batch) for row in rows}:
        stamp = served = None  # it does not show the head's path yet
    yield LEDGER_READ
    view = View(
        rows=rows,
        late_ms=world.rules.late_watermarks_ms(rows),
        sequence=entries[-1].seq if entries else 0,
        publications=publications_of(entries),
        semantics=_semantics(world, path),
        stamp=stamp,
        served=served,
    )
    view.emitted = emitted_rows(world, path, rows[-1].batch)
    view.amended = amended_records(world, rows, world.tables.now)
    yield ROWS_READ
    view.log = read_log(world, rows)
    view.loaded = loaded_records(world)
    yield LOG_READ
    return view


def _observe_part(world: World, look: ChangesSinceSeal) -> Generator[int, None, View]:
    """Do what `observe_part` does, in its order."""
    rules, seal = world.rules, look.seal
    assert seal is not None, "an incremental run starts at a seal"
    stamp = _stamp(world)
    served = None if stamp is None else served_rows(world)
    yield SERVED_READ
    path = list(look.path)
    ledger = ledger_rows(world, rules.select_on_path(world.read_ledger(), path))
    tail = [row for row in ledger if row.batch >= seal.batch]
    rules.require_sealed_batch(seal, tail)
    scope = rules.scope_since(seal.settled_ms, WINDOW_MS, rules.new_publications(look))
    rules.require_no_loaded(world.load, scope)
    zones, prefix = _zones(world, ledger, seal, scope)
    shown = [
        at for at, row in enumerate(prefix) if stamp and (row.timeline, row.batch) == (stamp.timeline, stamp.batch)
    ]
    chosen = sorted({*rules.select_batches(zones, scope), len(zones) - 1, *shown})
    rows = [*(prefix[place] for place in chosen), *tail[1:]]
    rules.require_same_meaning(seal, [rules.meaning_of(rows[-1].bundle)])
    rules.require_stamp(seal, stamp, rows, look.sequence)
    yield LEDGER_READ
    fresh = rules.late_watermarks_ms(tail)[1:]
    view = View(
        rows=rows,
        late_ms=[*(zones.late_ms(place) for place in chosen), *fresh],
        sequence=look.sequence,
        publications=publications_of(list(look.entries)),
        semantics=_semantics(world, path),
        stamp=stamp,
        served=served,
        sealed=len(chosen),
        scope=scope,
    )
    view.emitted = emitted_rows(world, path, rows[-1].batch)
    view.amended = amended_records(world, ledger, world.tables.now)
    yield ROWS_READ
    view.log = read_log(world, rows)
    yield LOG_READ
    return view


def _zones(world: World, ledger: Sequence[LedgerRow], seal: Seal, scope: Scope) -> tuple[Zones, list[LedgerRow]]:
    count = LOOK_BACK
    while True:
        first = max(0, seal.batch - count)
        prefix = [row for row in ledger if first <= row.batch <= seal.batch]
        zones = Zones(
            [row.timeline for row in prefix],
            np.array([row.batch for row in prefix]),
            np.array([row.batch_watermark_ms for row in prefix]),
            np.array([1 << 60 if row.min_event_ms is None else row.min_event_ms for row in prefix]),
            np.array([-(1 << 60) if row.max_event_ms is None else row.max_event_ms for row in prefix]),
        )
        if first == 0 or world.rules.reaches_back(prefix[0].batch_watermark_ms, DELAY_MS, scope):
            return zones, prefix
        count *= 8


def _semantics(world: World, path: Sequence[Any]) -> frozenset[str]:
    return frozenset(world.timelines[part.timeline].fingerprint["semantics"] for part in path)
