"""Rewind: go back to a savepoint's own batch, and let the stream compute again what followed. An explicit act.

`show_rewind` returns what would change, and changes nothing. `steps.REWIND` lists the steps of a confirmed one. If it is killed
anywhere and run again, the result is the same kind of path: the old one up to the fork, then batches of the new timeline. Their
rows may differ, because other batch boundaries drop other late rows. The head serves while the child catches up, and the head's
stream is stopped: a pipeline has one driver. If the head commits more before it is sealed, the child catches up again.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rivertwice.core import (
    LostRaceError,
    Measured,
    PipelineHome,
    Progress,
    RequestError,
    SavepointError,
    ServiceError,
    Settings,
    report_nothing,
    start_detached,
    utc_now,
)
from rivertwice.definition import Definition, load_definition
from rivertwice.engine import java_env
from rivertwice.log import Fork as LogFork
from rivertwice.log import StoredOffsets, kafka, marks_from_plain, observe_forks
from rivertwice.savepoint.catalogue import ProofState, Savepoint, load_savepoint
from rivertwice.savepoint.manifest import Manifest, StateBase
from rivertwice.savepoint.operations import engine
from rivertwice.savepoint.operations.effects import OperationEffects, finish
from rivertwice.savepoint.operations.fork import DRAIN_S, block_stream
from rivertwice.savepoint.operations.record import OperationStep, Rewind, only_operation, read_operations
from rivertwice.savepoint.operations.restore_checks import newest_proved
from rivertwice.savepoint.operations.rewind_plan import (
    Emitted,
    RewindInputs,
    RewindPlan,
    after_fork,
    compare_emitted,
    count_windows,
    find_refusals,
    plan_rewind,
    read_emitted,
)
from rivertwice.savepoint.operations.steps import REWIND
from rivertwice.savepoint.plan import current_fingerprint
from rivertwice.savepoint.take import beginning_of, fork_before_all, make_empty_checkpoint
from rivertwice.storage import LogFile, Table
from rivertwice.stream import Goal, covers, lease_owner
from rivertwice.timeline import (
    LATE_RECORD,
    Exit,
    Fork,
    LedgerRow,
    Segment,
    Timeline,
    causes_of,
    check_committed,
    committed_batches,
    create_timeline,
    every_batch,
    head,
    last_in_common,
    newest_batch,
    path_of,
    path_semantics,
    path_until,
    publications_of,
    read_ledger,
    read_sequence,
    require_whole_logs,
    select_on_path,
)

# The present state on which a rewind depends. Reads only.

_PACE_OVER = 1_000  # newest batches whose rows are read in any case: the pace is taken from those that read records


def path_to(home: PipelineHome, timeline: str, batch: int) -> list[Segment]:
    """Return the path that ends at a batch, root first."""
    path = path_of(home, timeline)
    return [*path[:-1], Segment(timeline, path[-1].first, batch)]


def read_definition(settings: Settings, pipeline: str) -> Definition:
    """Return the definition as it is in the project now."""
    return load_definition(settings.definition_folder(pipeline))


def forks_before(settings: Settings, home: PipelineHome, timeline: str, batch: int) -> list[LogFork]:
    """Return where Kafka does not have the last records that had been read by a batch.

    Raises:
        ServiceError: Kafka does not answer.
    """
    rows = [row for row in read_ledger(home, first_batch=batch) if (row.timeline, row.batch) == (timeline, batch)]
    return [fork for row in rows[:1] for fork in observe_forks(settings, row.topic_ids, marks_from_plain(row.marks))]


def observe_rewind(settings: Settings, home: PipelineHome, manifest: Manifest, head: str) -> RewindInputs:
    """Return the state on which a rewind from `head` to a savepoint depends.

    Raises:
        SavepointError: the head has no batch yet.
        TableDamageError: a table has lost committed rows of one of the two paths.
        ServiceError: Kafka does not answer.
    """
    require_whole_logs(home)
    definition = read_definition(settings, manifest.pipeline)
    every = every_batch(home)  # read before the tables are counted, so a driver that still commits does no harm
    head_path, path = path_of(home, head), path_to(home, manifest.timeline, manifest.batch)
    committed = committed_batches(home, head_path, every)
    if not len(committed):
        message = f"timeline {head} of {manifest.pipeline} has no committed batch, so there is nothing to go back from"
        raise SavepointError(message)
    for batches in (committed, committed_batches(home, path, every)):
        check_committed(home, batches, every, remember=False)
    last = int(committed.numbers[-1])
    shared = last_in_common(path_until(head_path, last), path)
    ledger = read_ledger(home, first_batch=min(-1 if shared is None else shared, last - _PACE_OVER))
    old = select_on_path(ledger, path_until(head_path, last))
    new = select_on_path(ledger, path)
    gone, _ = after_fork(old, new)
    rows = read_emitted(home, gone, definition)
    return RewindInputs(
        head=head,
        old_rows=old,
        new_rows=new,
        emitted=Emitted(0 if rows is None else rows.num_rows, count_windows(rows, definition)),
        late=count_late(home, head, gone),
        log_begins={topic: kafka.begin_offsets(settings, topic) for topic in definition.topics},
        topic_ids={topic: kafka.topic_id(settings, topic) for topic in manifest.topic_ids},
        fingerprint=current_fingerprint(settings, manifest.pipeline),
        publications=publications_of(read_sequence(home)),
        semantics=path_semantics(home, path),
        forks=forks_before(settings, home, manifest.timeline, manifest.batch),
    )


def count_late(home: PipelineHome, head: str, gone: list[LedgerRow]) -> int | None:
    """Return how many records the newest reconcile of a head reported as late in these batches; None without a reconcile.

    The ledger does not contain them: Spark drops late rows without a message, and only a reconcile reports them.
    """
    runs = Table(home.tables.reconciles).read(columns=["run", "created_at", "timeline"])
    own_runs = [] if runs is None else [run for run in runs.to_pylist() if run["timeline"] == head]
    if not own_runs:
        return None
    newest = max(own_runs, key=lambda run: run["created_at"])["run"]
    batches = {row.batch for row in gone}
    late = (row for row in causes_of(home, newest) if row["cause"] == LATE_RECORD and row["batch"] in batches)
    return len({(row["topic"], row["partition"], row["offset"]) for row in late})


# Run a driver on a timeline that is not the head, until it has read what the head has.

DRIVER = (sys.executable, "-m", "rivertwice.stream.driver")
_POLL_S = 0.1
_REPORT_EVERY_S = 5.0


def run_to_goal(
    settings: Settings, home: PipelineHome, goal: Goal, last: Callable[[], LedgerRow | None], progress: Progress
) -> None:
    """Run a driver on the goal's timeline until it has caught up and has ended; a driver that is alive is resumed.

    Raises:
        ServiceError: it ended before the goal; the message contains the reason and the path of its log.
    """
    process: subprocess.Popen[bytes] | None = None
    last_report, most = 0.0, 0
    while True:
        owner = lease_owner(home)
        running = process.poll() is None if process is not None else owner is not None
        if not running and owner is None:
            row = last()
            if row is not None and goal.is_reached_by(row.end_offsets, row.batch_watermark_ms):
                return
            if process is not None:
                if row is not None and process.returncode == 0 and covers(row.end_offsets, goal.offsets):
                    return  # every record is read; no record is left that could raise the watermark
                raise ServiceError(_ended_early(home, goal, process.returncode))
            process = start_catching_up(settings, home, goal)
            progress(f"a driver (pid {process.pid}) catches up on timeline {goal.timeline}; its log is logs/rewind.log")
        if time.monotonic() - last_report > _REPORT_EVERY_S:
            last_report = time.monotonic()
            block_stream(home, goal.by)  # the agent takes an old marker for a driver that is stuck
            row = last()
            left = left_to(goal, row)
            most = max(most, left)
            place = "before its first batch" if row is None else f"at batch {row.batch}"
            line = f"timeline {goal.timeline} is {place}; {left} records are left"
            progress(Measured(line, f"catch up on {goal.timeline}", most - left, most))
        time.sleep(_POLL_S)


def left_to(goal: Goal, row: LedgerRow | None) -> int:
    """Return how many records lie between a batch's end, or offset 0 before the first one, and the goal."""
    reached = {} if row is None else row.end_offsets
    return sum(
        max(0, int(end) - int(reached.get(topic, {}).get(partition, 0)))
        for topic, parts in goal.offsets.items()
        for partition, end in parts.items()
    )


