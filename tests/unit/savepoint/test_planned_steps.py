"""A planned restore without Spark and Kafka: its savepoint is taken of the drained checkpoint, and nothing is replayed."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from homes.operations import Crash, die_around, patch_effect
from homes.savepoint import add_timeline, catch_checkpoint_up, commit_batches, row
from rivertwice.errors import FingerprintError, LostRaceError, RequestError, SavepointError
from rivertwice.instants import utc_now
from rivertwice.savepoint.bases import RESTING
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint, verify_files
from rivertwice.savepoint.operations import record as steps
from rivertwice.savepoint.operations.effects import abandon_operation
from rivertwice.savepoint.operations.fall_back import fall_back
from rivertwice.savepoint.operations.record import Restore, read_operations, write_operation
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.operations.restore_show import show_restore
from rivertwice.savepoint.operations.steps import RESTORE
from rivertwice.savepoint.records import encode_record
from rivertwice.savepoint.resting import require_own_state
from rivertwice.timeline import ledger
from rivertwice.timeline.intent import read_intent
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, load_timeline, path_ledger
from rivertwice.timeline.sequence import head

pytestmark = pytest.mark.long


@pytest.fixture
def replays(monkeypatch):
    """The numbers of batches that were replayed, by any session."""
    counted: list[int] = []
    patch_effect(monkeypatch, "replay_recorded", lambda *arguments, **_: counted.append(len(arguments[4])))
    return counted


def check_planned(home, report, taken):
    assert (head(home), report.timeline, report.forked_at, report.replayed) == ("t2", "t2", 6, 0)
    base = load_savepoint(home, report.savepoint)
    assert (base.manifest.batch, base.manifest.timeline, base.status) == (6, "t1", "taken")
    assert (base.leases, load_savepoint(home, taken.id).leases) == ((), ())
    assert verify_files(base) == base.manifest.size
    line = load_timeline(home, "t2")
    assert (line.parent, line.first_batch, line.genesis) == (Fork("t1", 6), 7, {"flights": {"0": 70}})
    for path in base.manifest.files:
        assert (home.checkpoint("t2") / path).read_bytes() == (
            home.savepoints / base.id / "checkpoint" / path
        ).read_bytes()
    assert (home.checkpoint("t2") / "offsets/6").read_text() == row(6).offsets_text
    assert (home.checkpoint("t1") / "offsets/6").exists()  # the old timeline's own checkpoint stays
    intent = read_intent(home)
    assert intent is not None
    assert intent.desired == "running"
    assert not home.drain.exists()
    assert list(home.scratch.iterdir()) == []
    done = read_operations(home)[-1]
    assert (done.step, done.planned, done.origin, done.savepoint) == (steps.DONE, True, taken.id, base.id)


def test_a_planned_restore_takes_its_savepoint_at_the_fork_replaying_none(planned_world, replays):
    settings, home, taken = planned_world
    before = [asdict(r) for r in path_ledger(home)]
    report = restore_savepoint(settings, "p", RESTING)
    check_planned(home, report, taken)
    assert replays == []
    assert [asdict(r) for r in path_ledger(home)] == before


def count_rows_read(monkeypatch, act):
    """Return how many whole rows of the ledger an act reads."""
    real, counted = ledger.from_table, []

    def from_table(table):
        counted.append(table.num_rows)
        return real(table)

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "from_table", from_table)
        act()
    return sum(counted)


def test_a_planned_restore_reads_no_more_rows_behind_a_long_history(planned_world, replays, monkeypatch):
    settings, home, _ = planned_world
    append_ledger(home, [row(batch) for batch in range(7, 300)])
    commit_batches(home, [row(batch) for batch in range(300, 304)])
    catch_checkpoint_up(home, "t1", finished=303)
    shown = count_rows_read(monkeypatch, lambda: show_restore(settings, "p", RESTING))
    done = count_rows_read(monkeypatch, lambda: restore_savepoint(settings, "p", RESTING))
    assert (head(home), replays) == ("t2", [])
    assert 0 < shown < 40
    assert 0 < done < 40


EFFECTS = (
    "verify_files",
    "write_intent",
    "save_checkpoint",
    "download",
    "create_timeline",
    "seal_timeline",
    "move_head",
    "release_savepoint",
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("effect", EFFECTS)
def test_killed_around_any_effect_a_planned_restore_ends_the_same(planned_world, monkeypatch, effect, after):
    settings, home, taken = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, effect, after=after)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    if effect == "release_savepoint":  # it is done; its leases run out
        assert (head(home), read_operations(home)[-1].step) == ("t2", steps.DONE)
        return
    report = restore_savepoint(settings, "p", RESTING)
    assert report.resumed
    patch_leases_away(home, report)
    check_planned(home, report, taken)


def patch_leases_away(home, report):
    """A savepoint whose take was killed before it was recorded keeps its lease until that runs out; it is nobody's base."""
    others = [each for each in list_savepoints(home) if each.manifest.batch == 6 and each.id != report.savepoint]
    assert len(others) <= 1
    assert all(each.status == "taken" for each in others)


