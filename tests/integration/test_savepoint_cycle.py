"""Savepoints over a real broker and the real driver: take while it runs, prove, damage, lose the log, restore."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from rivertwice.cli.main import cli
from rivertwice.core.errors import FingerprintError, LogGapError, ReplayMismatchError, SavepointError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.savepoint.catalogue import list_savepoints, load_savepoint
from rivertwice.savepoint.feed import session_of
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.plan import load_state_definition
from rivertwice.savepoint.proof import read_state
from rivertwice.savepoint.prove import prove_savepoint
from rivertwice.savepoint.replay import replay_recorded
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import added_files, entry_path, parse_entry
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.requests import StoredRequest
from rivertwice.timeline.sequence import head
from rivertwice.timeline.served_rows import stream_rows
from running.warm_spark import own_session
from streams.synthetic import DriverProcess, flights, make_small_project, produce, run_to_end, wait_for_batch

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
NAME = "savepoint-cycle"
FLIGHTS = 260
RUNNING = 4  # a savepoint is taken once this batch is committed; some seventeen follow


@pytest.fixture(scope="module")
def ran(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, str]:
    """A stream that ran to its end, with a savepoint taken in the middle of it; do not change its home."""
    settings = make_small_project(tmp_path_factory.mktemp("cycle"), NAME, bootstrap=broker.bootstrap)
    produce(settings, NAME, flights(FLIGHTS))
    driver = DriverProcess(settings, NAME, "--until-end")
    try:
        wait_for_batch(settings, NAME, RUNNING, driver=driver, seconds=300)
        taken = take_savepoint(settings, NAME, now=utc_now(), reason="while it runs")
        assert driver.process.poll() is None, "the stream ended before the savepoint was taken"
        driver.finish(300)
    finally:
        driver.stop()
    assert path_ledger(settings.pipeline(NAME))[-1].batch > taken.manifest.batch + 10
    return settings, taken.id


@pytest.fixture
def world(ran: tuple[Settings, str], tmp_path: Path) -> tuple[Settings, str]:
    """A copy of that home which a test may change; the topic is shared."""
    settings, savepoint = ran
    shutil.copytree(settings.home, tmp_path / "home")
    return Settings(settings.project, tmp_path / "home", settings.bootstrap, settings.spark_master), savepoint


@pytest.fixture(scope="module")
def spark(ran: tuple[Settings, str]):
    settings, savepoint = ran
    home = settings.pipeline(NAME)
    with own_session():
        yield session_of(settings, load_state_definition(home, load_savepoint(home, savepoint).manifest))


def served_rows(settings: Settings) -> list[dict[str, object]]:
    rows = stream_rows(settings.pipeline(NAME)).to_pylist()
    return sorted(rows, key=lambda row: (row["window_start"], row["origin"]))


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_savepoint_taken_while_the_stream_ran_proves_equal_to_its_end(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    last = path_ledger(home)[-1].batch
    proof = prove_savepoint(settings, NAME, savepoint, batches=1000, spark=spark)
    assert proof.proved
    assert proof.batches == last - load_savepoint(home, savepoint).manifest.batch
    assert proof.last_batch == last
    assert proof.state_rows > 0
    assert proof.source == "kafka"
    assert load_savepoint(home, savepoint).status == "proved"
    assert list(home.scratch.iterdir()) == []


def test_a_replay_in_one_query_or_one_per_batch_gives_the_same_state(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    found = load_savepoint(home, savepoint)
    rows = [row for row in path_ledger(home) if row.batch > found.manifest.batch][:6]
    definition = load_state_definition(home, found.manifest)
    states = []
    for one_query in (True, False):
        folder = home.scratch / f"one-{one_query}"
        found.download(folder)
        done = replay_recorded(spark, settings, definition, folder, rows, progress=print, one_query=one_query)
        assert [(batch.batch, batch.digest) for batch in done] == [(row.batch, row.digest) for row in rows]
        assert [(folder / "offsets" / str(row.batch)).read_text() for row in rows] == [row.offsets_text for row in rows]
        states.append(read_state(spark, folder, rows[-1].batch))
    assert states[0] == states[1]


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_recorded_digest_that_is_not_what_the_replay_gives_is_named(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    found = load_savepoint(home, savepoint)
    rows = [row for row in path_ledger(home) if row.batch > found.manifest.batch]
    emitting = next(index for index, row in enumerate(rows) if row.emitted)
    wrong = type(rows[0])(**{**vars(rows[emitting]), "digest": "d1:1:" + "0" * 32})
    found.download(home.scratch / "wrong")
    with pytest.raises(
        ReplayMismatchError, match=f"batch {wrong.batch} .*digest '{rows[emitting].digest}'.*{wrong.digest}"
    ):
        replay_recorded(
            spark,
            settings,
            load_state_definition(home, found.manifest),
            home.scratch / "wrong",
            [*rows[:emitting], wrong],
            progress=print,
        )


@pytest.mark.proves("guarantees.md#savepoints")
def test_a_savepoint_with_a_flipped_byte_is_refused_everywhere(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    victim = max((home.savepoints / savepoint / "checkpoint/state").rglob("*.changelog"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    for refuse in (
        lambda: load_savepoint(home, savepoint).verify_files(),
        lambda: prove_savepoint(settings, NAME, savepoint, spark=spark),
        lambda: restore_savepoint(settings, NAME, savepoint, spark=spark, unproved=True),
    ):
        with pytest.raises(SavepointError, match="damaged"):
            refuse()
    assert head(home) == "t1"


def ask(settings: Settings, *words: str, code: int = 0) -> str:
    """Run a verb as a user does; return what it printed."""
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    env = {"RIVERTWICE_BOOTSTRAP": settings.bootstrap, "RIVERTWICE_SPARK_MASTER": settings.spark_master}
    done = CliRunner().invoke(cli, [*options, *words], env=env)
    assert done.exit_code == code, done.output
    return str(json.loads(done.stderr.splitlines()[-1])["error"]["message"]) if code else done.stdout


def test_a_copy_of_a_damaged_checkpoint_is_named_by_its_proof_and_the_remedy_brings_the_stream_back(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    rows = served_rows(settings)
    assert prove_savepoint(settings, NAME, savepoint, batches=3, spark=spark).proved
    states = (home.checkpoint("t1") / "state").rglob("*.changelog")
    victim = max((path for path in states if not path.name.startswith(".")), key=lambda path: path.stat().st_mtime)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    taken = take_savepoint(settings, NAME, now=utc_now())
    told = ask(settings, "savepoint", "prove", NAME, taken.id, code=3)
    assert f"the state of {taken.id} does not load" in told
    assert "unexpected" not in told
    assert load_savepoint(home, taken.id).status != "proved"
    remedy = told.rpartition("`rivertwice ")[2].rpartition("`")[0]
    assert remedy == f"savepoint fall-back {NAME} --yes"
    ask(settings, *remedy.split())
    assert served_rows(settings) == rows
    run_to_end(settings, NAME)
    again = take_savepoint(settings, NAME, now=utc_now())
    assert prove_savepoint(settings, NAME, again.id, spark=spark).proved


@pytest.mark.proves("howto-upgrade.md#afterwards")
def test_a_changed_definition_is_refused(world, spark):
    settings, savepoint = world
    changed = settings.home.parent / "project"
    shutil.copytree(settings.project, changed, symlinks=True)
    sql = changed / "pipelines" / NAME / "transform.sql"
    sql.write_text(sql.read_text().replace("max(dep_delay)", "min(dep_delay)"))
    other = Settings(changed, settings.home, settings.bootstrap, settings.spark_master)
    with pytest.raises(FingerprintError, match="semantics"):
        prove_savepoint(other, NAME, savepoint, spark=spark)
    with pytest.raises(FingerprintError, match="semantics"):
        restore_savepoint(other, NAME, savepoint, spark=spark, unproved=True)


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_a_restore_moves_the_head_and_what_counts_stays_row_for_row(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    rows, ledger = served_rows(settings), [asdict(row) for row in path_ledger(home)]
    with pytest.raises(SavepointError, match="never proved"):
        restore_savepoint(settings, NAME, savepoint, spark=spark)
    report = restore_savepoint(settings, NAME, savepoint, spark=spark, unproved=True)
    assert (head(home), report.forked_at, report.replayed) == (
        "t2",
        ledger[-1]["batch"],
        len(report_rows(home, savepoint)),
    )
    assert served_rows(settings) == rows
    assert [asdict(row) for row in path_ledger(home)] == ledger
    run_to_end(settings, NAME)  # the child starts on its checkpoint and finds nothing left to read
    grown = path_ledger(home)
    assert [asdict(row) for row in grown[: len(ledger)]] == ledger
    assert all(row.timeline == "t2" and row.read == 0 for row in grown[len(ledger) :])
    again = take_savepoint(settings, NAME, now=utc_now())
    assert prove_savepoint(settings, NAME, again.id, spark=spark).proved


def test_repair_computes_rows_again_that_no_file_has_any_more(world, spark):
    """The log entry of a middle commit is empty, and its data files are gone, too."""
    settings, _ = world
    home = settings.pipeline(NAME)
    rows = served_rows(settings)
    emitted = next(row.batch for row in path_ledger(home)[RUNNING:] if row.emitted)
    versions = {row["batch"]: version for version, row in Table(home.tables.changelog).commits("ledger")}
    entry = entry_path(home.tables.changelog, versions[emitted])
    for path in added_files(home.tables.changelog, parse_entry(entry.read_bytes())):
        path.unlink()
    entry.write_bytes(b"")
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    env = {"RIVERTWICE_BOOTSTRAP": settings.bootstrap, "RIVERTWICE_SPARK_MASTER": settings.spark_master}
    refused = CliRunner().invoke(cli, [*options, "savepoint", "restore", NAME, "--from-beginning", "--yes"], env=env)
    assert (refused.exit_code, json.loads(refused.stderr)["error"]["reason"]) == (1, "table_damage")
    shown = CliRunner().invoke(cli, [*options, "admin", "repair", NAME], env=env)
    assert (shown.exit_code, shown.stdout.count("read and computed again with Spark")) == (3, 1)
    done = CliRunner().invoke(cli, [*options, "admin", "repair", NAME, "--yes"], env=env)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["left"], report["failed"]) == ([], [])
    assert served_rows(settings) == rows
    run_to_end(settings, NAME)  # a driver starts over the repaired tables
    assert served_rows(settings) == rows


def report_rows(home, savepoint):
    batch = load_savepoint(home, savepoint).manifest.batch
    return [row for row in path_ledger(home) if row.timeline == "t1" and row.batch > batch]


@pytest.mark.proves("guarantees.md#savepoints")
def test_takes_killed_in_the_copy_leave_no_savepoint(world):
    settings, _ = world
    home = settings.pipeline(NAME)
    there = {savepoint.id for savepoint in list_savepoints(home)}
    code = (
        "import sys, time; from rivertwice.savepoint import take; from rivertwice.core.settings import Settings;"
        "from rivertwice.storage.local import LocalStore; from rivertwice.core.instants import utc_now; real = LocalStore.put_file;"
        "LocalStore.put_file = lambda *a: (real(*a), print('copied\\n', end='', flush=True), time.sleep(0.05));"
        f"take.take_savepoint(Settings.from_env(), {NAME!r}, now=utc_now())"
    )
    for files in (1, 20, 60):
        with subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **settings.to_env()}, stdout=subprocess.PIPE, text=True
        ) as taking:
            assert taking.stdout is not None
            for _ in range(files):
                assert taking.stdout.readline() == "copied\n"
            taking.send_signal(signal.SIGKILL)
        assert {savepoint.id for savepoint in list_savepoints(home)} == there
    taken = take_savepoint(settings, NAME, now=utc_now())
    assert taken.verify_files() == taken.manifest.size


def test_a_restore_killed_while_it_replays_is_gone_on_with(world, spark):
    settings, savepoint = world
    home = settings.pipeline(NAME)
    rows = served_rows(settings)
    values = {"savepoint": savepoint, "unproved": True}
    StoredRequest("savepoint.restore", values, "ada", utc_now()).save(home, "rq-1")
    job = [sys.executable, "spark_jobs/act.py", "--pipeline", NAME, "--request", "rq-1"]
    repository = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        job,
        cwd=repository,
        env={**os.environ, **settings.to_env()},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if " replayed: " in line:
                break
        os.killpg(running.pid, signal.SIGKILL)
    assert head(home) == "t1"
    began = time.monotonic()
    report = restore_savepoint(settings, NAME, spark=spark)
    assert (report.resumed, head(home)) == (True, "t2")
    assert served_rows(settings) == rows
    assert time.monotonic() - began < 300


@pytest.mark.proves(
    "howto-log.md#stay-ahead-of-kafkas-deletion",
    "howto-savepoints.md#prove",
    "guarantees.md#savepoints",
)
def test_what_kafka_deleted_is_replayed_from_the_archive(world, spark, caplog):
    # Last in the file: it empties the topic that the others replay from.
    settings, savepoint = world
    home = settings.pipeline(NAME)
    last = path_ledger(home)[-1]
    before = {int(p): offset for p, offset in last.end_offsets[NAME].items()}
    extend_archive(spark, settings, NAME)
    gone = settings.home / "archive" / NAME
    kafka.delete_records(settings, NAME, before)
    caplog.set_level(logging.INFO, logger="rivertwice.log.send")
    try:
        proof = prove_savepoint(settings, NAME, savepoint, batches=5, spark=spark)
        assert (proof.proved, proof.batches, proof.source) == (True, 5, "replay topic")
        report = restore_savepoint(settings, NAME, savepoint, spark=spark)
        checkpoint = home.checkpoint(report.timeline)
        for row in path_ledger(home)[-2:]:
            assert (checkpoint / "offsets" / str(row.batch)).read_text() == row.offsets_text
        assert (checkpoint / "sources/0/0").exists()
        run_to_end(settings, NAME)
        shutil.rmtree(gone)
        with pytest.raises(LogGapError, match="neither Kafka nor the archive"):
            prove_savepoint(settings, NAME, savepoint, spark=spark)
    finally:
        fed = {str(one.args[0]) for one in caplog.records if one.name == "rivertwice.log.send" and one.args}
        deleted = Deadline.after(60).wait_until(lambda: not any(kafka.topic_exists(settings, topic) for topic in fed))
        assert deleted, fed  # waited for, as a broker lists a deleted topic for a moment
    assert len(fed) == 2, "the proof's and the restore's; the refused one fed nothing"
