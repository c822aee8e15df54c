"""A planned restore over a real broker: behind many batches it replays none, and the stream goes on as if nothing had happened."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from homes.operations import Crash, die_around, patch_effect
from rivertwice.core.errors import ReplayMismatchError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.savepoint.catalogue import hash_tree, list_savepoints, load_savepoint
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.keep_up import keep_up
from rivertwice.savepoint.manifest import StateBase
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.proof import last_attempt, read_state
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.savepoint.prune import prune_savepoints
from rivertwice.savepoint.recovery import view_recovery
from rivertwice.savepoint.take import take_savepoint
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served_rows import stream_rows
from running.warm_spark import own_session
from streams.synthetic import DriverProcess, flights, make_small_project, produce, run_to_end, wait_for_batch

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "planned-restore"
FIRST, SECOND = 260, 60
BEGINS = datetime(2013, 7, 1, 4, tzinfo=UTC)
STEPS = 8


@pytest.fixture(scope="module")
def ran(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, str]:
    """A stream that ran to its end, with a savepoint taken early; do not change its home."""
    settings = make_small_project(tmp_path_factory.mktemp("planned"), NAME, bootstrap=broker.bootstrap)
    produce(settings, NAME, flights(FIRST, start=BEGINS))
    driver = DriverProcess(settings, NAME, "--until-end")
    try:
        wait_for_batch(settings, NAME, 3, driver=driver, seconds=300)
        taken = take_savepoint(settings, NAME, now=utc_now(), reason="early")
        driver.finish(300)
    finally:
        driver.stop()
    assert path_ledger(settings.pipeline(NAME))[-1].batch > taken.manifest.batch + 10
    return settings, taken.id


@pytest.fixture(scope="module")
def spark(ran: tuple[Settings, str]):
    settings, savepoint = ran
    home = settings.pipeline(NAME)
    with own_session():
        yield session_of(settings, load_state_definition(home, load_savepoint(home, savepoint).manifest))


@pytest.fixture
def world(ran, spark, tmp_path: Path) -> tuple[Settings, str]:
    """A copy of that home, in which the early savepoint is proved."""
    settings, savepoint = ran
    shutil.copytree(settings.home, tmp_path / "home")
    copied = Settings(settings.project, tmp_path / "home", settings.bootstrap, settings.spark_master)
    assert prove_savepoint(copied, NAME, savepoint, batches=3, spark=spark).proved
    return copied, savepoint


def rows_of(settings: Settings) -> list[dict[str, object]]:
    rows = stream_rows(settings.pipeline(NAME)).to_pylist()
    kept = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    return sorted(kept, key=lambda row: (row["window_start"], row["origin"]))


def no_spark(*_: object) -> None:
    pytest.fail("a session was started to replay batches")


def test_behind_many_batches_none_is_replayed_and_the_proof_follows_later(world, spark, monkeypatch):
    settings, origin = world
    home = settings.pipeline(NAME)
    rows, ledger = rows_of(settings), [asdict(row) for row in path_ledger(home)]
    last = ledger[-1]["batch"]
    with monkeypatch.context() as patch:
        patch_effect(patch, "session_of", no_spark)
        patch_effect(patch, "replay_recorded", no_spark)
        report = restore_savepoint(settings, NAME, StateBase.RESTING)
    assert (head(home), report.forked_at, report.replayed) == ("t2", last, 0)
    assert rows_of(settings) == rows
    assert [asdict(row) for row in path_ledger(home)] == ledger
    assert read_state(spark, home.checkpoint("t2"), last) == read_state(spark, home.checkpoint("t1"), last)
    view = view_recovery(settings, NAME)
    assert [restore.savepoint for restore in view.awaiting] == [report.savepoint]
    assert view.estimate is not None
    assert (view.estimate.savepoint, view.estimate.batches) == (
        origin,
        last - load_savepoint(home, origin).manifest.batch,
    )
    proof = prove_savepoint(settings, NAME, report.savepoint, spark=spark)
    assert (proof.proved, proof.batches, proof.last_batch) == (True, view.estimate.batches, last)
    assert proof.batch_s is not None
    after = view_recovery(settings, NAME)
    assert after.estimate is not None
    assert (after.awaiting, after.estimate.batches, after.estimate.measured) == ((), 0, True)


def test_killed_around_any_step_and_resumed_it_is_the_same(world, spark, monkeypatch, tmp_path):
    settings, _ = world
    rows, ledger = rows_of(settings), [asdict(row) for row in path_ledger(settings.pipeline(NAME))]
    last = ledger[-1]["batch"]
    expected = read_state(spark, settings.pipeline(NAME).checkpoint("t1"), last)
    for count in range(1, STEPS + 1):
        shutil.copytree(settings.home, tmp_path / f"killed-{count}")
        own = Settings(settings.project, tmp_path / f"killed-{count}", settings.bootstrap, settings.spark_master)
        home = own.pipeline(NAME)
        with monkeypatch.context() as patch:
            die_around(patch, "write_operation", count=count, after=True)
            with pytest.raises(Crash):
                restore_savepoint(own, NAME, StateBase.RESTING)
        if count < STEPS:
            report = restore_savepoint(own, NAME)
            assert (report.resumed, report.replayed, report.forked_at) == (True, 0, last)
        assert head(home) == "t2"
        assert rows_of(own) == rows
        assert [asdict(row) for row in path_ledger(home)] == ledger
        assert read_state(spark, home.checkpoint("t2"), last) == expected


def rot_newest_changes(checkpoint: Path) -> None:
    """Let the newest change of every state partition be that of the version before."""
    for partition in (path for path in (checkpoint / "state/0").iterdir() if path.name.isdigit()):
        changes = sorted(
            partition.glob("*.changelog"), key=lambda path: int(path.name.partition("_")[0].partition(".")[0])
        )
        assert changes[-1].read_bytes() != changes[-2].read_bytes()
        changes[-1].write_bytes(changes[-2].read_bytes())


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_a_savepoint_of_a_state_that_had_rotted_is_not_proved(world, spark):
    settings, origin = world
    home = settings.pipeline(NAME)
    taken = load_savepoint(home, restore_savepoint(settings, NAME, StateBase.RESTING).savepoint)
    checkpoint = home.savepoints / taken.id / "checkpoint"
    rot_newest_changes(checkpoint)
    whole = replace(taken.manifest, files=hash_tree(checkpoint))
    (home.savepoints / taken.id / "manifest.json").write_bytes(whole.to_bytes())
    with pytest.raises(ReplayMismatchError, match="does not load"):
        prove_savepoint(settings, NAME, taken.id, spark=spark)
    assert load_savepoint(home, taken.id).status == "taken"
    assert "does not load" in (last_attempt(taken) or "")
    assert prune_savepoints(home, keep=0, now=utc_now()).deleted == ()
    assert {each.id for each in list_savepoints(home)} == {origin, taken.id}


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_the_stream_goes_on_exactly_as_without_the_restore(world, tmp_path):
    # Last in the file: it adds records, which every later driver of the others would read.
    settings, _ = world
    home = settings.pipeline(NAME)
    shutil.copytree(settings.home, tmp_path / "untouched")
    untouched = Settings(settings.project, tmp_path / "untouched", settings.bootstrap, settings.spark_master)
    restore_savepoint(settings, NAME, StateBase.RESTING)
    produce(settings, NAME, flights(SECOND, seed=2, start=BEGINS + timedelta(minutes=2 * FIRST)))
    run_to_end(settings, NAME)
    run_to_end(untouched, NAME)
    grown = path_ledger(home)
    assert {row.timeline for row in grown} == {"t1", "t2"}
    assert sum(row.read for row in grown) == FIRST + SECOND
    assert rows_of(settings) == rows_of(untouched)
    assert [row.digest for row in grown] == [row.digest for row in path_ledger(untouched.pipeline(NAME))]
    # The job that the agent starts: the planned savepoint first, then one for the objective.
    (waiting,) = view_recovery(settings, NAME).awaiting
    assert keep_up(settings, NAME, waiting.savepoint)
    assert keep_up(settings, NAME, None)
    after = view_recovery(settings, NAME)
    assert after.estimate is not None
    assert (after.awaiting, after.estimate.batches) == ((), 0)
