"""A reconcile: look, decide, observe from a seal or from the first batch, read the log, judge, store, seal."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rivertwice.errors import LedgerError
from rivertwice.reconcile.balance import Account
from rivertwice.reconcile.gate import GateInput, decide_gate
from rivertwice.reconcile.model import Finding, LateRow, RowId, Verdict
from rivertwice.reconcile.seals.fit import NotIncrementalError
from rivertwice.reconcile.seals.look import INCREMENT, UNCHANGED, Decision, Look
from rivertwice.reconcile.seals.merge import merge_counts, replaced_verdicts
from rivertwice.reconcile.seals.model import START, Seal
from rivertwice.reconcile.seals.scope import Scope, Zones
from rivertwice.reconcile.seals.touched import SettledRows, by_address
from rivertwice.testing.model.process import Process, Steps, point
from rivertwice.testing.model.reads import (
    Log,
    Records,
    amended_records,
    emitted_rows,
    ledger_rows,
    read_log,
    served_rows,
)
from rivertwice.testing.model.runs import Run
from rivertwice.testing.model.stream import DELAY_MS, TOPIC, WINDOW_MS, Address
from rivertwice.testing.model.verdicts import TOLERANCE, Sides, judge_sides, winners_of
from rivertwice.testing.model.world import World
from rivertwice.timeline.judgements import Increment
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.served import publications_of
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
SETTLED_READ = point("reconcile: stored verdicts read")
VERDICTS_STORED = point("reconcile: verdicts stored")
CAUSES_STORED = point("reconcile: causes stored")
RUN_STORED = point("reconcile: run stored")
SEALED = point("reconcile: sealed")


@dataclass
class View:
    """What a run looks at.

    Attributes:
        rows: batches; the first `sealed` of them were compared before.
        late_ms: watermark by which the records of each batch were late.
        sequence: newest entry that was read. publications: of the entries that were read.
        stamp, served: what the served table shows; None: there is none.
        scope: windows that are judged; None: all.
        log: the records of the batches. amended: dead letters of the whole path that were given a value.
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

    @property
    def last(self) -> LedgerRow:
        """The last batch."""
        return self.rows[-1]

    def judges(self, end: int) -> bool:
        """Say whether a window is judged."""
        return self.scope is None or self.scope.contains(end - WINDOW_MS)


def run_reconcile(world: World, me: Process) -> Steps:
    """Reconcile from the newest seal; `reconcile full` judges everything, `reconcile again` has the name of the run before."""
    look, decision = yield from _look(world, full=me.kind == "reconcile full")
    known = world.reconciles
    run = known.name(again=me.kind == "reconcile again")
    seen = Run(run, look.looked, decision, look.contents)
    if decision.mode == UNCHANGED:
        assert look.looked.seal is not None, "without one there is something new"
        seen.base, seen.increment = look.looked.seal, Increment(look.looked.seal.run)
        seen.last, seen.stamp = look.looked.last, look.looked.stamp
        yield from _store(world, seen, [])
        return
    view = yield from _observe(world, look.looked, decision)
    seen.base = look.looked.seal if view.scope is not None else None
    seen.last, seen.stamp = (view.last.timeline, view.last.batch), view.stamp
    verdicts, counts, before = yield from _judge(world, seen, view)
    findings = [*decision.foreign] + ([] if seen.base else _check_chain(world, view))
    gate = decide_gate(GateInput(counts, Account(), {}, 1.0, findings))
    seen.passed, seen.findings = gate.passed, findings
    if view.scope is not None and seen.base is not None:
        seen.increment = view.scope.increment(seen.base.run)
    unsealed = world.rules.why_unproved(gate, counts)
    seal = None if unsealed else _make_seal(world, seen, view, verdicts, before)
    yield from _store(world, seen, verdicts, seal)


@dataclass(frozen=True)
class _Looked:
    """A look, and which contents of the tables were the newest when their versions were read."""

    looked: Look
    contents: int


