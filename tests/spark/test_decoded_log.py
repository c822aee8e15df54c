"""What is kept decoded of an archive gives the same rows as its bytes, of every kind of source, and never outlives what it was made of."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from homes.orders import orders
from homes.project import FLIGHTS, REPOSITORY
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.engine import decoded_log
from rivertwice.engine.decoded_log import DecodedAgain, LogDecoder
from rivertwice.log import decoded_files
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.archive import archive_lock
from rivertwice.log.archive_table import (
    ABSENT,
    PARTITION_BY,
    SCHEMA,
    last_name,
    note_sums,
    transaction_names,
    turn_name,
)
from rivertwice.log.decoded_files import forget_compared, sum_of
from rivertwice.log.records import LogRead
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.upkeep.redact import Redactor
from rivertwice.upkeep.rewrite import rewrite_archive
from spark import test_field_paths, test_pipeline_decode, test_protobuf_decode, test_schema_decode

pytestmark = [pytest.mark.core, pytest.mark.spark]

TOPIC, ID = "records", "id"
AT = test_pipeline_decode.AT
Record = tuple[bytes | None, bytes | None, Any]
"""Key, value and headers."""


def keeping(definition: Definition, **changes: Any) -> Definition:
    """Return a definition whose sources read TOPIC and are kept decoded."""
    sources = {
        view: source.model_copy(update={"keep_decoded": True, "topic": TOPIC, **changes})
        for view, source in definition.sources.items()
    }
    return definition.model_copy(update={"sources": sources})


def archive(settings: Settings, chunks: Sequence[Sequence[Record]], *, at: datetime = AT) -> int:
    """Archive records of partition 0, a file for each chunk; every chunk also has an offset without a record. Return the end."""
    place, end = settings.archive(TOPIC), 0
    for turn, chunk in enumerate(chunks, start=1):
        rows = [
            {
                **{"_format": 1, "cluster_id": "c", "topic_id": ID, "topic": TOPIC, "partition": 0, "timestamp": at},
                **{"offset": end + n, "timestamp_type": 0, "key": key, "value": value, "day": "2013-07-01"},
                "headers": None if headers is None else [{"key": name, "value": data} for name, data in headers],
            }
            for n, (key, value, headers) in enumerate(chunk)
        ]
        absent = dict.fromkeys(("key", "value", "headers"))
        rows.append({**rows[-1], "offset": end + len(chunk), "timestamp_type": ABSENT, **absent})
        other = {**rows[0], "topic_id": "other", "offset": end}  # a topic of the same name, of before
        end += len(rows)
        start_name, end_name = transaction_names(ID, 0)
        turns = {turn_name(ID): turn, start_name: 0, end_name: end, last_name(ID, 0): 1}
        Table(place, partition_by=PARTITION_BY).append(
            pa.Table.from_pylist([*rows, other], schema=SCHEMA), transactions=turns
        )
        note_sums(settings, TOPIC)
    return end


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, home=tmp_path / "home", spark_master="local[2]")


@pytest.fixture
def flights(settings: Settings) -> Definition:
    """Flights, archived in three files: good ones, and all that the strictness of JSON refuses."""
    values = [(data, headers) for data, headers, _, _ in test_pipeline_decode.RECORDS.values()]
    records = [(f"key {n}".encode(), data, headers) for n, (data, headers) in enumerate(values)]
    archive(settings, [records[:20], records[20:40], records[40:]])
    return keeping(load_definition(FLIGHTS))


def end_of(settings: Settings) -> int:
    return int(Table(settings.archive(TOPIC)).open().applied_version(transaction_names(ID, 0)[1]) or 0)


def read(
    spark: SparkSession, settings: Settings, definition: Definition, ranges: Sequence[OffsetRanges] = (), **options: Any
) -> tuple[list[Any], LogDecoder]:
    """Return the rows of what is read, with every column, and what decoded them."""
    (view,) = definition.sources
    scans = list(ranges) or [{0: (0, end_of(settings))}]
    decoder = LogDecoder(spark, definition, view)
    rows = decoder.records(LogRead(spark, settings, TOPIC, scans, ID), hashed=True, **options)
    return rows_of(rows), decoder


def rows_of(frame: DataFrame) -> list[Any]:
    """Return rows that can be compared whatever their order, and NaN too."""
    rows = frame.select(*sorted(frame.columns)).toArrow().to_pylist()
    return sorted((repr(row) for row in rows), key=lambda text: text[text.index("_offset") :])


def kept(settings: Settings) -> list[Path]:
    return sorted(decoded_files.decoded_place(settings, TOPIC).glob("[!.]*/*.parquet"))


def sound(paths: Sequence[Path]) -> bool:
    return all(path.name.split(".")[-2] == sum_of(path) for path in paths)


def no_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if bytes are decoded."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("bytes were decoded")

    monkeypatch.setattr(decoded_log, "decode", refuse)


def json_values(*fields: Any) -> list[Record]:
    return [(b"k", json.dumps(value).encode() if not isinstance(value, bytes) else value, None) for value in fields]


def paths_source(tmp_path: Path) -> tuple[Definition, list[Record]]:
    """Paths, epochs, decimals; years that calendars disagree about."""
    good = test_field_paths.GOOD
    years = [{**good, "@time": {"begin-at": f"{year}-02-28T08:00:00.000001Z", "endMs": ms}} for year, ms in
             (("0003", -62_000_000_000_000), ("1582", -12_220_000_000_000), ("1899", -1), ("2026", 253_000_000_000_000))]  # fmt: skip
    fares = [{**good, "fare": fare} for fare in (0.1, 1.239, 12345678901234567.89, -0.0, None, "x")]
    others = [{**good, "rideId": 2**63 - 1, "from": None}, {**good, "rideId": 1.5}, b"", b"[1]"]
    return load_definition(test_field_paths.folder(tmp_path)), json_values(good, *years, *fares, *others)


def types_source(tmp_path: Path) -> tuple[Definition, list[Record]]:
    """Every type of a field."""
    yaml = test_field_paths.YAML.split("    epochs:")[0].replace("fare: decimal(18,2)", "fare: decimal(38,18)")
    yaml = yaml.replace(
        "      ride_id: bigint", "      ride_id: bigint\n      n: int\n      x: double\n      ok: boolean"
    )
    yaml += (
        "    required: [station]\n    event_time: started_at" + test_field_paths.YAML.split("event_time: started_at")[1]
    )
    written = test_field_paths.folder(tmp_path, yaml)
    good = {"ride_id": 1, "station": "a", "started_at": "2026-01-05T08:00:00Z", "ended_at": None}
    raw = [b'{"station": "a", "started_at": "2026-01-05T08:00:00Z", "x": %s, "fare": %s}' % pair for pair in
           ((b"-0.0", b"0"), (b"5e-324", b"1e-18"), (b"1.7976931348623157e308", b"12345678901234567890.123456789012345678"),
            (b"0.1", b"-0.000000000000000001"), (b"1e999", b"1"), (b"NaN", b"1"))]  # fmt: skip
    texts = ["", "\u0000", "\U0001f600 é", "x" * 70_000, None, 1.5, 100, True, {"a": [1]}]
    rows = [{**good, "station": text} for text in texts]
    rows += [{**good, "n": 2**31 - 1, "ok": True}, {**good, "n": 2**31}, {**good, "ok": 1}, {**good, "n": -(2**31)}]
    return load_definition(written), [*json_values(*rows), *((b"k", data, None) for data in raw)]


def avro_source(_: Path) -> tuple[Definition, list[Record]]:
    values = [value for value, _, _ in test_schema_decode.RECORDS.values()]
    return orders(), [(b"k", value, None) for value in values]


def protobuf_source(_: Path) -> tuple[Definition, list[Record]]:
    values = [value for value, _ in test_protobuf_decode.RECORDS.values()]
    definition = load_definition(REPOSITORY / "pipelines" / "examples" / "order_states")
    return definition, [(b"k", value, None) for value in values]


def changes_source(_: Path) -> tuple[Definition, list[Record]]:
    """Change events and tombstones that delete: rows with `_op` and `_deleted`."""
    definition = load_definition(REPOSITORY / "pipelines" / "examples" / "users_from_changes")
    source = definition.source[1]
    values: dict[str, Any] = {"string": "a", "boolean": True}
    row: dict[str, Any] = {name: values.get(kind, 1) for name, kind in source.schema_.items()}
    row |= {name: "2026-03-01T10:00:00Z" for name, kind in source.schema_.items() if kind == "timestamp"}
    events = [{"before": None, "after": row, "op": op, "ts_ms": 1_772_359_200_000} for op in ("c", "u", "r", "t")]
    events += [{"before": row, "after": None, "op": "d", "ts_ms": 1_772_359_200_000}, {"op": "c"}, {}]
    return definition, [*json_values(*events), (b"a", None, None), (None, None, None), (b"1", None, None)]


@pytest.mark.proves("howto-log.md#keep-archived-records-decoded", "guarantees.md#archive")
@pytest.mark.parametrize("source", [paths_source, types_source, avro_source, protobuf_source, changes_source])
def test_columns_give_what_the_bytes_give(
    spark: SparkSession,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: Callable[[Path], tuple[Definition, list[Record]]],
) -> None:
    definition, records = source(tmp_path / "definition")
    archive(settings, [records[::2], records[1::2]], at=datetime(2026, 3, 1, 10, tzinfo=UTC))
    definition = keeping(definition)
    from_bytes, _ = read(spark, settings, definition, from_bytes=True)
    assert kept(settings) == []
    first, _ = read(spark, settings, definition)
    assert len(kept(settings)) == 2
    no_decode(monkeypatch)
    second, _ = read(spark, settings, definition)
    assert first == from_bytes
    assert second == from_bytes
    assert len(from_bytes) == len(records)
    assert {"'_reason': None" in row for row in from_bytes} == {True, False}


@pytest.mark.proves("howto-log.md#keep-archived-records-decoded")
def test_what_json_refuses_is_refused_for_the_same_reasons(
    spark: SparkSession, settings: Settings, flights: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_bytes, _ = read(spark, settings, flights, from_bytes=True)
    read(spark, settings, flights)
    files = kept(settings)
    assert len(files) == 3
    assert sound(files)
    no_decode(monkeypatch)
    assert read(spark, settings, flights)[0] == from_bytes
    assert len(from_bytes) == len(test_pipeline_decode.RECORDS)
    without_details, _ = read(spark, settings, flights, details=False)
    assert not any("_detail" in row for row in without_details)


def test_any_ranges_give_their_records_alone(spark: SparkSession, settings: Settings, flights: Definition) -> None:
    end = end_of(settings)
    scans: list[list[OffsetRanges]] = [
        [{0: (3, 17)}],
        [{0: (0, 5)}, {0: (19, 45)}],
        [{0: (end - 2, end)}],
        [{0: (4, 4)}],
    ]
    from_bytes = [read(spark, settings, flights, ranges, from_bytes=True)[0] for ranges in scans]
    read(spark, settings, flights)
    assert [read(spark, settings, flights, ranges)[0] for ranges in scans] == from_bytes


def test_a_file_of_which_less_than_half_is_asked_for_is_not_kept(
    spark: SparkSession, settings: Settings, flights: Definition
) -> None:
    read(spark, settings, flights, [{0: (0, 9)}])
    assert kept(settings) == []
    some, _ = read(spark, settings, flights, [{0: (15, 42)}])  # all of the second file
    assert len(kept(settings)) == 1
    assert some == read(spark, settings, flights, [{0: (15, 42)}], from_bytes=True)[0]


def test_without_the_setting_nothing_is_kept(spark: SparkSession, settings: Settings, flights: Definition) -> None:
    read(spark, settings, keeping(flights, keep_decoded=False))
    assert kept(settings) == []


def test_sql_that_throws_on_a_record_rejects_it_in_columns_too(
    spark: SparkSession, settings: Settings, flights: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    thrown = flights.transform_sql.replace("sum(", "sum(1 div flight * ", 1)
    assert thrown != flights.transform_sql
    other = flights.model_copy(update={"transform_sql": thrown})
    by_id = {LogDecoder(spark, each, "flights").id for each in (flights, other)}
    assert len(by_id) == 2
    from_bytes, _ = read(spark, settings, other, from_bytes=True)
    read(spark, settings, other)
    no_decode(monkeypatch)
    assert read(spark, settings, other)[0] == from_bytes


def test_a_changed_decoder_makes_new_columns_and_unread_ones_go(
    spark: SparkSession, settings: Settings, flights: Definition
) -> None:
    read(spark, settings, flights)
    old = kept(settings)
    changed = keeping(flights, max_record_bytes=100)
    new, _ = read(spark, settings, changed)
    assert new == read(spark, settings, changed, from_bytes=True)[0]
    assert new != read(spark, settings, flights, from_bytes=True)[0]
    assert len(kept(settings)) == 2 * len(old)
    note_sums(settings, TOPIC)
    assert len(kept(settings)) == 2 * len(old)
    long_ago = old[0].parent.stat().st_mtime - decoded_files.UNUSED_S - 60
    os.utime(old[0].parent, (long_ago, long_ago))
    note_sums(settings, TOPIC)
    assert kept(settings) == sorted(set(kept(settings)) - set(old))
    assert len(kept(settings)) == len(old)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def forge(path: Path) -> Path:
    """Change a value in a file of columns, and give it the name of its new sum."""
    rows = pq.read_table(path)
    carriers = pa.array(["ZZ", *rows["carrier"].to_pylist()[1:]], pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("carrier"), "carrier", carriers), path)
    new = path.with_name(
        f"{path.name.split('.')[0]}.{'.'.join(path.name.split('.')[1:-2])}.{sum_of(path)}.parquet".replace("..", ".")
    )
    path.rename(new)
    return new


@pytest.mark.proves("howto-log.md#keep-archived-records-decoded")
def test_an_altered_file_is_named_and_the_bytes_are_read(
    spark: SparkSession, settings: Settings, flights: Definition, caplog: pytest.LogCaptureFixture
) -> None:
    from_bytes, _ = read(spark, settings, flights)
    victim = kept(settings)[1]
    flip(victim)
    forget_compared()
    with caplog.at_level(logging.WARNING):
        assert read(spark, settings, flights)[0] == from_bytes
    assert f"`rm {victim}`" in caplog.text
    rows, decoder = read(spark, settings, flights, run=1)
    assert rows == from_bytes
    assert decoder.again is not None
    assert list(decoder.again.altered) == [victim]
    assert len(kept(settings)) == 3  # it is not made again while it is there
    subprocess.run(["rm", str(victim)], check=True)
    assert read(spark, settings, flights)[0] == from_bytes
    assert len(kept(settings)) == 3
    rows, decoder = read(spark, settings, flights, run=2)
    assert decoder.again is not None
    assert (rows, decoder.again.altered) == (from_bytes, {})


@pytest.mark.proves("guarantees.md#verdicts")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_forged_file_is_found_by_the_whole_run_and_by_the_run_that_takes_it(
    spark: SparkSession, settings: Settings, flights: Definition, place: int
) -> None:
    from_bytes, _ = read(spark, settings, flights)
    forged = forge(kept(settings)[place])
    assert read(spark, settings, flights)[0] != from_bytes  # nothing shows it but to decode it again
    found = {}
    for run in range(4):
        rows, decoder = read(spark, settings, flights, run=run)
        assert decoder.again is not None
        found[run] = list(decoder.again.altered)
        assert (rows == from_bytes) == (found[run] == [forged])
    assert found[0] == [forged]
    assert [found[run] for run in (1, 2, 3)].count([forged]) == 1
    subprocess.run(["rm", str(forged)], check=True)
    rows, decoder = read(spark, settings, flights, run=0)
    assert decoder.again is not None
    assert (rows, decoder.again.altered) == (from_bytes, {})
    assert decoder.again.describe() == (
        "2 archived files were decoded before, 2 of them were decoded again, 2 read as they were, 1 were decoded and kept"
    )


def test_each_run_takes_another_share_and_ten_take_all() -> None:
    names = [f"{n:02}" for n in range(37)]
    shares = [DecodedAgain(run).choose(names) for run in range(1, 10)]
    assert all(3 <= len(share) <= 4 for share in shares)
    assert DecodedAgain(0).choose(names) == DecodedAgain(10).choose(names) == names
    assert len({name for share in shares for name in share}) == sum(map(len, shares))
    assert {run: DecodedAgain(run).choose(["a", "b"]) for run in range(1, 4)} == {1: ["b"], 2: ["a"], 3: ["b"]}
    assert DecodedAgain(3).choose([]) == []


def test_merged_files_of_the_archive_are_decoded_again(
    spark: SparkSession, settings: Settings, flights: Definition
) -> None:
    from_bytes, _ = read(spark, settings, flights)
    old = kept(settings)
    assert TableCare(settings.archive(TOPIC)).compact() == 3
    note_sums(settings, TOPIC)
    assert kept(settings) == []
    assert read(spark, settings, flights)[0] == from_bytes
    assert len(kept(settings)) == 1
    assert not set(old) & set(kept(settings))
    assert read(spark, settings, flights)[0] == from_bytes


SECRET = "N-secret-77"


@pytest.fixture
def secretive(settings: Settings) -> Definition:
    """Flights, of which the first file has a value that will be erased."""
    own = test_pipeline_decode.value(tailnum=SECRET)
    headers = test_pipeline_decode.HEADERS
    archive(settings, [[(b"k", own, headers)] * 3, [(b"k", test_pipeline_decode.value(), headers)] * 3])
    return keeping(load_definition(FLIGHTS))


def erase(settings: Settings) -> None:
    with archive_lock(settings, TOPIC) as held:
        redactor = Redactor(SECRET, "erased-1", frozenset({"tailnum"}))
        rewrite_archive(settings, TOPIC, redactor, lambda _: None, held)
        note_sums(settings, TOPIC)


def holds_secret(settings: Settings) -> bool:
    place = decoded_files.decoded_place(settings, TOPIC)
    files = list(place.rglob("*.parquet"))
    return any(SECRET in pq.read_table(path)["tailnum"].to_pylist() for path in files)


@pytest.mark.proves("guarantees.md#erasure")
def test_an_erased_value_is_in_no_column(spark: SparkSession, settings: Settings, secretive: Definition) -> None:
    read(spark, settings, secretive)
    assert holds_secret(settings)
    erase(settings)
    assert not holds_secret(settings)
    rows, _ = read(spark, settings, secretive)
    assert not any(SECRET in row for row in rows)
    assert sum("erased-1" in row for row in rows) == 3
    assert not holds_secret(settings)
    assert rows == read(spark, settings, secretive, from_bytes=True)[0]


@pytest.mark.proves("guarantees.md#erasure")
def test_columns_that_were_being_made_while_a_value_was_erased_are_not_kept(
    spark: SparkSession, settings: Settings, secretive: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LogDecoder._write

    def interrupted(self: LogDecoder, raw: DataFrame, folder: Path) -> None:
        write(self, raw, folder)
        erase(settings)

    monkeypatch.setattr(LogDecoder, "_write", interrupted)
    (view,) = secretive.sources
    scan = LogRead(spark, settings, TOPIC, [{0: (0, end_of(settings))}], ID)
    LogDecoder(spark, secretive, view).records(scan)  # planned before the erasure
    assert not holds_secret(settings)
    monkeypatch.undo()
    assert not any(SECRET in row for row in read(spark, settings, secretive)[0])


class KilledError(BaseException):
    """Ends what runs, as a kill does."""


@pytest.mark.parametrize("after", ["_write", "_joined", "first file"])
def test_what_was_killed_while_columns_were_made_is_done_by_the_next(
    spark: SparkSession, settings: Settings, flights: Definition, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    from_bytes, _ = read(spark, settings, flights, from_bytes=True)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
    replace, write, calls = os.replace, LogDecoder._write, []

    def kill(*_: Any) -> None:
        raise KilledError

    def kill_after_write(self: LogDecoder, raw: DataFrame, folder: Path) -> None:
        write(self, raw, folder)
        raise KilledError

    def kill_second(old: Path, new: Path) -> None:
        calls.append(new)
        if len(calls) == 2:
            raise KilledError
        replace(old, new)

    if after == "_write":
        monkeypatch.setattr(LogDecoder, "_write", kill_after_write)
    elif after == "_joined":
        monkeypatch.setattr(decoded_log, "_joined", kill)
    else:
        monkeypatch.setattr(os, "replace", kill_second)
    with pytest.raises(KilledError):
        read(spark, settings, flights)
    monkeypatch.undo()
    place = decoded_files.decoded_place(settings, TOPIC)
    assert len(list(place.glob(".making-*"))) == 1
    assert len(kept(settings)) == (1 if after == "first file" else 0)
    assert read(spark, settings, flights)[0] == from_bytes
    assert read(spark, settings, flights)[0] == from_bytes
    assert len(kept(settings)) == 3
    note_sums(settings, TOPIC)
    assert list(place.glob(".making-*")) == []
    assert len(kept(settings)) == 3
    assert sound(kept(settings))


def test_what_is_being_made_stays_while_its_process_runs(
    spark: SparkSession, settings: Settings, flights: Definition, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LogDecoder._write

    def beside_the_archive_job(self: LogDecoder, raw: DataFrame, folder: Path) -> None:
        write(self, raw, folder)
        note_sums(settings, TOPIC)

    monkeypatch.setattr(LogDecoder, "_write", beside_the_archive_job)
    read(spark, settings, flights)
    assert len(kept(settings)) == 3


@pytest.mark.parametrize("error", [OSError("the disk is full"), PySparkException("no executor")])
def test_columns_that_cannot_be_made_stop_nobody(
    spark: SparkSession, settings: Settings, flights: Definition, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(LogDecoder, "_write", fail)
    from_bytes, _ = read(spark, settings, flights, from_bytes=True)
    assert read(spark, settings, flights)[0] == from_bytes
    assert kept(settings) == []


def test_a_file_that_several_tasks_decode_is_kept_as_one(
    spark: SparkSession, settings: Settings, flights: Definition
) -> None:
    from_bytes, _ = read(spark, settings, flights, from_bytes=True)
    write = LogDecoder._write

    def in_pieces(self: LogDecoder, raw: DataFrame, folder: Path) -> None:
        write(self, raw.repartition(3), folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogDecoder, "_write", in_pieces)
        read(spark, settings, flights)
    assert len(kept(settings)) == 3
    assert read(spark, settings, flights)[0] == from_bytes


def test_years_of_all_calendars_survive(spark: SparkSession, settings: Settings) -> None:
    times = ["0002-01-01T00:00:00Z", "1582-10-10T00:00:00Z", "1899-12-31T23:59:59.999999Z", "2013-06-30T16:15:00Z"]
    values = [test_pipeline_decode.value(sched_dep=time) for time in times]
    archive(settings, [[(b"k", each, test_pipeline_decode.HEADERS) for each in values]], at=AT + timedelta(days=1))
    definition = keeping(load_definition(FLIGHTS))
    (view,) = definition.sources
    for _ in range(2):
        scan = LogRead(spark, settings, TOPIC, [{0: (0, end_of(settings))}], ID)
        rows = LogDecoder(spark, definition, view).records(scan).orderBy("_offset").toArrow().to_pylist()
        assert [row["sched_dep"].astimezone(UTC) for row in rows] == [datetime.fromisoformat(time) for time in times]
    assert len(kept(settings)) == 1
