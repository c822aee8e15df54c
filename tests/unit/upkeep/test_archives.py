"""A file of the archive that is not what was written is named before it is read, and its records come back while Kafka has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from homes.torn import make_home, tear
from rivertwice.cli.main import cli
from rivertwice.core.errors import TableDamageError
from rivertwice.log.addresses import describe
from rivertwice.log.archive_rows import Origin
from rivertwice.log.archive_table import (
    PARTITION_BY,
    SCHEMA,
    note_sums,
    read_archived,
    read_sums,
    require_sound,
    sums_file,
    transaction_names,
    turn_name,
)
from rivertwice.log.records import archive_files
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import EMPTY, entry_path
from rivertwice.upkeep import repair_archives
from rivertwice.upkeep.repair_archives import held_runs, passes

pytestmark = pytest.mark.long

TOPIC, ID = "flights", "id"
FILES = 3
KINDS = ("flipped", "cut", "gone")


def records(first: int, end: int) -> pa.Table:
    """Archived records of one partition."""
    at = datetime(2013, 7, 1, tzinfo=UTC)
    plain = {"_format": 1, "cluster_id": "c", "topic_id": ID, "topic": TOPIC, "partition": 0, "timestamp": at}
    rows = [
        {**plain, "offset": n, "timestamp_type": 0, "key": None, "value": b'{"n":%d}' % n, "day": "2013-07-01"}
        for n in range(first, end)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A home whose archive holds offsets 0 to 30 in three files; Kafka, as it is asked here, has what `kafka` says."""
    settings, home, _ = make_home(tmp_path)
    place = settings.archive(TOPIC)
    start, end = transaction_names(ID, 0)
    for number in range(FILES):
        turns = {turn_name(ID): number + 1, start: 0, end: 10 * (number + 1)}
        rows = records(10 * number, 10 * number + 10)
        Table(place, partition_by=PARTITION_BY).append(rows, transactions=turns)
        note_sums(settings, TOPIC)
    held = {"begin": 0}
    monkeypatch.setattr(repair_archives.kafka, "topic_exists", lambda *_: True)
    monkeypatch.setattr(repair_archives.kafka, "topic_id", lambda *_: ID)
    monkeypatch.setattr(repair_archives.kafka, "cluster_id", lambda *_: "c")
    monkeypatch.setattr(repair_archives.kafka, "begin_offsets", lambda *_: {0: held["begin"]})
    monkeypatch.setattr(repair_archives.kafka, "end_offsets", lambda *_: {0: 30})
    read = []

    def collect(spark, settings, origin, chunk):
        assert origin == Origin("c", ID, TOPIC)
        read.append(describe(chunk))
        return records(*chunk[0])

    monkeypatch.setattr(repair_archives, "collect_chunk", collect)
    return settings, home, held, read


def file_of(settings, offset: int) -> Path:
    (name,) = archive_files(settings, TOPIC, {0: (offset, offset + 1)})
    return Path(name)


def break_it(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(data) if kind == "flipped" else bytes(data[:-9]))


def ask(settings, *arguments):
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*options, "admin", "repair", "p", *arguments])
    return answer.exit_code, json.loads(answer.stdout) if answer.exit_code in (0, 3) else answer.output


def archived(settings):
    return sorted(map(str, Table(settings.archive(TOPIC)).read().to_pylist()))


@pytest.mark.proves("howto-log.md#what-it-promises", "guarantees.md#archive")
@pytest.mark.parametrize("kind", KINDS)
def test_another_file_is_named_unread_and_kafka_gives_its_records(made, kind):
    settings, _, _, read = made
    before, path = archived(settings), file_of(settings, 12)
    break_it(path, kind)
    with pytest.raises(TableDamageError, match="rivertwice admin repair") as refused:
        archive_files(settings, TOPIC, {0: (5, 15)})
    assert path.name in str(refused.value)
    assert len(archive_files(settings, TOPIC, {0: (0, 10)})) == 1  # what does not need it goes on
    code, shown = ask(settings)
    assert code == 3
    (told,) = shown["damages"]
    assert (told["table"], told["curable"]) == ("archive of flights", True)
    assert str(path) in told["what"]
    assert "partition 0 [10, 20) is read from Kafka again" in told["cure"]
    code, report = ask(settings, "--yes")
    assert (code, report["left"], report["failed"]) == (0, [], [])
    assert read == ["partition 0 [10, 20)"]
    assert archived(settings) == before
    assert read_archived(Table(settings.archive(TOPIC)).open(), ID).segments == ({0: (0, 30)},)
    require_sound(settings, TOPIC, Table(settings.archive(TOPIC)).open())
    assert len(read_sums(settings, TOPIC)) == FILES
    assert ask(settings) == (0, {"damages": [], "repaired": False})