def _look(world: World, *, full: bool) -> Generator[int, None, tuple[_Looked, Decision]]:
    """Do what `look_at_changes` does, in its order."""
    rules, known = world.rules, world.reconciles
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
    looked = Look(
        path=path,
        last=(rows[-1].timeline, rows[-1].batch) if rows else None,
        entries=entries,
        amendments=len(world.tables.now.amended),
        stamp=stamp,
        seal=seal,
        tables=tables,
        forgotten=forgotten,
    )
    decision = rules.decide_mode("model", looked, full=full)
    yield DECIDED
    return _Looked(looked, contents), decision


def _stamp(world: World) -> ServedStamp | None:
    shown = world.served
    return None if shown is None else ServedStamp(shown.sequence, shown.timeline, shown.batch)


def _observe(world: World, look: Look, decision: Decision) -> Generator[int, None, View]:
    if decision.mode == INCREMENT:
        try:
            return (yield from _observe_part(world, look))
        except NotIncrementalError:
            pass
    return (yield from _observe_head(world))


def _observe_head(world: World) -> Generator[int, None, View]:
    """Do what `observe_head` does, in its order."""
    stamp, served = _stamp(world), served_rows(world)
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
    yield LOG_READ
    return view


def _observe_part(world: World, look: Look) -> Generator[int, None, View]:
    """Do what `observe_part` does, in its order."""
    rules, seal = world.rules, look.seal
    assert seal is not None, "an incremental run starts at a seal"
    stamp, served = _stamp(world), served_rows(world)
    yield SERVED_READ
    path = list(look.path)
    ledger = ledger_rows(world, rules.select_on_path(world.read_ledger(), path))
    tail = [row for row in ledger if row.batch >= seal.batch]
    rules.require_sealed_batch(seal, tail)
    scope = rules.scope_since(seal.settled_ms, WINDOW_MS, rules.new_publications(look))
    zones, prefix = _zones(world, ledger, seal, scope)
    shown = [
        at for at, row in enumerate(prefix) if stamp and (row.timeline, row.batch) == (stamp.timeline, stamp.batch)
    ]
    chosen = sorted({*rules.select_batches(zones, scope), len(zones) - 1, *shown})
    rows = [*(prefix[place] for place in chosen), *tail[1:]]
    rules.require_same_meaning(seal, [rules.meaning_of(rows[-1].bundle)])
    rules.require_stamp(stamp, rows, look.sequence)
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


Judged = tuple[list[Verdict], Mapping[str, Mapping[str, int]], Mapping[str, Mapping[str, int]]]


def _judge(world: World, run: Run, view: View) -> Generator[int, None, Judged]:
    """Return the verdicts of the run, the counts of all rows, and those of the seal that still hold."""
    sides, late = _sides(world, view)
    own = [verdict for verdict in judge_sides(sides) if view.judges(verdict.row.end_ms)]
    if view.scope is None or run.base is None:
        return own, merge_counts({}, _pairs(own), ()), {}
    touched = {row: records for row, records in late.items() if not view.judges(row.end_ms)}
    stored = by_address(world.reconciles.held(run.base.run))
    settled = SettledRows(
        verdicts=stored,
        emitted={row: len(sides.emitted.get(row.end_ms, ())) for row in touched if row.end_ms in sides.emitted},
        served=None
        if view.served is None
        else {row: len(view.served.get(row.end_ms, ())) for row in touched if row.end_ms in view.served},
        winners={row.start_ms: sides.winners[row.end_ms] for row in touched if row.end_ms in sides.winners},
        semantics="m1",
    )
    yield SETTLED_READ
    changed = list(world.rules.judge_touched(touched, settled).verdicts)
    before = merge_counts(run.base.counts, (), replaced_verdicts(stored, view.scope, changed))
    verdicts = [*own, *changed]
    return verdicts, merge_counts(before, _pairs(verdicts), ()), before