@pytest.mark.parametrize("count", range(1, 9))
def test_killed_around_any_record_a_planned_restore_ends_the_same(planned_world, monkeypatch, count):
    settings, home, taken = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, "write_operation", count=count)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    again = None if count > 1 else RESTING  # without a word it goes on with what was cut off, if that was recorded
    check_planned(home, restore_savepoint(settings, "p", again), taken)


def test_batches_that_came_in_meanwhile_are_in_a_savepoint_taken_again(planned_world, monkeypatch, replays):
    settings, home, _ = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, "create_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    (first,) = [each for each in list_savepoints(home) if each.manifest.batch == 6]
    commit_batches(home, [row(7)])
    catch_checkpoint_up(home, "t1", finished=7)
    report = restore_savepoint(settings, "p", RESTING)
    assert (report.forked_at, report.replayed, load_timeline(home, "t2").first_batch) == (7, 0, 8)
    assert load_savepoint(home, report.savepoint).manifest.batch == 7
    assert load_savepoint(home, first.id).leases == ()
    assert (home.checkpoint("t2") / "offsets/7").read_text() == row(7).offsets_text
    assert replays == []


def test_a_parent_that_went_on_after_the_record_gets_another_child(planned_world, monkeypatch):
    settings, home, _ = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, "seal_timeline")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    commit_batches(home, [row(7)])
    catch_checkpoint_up(home, "t1", finished=7)
    with pytest.raises(LostRaceError, match="run the restore again"):
        restore_savepoint(settings, "p", RESTING)
    report = restore_savepoint(settings, "p", RESTING)
    assert (report.timeline, report.forked_at, report.replayed, head(home)) == ("t3", 7, 0, "t3")


def test_a_batch_whose_commit_file_is_missing_is_the_only_one_replayed(planned_world, replays):
    settings, home, _ = planned_world
    (home.checkpoint("t1") / "commits/6").unlink()  # the driver was killed between the two
    report = restore_savepoint(settings, "p", RESTING)
    assert (report.forked_at, report.replayed, replays) == (6, 1, [1])
    assert load_savepoint(home, report.savepoint).manifest.batch == 5


@pytest.mark.parametrize("file", ["offsets/5", "offsets/6", "metadata"])
def test_a_damaged_checkpoint_lets_the_newest_proved_be_replayed(planned_world, replays, file):
    settings, home, taken = planned_world
    (home.checkpoint("t1") / file).write_text("x")
    report = restore_savepoint(settings, "p", RESTING)
    assert (report.savepoint, report.forked_at, report.replayed, replays) == (taken.id, 6, 3, [3])
    assert [each.id for each in list_savepoints(home)] == [taken.id]


@pytest.mark.proves("howto-savepoints.md#planned-without-replay")
def test_without_a_proved_savepoint_a_planned_restore_touches_nothing(planned_world):
    settings, home, taken = planned_world
    taken.store.delete(f"{taken.id}/proof.json")
    with pytest.raises(SavepointError, match="nothing to go back to"):
        restore_savepoint(settings, "p", RESTING)
    assert (head(home), read_operations(home), len(list_savepoints(home))) == ("t1", [], 1)
    report = restore_savepoint(settings, "p", RESTING, unproved=True)
    assert (report.replayed, read_operations(home)[-1].origin) == (0, None)


@pytest.mark.proves("howto-upgrade.md#how-to-change-a-definition-under-a-running-stream")
def test_a_proved_savepoint_of_another_definition_is_no_way_back(planned_world):
    settings, _, taken = planned_world
    other = replace(taken.manifest, fingerprint={"state": "x", "semantics": "m", "decode": "d"})
    taken.store.put(f"{taken.id}/manifest.json", other.to_bytes())
    with pytest.raises(SavepointError, match="no proved savepoint of timeline t1's definition"):
        restore_savepoint(settings, "p", RESTING)


def test_a_rotten_proved_savepoint_refuses_a_planned_restore_untouched(planned_world):
    settings, home, taken = planned_world
    (home.savepoints / taken.id / "checkpoint/metadata").write_text("x")
    with pytest.raises(SavepointError, match="damaged"):
        restore_savepoint(settings, "p", RESTING)
    intent = read_intent(home)
    assert intent is not None
    assert (intent.desired, head(home), read_operations(home)) == ("running", "t1", [])


