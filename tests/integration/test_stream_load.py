"""A long log of sessions, folds and several sources, loaded by the stream itself in large batches: the rows are those of small ones."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histories.random_histories import Record, keyed, random_batches
from homes.project import edit_yaml
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Deadline
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.local.broker import BrokerInfo
from rivertwice.log import kafka
from rivertwice.storage.table import Table
from rivertwice.stream.failures import STORE
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.stream_load import StreamLoad
from running.tiers import in_turn
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm
from streams.first_load import from_batch, reconciled, said_by
from streams.kinds import DRIVER, NAME, committed, make_kind_project, send

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
BATCH, LARGE = 100, 700
NEW = f"{NAME}@v2"


class Log:
    """The records of a kind in the order of event time, so that none is late in any batches; sent in three parts."""

    def __init__(self, broker: BrokerInfo, folder: Path, topic: str, kind: str, histories: int) -> None:
        self._broker, self._folder, self._topic, self._kind = broker, folder, topic, kind
        chance = random.Random(f"loads of {kind}")
        batches = random_batches(chance, histories)
        batches = keyed(batches, spread=False) if kind.startswith("fold") else batches
        records = [record for batch in batches for record in batch if record.event_s is not None]
        self.records: list[Record] = sorted(records, key=lambda record: record.event_s or 0)
        self._settings = self.project("log", LARGE)
        self.definition: Definition = load_definition(self._settings.definitions / NAME)

    def project(self, name: str, large: int) -> Settings:
        """Make a project of the kind that reads the log."""
        settings = make_kind_project(self._folder / name, self._broker, self._topic, self._kind, batch=BATCH)
        edit_yaml(settings.definitions / NAME, lambda document: document["stream"].update(load_batch=large))
        return settings

    def send(self, start: float, end: float) -> None:
        """Send a part of the records, from one share of them to another."""
        first, last = (int(len(self.records) * share) for share in (start, end))
        send(self._settings, self.definition, self.records[first:last])

    def forget(self, share: float) -> None:
        """Let Kafka delete the oldest records of each topic, as its retention would."""
        for topic in self.definition.topics:
            ends = kafka.end_offsets(self._settings, topic)
            kafka.delete_records(self._settings, topic, {p: int(end * share) for p, end in ends.items()})

    def streamed(self) -> Counter[tuple[Any, ...]]:
        """Stream all of the log in small batches, and return the rows."""
        settings = self.project("streamed", LARGE)
        run_to_end(settings, self._folder)
        assert reconciled(settings, NAME)["counts"]["stream"]["LATE"] == 0
        return rows_of(settings)


def run_to_end(settings: Settings, folder: Path, name: str = NAME) -> None:
    """Run drivers until the log is read: with several sources one ends where its load ends."""
    home = settings.pipeline(name)
    for _ in range(20):
        run_driver_warm(settings, name, folder / "driver.log")
        load, batches = StreamLoad.load(home), path_ledger(home)
        if load is None or load.has_read(batches[-1].end_offsets):
            break
    run_driver_warm(settings, name, folder / "driver.log")


def rows_of(settings: Settings, name: str = NAME) -> Counter[tuple[Any, ...]]:
    """Return all rows that the stream emitted, with their records' and rows' numbers, without their batches."""
    table = Table(settings.pipeline(name).tables.changelog).read()
    assert table is not None
    names = sorted(column for column in table.column_names if column not in {"_format", "_timeline", "_batch", "_day"})
    return Counter(tuple(row[column] for column in names) for row in table.to_pylist())


def reads(settings: Settings, name: str = NAME) -> list[int]:
    return [row.read for row in path_ledger(settings.pipeline(name)) if row.read]


@pytest.mark.faults
def test_rows_of_large_batches_are_those_of_small_ones(tmp_path: Path, broker: BrokerInfo, topic: str) -> None:
    (kind,) = in_turn(["fold", "session", "fold of sources", "joined sources"])
    log = Log(broker, tmp_path, topic, kind, 60)
    log.send(0, 0.6)
    ours = log.project("loaded", LARGE)
    shown = run_command_warm(ours, "start", NAME, "--from-batch", "--dry-run")["plan"]
    assert (shown["batch"], shown["archived"], shown["nowhere"]) == (LARGE, {}, {})
    assert StreamLoad.load(ours.pipeline(NAME)) is None
    begun = said_by(from_batch(ours, name=NAME))["load"]
    assert begun["records"] == begun["records_left"] == shown["records"]
    assert begun["message"] in invoke_warm(ours, "status").output.replace("\n", " ")

    arriving = threading.Thread(target=log.send, args=(0.6, 0.8))
    arriving.start()
    run_to_end(ours, tmp_path)
    arriving.join()
    log.send(0.8, 1)
    run_to_end(ours, tmp_path)
    large = -(-shown["records"] // LARGE)
    assert max(reads(ours)[large + 1 :]) <= BATCH < 300 < max(reads(ours)[: large - 1])
    assert FirstLoad.load(ours.pipeline(NAME)) is None
    assert said_by(from_batch(ours, name=NAME))["load"]["records_left"] == 0

    assert rows_of(ours) == log.streamed()
    assert reconciled(ours, NAME)["counts"]["stream"]["LATE"] == 0
    run_command_warm(ours, "savepoint", "take", NAME)


@pytest.mark.faults
def test_a_driver_killed_in_a_large_batch_is_continued_by_the_next(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    (kind,) = in_turn(["fold", "session"])
    log = Log(broker, tmp_path, topic, kind, 60)
    log.send(0, 0.9)
    ours = log.project("loaded", LARGE)
    from_batch(ours, name=NAME)
    for batches in (1, 3):
        assert committed(ours) < batches
        with (tmp_path / "driver.log").open("ab") as out:
            env = {**os.environ, **ours.to_env()}
            driver = subprocess.Popen(DRIVER, env=env, stdout=out, stderr=out, start_new_session=True)
            Deadline.after(300).wait_until(lambda: driver.poll() is not None or committed(ours) >= batches, every=0.05)  # noqa: B023
            assert driver.poll() is None
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    log.send(0.9, 1)
    run_to_end(ours, tmp_path)
    assert rows_of(ours) == log.streamed()
    reconciled(ours, NAME)


@pytest.mark.proves("howto-first-load.md#sessions-folds-and-several-sources-large-batches")
@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_what_kafka_has_deleted_is_loaded_from_the_archive(
    others: bool, tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    (kind,) = in_turn(["session", "fold of sources", "joined sources"] if others else ["fold"])
    log = Log(broker, tmp_path, topic, kind, 20 if kind == "fold" else 40)
    log.send(0, 0.7)
    expected = log.project("first", LARGE)
    run_to_end(expected, tmp_path)
    ours = log.project("loaded", LARGE)
    run_command_warm(ours, "admin", "archive", NAME)
    log.forget(0.5)
    log.send(0.7, 0.9)
    shown = run_command_warm(ours, "start", NAME, "--from-batch", "--dry-run")["plan"]
    assert shown["nowhere"] == {}
    assert sum(end - start for start, end in shown["archived"].values()) > 0.3 * len(log.records)
    from_batch(ours, name=NAME)
    run_to_end(ours, tmp_path)
    assert not run_command_warm(ours, "admin", "retention", NAME)["gaps"]
    log.send(0.9, 1)
    for settings in (ours, expected):
        run_to_end(settings, tmp_path)
    assert rows_of(ours) == rows_of(expected)
    assert sum(reads(ours)) == len(log.records)
    assert max(reads(ours)) > 300
    reconciled(ours, NAME)


@pytest.mark.faults
def test_a_load_closes_what_its_watermark_reaches_though_nothing_comes(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    ((kind, deleted),) = in_turn(itertools.product(["session", "joined sources"], [True, False]))
    log = Log(broker, tmp_path, topic, kind, 40)
    log.send(0, 1)
    expected = log.streamed()
    ours = log.project("loaded", 10_000)
    run_command_warm(ours, "admin", "archive", NAME)
    if deleted:
        log.forget(0.5)
    from_batch(ours, name=NAME)
    run_to_end(ours, tmp_path)
    assert reads(ours) == [len(log.records)]
    assert rows_of(ours) == expected


@pytest.mark.faults
def test_what_kafka_deletes_during_the_load_is_read_from_the_archive(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    log = Log(broker, tmp_path, topic, "fold", 60)
    log.send(0, 0.9)
    expected, ours = log.project("first", LARGE), log.project("loaded", LARGE)
    run_to_end(expected, tmp_path)
    run_command_warm(ours, "admin", "archive", NAME)
    from_batch(ours, name=NAME)
    run_meanwhile(ours, 1, lambda: log.forget(0.8), tmp_path / "driver.log")
    log.send(0.9, 1)
    for settings in (ours, expected):
        run_to_end(settings, tmp_path)
    assert rows_of(ours) == rows_of(expected)
    reconciled(ours, NAME)


def run_meanwhile(settings: Settings, batches: int, act: Callable[[], object], log: Path) -> None:
    """Run a driver until so many batches are committed, then act; it fails or goes on, and leaves no gap behind."""
    with log.open("ab") as out:
        driver = subprocess.Popen(DRIVER, env={**os.environ, **settings.to_env()}, stdout=out, stderr=out)
        Deadline.after(300).wait_until(lambda: driver.poll() is not None or committed(settings) >= batches, every=0.05)
        act()
        code = driver.wait(timeout=300)
    if code:
        ended = Exit.load(settings.pipeline(NAME))
        assert ended is not None
        assert ended.failure == STORE
    assert not run_command_warm(settings, "admin", "retention", NAME)["gaps"]


@pytest.mark.proves("howto-upgrade.md#a-new-version-beside-the-old-one")
@pytest.mark.faults
def test_a_fold_is_computed_again_from_archive_and_kafka_as_a_version(
    tmp_path: Path, broker: BrokerInfo, topic: str
) -> None:
    log = Log(broker, tmp_path, topic, "fold", 40)
    log.send(0, 0.8)
    archived, not_archived = log.project("archived", LARGE), log.project("not archived", LARGE)
    for settings in (archived, not_archived):
        run_to_end(settings, tmp_path)
    run_command_warm(archived, "admin", "archive", NAME)
    log.forget(0.4)
    for command in (
        ("upgrade", NAME, "--new-version", "--recompute"),
        ("upgrade", NAME, "--new-version", "--recompute", "--yes"),
    ):
        refused = invoke_warm(not_archived, *command)
        assert refused.exit_code == 1
        assert f"was read by {NAME} and is in neither Kafka nor the archive" in refused.output
    assert not not_archived.pipeline(NEW).root.exists()

    plan = run_command_warm(archived, "upgrade", NAME, "--new-version", "--recompute", "--dry-run")
    assert plan["stream_load"]["batch"] == LARGE
    begun = run_command_warm(archived, "upgrade", NAME, "--new-version", "--recompute", "--yes")
    assert begun["load"]["records_left"] == begun["load"]["records"] == int(0.8 * len(log.records))
    log.send(0.8, 1)
    for name in (NAME, NEW):
        run_to_end(archived, tmp_path, name)
        rebuild_served(archived.pipeline(name), load_definition(archived.definition_folder(name)))
        assert run_command_warm(archived, "reconcile", name)["gate"]["passed"]
    assert max(reads(archived, NEW)) > 300
    assert rows_of(archived, NEW) == rows_of(archived)
    assert run_command_warm(archived, "version", "compare", NEW)["passed"]