def _pairs(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    return [(verdict.pair, verdict.verdict) for verdict in verdicts]


def _sides(world: World, view: View) -> tuple[Sides, dict[RowId, list[LateRow]]]:
    """Return what is compared, and the late records of the batches that were not compared before, by row."""
    shown = {(row.timeline, row.batch): row.batch_watermark_ms for row in view.rows}
    stamp = view.stamp
    sides = Sides(
        closed_ms=view.last.batch_watermark_ms,
        served_ms=0 if stamp is None else shown[stamp.timeline, stamp.batch],
        tolerance=TOLERANCE[view.last.bundle],
        emitted=view.emitted,
        served=view.served,
    )
    late: dict[RowId, list[LateRow]] = {}
    for place, row in enumerate(view.rows):
        for address, record in view.log[row.timeline, row.batch]:
            end = sides.add(address, record, view.late_ms[place])
            if end is not None and place >= view.sealed:
                one = LateRow(
                    RowId(end - WINDOW_MS, end, ""), TOPIC, address[0] % 10, address[1], row.batch, 0, world.now
                )
                late.setdefault(one.row, []).append(one)
    for address, record in view.amended:
        sides.add_amended(address, record)
    counted = [] if stamp is None else [each for each in view.publications if each.seq <= stamp.sequence]
    ends = sorted({*sides.truth, *(view.served or {})})
    starts = np.array([end - WINDOW_MS for end in ends], dtype=np.int64)
    seqs = world.rules.select_winners(starts, counted, view.semantics).tolist()
    sides.winners = winners_of(ends, counted, seqs)
    return sides, late


def _check_chain(world: World, view: View) -> list[Finding]:
    findings: list[Finding] = world.rules.check_chain(view.rows, list(world.reconciles.seals))
    return findings


def _make_seal(
    world: World, run: Run, view: View, verdicts: Sequence[Verdict], before: Mapping[str, Mapping[str, int]]
) -> Seal:
    """Do what `make_seal` does; the balance is not modelled."""
    rules, stamp = world.rules, view.stamp
    shown = {(row.timeline, row.batch): row.batch_watermark_ms for row in view.rows}
    settled_ms = rules.settled_until(
        view.last.batch_watermark_ms, None if stamp is None else shown[stamp.timeline, stamp.batch]
    )
    own = [(verdict.pair, verdict.verdict) for verdict in verdicts if verdict.row.end_ms <= settled_ms]
    versions = run.look.versions
    if world.broken == "versions read last":
        versions = {each.table: each.version for each in world.tables.changes(None)}
    return Seal(
        run=run.name,
        created_at=world.now,
        timeline=view.last.timeline,
        batch=view.last.batch,
        meaning=rules.meaning_of(view.last.bundle),
        sequence=rules.counted_sequence(view.sequence, stamp),
        amendments=run.look.amendments,
        end_offsets=view.last.end_offsets,
        settled_ms=settled_ms,
        served=stamp,
        counts=merge_counts(before, own, ()),
        parts={},
        emitted=0,
        ledger=rules.chain_hash(START if run.base is None else run.base.ledger, view.rows[view.sealed :]),
        served_rows=-1,
        versions=versions,
    )


def _store(world: World, run: Run, verdicts: Sequence[Verdict], seal: Seal | None = None) -> Steps:
    """Do what `store_run` and `store_seal` do, in their order."""
    known = world.reconciles
    if seal is not None and world.broken == "sealed before the verdicts":
        _seal(world, run, seal)
        yield SEALED
        seal = None
    if verdicts or run.increment is None:
        run.is_mixed = not known.store_verdicts(run.name, verdicts)
        yield VERDICTS_STORED
    if verdicts or run.increment is None:
        yield CAUSES_STORED
    run.is_mixed |= not known.store_run(run)
    world.seal_judge.run_is_stored(run)
    yield RUN_STORED
    if seal is not None and (not run.is_mixed or world.broken == "sealed over an earlier attempt"):
        _seal(world, run, seal)
        yield SEALED


def _seal(world: World, run: Run, seal: Seal) -> None:
    """Store a seal, unless all seals were removed since the run began."""
    known = world.reconciles
    if known.forgotten != run.look.forgotten and world.broken != "sealed after an erasure":
        return
    if seal.run in {each.run for each in known.seals}:
        return
    known.seals.append(seal)
    world.seal_judge.seal_is_stored(run, seal)
