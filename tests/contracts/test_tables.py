"""Delta tables behave alike in a folder and on S3: one commit, one winner, what was written is read."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from homes import backfill, torn
from homes.project import REPOSITORY, make_project
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError, LostRaceError, RivertwiceError
from rivertwice.core.homes import below, parse_place
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle, load_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.storage.places import local_files, open_store
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import head, last_seq, move_head
from rivertwice.timeline.served import rebuild_served

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def table(place):
    return below(parse_place(place), "tables", "results")


@pytest.fixture
def home(place, tmp_path):
    return Settings(project=tmp_path, home=tmp_path / "home", shared=parse_place(place)).pipeline("p")


def rows(*numbers):
    return pa.table({"day": [f"d{number % 2}" for number in numbers], "n": pa.array(numbers, pa.int64())})


def numbers(table):
    return sorted(Table(table).read()["n"].to_pylist())


def test_a_table_that_does_not_exist_is_none_and_has_no_commits(table):
    assert Table(table).open() is None
    assert Table(table).read() is None
    assert Table(table).commits("ledger") == []
    assert Table(table).applied_version("app") is None
    assert Table(table).newest_commit() == -1


def test_rows_transactions_and_metadata_of_a_commit_are_read_back(table):
    for batch in range(3):
        Table(table, partition_by=["day"]).append(
            rows(batch), transactions={"p#t1": batch}, metadata={"ledger": {"batch": batch}}
        )
    Table(table).append(rows().cast(rows(1).schema), transactions={"p#t1": 3}, metadata={"ledger": {"batch": 3}})
    assert numbers(table) == [0, 1, 2]
    assert Table(table).applied_version("p#t1") == 3
    assert [value["batch"] for _, value in Table(table).commits("ledger")] == [0, 1, 2, 3]
    assert Table(table).newest_commit() == Table(table).open().version
    assert Table(table).read(columns=["n"], where=pc.field("n") > 0)["n"].to_pylist() in ([1, 2], [2, 1])


def test_upkeep_merges_and_sweeps_wherever_a_table_lies(table):
    for batch in range(6):
        Table(table, partition_by=["day"]).append(rows(batch), transactions={"p#t1": batch})
    assert TableCare(table).shape().small_in_one_partition == 3
    assert TableCare(table).compact() == 6
    assert TableCare(table).shape().files == 2
    assert TableCare(table).sweep() == 0  # what the last hours removed stays for those who read it
    assert numbers(table) == [0, 1, 2, 3, 4, 5]
    assert Table(table).applied_version("p#t1") == 5


def test_a_version_that_is_there_is_not_written_again(table):
    Table(table).append(rows(1), transactions={"p#t1": 1})
    for version in (0, 1):
        with pytest.raises(LostRaceError, match="already holds version 1"):
            Table(table).append(rows(2), transactions={"p#t1": version})
    assert numbers(table) == [1]


@pytest.mark.proves("guarantees.md#changelog")
def test_one_of_many_writers_wins_also_at_the_first_commit(table, racers):
    for version in range(1, 4):

        def write(number, version=version):
            try:
                return Table(table).append(rows(100 * version + number), transactions={"p#t1": version}) >= 0
            except LostRaceError:
                return False

        assert racers(8, write).count(True) == 1
    assert [number // 100 for number in numbers(table)] == [1, 2, 3]


def test_appends_of_different_applications_all_arrive(table, racers):
    def write(number):
        for version in range(1, 6):
            for _ in range(50):
                try:
                    Table(table).append(rows(100 * number + version), transactions={f"app-{number}": version})
                    break
                except LostRaceError:
                    continue

    racers(3, write)
    assert numbers(table) == [100 * number + version for number in range(3) for version in range(1, 6)]


def test_replacing_and_compacting_keep_what_must_be_read(table):
    for number in range(4):
        Table(table).append(rows(number))
    Table(table).open().handle.optimize.compact()
    assert numbers(table) == [0, 1, 2, 3]
    Table(table).overwrite(rows(9), metadata={"stamp": {"sequence": 2}})
    assert numbers(table) == [9]
    assert Table(table).commits("stamp", limit=1)[-1][1] == {"sequence": 2}


@pytest.mark.proves("guarantees.md#restore-fall-back-rewind")
def test_two_that_saw_the_same_sequence_cannot_both_move_the_head(home, racers):
    for turn in range(3):
        seen = last_seq(home)

        def move(number, seen=seen, turn=turn):
            try:
                move_head(home, f"t{turn}{number}", reason="race", expected_seq=seen, now=NOW)
            except RivertwiceError:
                return None
            return f"t{turn}{number}"

        won = [name for name in racers(6, move) if name]
        assert len(won) == 1
        assert head(home) == won[0]


def test_a_timelines_record_is_written_once_and_found_by_every_host(home, tmp_path, place):
    other = Settings(project=tmp_path, home=tmp_path / "other", shared=parse_place(place)).pipeline("p")
    line = Timeline("p", "t1", None, 0, {"x": {"0": 0}}, "b" * 64, {"state": "s"}, "c", {"x": "id"}, NOW)
    assert Timeline.next_name(home) == "t1"
    assert create_timeline(home, line)
    assert not create_timeline(other, line)
    assert Timeline.load(other, "t1") == line
    assert (Timeline.names(other), Timeline.next_name(other)) == (["t1"], "t2")


def test_a_bundle_is_loaded_only_whole(place):
    bundles = below(parse_place(place), "bundles")
    bundle = build_bundle(REPOSITORY / "pipelines" / "flight_delays")
    with pytest.raises(DefinitionError, match="is not in"):
        load_bundle(bundles, bundle.id)
    bundle.save(bundles)
    bundle.save(bundles)
    assert load_bundle(bundles, bundle.id).files == bundle.files
    open_store(place).delete(f"bundles/{bundle.id}/transform.sql")
    with pytest.raises(DefinitionError):
        load_bundle(bundles, bundle.id)


def test_data_files_are_fetched_once_and_are_what_was_written(place, tmp_path):
    table = below(parse_place(place), "archive", "topic")
    Table(table, partition_by=["day"]).append(rows(1, 2, 3))
    uris = Table(table).open().uris()
    files = local_files(uris, tmp_path / "cache")
    found = pa.concat_tables([pq.ParquetFile(file).read(columns=["n"]) for file in files])
    assert sorted(found["n"].to_pylist()) == [1, 2, 3]
    assert local_files(uris, tmp_path / "cache") == files


@pytest.mark.proves("howto-correct.md#repair-tables-after-a-power-loss-or-a-damaged-disk")
@pytest.mark.parametrize("how", ["gone", "empty", "cut short"])
def test_a_torn_checkpoint_is_named_and_a_repair_takes_it_out(place, tmp_path, monkeypatch, how):
    project = {"p": {"pipeline.yaml": backfill.YAML, "transform.sql": backfill.SQL}}
    settings = make_project(tmp_path, project, shared=parse_place(place), bootstrap="127.0.0.1:1")
    monkeypatch.setenv("RIVERTWICE_SHARED", place)
    torn.fill(settings, 2)
    rebuild_served(settings.pipeline("p"), load_definition(settings.definition_folder("p")))
    table = settings.pipeline("p").tables.changelog
    rows_before = sorted(map(repr, Table(table).read().to_pylist()))
    Table(table).open().handle.create_checkpoint()
    store = open_store(table)
    (key,) = [key for key in store.list("_delta_log/") if key.endswith(".checkpoint.parquet")]
    data = store.get(key)
    if how == "gone":
        store.delete(key)
    else:
        store.put(key, b"" if how == "empty" else data[: len(data) // 2])

    def ask(*arguments):
        options = ["--project", str(settings.project), "--home", str(settings.home)]
        return CliRunner().invoke(cli, [*options, *arguments])

    for verb in (["show", "p"], ["status"]):
        said = [line for line in ask(*verb).output.splitlines() if key in line]
        assert len(said) == 1, (verb, said)
        assert "the log of table changelog is damaged: checkpoint" in said[0]
        assert f"is {how}; the table cannot be opened; `rivertwice admin repair p`" in said[0]
    assert ask("admin", "repair", "p").exit_code == 3
    done = ask("admin", "repair", "p", "--yes")
    assert done.exit_code == 0, done.output
    assert sorted(map(repr, Table(table).read().to_pylist())) == rows_before
    assert not any(name.endswith("_last_checkpoint") for name in store.list("_delta_log/"))
    assert ("an object store" in ask("admin", "repair", "p").output) == ("://" in place)
