"""Two archive jobs of one topic at once, each on a host (a home) of its own: each record is archived once.

The lock in the shared place keeps them apart. Without it, as with an older version on the other host, the table decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from rivertwice.core.errors import LostRaceError
from rivertwice.core.settings import Settings
from rivertwice.log import archive, kafka
from rivertwice.log import archive as archive_plan
from rivertwice.log.archive import ArchiveReport, extend_archive
from rivertwice.log.archive_table import archived
from rivertwice.storage.table import Table

pytestmark = pytest.mark.kafka

RECORDS = 120
CHUNKS = {"one": 20, "two": 34}  # so that what both read overlaps and is not the same


def fill(settings: Settings, topic: str, count: int) -> None:
    producer = kafka.producer(settings)
    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=number % 2, timestamp=1_372_550_400_000 + number)
    assert producer.flush(30) == 0


def offsets(settings: Settings, topic: str) -> list[tuple[int, int]]:
    rows = Table(settings.archive(topic)).read(columns=["partition", "offset"])
    return [] if rows is None else sorted((row["partition"], row["offset"]) for row in rows.to_pylist())


@pytest.fixture
def hosts(kafka_settings: Settings, tmp_path: Path) -> list[Settings]:
    """Two homes with one shared place, where the archive lies."""
    return [replace(kafka_settings, home=tmp_path / name, shared=tmp_path / "shared") for name in ("one", "two")]


def race(hosts: list[Settings], topic: str) -> list[ArchiveReport | LostRaceError]:
    """Run one job per host at the same time."""
    outcomes: list[ArchiveReport | LostRaceError] = []

    def run(settings: Settings) -> None:
        try:
            outcomes.append(extend_archive(None, settings, topic, chunk_records=CHUNKS[settings.home.name]))
        except LostRaceError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(settings,)) for settings in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def without_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "shared_lock", lambda *_, **__: nullcontext(lambda: None))


def meet_before_commits(monkeypatch: pytest.MonkeyPatch, meetings: int) -> None:
    """Make both jobs come to their first commits with the same chunk read."""
    without_lock(monkeypatch)
    barrier, left = threading.Barrier(2, timeout=60), threading.local()
    real = archive._commit

    def commit(*args: object) -> None:
        left.count = getattr(left, "count", meetings)
        if left.count:
            left.count -= 1
            barrier.wait()
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "_commit", commit)


@pytest.mark.proves("failure-modes.md#the-archive", "guarantees.md#archive")
@pytest.mark.parametrize("begun", [False, True], ids=["no table yet", "a table"])
def test_two_hosts_that_read_overlapping_chunks_archive_each_offset_once(
    hosts: list[Settings],
    make_topic: Callable[[int], str],
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
) -> None:
    topic = make_topic(2)
    fill(hosts[0], topic, RECORDS)
    if begun:
        extend_archive(None, hosts[0], topic, upto={0: 7, 1: 3})
    meet_before_commits(monkeypatch, 3)
    outcomes = race(hosts, topic)
    assert len(outcomes) == 2
    assert any(isinstance(one, ArchiveReport) for one in outcomes)  # the other may have lost every race
    assert offsets(hosts[0], topic) == [(p, offset) for p in range(2) for offset in range(RECORDS // 2)]
    found = archived(hosts[0], topic, kafka.topic_id(hosts[0], topic))
    assert found.newest == {0: (0, RECORDS // 2), 1: (0, RECORDS // 2)}
    assert found.turn == len(Table(hosts[0].archive(topic)).commits("archive"))


@pytest.mark.proves("guarantees.md#archive")
def test_with_the_lock_one_host_archives_all_and_the_other_is_told(
    hosts: list[Settings], make_topic: Callable[[int], str]
) -> None:
    topic = make_topic(2)
    fill(hosts[0], topic, RECORDS)
    with archive.archive_lock(hosts[0], topic):
        with pytest.raises(LostRaceError, match="another host works on the archive"):
            extend_archive(None, hosts[1], topic)
        assert offsets(hosts[0], topic) == []
    assert extend_archive(None, hosts[1], topic).records == RECORDS
    assert extend_archive(None, hosts[0], topic).records == 0


@pytest.mark.proves("failure-modes.md#the-archive")
def test_a_chunk_that_overlaps_another_commit_is_refused(
    hosts: list[Settings], make_topic: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(2)
    fill(hosts[0], topic, RECORDS)
    without_lock(monkeypatch)
    monkeypatch.setattr(archive, "RACES", 1)
    real, seen = archive._commit, []

    def commit_late(settings: Settings, *rest: object) -> None:
        if settings is hosts[1] and not seen:
            seen.append(1)
            extend_archive(None, hosts[0], topic, upto={0: 30, 1: 0})  # less than the other has read
        real(settings, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "_commit", commit_late)
    with pytest.raises(LostRaceError, match="extended"):
        extend_archive(None, hosts[1], topic, upto={0: 50, 1: 0})
    assert offsets(hosts[0], topic) == [(0, offset) for offset in range(30)]


@pytest.mark.proves("failure-modes.md#the-archive")
def test_the_number_of_commits_decides_where_the_ranges_would_not() -> None:
    archive_plan.check_unmoved({0: (0, 5)}, {0: (0, 5)}, "t")
    archive_plan.check_turn(4, 4, "t")
    with pytest.raises(LostRaceError, match="has 5 commits and this chunk was planned from 4"):
        archive_plan.check_turn(5, 4, "t")
