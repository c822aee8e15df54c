"""The state of a running pipeline is rewritten into another number of partitions: same rows, same proofs, whatever kills it on the way."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histories.random_histories import Record, keyed, random_batches
from homes.operations import Crash, die_around, patch_effect
from homes.project import edit_yaml
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.operations.upgrade import show_upgrade, upgrade_stream
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.proof import canonical_state, read_state
from rivertwice.savepoint.state_files import repartition_state
from rivertwice.savepoint.take import take_savepoint
from rivertwice.stream.checkpoint import partitions_of
from rivertwice.timeline.lineage import Timeline, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served import rebuild_served
from running.tiers import in_turn
from running.warm_spark import own_session, run_command_warm
from streams.kinds import NAME, check_explained, make_kind_project, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
BEFORE, AFTER = 2, 5
STEPS = 8
SLOW = pytest.mark.faults


def set_partitions(settings: Settings, number: int) -> None:
    edit_yaml(settings.definitions / NAME, lambda document: document["stream"].update(shuffle_partitions=number))


def rows_of_state(settings: Settings, timeline: str, batch: int) -> list[bytes]:
    """Return the decoded state as a sorted list, without its partitions."""
    home = settings.pipeline(NAME)
    checkpoint = str(home.checkpoint(timeline))
    with own_session():
        spark = session_of(settings, load_definition(settings.definitions / NAME))
        _ = spark.streams
        stores = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "stateStoreName").collect()
        rows: list[bytes] = []
        for operator, store in sorted({(row[0], row[1]) for row in stores}):
            reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", operator)
            reader = reader if store == "default" else reader.option("storeName", store)
            decoded = reader.load(checkpoint).select("key", "value").collect()
            rows += [f"{operator}/{store}".encode() + canonical_state(row) for row in decoded]
    return sorted(rows)


def digest_of_state(settings: Settings, timeline: str, batch: int) -> Any:
    with own_session():
        spark = session_of(settings, load_definition(settings.definitions / NAME))
        return read_state(spark, settings.pipeline(NAME).checkpoint(timeline), batch)


def copy_home(settings: Settings, folder: Path) -> Settings:
    shutil.copytree(settings.home, folder)
    return Settings(settings.project, folder, settings.bootstrap, settings.spark_master)


def digests(settings: Settings) -> list[tuple[int, str, int]]:
    return [(row.batch, row.digest, row.batch_watermark_ms) for row in path_ledger(settings.pipeline(NAME))]


def prepare(tmp_path: Path, broker: BrokerInfo, topic: str, kind: str) -> tuple[Settings, str, Callable[[int], None]]:
    """Make a stream of two thirds of its records with a savepoint behind the first, proved; the function sends a third."""
    chance = random.Random(f"repartition {kind}")
    settings = make_kind_project(tmp_path, broker, topic, kind, batch=30)
    definition = load_definition(settings.definitions / NAME)
    batches = random_batches(chance, 9)
    records: list[Record] = [
        record for batch in (keyed(batches, spread=False) if kind == "fold" else batches) for record in batch
    ]

    def send_third(number: int) -> None:
        size = len(records) // 3
        send(settings, definition, records[number * size : (number + 1) * size])

    send_third(0)
    run_to_end(settings, tmp_path / "driver.log")
    taken = take_savepoint(settings, NAME, now=utc_now(), reason="early")
    send_third(1)
    run_to_end(settings, tmp_path / "driver.log")
    assert run_command_warm(settings, "savepoint", "prove", NAME, taken.id)["proved"]
    return settings, taken.id, send_third


@pytest.mark.faults
def test_each_kind_goes_on_equal_in_another_number_of_partitions(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    (kind,) = in_turn(["session", "hopping", "joined intervals", "joined sources", "as-of intervals", "fold"])
    settings, early, send_third = prepare(tmp_path, broker, topic, kind)
    home = settings.pipeline(NAME)
    last = path_ledger(home)[-1]
    assert partitions_of(last.offsets_text) == BEFORE
    at_end = take_savepoint(settings, NAME, now=utc_now(), reason="right before")
    untouched = copy_home(settings, tmp_path / "untouched")

    set_partitions(settings, AFTER)
    plan = run_command_warm(settings, "upgrade", NAME, "--dry-run")
    assert (plan["way"], plan["partitions"], plan["refusal"]) == ("same", [BEFORE, AFTER], None)
    done = run_command_warm(settings, "upgrade", NAME, "--yes")
    assert (done["timeline"], done["forked_at"], done["replayed"]) == ("t2", last.batch, 0)
    assert Timeline.load(home, "t2").shuffle_partitions == AFTER
    assert rows_of_state(settings, "t2", last.batch) == rows_of_state(settings, "t1", last.batch)

    send_third(2)
    run_to_end(settings, tmp_path / "driver.log")
    run_to_end(untouched, tmp_path / "untouched.log")
    assert digests(settings) == digests(untouched)
    newest = path_ledger(home)[-1]
    assert (newest.timeline, partitions_of(newest.offsets_text)) == ("t2", AFTER)
    assert newest.batch > last.batch

    # A proof from before the change replays it, too, and so does the proof of the savepoint that the new timeline began from.
    for savepoint in (at_end.id, done["savepoint"]):
        assert run_command_warm(settings, "savepoint", "prove", NAME, savepoint)["proved"]
    restored = run_command_warm(settings, "savepoint", "restore", NAME, early, "--yes")
    assert (restored["timeline"], restored["forked_at"]) == ("t3", newest.batch)
    assert restored["replayed"] == newest.batch - load_savepoint(home, early).manifest.batch
    assert digest_of_state(settings, "t3", newest.batch) == digest_of_state(settings, "t2", newest.batch)
    rebuild_served(home, load_definition(settings.definitions / NAME))
    check_explained(run_command_warm(settings, "reconcile", NAME))

    if kind != "session":
        return
    # Back: a rewind to before the change runs in the old number, and an upgrade would change it again.
    run_command_warm(settings, "savepoint", "rewind", NAME, early, "--yes")
    assert (head(home), partitions_of(path_ledger(home)[-1].offsets_text)) == ("t4", BEFORE)
    assert show_upgrade(settings, NAME, unproved=True).partitions == (BEFORE, AFTER)


@SLOW
def test_killed_around_any_step_the_same_is_reached(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _, _ = prepare(tmp_path, broker, topic, "hopping")
    last = path_ledger(settings.pipeline(NAME))[-1].batch
    ledger = digests(settings)
    set_partitions(settings, AFTER)
    expected = None
    for count in range(STEPS + 1):
        own = copy_home(settings, tmp_path / f"killed-{count}")
        home = own.pipeline(NAME)
        with monkeypatch.context() as patch, own_session():
            spark = session_of(own, load_definition(own.definitions / NAME))
            if count:
                die_around(patch, "write_operation", count=count, after=True)
            else:
                patch_effect(patch, "repartition_state", _half_rewritten)
            with pytest.raises(Crash):
                upgrade_stream(own, NAME, spark=spark)
        if count < STEPS:
            plan = run_command_warm(own, "upgrade", NAME, "--dry-run")
            assert plan["resumes"] is not None
            assert run_command_warm(own, "upgrade", NAME, "--yes")["resumed"]
        assert (head(home), digests(own)) == ("t2", ledger)
        assert Timeline.load(home, "t2").shuffle_partitions == AFTER
        state = digest_of_state(own, "t2", last)
        expected = expected or state
        assert state == expected


def _half_rewritten(spark: Any, checkpoint: Path, batch: int, partitions: int) -> bool:
    repartition_state(spark, checkpoint, batch, partitions)
    shutil.rmtree(checkpoint / "state" / "0" / "1")
    raise Crash


@pytest.mark.faults
def test_a_timeline_without_a_batch_is_not_saved_nor_changed_again(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    settings, early, send_third = prepare(tmp_path, broker, topic, "hopping")
    home = settings.pipeline(NAME)
    last = path_ledger(home)[-1].batch
    set_partitions(settings, AFTER)
    run_command_warm(settings, "upgrade", NAME, "--yes")
    with pytest.raises(AssertionError, match="has no batch yet, and its checkpoint was changed"):
        run_command_warm(settings, "savepoint", "take", NAME)
    set_partitions(settings, 3)
    with pytest.raises(AssertionError, match="has its state in 5 partitions and has no batch yet"):
        run_command_warm(settings, "upgrade", NAME, "--yes")
    set_partitions(settings, AFTER)
    # A restore of a savepoint from before the change gives its child the number of the head.
    assert run_command_warm(settings, "savepoint", "restore", NAME, early, "--yes")["timeline"] == "t3"
    assert digest_of_state(settings, "t3", last) == digest_of_state(settings, "t2", last)
    send_third(2)
    run_to_end(settings, tmp_path / "driver.log")
    assert partitions_of(path_ledger(home)[-1].offsets_text) == AFTER
    assert load_state_definition(home, take_savepoint(settings, NAME, now=utc_now(), reason="after").manifest)
    with pytest.raises(AssertionError, match="nothing in the definition"):
        run_command_warm(settings, "upgrade", NAME, "--yes")