def start_catching_up(settings: Settings, home: PipelineHome, goal: Goal) -> subprocess.Popen[bytes]:
    """Start a driver on a timeline that is not the head, in its own process session, so that it outlives this process."""
    command = [*DRIVER, "--pipeline", home.root.name, "--catch-up", goal.to_text()]
    with LogFile(home.logs / "rewind.log").open() as log:
        env = {**os.environ, **java_env(settings), **settings.to_env()}
        return start_detached(command, env=env, cwd=settings.project, output=log)


def _ended_early(home: PipelineHome, goal: Goal, code: int | None) -> str:
    record = Exit.load(home)
    why = "it left no record" if record is None else f"{record.failure}: {record.message[:1000]}"
    return (
        f"the driver that catches up on timeline {goal.timeline} ended with {code} before it was there ({why}); the head is "
        "unchanged and serves; see logs/rewind.log, correct the cause and run the rewind again, or abandon it with --abandon"
    )


NUMBERS = ("batches", "records", "rows", "windows", "dead")
"""The numbers of a plan that are recorded, to be compared with what then happens."""


@dataclass(frozen=True)
class RewindReport:
    """What a rewind did so far.

    Attributes:
        timeline: the new timeline; forked_at: `T@M`, the batch where it leaves the old one.
        head: the head now: the new timeline, or the old one if the rewind was stopped before the head moved.
        planned: the numbers that were shown: batches, records, rows, windows, dead.
        batches, records: how many the new timeline had committed and read when it had caught up.
        compared_at: the old head's last batch, up to which both were compared.
        comparison: numbers of rows that are the same, differ, or exist on one side only, with examples.
        running: whether the desired state is running again.
    """

    operation: str
    savepoint: str
    timeline: str
    forked_at: str
    head: str
    moved: bool
    planned: Mapping[str, int]
    batches: int
    records: int
    compared_at: int | None
    comparison: Mapping[str, Any]
    resumed: bool
    running: bool