@pytest.mark.proves("guarantees.md#archive")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_kafka_cannot_give_back_stays_where_it_is_and_is_named(made, kind):
    settings, _, held, read = made
    held["begin"] = 15
    path, other = file_of(settings, 12), file_of(settings, 22)
    break_it(path, kind)
    break_it(other, "flipped")
    there = path.exists()
    code, report = ask(settings, "--yes")
    assert code == 3
    (left,) = report["left"]
    assert str(path) in left["what"]
    assert not left["curable"]
    assert "partition 0 [10, 15) is in no sound file" in left["cure"]
    assert path.exists() == there
    assert read == ["partition 0 [20, 30)"]  # the other file's records, which Kafka has
    with pytest.raises(TableDamageError):
        archive_files(settings, TOPIC, {0: (12, 13)})


def test_records_that_were_erased_are_not_read_from_kafka_again(made):
    settings, _, _, read = made
    for name, value in (("request.json", {"format": 1}), ("plan.json", {"format": 1, "records": {TOPIC: 2}})):
        place = settings.home / "erasures" / "er-0123456789ab" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(value))
    path = file_of(settings, 12)
    break_it(path, "flipped")
    code, report = ask(settings, "--yes")
    assert (code, read) == (3, [])
    assert "er-0123456789ab replaced records of this topic" in report["left"][0]["cure"]
    assert path.exists()


def test_a_repair_killed_before_it_wrote_is_repeated(made):
    settings, _, _, read = made
    before = archived(settings)
    tear(entry_path(settings.archive(TOPIC), 2), EMPTY)  # version 0 creates the table
    code, shown = ask(settings)
    assert (code, len(shown["damages"])) == (3, 1)
    assert "log version 2 (" in shown["damages"][0]["what"]
    assert ask(settings, "--yes")[0] == 0
    assert archived(settings) == before
    Table(settings.archive(TOPIC)).replace_rows(records(0, 20))  # as one that took a file out and was killed
    code, shown = ask(settings)
    assert (code, shown["damages"][0]["what"]) == (3, "partition 0 [20, 30) is in no data file")
    assert ask(settings, "--yes")[0] == 0
    assert (archived(settings), read[-1]) == (before, "partition 0 [20, 30)")


def test_a_file_without_a_sum_is_compared_by_its_size_until_one_is_noted(made):
    settings, _, _, _ = made
    sums_file(settings, TOPIC).unlink()
    path = file_of(settings, 12)
    break_it(path, "flipped")
    assert archive_files(settings, TOPIC, {0: (12, 13)}) == [str(path)]
    assert note_sums(settings, TOPIC) == FILES
    sums_file(settings, TOPIC).write_bytes(b"")  # the note itself is torn: written again by who writes the archive
    assert note_sums(settings, TOPIC) == FILES
    break_it(path, "flipped")
    with pytest.raises(TableDamageError):
        archive_files(settings, TOPIC, {0: (12, 13)})


def test_runs_of_offsets_and_how_they_are_read(made):
    settings, _, _, _ = made
    files = [file_of(settings, 2), file_of(settings, 22)]
    assert held_runs(files, ID) == {0: ((0, 10), (20, 30))}
    assert held_runs(files, "another") == {}
    assert passes({0: [(0, 5), (7, 9)], 1: [(3, 4)]}) == [{0: (0, 5), 1: (3, 4)}, {0: (7, 9)}]
