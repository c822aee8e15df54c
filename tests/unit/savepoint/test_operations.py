"""What every operation promises, whatever it does: one table of operations, one test for each promise.

Without Spark and Kafka: the replay only moves files and the driver that catches up only writes batches; everything else is real.
The kill tables are `long`; `make test` has the most telling kill of each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from homes.operations import Crash, World, die_around, patch_effect
from homes.rewind import commit
from homes.savepoint import FINGERPRINT, TOPIC, add_timeline, catch_checkpoint_up, commit_batches, row
from rivertwice.core.errors import (
    FingerprintError,
    LogGapError,
    LostRaceError,
    RequestError,
    SavepointError,
    ServiceError,
)
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations import record
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.fork import last_in_changelog
from rivertwice.savepoint.operations.record import only_operation, read_operations
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.operations.rewind import rewind_stream
from rivertwice.savepoint.operations.steps import RESTORE, REWIND, OperationPlan
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.stream.lease import Owner
from rivertwice.stream.seal import is_sealed, stream_app
from rivertwice.timeline.intent import Intent, write_intent
from rivertwice.timeline.lineage import Fork, Timeline, path_ledger, timeline_ledger
from rivertwice.timeline.sequence import head, read_sequence

long = pytest.mark.long


@pytest.fixture
def unreplayed_world(planned_world, monkeypatch):
    """The home of planned restores, where a replay is a failure."""
    patch_effect(monkeypatch, "replay_recorded", lambda *_, **__: pytest.fail("batches were replayed"))
    return planned_world


def check_restored(world, report, operation):
    assert (report.timeline, report.forked_at, report.replayed) == ("t2", 6, operation.replayed)
    checkpoint = world.home.checkpoint("t2")
    assert sorted(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit()) == list(range(7))
    assert (checkpoint / "offsets/6").read_text() == row(6).offsets_text
    assert (checkpoint / "metadata").exists()
    assert [one.batch for one in path_ledger(world.home)] == list(range(7))
    (done,) = read_operations(world.home)
    assert done.savepoint == report.savepoint
    if operation.name != "planned":
        assert report.savepoint == operation.asked(world)


def check_planned(world, report, operation):
    check_restored(world, report, operation)
    home, base = world.home, load_savepoint(world.home, report.savepoint)
    assert (base.manifest.batch, base.manifest.timeline, base.status, base.leases) == (6, "t1", "taken", ())
    assert base.verify_files() == base.manifest.size
    for path in base.manifest.files:
        saved = home.savepoints / base.id / "checkpoint" / path
        assert (home.checkpoint("t2") / path).read_bytes() == saved.read_bytes()
    assert (home.checkpoint("t1") / "offsets/6").exists()  # the old timeline's own checkpoint stays
    (done,) = read_operations(home)
    assert (done.planned, done.origin) == (True, world.taken.id)
    # one that was taken right before a kill keeps its lease until that runs out; it is nobody's base
    others = [each for each in list_savepoints(home) if each.manifest.batch == 6 and each.id != base.id]
    assert [each.status for each in others] in ([], ["taken"])


def check_rewound(world, report, operation):
    assert (report.timeline, report.forked_at, report.moved, report.head) == ("t2", "t1@3", True, "t2")
    own = [(one.timeline, one.batch) for one in path_ledger(world.home)]
    assert own == [*(("t1", batch) for batch in range(4)), ("t2", 4), ("t2", 5)]
    (done,) = read_operations(world.home)
    numbers = {key: done.comparison[key] for key in ("same", "differs", "only_old", "only_new")}
    assert numbers == {"same": 2, "differs": 1, "only_old": 0, "only_new": 0}
    assert (done.records, done.batches) == (30, 2)
    assert done.plan == {"batches": 3, "records": 30, "rows": 3, "windows": 3, "dead": 0}
    moves = [entry.payload["reason"] for entry in read_sequence(world.home) if entry.kind == "head"]
    assert moves[1:] == [f"rewind to {world.taken.id} ({report.operation})"]


@dataclass(frozen=True)
class Operation:
    """An operation: how it is asked for in which home, the effects around which it is killed, what its end must show.

    Attributes:
        telling: the kill that `make test` has.
        newest: its base is the newest proved savepoint, unless another is named.
        replayed: the recorded batches that it replays.
        fork: the batch of t1 where its child leaves.
    """

    name: str
    home: str
    plan: OperationPlan[Any]
    act: Callable[..., Any]
    asked: Callable[[Any], str]
    effects: tuple[str, ...]
    telling: tuple[str, bool]
    check_own: Callable[..., None]
    newest: bool = False
    replayed: int = 0
    fork: int = 6
    genesis: dict[str, Any] = field(default_factory=lambda: {TOPIC: {"0": 70}})

    def run(self, world, **options):
        return self.act(world.settings, "p", self.asked(world), **options)

    def go_on(self, world):
        """Without a word it goes on with what was cut off."""
        return self.act(world.settings, "p")

    def kill(self, world, monkeypatch, effect, **how):
        with monkeypatch.context() as patch:
            die_around(patch, effect, **how)
            with pytest.raises(Crash):
                self.run(world)

    def check(self, world, report):
        home = world.home
        assert (head(home), Timeline.names(home)) == ("t2", ["t1", "t2"])
        line = Timeline.load(home, "t2")
        assert (line.parent, line.first_batch, line.genesis) == (Fork("t1", self.fork), self.fork + 1, self.genesis)
        assert len([entry for entry in read_sequence(home) if entry.kind == "head"]) == 2
        assert (report.running, Intent.load(home).desired) == (True, "running")
        assert not home.drain.exists()
        assert list(home.scratch.glob("*")) == []
        assert [one.step for one in read_operations(home)] == [record.OperationStep.DONE]
        assert load_savepoint(home, world.taken.id).leases == ()
        assert is_sealed(Table(home.tables.changelog).applied_version(stream_app("p", "t1")))
        self.check_own(world, report, self)

    def commit_7(self, home):
        """Let t1 go on with another batch."""
        if self.plan is REWIND:
            commit(home, row(7, emitted=1), {(70, "k"): 1})
        else:
            commit_batches(home, [row(7)])
            catch_checkpoint_up(home, "t1", finished=7)


END = ("create_timeline", "seal_timeline", "move_head")
FROM_SAVEPOINT = Operation(
    "restore",
    "world",
    RESTORE,
    restore_savepoint,
    lambda world: world.taken.id,
    ("verify_files", "write_intent", "download", "replay_recorded", *END, "release_savepoint"),
    ("move_head", False),
    check_restored,
    newest=True,
    replayed=3,
)
FROM_BEGINNING = replace(
    FROM_SAVEPOINT,
    name="beginning",
    asked=lambda _: StateBase.BEGINNING,
    effects=("write_intent", "make_empty_checkpoint", "replay_recorded", *END),
    telling=("replay_recorded", True),
    newest=False,
    replayed=7,
)
PLANNED = replace(
    FROM_BEGINNING,
    name="planned",
    home="unreplayed_world",
    asked=lambda _: StateBase.RESTING,
    effects=("verify_files", "write_intent", "save_checkpoint", "download", *END, "release_savepoint"),
    telling=("save_checkpoint", True),
    check_own=check_planned,
    replayed=0,
)
REWOUND = Operation(
    "rewind",
    "rewind_world",
    REWIND,
    rewind_stream,
    lambda world: world.taken.id,
    ("drain_stream", "download", "run_to_goal", *END, "write_intent"),
    ("seal_timeline", True),
    check_rewound,
    newest=True,
    fork=3,
    genesis={TOPIC: {"0": 40}},
)
OPERATIONS = (FROM_SAVEPOINT, FROM_BEGINNING, PLANNED, REWOUND)


EACH = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)


@pytest.fixture
def ground(request, operation):
    """The home of the operation under test."""
    return request.getfixturevalue(operation.home)


def of(*rows, others=()):
    """Parametrise a test by some operations, each with values of its own."""
    known = [row if isinstance(row, tuple) else (row,) for row in rows]
    ids = ["-".join(getattr(value, "name", getattr(value, "__name__", value)) for value in row[:2]) for row in known]
    return pytest.mark.parametrize(("operation", *others), known, ids=ids)


def results(home):
    return [asdict(one) for one in path_ledger(home)]


def look(home):
    """What an operation that is refused first leaves as it was."""
    return head(home), read_operations(home), Intent.load(home), [one.id for one in list_savepoints(home)]


@long
@EACH
def test_up_to_the_fork_results_stay(ground, operation):
    before = results(ground.home)
    if operation.newest:
        take_savepoint(ground.settings, "p", now=utc_now())  # newer, not proved
    report = operation.go_on(ground) if operation.newest else operation.run(ground)
    assert not report.resumed
    operation.check(ground, report)
    assert results(ground.home)[: operation.fork + 1] == before[: operation.fork + 1]
    assert [asdict(one) for one in timeline_ledger(ground.home, "t1")] == before


KILLS = [(one, effect, after) for one in OPERATIONS for effect in one.effects for after in (False, True)]


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
@pytest.mark.parametrize(
    ("operation", "effect", "after"),
    [
        pytest.param(
            *kill,
            id=f"{kill[0].name}-{'after' if kill[2] else 'before'}-{kill[1]}",
            marks=() if kill[1:] == kill[0].telling else long,
        )
        for kill in KILLS
    ],
)
def test_killed_around_any_effect_and_run_again_the_result_is_the_same(ground, monkeypatch, operation, effect, after):
    operation.kill(ground, monkeypatch, effect, after=after)
    assert last_in_changelog(ground.home, "t1") == 6  # sealed or not
    if effect == "release_savepoint":  # it is done; its leases run out
        assert (head(ground.home), read_operations(ground.home)[-1].step) == ("t2", record.OperationStep.DONE)
        return
    report = operation.run(ground) if after else operation.go_on(ground)
    assert report.resumed
    operation.check(ground, report)


@long
@pytest.mark.parametrize("count", range(1, 9))
@EACH
def test_killed_around_any_record_and_run_again_the_result_is_the_same(ground, monkeypatch, operation, count):
    operation.kill(ground, monkeypatch, "write_operation", count=count)
    operation.check(ground, operation.run(ground) if count == 1 else operation.go_on(ground))


@long
@of(REWOUND)
def test_a_rewind_stopped_before_the_head_moves_serves_as_before(ground, operation):
    report = operation.run(ground, stop_before_head=True)
    assert (report.moved, report.head, report.comparison["differs"]) == (False, "t1", 1)
    assert report.comparison["examples"][0]["new"] == {"n": 2}
    assert results(ground.home) == ground.before
    assert not ground.home.drain.exists()
    again = operation.go_on(ground)
    assert (again.resumed, again.operation) == (True, report.operation)
    operation.check(ground, again)


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
@long
@of(FROM_SAVEPOINT, FROM_BEGINNING, PLANNED)
def test_batches_that_come_in_while_it_was_interrupted_count_too(ground, monkeypatch, operation):
    operation.kill(ground, monkeypatch, "create_timeline")
    operation.commit_7(ground.home)
    report = operation.go_on(ground)
    assert (report.forked_at, Timeline.load(ground.home, "t2").first_batch) == (7, 8)
    assert report.replayed == (operation.replayed and operation.replayed + 1)
    assert (ground.home.checkpoint("t2") / "offsets/7").read_text() == row(7).offsets_text
    assert all(one.leases == () for one in list_savepoints(ground.home))
    if operation is PLANNED:  # its savepoint was taken again
        assert load_savepoint(ground.home, report.savepoint).manifest.batch == 7


@long
@of(FROM_SAVEPOINT, FROM_BEGINNING, PLANNED)
def test_a_parent_that_went_on_behind_a_finished_child_gets_another_child(ground, monkeypatch, operation):
    operation.kill(ground, monkeypatch, "seal_timeline")
    operation.commit_7(ground.home)
    with pytest.raises(LostRaceError, match="run the restore again"):
        operation.run(ground)
    assert head(ground.home) == "t1"
    report = operation.run(ground)
    assert (report.timeline, report.forked_at, head(ground.home)) == ("t3", 7, "t3")
    assert report.replayed == (operation.replayed and operation.replayed + 1)


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
@of(
    (FROM_SAVEPOINT, "download", False, 0),
    (FROM_SAVEPOINT, "replay_recorded", False, 0),
    (FROM_SAVEPOINT, "create_timeline", True, 1),
    (FROM_SAVEPOINT, "seal_timeline", False, 1),
    (PLANNED, "save_checkpoint", False, 0),
    (PLANNED, "download", False, 0),
    (PLANNED, "create_timeline", False, 1),
    (REWOUND, "download", False, 0),
    (REWOUND, "create_timeline", False, 1),
    (REWOUND, "run_to_goal", False, 1),
    (REWOUND, "compare_emitted", False, 1),
    others=("effect", "after", "left"),
)
def test_given_up_the_parent_goes_on_and_what_is_left_is_named(ground, monkeypatch, operation, effect, after, left):
    home, before = ground.home, results(ground.home)
    operation.kill(ground, monkeypatch, effect, after=after)
    report = abandon_operation(ground.settings, "p", operation.plan)
    assert (report.head, head(home), report.running) == ("t1", "t1", True)
    assert report.left[0].startswith(f"operations/{operation.plan.noun}-")
    assert len(report.left) == 1 + left
    assert all((home.root / name.partition(" ")[0]).exists() for name in report.left)
    assert [one.step for one in read_operations(home)] == [record.OperationStep.ABANDONED]
    assert all(one.leases == () for one in list_savepoints(home))
    assert list(home.scratch.glob("*-*")) == []
    assert (Intent.load(home).desired, results(home)) == ("running", before)
    assert not is_sealed(Table(home.tables.changelog).applied_version(stream_app("p", "t1")))
    operation.commit_7(home)  # not sealed: it takes a batch
    again = operation.run(ground)
    assert (again.resumed, head(home)) == (False, again.timeline)
    assert ground.taken.id in {one.id for one in list_savepoints(home)}


@of((FROM_SAVEPOINT, "download"), (REWOUND, "seal_timeline"), others=("effect",))
def test_a_stop_asked_for_meanwhile_stands_when_it_is_given_up(ground, monkeypatch, operation, effect):
    operation.kill(ground, monkeypatch, effect)
    write_intent(ground.home, "stopped", "somebody", utc_now())
    assert not abandon_operation(ground.settings, "p", operation.plan).running
    intent = Intent.load(ground.home)
    assert (intent.desired, intent.by) == ("stopped", "somebody")


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
@pytest.mark.parametrize(("operation", "after"), [(FROM_SAVEPOINT, True), (REWOUND, False)], ids=["restore", "rewind"])
def test_once_the_head_is_sealed_or_moved_it_can_only_be_finished(ground, monkeypatch, operation, after):
    operation.kill(ground, monkeypatch, "move_head", after=after)
    with pytest.raises(RequestError, match="only be finished"):
        abandon_operation(ground.settings, "p", operation.plan)
    assert operation.go_on(ground).resumed
    with pytest.raises(RequestError, match=f"no {operation.plan.noun} of p was interrupted.*nothing to abandon"):
        abandon_operation(ground.settings, "p", operation.plan)


def damage_base(world, _patch):
    (world.home.savepoints / world.taken.id / "checkpoint/metadata").write_text("x")


def lose_log(world, _patch):
    world.begin[0] = 71 if isinstance(world, World) else 41


def leave_path(world, _patch):
    add_timeline(world.home, "t2", parent=Fork("t1", 2), first=3)
    commit_batches(world.home, [row(3, "t2")])


def prove_another_definition(world, _patch):
    other = replace(world.taken.manifest, fingerprint={**FINGERPRINT, "state": "x"})
    world.taken.store.put(f"{world.taken.id}/manifest.json", other.to_bytes())


def change_definition(_world, patch):
    patch_effect(patch, "current_fingerprint", lambda *_: {**FINGERPRINT, "state": "x"})


def upgrade_stream(_world, patch):
    patch_effect(patch, "equivalent_bundles", lambda *_: set())


@pytest.mark.proves(
    "howto-upgrade.md#how-to-change-a-definition-under-a-running-stream", "guarantees.md#restore-fall-back-rewind"
)
@of(
    (FROM_SAVEPOINT, damage_base, SavepointError, "damaged"),
    (PLANNED, damage_base, SavepointError, "damaged"),
    (REWOUND, damage_base, SavepointError, "damaged"),
    (FROM_SAVEPOINT, lose_log, LogGapError, "1 records are gone"),
    (REWOUND, lose_log, LogGapError, "flights-0 offsets 40 to 41"),
    (FROM_SAVEPOINT, leave_path, SavepointError, "rewind"),
    (FROM_BEGINNING, upgrade_stream, FingerprintError, "the stream was upgraded"),
    (PLANNED, prove_another_definition, SavepointError, "no proved savepoint of timeline t1's definition"),
    (REWOUND, change_definition, FingerprintError, "changed: state"),
    others=("spoil", "error", "match"),
)
def test_what_cannot_be_is_refused_before_the_stream_is_touched(ground, monkeypatch, operation, spoil, error, match):
    spoil(ground, monkeypatch)
    before = look(ground.home)
    with pytest.raises(error, match=match):
        operation.run(ground)
    assert look(ground.home) == before


@pytest.mark.proves("howto-savepoints.md#restore", "howto-savepoints.md#planned-without-replay")
@of((FROM_SAVEPOINT, "never proved"), (PLANNED, "nothing to go back to"), (REWOUND, "never proved"), others=("match",))
def test_a_base_that_is_not_proved_needs_a_word(ground, operation, match):
    ground.taken.store.delete(f"{ground.taken.id}/proof.json")
    before = look(ground.home)
    if operation.newest:
        with pytest.raises(SavepointError, match="no proved savepoint"):
            operation.go_on(ground)
    with pytest.raises(SavepointError, match=match):
        operation.run(ground)
    assert look(ground.home) == before
    report = operation.run(ground, unproved=True)
    assert (report.timeline, head(ground.home)) == ("t2", "t2")
    if operation is PLANNED:
        assert (report.replayed, read_operations(ground.home)[-1].origin) == (0, None)


@long
@EACH
def test_a_driver_that_does_not_stop_ends_it(ground, monkeypatch, operation):
    with monkeypatch.context() as patch:
        patch_effect(patch, "lease_owner", lambda _: Owner(1, 1, 0.0, "t1"))
        with pytest.raises(ServiceError, match=f"did not stop within 0 s.*run the {operation.plan.noun} again"):
            operation.run(ground, drain_seconds=0.1)
    assert head(ground.home) == "t1"
    assert not ground.home.drain.exists()
    operation.check(ground, operation.go_on(ground))


@long
@EACH
def test_a_stream_that_was_not_wanted_stays_stopped(ground, operation):
    write_intent(ground.home, "stopped", "test", utc_now())
    assert not operation.run(ground).running
    assert Intent.load(ground.home).desired == "stopped"


@EACH
def test_two_at_once_are_refused(ground, operation):
    for act in (operation.run, lambda ground: abandon_operation(ground.settings, "p", operation.plan)):
        with only_operation(ground.home), pytest.raises(LostRaceError, match="is restoring"):
            act(ground)
    assert read_operations(ground.home) == []


@of(
    (FROM_SAVEPOINT, FROM_SAVEPOINT, "download", "was interrupted at 'fork decided'"),
    (PLANNED, FROM_SAVEPOINT, "download", "was interrupted at 'savepoint taken'"),
    (REWOUND, FROM_SAVEPOINT, "seal_timeline", "finish it"),
    (REWOUND, REWOUND, "seal_timeline", "was interrupted at 'caught up and compared'"),
    others=("second", "effect", "match"),
)
def test_no_other_begins_under_an_unfinished_one(ground, monkeypatch, operation, second, effect, match):
    other = take_savepoint(ground.settings, "p", now=utc_now())
    operation.kill(ground, monkeypatch, effect)
    with pytest.raises(RequestError, match=match):
        second.act(ground.settings, "p", other.id)
    assert len(read_operations(ground.home)) == 1