@dataclass
class RewindEffects(OperationEffects[Rewind]):
    """The effects of a rewind."""

    @property
    def effects(self) -> Mapping[int, Callable[[Rewind], Rewind]]:
        """A step's number to the method that does it."""
        return {
            OperationStep.CHECKED: self.check,
            OperationStep.DRAINED: self.stop,
            OperationStep.COPIED: self.copy,
            OperationStep.BRANCHED: self.create,
            OperationStep.COMPARED: self.catch_up,
        }

    def accept(self, interrupted: Rewind) -> None:
        """Resume any interrupted rewind."""

    def begin(self, savepoint: str | None) -> Rewind:
        """Decide what is to be done, and refuse what cannot be done."""
        home, head_now = self.home, _require_head(self.home)
        chosen = choose_savepoint(home, savepoint, self.settings)
        proved = is_trusted(chosen)
        world = observe_rewind(self.settings, home, chosen.manifest, head_now)
        refusals = find_refusals(chosen.manifest, world, proved=proved or self.unproved)
        if refusals:
            raise refusals[0]
        plan = plan_rewind(chosen.manifest, world, proved=proved, unproved=self.unproved)
        return Rewind(
            id=f"rewind-{secrets.token_hex(4)}",
            savepoint=chosen.id,
            parent=chosen.manifest.timeline,
            batch=chosen.manifest.batch,
            head=head_now,
            child=Timeline.next_name(home),
            was_running=self.is_wanted(),
            started_at=utc_now(),
            plan={name: getattr(plan, name) for name in NUMBERS},
        )

    def check(self, rewind: Rewind) -> Rewind:
        """Read every byte of the savepoint."""
        self.savepoint.verify_files()
        self.progress(f"{rewind.id}: back to {rewind.savepoint}, on timeline {rewind.child}")
        return rewind

    def copy(self, rewind: Rewind) -> Rewind:
        """Copy the savepoint's checkpoint; from the beginning, make an empty one."""
        with self.new_checkpoint(rewind) as work:
            if rewind.savepoint == StateBase.BEGINNING:
                make_empty_checkpoint(work)
            else:
                self.savepoint.download(work)
        return rewind

    def create(self, rewind: Rewind) -> Rewind:
        """Record the child: it forks after the savepoint's own batch, or before the first one of the path."""
        home = self.home
        if rewind.savepoint == StateBase.BEGINNING:
            line = fork_before_all(Timeline.load(home, rewind.head), self.savepoint.manifest, rewind.child, utc_now())
        else:
            last = _last_of(home, path_to(home, rewind.parent, rewind.batch))
            line = Timeline.load(home, rewind.parent).fork(last, rewind.child, utc_now())
        create_timeline(home, line)
        if Timeline.load(home, rewind.child).parent != Fork(rewind.parent, rewind.batch):
            self.write(replace(rewind, step=OperationStep.CHECKED, child=Timeline.next_name(home)))
            message = (
                f"another process made timeline {rewind.child} meanwhile; nothing served changed; run the rewind again, it takes "
                "another name"
            )
            raise LostRaceError(message)
        return rewind

    def last_batch(self, record: Rewind) -> int:
        """Return the head's last batch."""
        return _last_of(self.home, path_of(self.home, record.head)).batch

    def catch_up(self, rewind: Rewind) -> Rewind:
        """Run a driver on the child until it has read what the head has read, and compare the rows that both emitted."""
        home = self.home
        if head(home) == rewind.child:
            return rewind
        head_path, path = path_of(home, rewind.head), path_of(home, rewind.child)
        last = _last_of(home, head_path)
        goal = Goal(rewind.child, rewind.id, self._reachable(last), last.batch_watermark_ms)
        run_to_goal(self.settings, home, goal, lambda: newest_batch(home, path), self.progress)
        if rewind.step >= OperationStep.COMPARED and rewind.head_batch == last.batch:
            return rewind
        shared = last_in_common(path_until(head_path, last.batch), path_until(path, rewind.batch))
        ledger = read_ledger(home, first_batch=shared)
        gone, arrived = after_fork(select_on_path(ledger, head_path), select_on_path(ledger, path))
        own = [row for row in arrived if row.timeline == rewind.child]
        definition = read_definition(self.settings, self.pipeline)
        comparison = compare_emitted(
            read_emitted(home, gone, definition), read_emitted(home, arrived, definition), definition
        )
        return replace(
            rewind,
            head_batch=last.batch,
            batches=len(own),
            records=sum(row.read for row in own),
            comparison=asdict(comparison),
        )

    def _reachable(self, last: LedgerRow) -> StoredOffsets:
        """Return where the head's last batch ends, or where Kafka's log does, if that lost what the head read."""
        if not forks_before(self.settings, self.home, last.timeline, last.batch):
            return last.end_offsets
        reach: dict[str, dict[str, int]] = {}
        for topic, offsets in last.end_offsets.items():
            ends = kafka.stable_ends(self.settings, topic)
            reach[topic] = {p: min(int(offset), ends.get(int(p), 0)) for p, offset in offsets.items()}
        return reach

    def again(self, record: Rewind) -> Generator[str | int, None, Rewind]:
        """Catch up with the batches that the head has committed since."""
        yield from ()
        self.progress(f"{record.head} has committed batches since; {record.child} catches up with them")
        caught_up = self.catch_up(record)
        self.write(caught_up)
        return caught_up

    def reason(self, record: Rewind) -> str:
        """Return the reason why the head moves."""
        return f"rewind to {record.savepoint} ({record.id})"