def test_damage_without_a_proved_savepoint_ends_it_and_names_the_way_out(planned_world):
    settings, home, taken = planned_world
    taken.store.delete(f"{taken.id}/proof.json")
    (home.checkpoint("t1") / "offsets/5").write_text("x")
    with pytest.raises(SavepointError, match=r"is damaged .*--abandon"):
        restore_savepoint(settings, "p", RESTING, unproved=True)
    assert head(home) == "t1"
    assert abandon_operation(settings, "p", RESTORE).running


@pytest.mark.parametrize("effect", ["save_checkpoint", "download", "create_timeline"])
def test_a_planned_restore_given_up_leaves_the_parent_and_its_savepoints(planned_world, monkeypatch, effect):
    settings, home, taken = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, effect)
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    report = abandon_operation(settings, "p", RESTORE)
    assert (report.head, head(home), report.running) == ("t1", "t1", True)
    assert all(each.leases == () for each in list_savepoints(home))
    assert restore_savepoint(settings, "p", RESTING).timeline in ("t2", "t3")
    assert taken.id in {each.id for each in list_savepoints(home)}


def test_a_fall_back_finishes_a_planned_restore_whose_checkpoint_broke(planned_world, monkeypatch, replays):
    settings, home, taken = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, "save_checkpoint")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    (home.checkpoint("t1") / "offsets/6").write_text("x")
    fallen = fall_back(settings, "p", progress=print)
    assert fallen.report is not None
    assert (fallen.report.resumed, fallen.report.savepoint, replays, head(home)) == (True, taken.id, [3], "t2")


@pytest.mark.parametrize("step", [steps.RECORDED, steps.CHECKED, steps.DRAINED, steps.FORKED, steps.REPLAYED])
def test_what_0_1_stored_of_a_restore_is_resumed_by_replaying(planned_world, replays, step):
    settings, home, taken = planned_world
    forked = 6 if step >= steps.FORKED else None
    stored = Restore(
        "restore-0a1b2c3d", taken.id, "t1", "t2", was_running=True, started_at=utc_now(), step=step, forked_at=forked
    )
    write_operation(home, stored)
    path = home.operations / "restore-0a1b2c3d.json"
    text = path.read_text()
    for field in ('"planned": false', '"planned":false', '"origin": null', '"origin":null'):
        text = text.replace(f"{field},", "").replace(f",{field}", "")
    assert "planned" not in text
    assert "origin" not in text
    path.write_text(text)
    with pytest.raises(RequestError, match="was cut off"):
        restore_savepoint(settings, "p", RESTING)
    report = restore_savepoint(settings, "p")
    assert (report.resumed, report.savepoint, report.replayed, replays) == (True, taken.id, 3, [3])
    assert read_operations(home)[-1].planned is False


def test_a_second_way_is_refused_while_one_is_unfinished(planned_world, monkeypatch):
    settings, _, taken = planned_world
    with monkeypatch.context() as patch:
        die_around(patch, "download")
        with pytest.raises(Crash):
            restore_savepoint(settings, "p", RESTING)
    with pytest.raises(RequestError, match="was cut off at 'savepoint taken'"):
        restore_savepoint(settings, "p", taken.id)


def test_an_upgraded_timeline_without_a_batch_is_no_base_of_a_planned_one(planned_world):
    _, home, _ = planned_world
    add_timeline(home, "t2", parent=Fork("t1", 6), first=7)
    line, parent = load_timeline(home, "t2"), load_timeline(home, "t1")
    with pytest.raises(FingerprintError, match="made by an upgrade and has no batch yet"):
        require_own_state(replace(line, fingerprint={"state": "new"}), parent, row(6))
    with pytest.raises(SavepointError, match="made by an accepted gap and has no batch yet"):
        require_own_state(replace(line, genesis={"flights": {"0": 99}}), parent, row(6))
    require_own_state(replace(line, genesis={"flights": {"0": 70}}), parent, row(6))


def test_an_upgrade_record_that_was_proved_meanwhile_reads_back(planned_world):
    _, home, taken = planned_world
    taken.store.put(f"{taken.id}/proof.json", encode_record({"proved": True}))
    stored = Restore(
        "restore-1",
        RESTING,
        "t1",
        "t2",
        was_running=True,
        started_at=utc_now(),
        bundle="b",
        planned=True,
        origin=taken.id,
    )
    write_operation(home, stored)
    (read,) = read_operations(home)
    assert (read, read.held) == (stored, (taken.id,))
