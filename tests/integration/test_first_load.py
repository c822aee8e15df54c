"""`start --from-batch`: the past by batch, the present by stream, and what is served is what a stream of everything and its backfills serve."""

from __future__ import annotations

import json
import os
import random
import signal
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from histories.random_histories import random_batches
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.backfill import compute, load, load_plan
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine import session
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile import observe
from rivertwice.savepoint.take import take_savepoint
from rivertwice.stream import loaded
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.lineage import head_path, path_ledger
from running.tiers import in_turn
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.first_load import (
    BATCH,
    closing_records,
    finish,
    first_load_of,
    from_batch,
    late_records,
    load_whole,
    reconciled,
    said_by,
    send_with_dead_letters,
    served_rows_sha256,
)
from streams.keyed import NAME, keyed_backlog, make_keyed_project
from streams.kinds import NAME as KIND
from streams.kinds import make_kind_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
RECORDS, DAYS = 1500, 3


def make(folder: Path, broker: BrokerInfo, topic: str) -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    return make_keyed_project(folder, broker.bootstrap, topic, max_offsets_per_trigger=BATCH, shuffle_partitions=1)


def streamed_and_repaired(settings: Settings, log: Path) -> str:
    """Stream the whole log, publish its late windows, and return what is served."""
    run_driver_warm(settings, NAME, log)
    report = reconciled(settings)
    assert report["counts"]["served"]["LATE"]
    run_command_warm(settings, "backfill", "run", NAME, "--yes")
    return served_rows_sha256(settings)