def show_rewind(
    settings: Settings, pipeline: str, savepoint_id: str | None = None, *, unproved: bool = False
) -> RewindPlan:
    """Return what a rewind would change; nothing is done.

    Raises:
        SavepointError: there is no such savepoint, or none is proved.
        RequestError: the pipeline never ran, or another operation is not finished.
    """
    home = settings.pipeline(pipeline)
    interrupted = engine.select_unfinished(read_operations(home), REWIND, savepoint_id, pipeline)
    savepoint = choose_savepoint(home, interrupted.savepoint if interrupted is not None else savepoint_id, settings)
    world = observe_rewind(settings, home, savepoint.manifest, _require_head(home))
    plan = plan_rewind(savepoint.manifest, world, proved=is_trusted(savepoint), unproved=unproved)
    return replace(
        plan, resumes=None if interrupted is None else interrupted.id, steps=engine.explain(REWIND, interrupted)
    )


def choose_savepoint(home: PipelineHome, savepoint_id: str | None, settings: Settings | None = None) -> Savepoint:
    """Return the named savepoint, or the beginning of the head's path, or the newest proved one of the head's path; with settings, of those whose records Kafka still has.

    Raises:
        SavepointError: there is none.
    """
    if savepoint_id == StateBase.BEGINNING:
        return beginning_of(home, _require_head(home))
    if savepoint_id is not None:
        return load_savepoint(home, savepoint_id)

    def is_of_this_log(manifest: Manifest) -> bool:
        return settings is None or not forks_before(settings, home, manifest.timeline, manifest.batch)

    wanted = " to go back to (from before Kafka lost records, if it did; `--from-beginning` needs none)"
    return newest_proved(home, path_of(home, _require_head(home)), wanted, is_of_this_log)


