"""What must hold of reconciles and their seals, compared with what a judge says who reads everything and knows no seal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.model.reads import amended_records, as_served, emitted_by, loaded_records, records_of
from lab.model.runs import Run
from lab.model.stream import WINDOW_MS, Address, window_end
from lab.model.verdicts import TOLERANCE, Sides, count_verdicts, judge_sides
from lab.model.violations import fail
from rivertwice.core.instants import to_ms
from rivertwice.reconcile.model import RowVerdict
from rivertwice.reconcile.seals.model import START, Seal, chain_hash
from rivertwice.timeline.sequence import EntryKind
from rivertwice.timeline.served_stamp import ServedStamp
from rivertwice.timeline.serving import Publication

if TYPE_CHECKING:
    from lab.model.durable import Served
    from lab.model.tables import Contents
    from lab.model.world import World

RIGHT = "what holds for a reconcile that passes is what judging everything says"
NO_FALSE_ALARM = "nothing is called wrong that is right"
EXISTS = "a seal has its run, and all its verdicts"
PASSED = "a seal is of a run that passed its gate"
FOREIGN = "no seal builds on a seal from before a foreign write"
CHAIN = "judging everything names a ledger row that was changed since a seal"
BALANCE = "the balance of a reconcile is that of the whole log"
OWN_ROWS = "a reconcile judges the rows of its own version"
COUNTS = "a seal counts the verdicts that hold for its run"
Row = tuple[str, int]
Said = tuple[str, int, int]


class SealJudge:
    """Every check that is made when a run or a seal is stored."""

    def __init__(self, world: World) -> None:
        """Watch a world from its beginning."""
        self.world = world
        self.builds: dict[ServedStamp, dict[int, frozenset[Address]]] = {}

    def serves(self, look: Served) -> None:
        """Note what a build of the served table shows."""
        self.builds[look.stamp] = dict(look.rows)

    def run_is_stored(self, run: Run) -> None:
        """Check the verdicts that hold for a run which has just come into being."""
        tables, known = self.world.tables, self.world.reconciles
        if run.is_mixed:
            return
        during = tables.history[run.contents :]
        if not run.passed:
            if not any(contents.harmed or contents.erasing for contents in during):
                counts = count_verdicts((row["pair"], row["verdict"]) for row in known.held(run.name))
                fail(NO_FALSE_ALARM, f"{run.name}: {[finding.message for finding in run.findings]}, {counts}")
            return
        if any(contents.erasing for contents in during):
            return  # archive and tables are not of one moment: judging everything would call right rows wrong
        self._check_chain(run)
        self._check_balance(run)
        said = {
            (row["pair"], to_ms(row["window_end"])): (row["verdict"], row["late"], row["dead"])
            for row in known.held(run.name)
        }
        truths = [self.judge_all(run, contents) for contents in during]
        for row in sorted({*said, *(row for truth in truths for row in truth)}):
            if not any(said.get(row) == truth.get(row) for truth in truths):
                fail(
                    RIGHT,
                    f"{run.name} ({run.decision.mode}: {run.decision.reason}) at {run.last}, served {run.stamp}: {row} is "
                    f"{said.get(row)}, not {truths[-1].get(row)}",
                )

    def _check_balance(self, run: Run) -> None:
        """Check the balance of a run that passed: each partition's, as if everything had been counted."""
        world = self.world
        if run.accounts is None or run.last is None:
            return
        path = world.judge.path(run.last[0])[::-1]
        rows = [world.judge.rows[key] for key in path[: path.index(run.last) + 1]]
        closed_ms, late_ms = rows[-1].batch_watermark_ms, 0
        counted: Counter[tuple[int, str]] = Counter()
        for row in rows:
            for (partition, _), record in world.judge.true_records(row):
                end = window_end(record.event_ms)
                late, emitted = end <= late_ms, end <= closed_ms
                side = "late" if late else "emitted" if emitted else "open"
                counted[partition, "read"] += 1
                counted[partition, {"ok": side, "bad": "dead", "skip": "excluded"}[record.kind]] += 1
            late_ms = row.batch_watermark_ms
        for part, account in run.accounts.items():
            for name in ("read", "emitted", "open", "late", "dead", "excluded"):
                if getattr(account, name) != counted[part.partition, name]:
                    fail(BALANCE, f"{run.name}: {account} of partition {part.partition}, {dict(counted)} by the log")

    def _check_chain(self, run: Run) -> None:
        """Check that a run over everything did not pass over a ledger that is another one than a seal has."""
        world = self.world
        if run.base is not None or run.last is None or run.look.forgotten != world.reconciles.forgotten:
            return
        path = world.judge.path(run.last[0])[::-1]
        during = world.tables.history[run.contents :]
        if not any(contents.harmed or contents.erased for contents in during):
            return
        keys = path[: path.index(run.last) + 1]
        for seal in run.seals:
            if (seal.timeline, seal.batch) in keys:
                sealed = keys[: keys.index((seal.timeline, seal.batch)) + 1]
                if not any(seal.ledger == self._chain(sealed, contents) for contents in during):
                    fail(CHAIN, f"{run.name} passed, and the {seal.name} was there")

    def _chain(self, keys: Sequence[tuple[str, int]], contents: Contents) -> str:
        rows = [contents.ledger_row(self.world.judge.rows[key], emitted_by(self.world, key)) for key in keys]
        return chain_hash(START, rows)

    def judge_all(self, run: Run, contents: Contents) -> dict[Row, Said]:
        """Return the verdict of every row at the batch and the build of `served` that a run saw."""
        world = self.world
        assert run.last is not None, "a run has a batch"
        if run.stamp is not None and run.stamp not in self.builds:
            fail(OWN_ROWS, f"{run.name} judged rows with {run.stamp}, which this version never built")
        path = world.judge.path(run.last[0])[::-1]
        keys = path[: path.index(run.last) + 1]
        rows = [world.judge.rows[key] for key in keys]
        last, stamp = rows[-1], run.stamp
        watermarks = {(row.timeline, row.batch): row.batch_watermark_ms for row in rows}
        emitted = {
            end: contents.rows("changelog", (*key, end), held) for key in keys for end, held in world.changelog[key]
        }
        sides = Sides(
            closed_ms=last.batch_watermark_ms,
            served_ms=0 if stamp is None else watermarks[stamp.timeline, stamp.batch],
            tolerance=TOLERANCE[last.bundle],
            emitted=emitted,
            served=None if stamp is None else as_served(contents, self.builds[stamp]),
        )
        late_ms = 0
        for row in rows:
            for address, record in records_of(world, row, contents):
                sides.add(address, record, late_ms)
            late_ms = row.batch_watermark_ms
        for address, record in amended_records(world, rows, contents):
            sides.add_amended(address, record)
        for address, record in loaded_records(world):
            sides.add_loaded(address, record)
        sides.winners = self._winners(sides, stamp)
        return {(verdict.pair, verdict.row.end_ms): _said(verdict) for verdict in judge_sides(sides)}

    def _winners(self, sides: Sides, stamp: ServedStamp | None) -> dict[int, Publication]:
        """Return window end to the newest publication that covers it, of those that the served table shows."""
        winners: dict[int, Publication] = {}
        for entry in self.world.sequence if stamp is not None else ():
            if entry.kind == EntryKind.HEAD or stamp is None or entry.seq > stamp.sequence:
                continue
            publication = Publication.from_payload(entry.seq, entry.payload)
            for end in {*sides.truth, *sides.loaded, *(sides.served or {})}:
                if any(low <= end - WINDOW_MS < high for low, high in publication.ranges):
                    winners[end] = publication
        return winners

    def seal_is_stored(self, run: Run, seal: Seal) -> None:
        """Check a seal that has just been stored."""
        tables, known = self.world.tables, self.world.reconciles
        if known.runs.get(run.name) is not run or (run.increment is None and run.name not in known.verdicts):
            fail(EXISTS, seal.name)
        if not run.passed:
            fail(PASSED, f"{seal.name}: {[finding.message for finding in run.findings]}, {seal.counts}")
        for table, versions in tables.foreign.items():
            since = -1 if run.base is None else run.base.versions[table]
            for version in versions:
                if run.base is not None and since < version <= seal.versions[table]:
                    fail(FOREIGN, f"{seal.name}: version {version} of {table} came after the {run.base.name}")
        settled = count_verdicts(
            (row["pair"], row["verdict"]) for row in known.held(run.name) if to_ms(row["window_end"]) <= seal.settled_ms
        )
        counted = {
            pair: {verdict: rows for verdict, rows in by_verdict.items() if rows}
            for pair, by_verdict in seal.counts.items()
        }
        if settled != {pair: by_verdict for pair, by_verdict in counted.items() if by_verdict}:
            fail(COUNTS, f"{seal.name} counts {counted}, {settled} are stored")


def _said(verdict: RowVerdict) -> Said:
    return (verdict.verdict, verdict.late, verdict.dead)
