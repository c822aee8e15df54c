"""The world of one schedule: everything durable, and the effects that change it. Each effect is atomic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from lab.model.durable import Checkpoint, Drain, Erasure, Served
from lab.model.judge import Judge
from lab.model.judge_loads import LoadJudge
from lab.model.judge_savepoints import SavepointJudge
from lab.model.judge_seals import SealJudge
from lab.model.outside import Outside
from lab.model.process import Process
from lab.model.rules import Rules
from lab.model.runs import Reconciles
from lab.model.saved import Saved
from lab.model.sinks import Sinks
from lab.model.stream import Address, Computed, Record, State
from lab.model.tables import SERVED_BUILD, Tables
from lab.model.verdicts import EXACT
from rivertwice.agent.memory import Memory
from rivertwice.backfill.model import BackfillPlan
from rivertwice.core.errors import LostRaceError
from rivertwice.core.homes import Place
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.operations.record import Operation, OperationStep, Restore
from rivertwice.storage.lease_terms import LeaseRecord
from rivertwice.timeline.first_load import FirstLoad, LogZone
from rivertwice.timeline.intent import Exit, Heartbeat, Intent
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Timeline
from rivertwice.timeline.sequence import Entry, EntryKind
from rivertwice.timeline.served_stamp import ServedStamp

Found = TypeVar("Found")
KEPT = 4  # batches a live checkpoint keeps; a real one keeps 100


class World(Outside):
    """All that outlives a process, the clock, and the processes themselves."""

    suffix = ""  # of the names of its processes
    uncleaned = 3  # newest changelog commits whose metadata Delta has not cleaned up
    watches = 10  # looks of a start at a lease that another host holds
    patience = 60  # looks of a first load at whether the stream has closed its windows

    def __init__(
        self, records: list[list[Record]], rules: Rules, actors: Mapping[str, Callable[..., Any]], broken: str = ""
    ) -> None:
        """Create a world in which nothing has happened yet.

        Args:
            actors: by kind of process, what it runs.
            records: per partition, all records that will ever be produced.
            rules: the decision functions.
            broken: name of the rule that is broken on purpose; empty for none.
        """
        self.rules = rules
        self.actors = actors
        self.broken = broken
        self._begin_outside(records)
        self.definition = 1
        self.rate = 3
        self.sick = False
        self.standby_leaves = False
        self.processes: dict[int, Process] = {}
        self.names: dict[str, int] = {}
        self.locks: dict[str, int] = {}
        self.shared_lease = False
        self.epochs: list[int] = []
        self.claim: LeaseRecord | None = None  # the lease on a store, if hosts share the pipeline
        self.owner: dict[int, tuple[int, int, datetime]] = {}  # by host: epoch, pid, since
        self.intent: Intent | None = None
        self.drain: Drain | None = None
        self.heartbeat: Heartbeat | None = None
        self.exit: Exit | None = None
        self.memory: Memory | None = None
        self.fall_backs: dict[int, tuple[bool, str, tuple[str, int] | None]] = {}
        self.parents: dict[int, int | None] = {}
        self.timelines: dict[str, Timeline] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.sequence: list[Entry] = []
        self.changelog: dict[tuple[str, int], tuple[tuple[int, frozenset[Address]], ...]] = {}
        self.applied: dict[str, int] = {}
        self.commits: list[LedgerRow] = []  # the ledger rows in the changelog's metadata, in order of commit
        self.cleaned = 0  # so many of them are cleaned up
        self.ledger: dict[tuple[str, int], LedgerRow] = {}
        self.dead: list[tuple[str, int, Address]] = []
        self.dead_ranges: dict[tuple[str, int], dict[str, list[int]]] = {}
        self.savepoints: dict[str, Saved] = {}
        self.operations: dict[str, Operation] = {}
        self.plans: dict[str, BackfillPlan] = {}
        self.corrections: dict[str, dict[int, dict[int, frozenset[Address]]]] = {}
        self.audits: dict[str, bool] = {}
        self.served: Served | None = None
        self.cached: tuple[tuple[str, int, int, int], list[LedgerRow]] | None = None
        self.nonce = 0
        self.refused: set[str] = set()
        self.counts: dict[str, int] = {}
        self.tables = Tables()
        self.reconciles = Reconciles()
        self.bundle = EXACT
        self.erasure: Erasure | None = None
        self.load: FirstLoad | None = None
        self.load_zones: Sequence[LogZone] = ()
        self.sinks = Sinks()
        self.delivered: dict[tuple[str, int, int], Mapping[str, Any]] = {}  # what is served at a position of a sink
        self.judge = Judge(self)
        self.seal_judge = SealJudge(self)
        self.load_judge = LoadJudge(self)
        self.saved_judge = SavepointJudge(self)

    # locks and processes

    def lock(self, name: str, process: Process) -> bool:
        """Take a lock that dies with its process; return False if another process has it."""
        return self.locks.setdefault(name, process.pid) == process.pid

    def unlock(self, name: str, process: Process) -> None:
        """Give a lock up."""
        if self.locks.get(name) == process.pid:
            del self.locks[name]

    def end(self, process: Process) -> None:
        """Let a process be gone: what it held is free."""
        process.alive = False
        self.sinks.forget(process.pid)
        self.processes.pop(process.pid, None)
        self.names.pop(process.name, None)
        for name in [name for name, pid in self.locks.items() if pid == process.pid]:
            del self.locks[name]

    def lives(self, pid: int | None) -> bool:
        """Say whether a process is there; a stopped one is."""
        return pid in self.processes

    def owner_lives(self) -> bool:
        """Say whether the last driver that took this home's lease lives."""
        return 1 in self.owner and self.lives(self.owner[1][1])

    def spawn(self, kind: str, parent: int | None = None, host: int = 1) -> int:
        """Start a process; its name is its kind and how many of the kind there were."""
        self.pids += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        process = Process(self.pids, f"{kind}{self.suffix} {self.counts[kind]}", kind, host)
        process.steps = self.actors[kind](self, process)
        process.renewed_s = self.forward_s
        self.processes[process.pid] = process
        self.names[process.name] = process.pid
        self.parents[process.pid] = parent
        return process.pid

    def claim_renewed(self) -> bool:
        """Say whether the holder of the shared lease lives and is awake, so that it has renewed it since."""
        return self.claim is not None and any(
            process.epoch == self.claim.epoch
            and process.kind in ("driver", "standby", "catcher")
            and not process.paused
            for process in self.processes.values()
        )

    def start_epoch(self, process: Process) -> None:
        """Put the file of an epoch."""
        self.judge.epoch_starts(process.epoch)
        self.epochs.append(process.epoch)

    def free_name(self) -> str:
        """Return the first timeline name that neither a record nor a folder has."""
        name: str = self.rules.select_free_name({*self.timelines, *self.checkpoints})
        return name

    # ledger, changelog, sequence

    def read_ledger(self) -> list[LedgerRow]:
        """Return the committed batches: the table, and those that only the changelog's newest commits carry."""
        missing = [row for row in self.commits[self.cleaned :] if (row.timeline, row.batch) not in self.ledger]
        return [*self.ledger.values(), *missing]

    def path_rows(self, timeline: str) -> list[LedgerRow]:
        """Return the ledger of a timeline's path."""
        key = (timeline, len(self.commits), self.cleaned, len(self.ledger))
        if self.cached is None or self.cached[0] != key:
            path = self.rules.trace_path(timeline, self.timelines.__getitem__)
            self.cached = (key, self.rules.select_on_path(self.read_ledger(), path))
        return self.cached[1]

    def head(self) -> str | None:
        """Return the head timeline."""
        timeline: str | None = self.rules.select_head(self.sequence)
        return timeline

    def last_seq(self) -> int:
        """Return the newest entry's number."""
        return self.sequence[-1].seq if self.sequence else 0

    def append_batch(self, app: str, row: LedgerRow, rows: tuple[tuple[int, frozenset[Address]], ...]) -> None:
        """Commit rows, ledger row and transaction together.

        Raises:
            LostRaceError: the application id holds that version or a newer one.
        """
        if self.applied.get(app, -1) >= row.batch and self.broken != "transaction not checked":
            message = f"the changelog holds version {self.applied[app]} of {app} already"
            raise LostRaceError(message)
        self.applied[app] = row.batch
        self.tables.note("changelog")
        key = (row.timeline, row.batch)
        again = key in self.changelog and self.broken != "two commits for one batch"
        self.changelog[key] = self.changelog.get(key, ()) + rows
        if not again:
            self.commits.append(row)
        self.cleaned = max(self.cleaned, len(self.commits) - self.uncleaned)
        if again:
            self.judge.committed_again(row)

    def committed(self, process: Process, row: LedgerRow, made: Computed) -> None:
        """Note what was committed, for the invariants."""
        self.judge.committed(process, row, made)

    def append_dead(self, app: str, timeline: str, batch: int, addresses: tuple[Address, ...]) -> None:
        """Write a batch's dead letters under a transaction of their own.

        Raises:
            LostRaceError: they are there already.
        """
        if self.applied.get(app, -1) >= batch and self.broken != "dead letters without a transaction":
            message = f"the dead letters of batch {batch} are there already"
            raise LostRaceError(message)
        self.applied[app] = batch
        self.tables.note("dead_letters")
        self.dead += [(timeline, batch, address) for address in addresses]

    def append_chunk(self, plan: BackfillPlan, chunk: int, rows: dict[int, frozenset[Address]]) -> None:
        """Commit a chunk of corrections.

        Raises:
            LostRaceError: it is committed already.
        """
        app = f"backfill/{plan.id}"
        if self.applied.get(app, -1) >= chunk:
            message = f"chunk {chunk} of {plan.id} is committed already"
            raise LostRaceError(message)
        self.applied[app] = chunk
        self.tables.note("corrections")
        self.corrections.setdefault(plan.id, {})[chunk] = rows

    def correction(self, backfill: str) -> dict[int, frozenset[Address]]:
        """Return all rows of a backfill."""
        return {end: held for chunk in self.corrections.get(backfill, {}).values() for end, held in chunk.items()}

    def copy_to_ledger(self, rows: Mapping[tuple[str, int], LedgerRow]) -> None:
        """Append rows to the ledger's table; those that it has are not written."""
        if any(key not in self.ledger for key in rows):
            self.tables.note("ledger")
        self.ledger.update(rows)

    def mark(self) -> str:
        """Return the mark of the stamps in the served table: which version wrote it."""
        return ""

    def own_stamp(self) -> ServedStamp | None:
        """Return the stamp of the served table."""
        return None if self.served is None else self.served.stamp

    def served_place(self) -> Place | None:
        """Return the place of the served table; None: there is but one."""
        return None

    def shown_before(self) -> Served | None:
        """Return the last build of the served table."""
        return self.served

    def serve(self, look: Served, *, whole: bool = False) -> None:
        """Let the served table show something else: rows are added or replaced, or all are written (`whole`)."""
        self.judge.serves(look)
        self.seal_judge.serves(look)
        shown = self.served
        is_added = shown is not None and all(look.rows.get(end) == held for end, held in shown.rows.items())
        if shown is None or whole:
            self.tables.note("served", mode="Overwrite", keys=SERVED_BUILD)
        elif is_added:
            self.tables.note("served", keys=SERVED_BUILD)
        else:
            self.tables.note("served", mode="Overwrite", is_partial=True, keys=SERVED_BUILD)
        self.served = look

    # savepoints

    def put_manifest(self, saved: Saved, manifest: Manifest) -> None:
        """Put a manifest: the savepoint exists now."""
        if saved.manifest is None:
            saved.manifest = manifest
            self.saved_judge.exists(saved)

    def put_proof(self, saved: Saved, proof: dict[str, Any], state: State | None) -> None:
        """Put a proof, if the savepoint is still there; `state` is what was fetched of it."""
        if saved.manifest is not None and saved.deleting != "decided":
            saved.proof = proof
            self.saved_judge.proved(saved, state)

    def release(self, saved: Saved, process: Process, holder: str) -> None:
        """End a lease on a savepoint."""
        saved.leases.pop(holder, None)
        saved.using.pop(holder, None)

    def report_damage(self, problem: str) -> None:
        """Note that a checkpoint was found damaged."""
        self.judge.found_damage(problem)

    def seal(self, app: str, version: int) -> None:
        """Commit nothing but a transaction that no later batch of the application id can pass."""
        self.applied[app] = max(self.applied.get(app, -1), version)

    def append_entry(self, kind: str, payload: Mapping[str, Any], expected: int) -> Entry:
        """Append to the sequence, asserting its predecessor.

        Raises:
            LostRaceError: another entry was first.
        """
        self.rules.check_predecessor(self.last_seq(), expected, "model")
        entry = Entry(expected + 1, kind, payload, self.now)
        self.judge.appends(entry, expected)
        self.sequence.append(entry)
        self.tables.note("sequence")
        self.judge.appended(entry)
        return entry

    def record_load(self, load: FirstLoad, zones: Sequence[LogZone]) -> None:
        """Record a first load, once."""
        if self.load is None or self.broken == "load recorded again":
            self.load_judge.is_recorded(load)
            self.load, self.load_zones = load, zones

    def move_head(self, timeline: str, reason: str, expected: int) -> Entry:
        """Let a timeline serve."""
        return self.append_entry(EntryKind.HEAD, {"timeline": timeline, "reason": reason}, expected)

    def unfinished(self, kind: type[Found]) -> list[Found]:
        """Return the operations of a kind that are not done."""
        return [
            operation
            for operation in self.operations.values()
            if operation.step < OperationStep.DONE and isinstance(operation, kind)
        ]

    def needed(self) -> list[str]:
        """Return the savepoints that an interrupted operation will continue with."""
        return [
            name
            for operation in self.operations.values()
            if operation.step < OperationStep.DONE
            for name in operation.held
        ]

    def awaiting(self) -> list[Restore]:
        """Return the planned restores whose savepoint is not proved yet, by the product's rule."""
        views = [saved.view() for saved in self.savepoints.values() if saved.manifest is not None]
        head = self.head()
        path = [] if head is None else self.rules.trace_path(head, self.timelines.__getitem__)
        awaiting: list[Restore] = self.rules.select_awaiting(list(self.operations.values()), views, path)
        return awaiting

    def fingerprint(self) -> dict[str, str]:
        """Return the hashes of the definition as it is now."""
        return {"state": "s", "semantics": f"m{self.definition}", "decode": "d"}
