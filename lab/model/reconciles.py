"""A reconcile: judge what its view shows, add up what a seal counts, decide by the gate, store, seal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.model.process import Process, Steps, point
from lab.model.runs import Run
from lab.model.stream import TOPIC, WINDOW_MS, window_end
from lab.model.verdicts import TOLERANCE, Sides, judge_sides, winners_of
from lab.model.views import View, look_at, observe
from lab.model.world import World
from rivertwice.log.addresses import Part
from rivertwice.reconcile.gate import GateInput, decide_gate
from rivertwice.reconcile.model import (
    DefectFinding,
    LateRow,
    PairCount,
    RowId,
    RowVerdict,
    balance_partitions,
    balance_total,
)
from rivertwice.reconcile.seals.look import UNCHANGED
from rivertwice.reconcile.seals.merge import merge_counts, plus, replaced_verdicts
from rivertwice.reconcile.seals.model import START, Seal
from rivertwice.reconcile.seals.touched import SettledRows, by_address
from rivertwice.timeline.judgements import Increment

SETTLED_READ = point("reconcile: stored verdicts read")
VERDICTS_STORED = point("reconcile: verdicts stored")
CAUSES_STORED = point("reconcile: causes stored")
RUN_STORED = point("reconcile: run stored")
SEALED = point("reconcile: sealed")


def run_reconcile(world: World, me: Process) -> Steps:
    """Reconcile from the newest seal; `reconcile full` judges everything, `reconcile again` has the name of the run before."""
    look, decision = yield from look_at(world, full=me.kind == "reconcile full")
    known = world.reconciles
    run = known.name(again=me.kind == "reconcile again")
    seen = Run(run, look.looked, decision, look.contents, look.seals)
    if decision.mode == UNCHANGED:
        assert look.looked.seal is not None, "without one there is something new"
        seen.base, seen.increment = look.looked.seal, Increment(look.looked.seal.run)
        seen.last, seen.stamp = look.looked.last, look.looked.stamp
        yield from _store(world, seen, [])
        return
    view = yield from observe(world, look.looked, decision)
    seen.base = look.looked.seal if view.scope is not None else None
    seen.last, seen.stamp = (view.last.timeline, view.last.batch), view.stamp
    verdicts, counts, before = yield from _judge(world, seen, view)
    findings = _compare(world, seen, view)
    records = _count(world, seen, view)
    seen.accounts = balance_partitions(
        records.read, records.dead, records.accepted, records.pairs, view.last.batch_watermark_ms
    )
    total = balance_total(seen.accounts, records.emitted_before + records.emitted)
    gate = decide_gate(GateInput(counts, total, seen.accounts, 1.0, findings))
    seen.passed, seen.findings = gate.passed, findings
    if view.scope is not None and seen.base is not None:
        seen.increment = view.scope.increment(seen.base.run)
    unsealed = _is_unloaded(world, view) or world.rules.why_unproved(gate, counts)
    seal = None if unsealed else _make_seal(world, seen, view, verdicts, before, records)
    yield from _store(world, seen, verdicts, seal)


def _is_unloaded(world: World, view: View) -> bool:
    """Say whether windows of the first load are not published yet, as `why_not_sealed` does."""
    if world.load is None:
        return False
    counted = [] if view.stamp is None else [each for each in view.publications if each.seq <= view.stamp.sequence]
    return bool(world.rules.find_unloaded(world.load, counted, view.semantics))


Judged = tuple[list[RowVerdict], Mapping[str, Mapping[str, int]], Mapping[str, Mapping[str, int]]]


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
        semantics=world.timelines[view.last.timeline].fingerprint["semantics"],
    )
    yield SETTLED_READ
    changed = list(world.rules.judge_touched(touched, settled).verdicts)
    before = merge_counts(run.base.counts, (), replaced_verdicts(stored, view.scope, changed))
    verdicts = [*own, *changed]
    return verdicts, merge_counts(before, _pairs(verdicts), ()), before


def _pairs(verdicts: Sequence[RowVerdict]) -> list[tuple[str, str]]:
    return [(verdict.pair, verdict.verdict) for verdict in verdicts]


def _sides(world: World, view: View) -> tuple[Sides, dict[RowId, list[LateRow]]]:
    """Return what is compared, and the late records of the batches that were not compared before, by row."""
    stamp = view.stamp
    sides = Sides(
        closed_ms=view.last.batch_watermark_ms,
        served_ms=view.served_ms or 0,
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
    for address, record in view.loaded:
        sides.add_loaded(address, record)
    counted = [] if stamp is None else [each for each in view.publications if each.seq <= stamp.sequence]
    ends = sorted({*sides.truth, *sides.loaded, *(view.served or {})})
    starts = np.array([end - WINDOW_MS for end in ends], dtype=np.int64)
    seqs = world.rules.select_winners(starts, counted, view.semantics).tolist()
    sides.winners = winners_of(ends, counted, seqs)
    return sides, late


def _compare(world: World, run: Run, view: View) -> list[DefectFinding]:
    """Compare the ledger with all seals, or the number of served rows with that at the seal."""
    findings: list[DefectFinding] = []
    if run.base is None or view.scope is None:
        findings = world.rules.check_chain(view.rows, list(world.reconciles.seals))
    elif view.served is not None:
        settled = sum(not view.judges(end) for end in view.served)
        findings = world.rules.compare_served_rows("model", run.base, view.scope, settled)
    return findings


@dataclass(frozen=True)
class Counted:
    """Records and pairs of the path; what a seal counts is among them.

    Attributes:
        pairs: of record and window. emitted: pairs that the changelog counts in closed windows that the seal does not count.
    """

    read: Mapping[Part, int]
    accepted: Mapping[Part, int]
    dead: Mapping[Part, int]
    pairs: Sequence[PairCount]
    emitted_before: int
    emitted: int


def _count(world: World, run: Run, view: View) -> Counted:
    """Do what `count_records` and `add_up` do: count the batches after the seal, and windows that were not settled."""
    settled_ms = -1 if run.base is None else run.base.settled_ms
    read: Counter[Part] = Counter({Part(TOPIC, 0): 0, Part(TOPIC, 1): 0})
    dead: Counter[Part] = Counter()
    pairs: Counter[tuple[Part, int, bool]] = Counter()
    for place, row in enumerate(view.rows):
        for address, record in view.log[row.timeline, row.batch]:
            part, end = Part(TOPIC, address[0] % 10), window_end(record.event_ms)
            if place >= view.sealed:
                read[part] += 1
                dead[part] += record.kind == "bad"
            if record.kind == "ok" and (place >= view.sealed or end > settled_ms):
                pairs[part, end, end <= view.late_ms[place]] += 1
    own = [PairCount(part, end, is_late, rows) for (part, end, is_late), rows in pairs.items()]
    emitted = sum(len(held) for end, held in view.emitted.items() if settled_ms < end <= view.last.batch_watermark_ms)
    accepted = {part: count - dead[part] for part, count in read.items()}
    if run.base is None:
        return Counted(read, accepted, dead, own, 0, emitted)
    before = run.base.parts
    return Counted(
        read=plus({part: account.read for part, account in before.items()}, read),
        accepted=plus({part: account.accepted for part, account in before.items()}, accepted),
        dead=plus({part: account.dead for part, account in before.items()}, dead),
        pairs=[*own, *world.rules.sealed_pairs(run.base)],
        emitted_before=run.base.emitted,
        emitted=emitted,
    )


def _make_seal(
    world: World,
    run: Run,
    view: View,
    verdicts: Sequence[RowVerdict],
    before: Mapping[str, Mapping[str, int]],
    records: Counted,
) -> Seal:
    """Do what `make_seal` does."""
    rules, stamp = world.rules, view.stamp
    settled_ms = rules.settled_until(view.last.batch_watermark_ms, view.served_ms)
    since = -1 if run.base is None else run.base.settled_ms
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
        parts=rules.settled_parts(records.read, records.accepted, records.dead, records.pairs, settled_ms),
        emitted=records.emitted_before
        + sum(len(held) for end, held in view.emitted.items() if since < end <= settled_ms),
        ledger=rules.chain_hash(START if run.base is None else run.base.ledger, view.rows[view.sealed :]),
        served_rows=-1 if view.served is None else sum(end <= settled_ms for end in view.served),
        versions=versions,
    )


def _store(world: World, run: Run, verdicts: Sequence[RowVerdict], seal: Seal | None = None) -> Steps:
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