@pytest.mark.proves("architecture.md#the-past-by-batch-the-present-by-stream")
def test_a_loaded_past_serves_what_a_stream_and_its_backfills_serve(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = keyed_backlog(3, RECORDS, days=DAYS)
    monkeypatch.setattr(load_plan, "LEAST_BLOCK", 25)
    plain, ours = make(tmp_path / "plain", broker, topic), make(tmp_path / "loaded", broker, topic)
    dead = send_with_dead_letters(plain, topic, records)
    shown = json.loads(from_batch(ours, "--dry-run").stdout)["plan"]
    assert FirstLoad.load(ours.pipeline(NAME)) is None
    assert shown["records"] > 0.6 * RECORDS
    assert shown["records"] + shown["streamed"] == RECORDS + dead
    assert shown["accepted"] + sum(shown["rejected"].values()) == shown["records"]

    first = from_batch(ours)
    assert "no agent is running" in first.output
    begun = run_command_warm(ours, "start", NAME)["first_load"]
    assert (begun["step"], begun["windows_left"]) == (4, shown["windows"])
    run_driver_warm(ours, NAME, tmp_path / "driver.log")
    home = ours.pipeline(NAME)
    assert sum(row.read for row in path_ledger(home)) == shown["streamed"]
    waiting = reconciled(ours)
    assert waiting["counts"]["served"]["OPEN"] > 100
    assert waiting["counts"]["served"]["AGREES"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(observe, "MOST_RECORDS", 0)
        assert reconciled(ours)["counts"] == waiting["counts"]
    measured = invoke_warm(ours, "agent", "metrics", NAME, "--prometheus").output
    assert f'rivertwice_first_load_windows{{pipeline="{NAME}"}} {shown["windows"]}.0' in measured
    said = finish(ours)
    (piece,) = said["load"]["published"]
    assert piece["windows"] == shown["windows"]
    assert "rivertwice_first_load_step{" not in invoke_warm(ours, "agent", "metrics", NAME, "--prometheus").output
    letters = run_command_warm(ours, "dead", "list", NAME)["total"]
    assert letters + sum(said["load"]["rejected"].values()) == dead
    report = reconciled(ours)
    assert report["counts"]["served"]["LATE"] == 0
    assert report["counts"]["served"]["AGREES"] > 100
    assert finish(ours)["load"]["published"] == []
    assert served_rows_sha256(ours) == streamed_and_repaired(plain, tmp_path / "driver.log")

    more, closing = late_records(records, 24), closing_records(records)
    send_with_dead_letters(ours, topic, [*more[:12], *closing])
    run_driver_warm(ours, NAME, tmp_path / "driver.log")
    assert reconciled(ours)["counts"]["served"]["LATE"] > 0
    send_with_dead_letters(ours, topic, [*more[12:], *closing_records([*records, *closing])])
    for settings in (plain, ours):
        run_driver_warm(settings, NAME, tmp_path / "driver.log")
    since_seal = reconciled(ours, full=False)
    assert since_seal["increment"] is not None
    late = reconciled(ours)
    assert since_seal["counts"] == late["counts"]
    assert since_seal["balance"] == late["balance"]
    assert late["counts"]["served"]["LATE"] > 0
    causes = run_command_warm(ours, "verdicts", NAME, "--causes", "--pair", "served", "--limit", "1000")["rows"]
    named = {(cause["partition"], cause["offset"]) for cause in causes if cause["cause"] == "late"}
    assert len(named) == len(more)
    with monkeypatch.context() as patch:
        patch.setattr(observe, "MOST_RECORDS", 0)
        by_executors = reconciled(ours)
    assert by_executors["counts"] == late["counts"]
    assert by_executors["balance"] == late["balance"]
    run_command_warm(ours, "backfill", "run", NAME, "--yes")
    repaired = reconciled(ours)
    assert repaired["counts"]["served"]["LATE"] == 0
    expected = streamed_and_repaired(plain, tmp_path / "driver.log")
    assert served_rows_sha256(ours) == expected

    taken = take_savepoint(ours, NAME, now=utc_now(), reason="test")
    run_command_warm(ours, "savepoint", "prove", NAME, taken.id)
    run_command_warm(ours, "savepoint", "restore", NAME, "--yes")
    run_driver_warm(ours, NAME, tmp_path / "driver.log")
    assert len(head_path(home)) == 2
    assert reconciled(ours)["counts"] == repaired["counts"]
    assert served_rows_sha256(ours) == expected


@pytest.mark.faults
def test_windows_that_overlap_are_loaded_as_a_stream_makes_them(
    tmp_path: Path, broker: BrokerInfo, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kind,) = in_turn(["hopping", "rolling intervals"])
    chance = random.Random(f"first load of {kind}")
    records = [record for batch in random_batches(chance, 12) for record in batch]
    monkeypatch.setattr(load_plan, "LEAST_BLOCK", 4)
    plain, ours = (make_kind_project(tmp_path / side, broker, topic, kind) for side in ("plain", "loaded"))
    send(plain, load_definition(plain.definitions / KIND), records)
    said = load_whole(ours, tmp_path / "driver.log", KIND)
    left_out = sum(end - start for start, end in said["load"]["ranges"].values())
    assert 0.4 * len(records) < left_out < len(records)
    report = reconciled(ours, KIND)
    assert report["counts"]["served"]["LATE"] == 0
    run_driver_warm(plain, KIND, tmp_path / "driver.log")
    assert reconciled(plain, KIND)["counts"]["served"]["LATE"] > 0
    run_command_warm(plain, "backfill", "run", KIND, "--yes")
    assert served_rows_sha256(ours, KIND) == served_rows_sha256(plain, KIND)


class KilledError(BaseException):
    """The process ends here: no handler of errors sees it."""


STEPS = [
    (load, "extend_archive", 1),
    (load, "look_at_log", 2),
    (load, "record_load", 3),
    (loaded, "create_timeline", 3),
    (loaded, "publish", 3),
    (loaded, "move_head", 4),
    (load, "save_plan", 5),
    (compute, "write_chunk", 5),
    (load, "compute_backfill", 5),
    (load, "audit_backfill", 5),
    (load, "publish_backfill", 5),
]
"""What a first load does, in order: module, effect, and the step that is not done if the process ends after it."""


def die_after(patch: pytest.MonkeyPatch, module: ModuleType, name: str, times: int) -> None:
    """Let the process end once an effect has happened so many times."""
    effect, left = getattr(module, name), [times]

    def die(*args: Any, **named: Any) -> Any:
        result = effect(*args, **named)
        left[0] -= 1
        if not left[0]:
            raise KilledError(name)
        return result

    patch.setattr(module, name, die)


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory: pytest.TempPathFactory, broker: BrokerInfo) -> tuple[str, str]:
    """A topic, and what is served of it by a load that nothing interrupts; in several backfills."""
    folder, topic = tmp_path_factory.mktemp("never-killed"), f"t-{uuid.uuid4().hex[:12]}"
    settings = make(folder, broker, topic)
    send_with_dead_letters(settings, topic, keyed_backlog(5, 800, days=20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "MAX_WINDOWS", 180)
        said = load_whole(settings, folder / "driver.log")
    assert len(said["load"]["published"]) > 1
    return topic, served_rows_sha256(settings)


@pytest.mark.parametrize("turn", range(2))
def test_a_load_killed_after_any_step_is_continued_to_the_same(
    turn: int, never_killed: tuple[str, str], tmp_path: Path, broker: BrokerInfo
) -> None:
    topic, expected = never_killed
    module, name, step = in_turn(STEPS, 2)[turn]
    times = random.Random(f"first load {name}").choice([1, 2]) if step == 5 else 1
    settings = make(tmp_path, broker, topic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "MAX_WINDOWS", 180)
        die_after(patch, module, name, times)
        with pytest.raises(KilledError):
            load_whole(settings, tmp_path / "driver.log")
    unfinished = first_load_of(settings)
    assert unfinished is not None
    assert (unfinished["step"], unfinished["process"]) == (step, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "MAX_WINDOWS", 180)
        load_whole(settings, tmp_path / "driver.log")
    assert first_load_of(settings) is None
    assert served_rows_sha256(settings) == expected
    assert reconciled(settings)["counts"]["served"]["LATE"] == 0


def test_where_an_agent_lives_one_command_does_all(
    never_killed: tuple[str, str], tmp_path: Path, broker: BrokerInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, expected = never_killed
    settings = make(tmp_path, broker, topic)
    real, sessions = session.spark_session, []

    def counted(settings: Settings, name: str, **options: Any) -> Any:
        sessions.append(name)
        return real(settings, name, **options)

    monkeypatch.setattr(session, "spark_session", counted)
    start_agent(settings)
    try:
        done = from_batch(settings, "--timeout", "300")
    finally:
        stop_agent(settings)
        owner = lease_owner(settings.pipeline(NAME))
        if owner is not None:
            os.kill(owner.pid, signal.SIGKILL)
    assert len(said_by(done)["load"]["published"]) == 1
    assert sessions == [f"rivertwice-load-{NAME}"]
    assert served_rows_sha256(settings) == expected