def is_trusted(savepoint: Savepoint) -> bool:
    """Say whether a savepoint is proved; the beginning has no state that could be wrong."""
    return savepoint.id == StateBase.BEGINNING or savepoint.status == ProofState.PROVED


def rewind_stream(
    settings: Settings,
    pipeline: str,
    savepoint_id: str | None = None,
    *,
    unproved: bool = False,
    stop_before_head: bool = False,
    progress: Progress = report_nothing,
    drain_seconds: float = DRAIN_S,
) -> RewindReport:
    """Rewind, or resume the rewind that was interrupted or stopped before the head moved.

    Args:
        savepoint_id: which savepoint, or `BEGINNING`; None resumes an unfinished rewind, or takes the newest proved one.
        stop_before_head: stop once the new timeline is caught up and compared; the old head serves, its stream stays stopped.
        drain_seconds: how long to wait for a running driver.

    Raises:
        SavepointError: the savepoint is not proved, missing or damaged, or the ledger contradicts it.
        FingerprintError: the definition has changed.
        LogGapError: Kafka no longer has the records to read again, or the topic was created again.
        RequestError: another operation is not finished, or there is no batch to go back from.
        ServiceError: the driver did not stop, or the one that catches up failed.
        LostRaceError: the head moved meanwhile, or another process works on an operation.
    """
    home = settings.pipeline(pipeline)
    effects = RewindEffects(settings, home, progress, drain_seconds, unproved=unproved)
    stop_after = OperationStep.COMPARED if stop_before_head else None
    with only_operation(home):
        ran = finish(engine.run(REWIND, effects, savepoint_id, stop_after=stop_after))
    return _report(ran.record, resumed=ran.resumed)


def _report(rewind: Rewind, *, resumed: bool) -> RewindReport:
    moved = rewind.step >= OperationStep.MOVED
    return RewindReport(
        operation=rewind.id,
        savepoint=rewind.savepoint,
        timeline=rewind.child,
        forked_at=f"{rewind.parent}@{rewind.batch}",
        head=rewind.child if moved else rewind.head,
        moved=moved,
        planned=rewind.plan,
        batches=rewind.batches,
        records=rewind.records,
        compared_at=rewind.head_batch,
        comparison=rewind.comparison or {},
        resumed=resumed,
        running=moved and rewind.was_running,
    )


def _last_of(home: PipelineHome, path: Sequence[Segment]) -> LedgerRow:
    """Return the last committed batch of a path, which has one: the begin of a rewind refused a head without a batch."""
    last = newest_batch(home, path)
    assert last is not None
    return last


def _require_head(home: PipelineHome) -> str:
    head_now = head(home)
    if head_now is None:
        message = f"{home.root.name} has no head timeline: it never ran, so there is nothing to go back from"
        raise RequestError(message)
    return head_now
