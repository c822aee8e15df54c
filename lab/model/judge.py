"""The invariants, compared with what truly happened, after every effect and at the end. It trusts no actor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from lab.model.judge_savepoints import is_planned
from lab.model.stream import (
    TOPIC,
    WINDOW_MS,
    Address,
    Computed,
    Record,
    compute_batch,
    next_watermark,
    window_end,
)
from lab.model.violations import fail
from rivertwice.agent.memory import Memory
from rivertwice.storage.lease_terms import LeaseRecord
from rivertwice.stream.checkpoint import covers
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.sequence import Entry, EntryKind

if TYPE_CHECKING:
    from lab.model.durable import Served
    from lab.model.process import Process
    from lab.model.world import World

Key = tuple[str, int]
MOST_STARTS = 6  # starts of drivers in a row without a new batch, within the breaker's window
_PATIENT = {"lease_lost", "drained"}


class Judge:
    """Bookkeeping of the truth, and every check that is made when something changes."""

    def __init__(self, world: World) -> None:
        """Watch a world from its beginning."""
        self.world = world
        self.rows: dict[Key, LedgerRow] = {}
        self.made: dict[Key, Computed] = {}
        self.published: set[str] = set()
        self.closed_ms = 0
        self.damaged = False
        self.jumped = False
        self.stale: dict[int, int] = {}
        self.failures: list[datetime] = []
        self.row_of_starts: list[datetime] = []
        self.progressed = False
        self.position: object = None
        self.ended: set[int] = set()

    # batches

    def before(self, timeline: str, batch: int) -> Key | None:
        """Return the batch that precedes one on its timeline's path; None for the first of a root."""
        line = self.world.timelines[timeline]
        if batch > line.first_batch or line.parent is None:
            return (timeline, batch - 1) if batch > 0 else None
        key = (line.parent.timeline, line.parent.batch)
        while key not in self.rows:  # the parent has no batch of its own before the fork
            fork = self.world.timelines[key[0]].parent
            if fork is None:
                return None
            key = (fork.timeline, fork.batch)
        return key

    def committed(self, process: Process, row: LedgerRow, made: Computed) -> None:
        """Check a batch that was just committed against the truth of the log and its predecessor."""
        world, key = self.world, (row.timeline, row.batch)
        if key in self.rows:
            fail("a committed batch never changes", key)
        before = self.before(*key)
        if before is not None and before not in self.rows:
            fail("no gap between batches", f"{key} follows {before}, which was never committed")
        last = None if before is None else self.rows[before]
        start = world.timelines[row.timeline].genesis if last is None else last.end_offsets
        if row.start_offsets != start:
            fail("each batch begins where the one before it ended", f"{key}: {row.start_offsets} after {start}")
        watermark = 0 if last is None else next_watermark(last.batch_watermark_ms, self.made[before].max_event_ms)  # type: ignore[index]
        if row.batch_watermark_ms != watermark:
            fail("the chain of watermarks", f"{key} has {row.batch_watermark_ms}, the log gives {watermark}")
        truth = compute_batch(
            {} if before is None else self.made[before].state,
            self.true_records(row),
            late_ms=0 if last is None else last.batch_watermark_ms,
            watermark_ms=watermark,
        )
        if dict(truth.rows) != dict(world.changelog[key]) or len(truth.rows) != len(world.changelog[key]):
            fail("every pair in exactly one place", f"{key} emitted {world.changelog[key]}, the log gives {truth.rows}")
        if truth.state != made.state:
            fail("every pair in exactly one place", f"the state after {key} is not what the log gives")
        self._check_owner(process, row)
        self.rows[key], self.made[key] = row, truth
        self.progressed = True
        self.row_of_starts.clear()

    def _check_owner(self, process: Process, row: LedgerRow) -> None:
        world = self.world
        if process.fingerprint != world.timelines[row.timeline].fingerprint:
            fail("one timeline, one meaning", f"batch {row.batch} of {row.timeline} by another definition")
        if process.epoch < max(world.epochs):
            self.stale[process.epoch] = self.stale.get(process.epoch, 0) + 1
            if self.stale[process.epoch] > 1:
                fail("a superseded driver ends its batch at most", f"epoch {process.epoch} of {max(world.epochs)}")

    def committed_again(self, row: LedgerRow) -> NoReturn:
        """Report a second commit of a batch."""
        fail("a committed batch never changes", f"batch {row.batch} of {row.timeline} was committed twice")

    def true_records(self, row: LedgerRow) -> list[tuple[Address, Record]]:
        """Return what a batch's range truly holds."""
        log = self.world.logs[row.topic_ids[TOPIC]]
        return [
            ((partition, offset), log[partition][offset])
            for partition, (start, end) in row.ranges(TOPIC).items()
            for offset in range(start, end)
        ]

    # starts

    def epoch_starts(self, epoch: int) -> None:
        """Check that epochs are unique and rise."""
        if epoch <= max(self.world.epochs, default=0):
            fail("epochs rise", f"{epoch} after {max(self.world.epochs)}")

    def lease_is_taken(self, held: LeaseRecord | None, home: str) -> None:
        """Check that no driver is ended that lives on another host and renews its lease."""
        if held is not None and held.home != home and self.world.claim_renewed():
            fail("a lease that is renewed is not taken", f"epoch {held.epoch} lives on {held.home}")

    def driver_failed(self, pid: int, failure: str, position: object) -> None:
        """Note an end that was no drain; once, though an agent that died may count it again."""
        if pid in self.ended:
            return
        self.ended.add(pid)
        if self.progressed or (position is not None and position != self.position):
            self.failures.clear()  # a batch was committed, or the agent learns of one only now
        self.position = position or self.position
        if str(failure) not in _PATIENT:
            self.failures.append(self.world.now)
        self.progressed = False

    def fell_back(self, *, restored: bool, position: object) -> None:
        """Note the end of a fall-back: a restored checkpoint makes the failures before it history."""
        if restored:
            self.failures.clear()
            self.position = position or self.position

    def driver_starts(self, memory: Memory) -> None:
        """Check that a start waits for its backoff, and that no row of starts continues for ever."""
        now = self.world.now
        if memory.broken_at is not None:
            self.failures.clear()
            self.row_of_starts.clear()
        if self.failures and not self.jumped:
            wait = min(60, 2 ** (len(self.failures) - 1)) if len(self.failures) < 8 else 60
            if now < self.failures[-1] + timedelta(seconds=wait):
                fail("a failed driver waits before it starts again", f"{len(self.failures)} failures, {wait} s")
        self.row_of_starts = [at for at in self.row_of_starts if now - at <= timedelta(minutes=15)] + [now]
        if len(self.row_of_starts) > MOST_STARTS and len(self.failures) >= MOST_STARTS and not self.jumped:
            fail("no crash loop", f"{len(self.row_of_starts)} starts without a new batch")

    # sequence and served

    def path(self, timeline: str) -> list[Key]:
        """Return the committed batches on a timeline's path, newest first."""
        keys: list[Key] = []
        world, batch = self.world, max((b for t, b in self.rows if t == timeline), default=None)
        line = world.timelines[timeline]
        if batch is None:
            key = None if line.parent is None else self.before(timeline, line.first_batch)
        else:
            key = (timeline, batch)
        while key is not None and key in self.rows:
            keys.append(key)
            key = self.before(*key)
        return keys

    def appends(self, entry: Entry, expected: int) -> None:
        """Check an entry of the sequence before it is appended."""
        world = self.world
        if entry.seq != world.last_seq() + 1 or expected != world.last_seq():
            fail("the sequence has no gap", f"{entry.seq} after {world.last_seq()}")
        head = world.head()
        if entry.kind != EntryKind.HEAD:
            self._check_publication(entry, head)
            return
        target = entry.payload["timeline"]
        if target not in world.timelines:
            fail("the head names a recorded timeline", target)
        if head is None:
            world.load_judge.begins(target)
        if head is not None and "rewind" not in entry.payload["reason"]:
            lost = [key for key in self.path(head) if key not in self.path(target)]
            if lost:
                fail("no head move voids a batch unasked", f"{lost} are not on the path of {target}")
        elif head is not None:
            self._check_caught_up(head, target)
        if head is not None and head != target:
            self._check_child(target, planned=self._check_way_back(target))

    def _check_caught_up(self, head: str, target: str) -> None:
        """Check that a rewind's timeline has read what the head has, and has closed what the head has."""
        old, new = (self.rows[self.path(name)[0]] for name in (head, target))
        if not covers(new.end_offsets, old.end_offsets):
            fail("a rewind catches up before the head moves", f"{new.end_offsets} of {old.end_offsets}")

    def _check_way_back(self, target: str) -> bool:
        """Check that a planned restore's origin exists and is proved when the head moves; say whether it is a planned one."""
        world = self.world
        planned = [
            operation for operation in world.operations.values() if operation.child == target and is_planned(operation)
        ]
        for operation in planned:
            missing = [name for name in operation.held if name not in world.savepoints]
            if missing or len(operation.held) < 1 or operation.origin is None:  # type: ignore[union-attr]
                fail("a planned restore has a way back", f"{operation.id}: {operation.held}, missing {missing}")
        return bool(planned)

    def _check_child(self, target: str, *, planned: bool) -> None:
        keys, line = self.path(target), self.world.timelines[target]
        checkpoint = self.world.checkpoints.get(target)
        if not keys or checkpoint is None or max(checkpoint.commits, default=-1) < line.first_batch - 1:
            fail(
                "a child continues where its parent ended",
                f"{target} has no checkpoint at batch {line.first_batch - 1}",
            )
        state = checkpoint.state.get(keys[0][1])
        if planned and self.damaged and state is None:
            return  # a file of the state is gone: its start finds that, and the agent goes the way back
        if keys[0][1] == line.first_batch - 1 and state != self.made[keys[0]].state:
            fail("a restored state is the recorded one", f"{target} at batch {keys[0][1]}")

    def _check_publication(self, entry: Entry, head: str | None) -> None:
        world, backfill = self.world, str(entry.payload["backfill"])
        if backfill in self.published:
            fail("a backfill is published once", backfill)
        if world.load is not None and backfill == world.load.cover:
            return  # it has no rows
        if head is None or world.timelines[head].fingerprint["semantics"] != entry.payload["semantics"]:
            fail("a publication has the head's meaning", backfill)
        keys = self.path(head)
        closed = self.rows[keys[0]].batch_watermark_ms if keys else 0
        if entry.payload["ranges"][-1][1] > closed:
            fail("only closed windows are published", f"{entry.payload['ranges']} with {closed} closed")
        as_of = {int(p): int(o) for p, o in entry.payload["as_of"][TOPIC].items()}
        for earlier in world.sequence:
            if earlier.kind == EntryKind.HEAD or earlier.payload["semantics"] != entry.payload["semantics"]:
                continue
            shared = any(a < d and c < b for a, b in earlier.payload["ranges"] for c, d in entry.payload["ranges"])
            if shared and any(int(o) > as_of[int(p)] for p, o in earlier.payload["as_of"][TOPIC].items()):
                fail("no publication takes records away", f"{backfill} after {earlier.payload['backfill']}")
        if world.correction(backfill) != self._truth(as_of, entry.payload["ranges"]):
            fail("what is published is the truth of the log", backfill)

    def _truth(self, as_of: dict[int, int], ranges: Sequence[Sequence[int]]) -> dict[int, frozenset[Address]]:
        line, load = self.world.timelines[str(self.world.head())], self.world.load
        while line.parent is not None:
            line = self.world.timelines[line.parent.timeline]
        first, log = dict(line.genesis[TOPIC]), self.world.logs[line.topic_ids[TOPIC]]
        if load is not None:
            first = {str(partition): start for partition, (start, _) in load.ranges.items()}
        members: dict[int, set[Address]] = {}
        for partition, end in as_of.items():
            for offset in range(int(first[str(partition)]), end):
                record = log[partition][offset]
                stop = window_end(record.event_ms)
                if record.kind == "ok" and any(start < stop <= last for start, last in ranges):
                    members.setdefault(stop, set()).add((partition, offset))
        return {stop: frozenset(held) for stop, held in members.items()}

    def appended(self, entry: Entry) -> None:
        """Note an entry."""
        if entry.kind != EntryKind.HEAD:
            self.published.add(str(entry.payload["backfill"]))

    def serves(self, look: Served) -> None:
        """Check that what is served changes only by a cause: a batch, a publication, an explicit rewind."""
        world, shown = self.world, self.world.shown_before()
        closed = self.rows[look.timeline, look.batch].batch_watermark_ms
        for end in look.rows:
            world.load_judge.serves(end, look.sequence)
            newest = [
                entry.payload
                for entry in world.sequence[: look.sequence]
                if entry.kind != EntryKind.HEAD and any(a <= end - WINDOW_MS < b for a, b in entry.payload["ranges"])
            ]
            if newest and look.rows[end] != world.correction(newest[-1]["backfill"]).get(end):
                fail("a window serves its newest publication", f"the window that ends at {end}")
        if shown is not None:
            between = [entry for entry in world.sequence if shown.sequence < entry.seq <= look.sequence]
            if look.sequence < shown.sequence or closed < self.closed_ms:
                fail("served never goes back", f"{look.sequence} after {shown.sequence}")
            asked = [pair for entry in between if entry.kind != EntryKind.HEAD for pair in entry.payload["ranges"]]
            if any(entry.kind == EntryKind.HEAD and "rewind" in entry.payload["reason"] for entry in between):
                asked = [(0, closed)]
            for end in {**shown.rows, **look.rows}:
                changed = shown.rows.get(end) != look.rows.get(end)
                if changed and end <= self.closed_ms and not any(a <= end - WINDOW_MS < b for a, b in asked):
                    fail("what is served changes only when asked", f"the window that ends at {end}")
        self.closed_ms = closed

    # reads

    def replay_differed(self, message: str) -> NoReturn:
        """Report a replay of recorded ranges that gave something else."""
        fail("a replay gives what was recorded", message)

    def found_damage(self, problem: str) -> None:
        """Check that damage is only found where there is some."""
        if not self.damaged:
            fail("no sound checkpoint is called damaged", problem)
