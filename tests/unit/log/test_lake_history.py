"""Tables of a lake as the history of a topic: which rows have which offsets, what is pinned, and which tables are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.core.errors import LogGapError, RequestError, TableDamageError
from rivertwice.core.settings import Settings
from rivertwice.log.archive_table import archived_segments
from rivertwice.log.history import LakeHistory, LakeTable
from rivertwice.storage.lake import LakeFile

TOPIC, TOPIC_ID = "visits", "abc-123"
UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
FITTING = {"k": ["string"], "at": ["timestamp"], "who": ["binary", "string"]}


def rows(count: int, *, kind: pa.DataType | None = None) -> pa.Table:
    moments = [UNTIL - timedelta(days=n + 1) for n in range(count)]
    return pa.table(
        {
            "k": pa.array([f"k{n}" for n in range(count)], pa.string()),
            "at": pa.array(moments, kind or pa.timestamp("us", "UTC")),
        }
    )


def asked(form: str, place: Path | str, **changes: Any) -> LakeTable:
    given: dict[str, Any] = {
        "form": form,
        "table": str(place),
        "catalog": "default",
        "number": None,
        "columns": {"k": "k", "at": "at"},
        "payload": None,
        "key": None,
        "time": "at",
        "until": UNTIL,
    }
    return LakeTable(**{**given, **changes})


def take(settings: Settings, table: LakeTable, end: int = 0) -> LakeHistory:
    return LakeHistory.take(settings, TOPIC, TOPIC_ID, table, FITTING, end)


@pytest.mark.proves("guarantees.md#history-in-a-lake")
def test_what_is_pinned_stays_whatever_becomes_of_the_table(settings: Settings, tmp_path: Path) -> None:
    place = tmp_path / "lake"
    for count in (3, 4):
        write_deltalake(str(place), rows(count), mode="append")
    taken = take(settings, asked("delta", place), end=100)
    assert LakeHistory.pinned(settings, TOPIC, TOPIC_ID) is None
    taken.pin(settings)
    assert (taken.table.number, taken.ranges) == (1, {0: (93, 100)})
    write_deltalake(str(place), rows(9), mode="overwrite")
    taken.pin(settings)
    assert take(settings, asked("delta", place), end=100) == taken == LakeHistory.pinned(settings, TOPIC, TOPIC_ID)
    assert archived_segments(settings, TOPIC, TOPIC_ID) == [{0: (93, 100)}, {}]
    with pytest.raises(RequestError, match="number was 1, is 2; put the definition back") as refused:
        take(settings, asked("delta", place, number=2), end=100)
    with pytest.raises(
        LogGapError, match="ends at offset 100, and what Kafka and the archive have without a hole begins at 120"
    ):
        take(settings, asked("delta", place), end=120)
    stored = next(word for word in str(refused.value).split() if word.endswith(".json"))
    Path(stored).unlink()
    assert take(settings, asked("delta", place, number=2), end=100).ranges == {0: (91, 100)}


@pytest.mark.proves("guarantees.md#history-in-a-lake")
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(-3, 30), st.data())
def test_every_offset_is_one_row_of_one_file(counts: list[int], end: int, data: st.DataObject) -> None:
    files = [LakeFile(f"/lake/{n}", 10, count) for n, count in enumerate(counts)]
    history = LakeHistory(TOPIC, TOPIC_ID, asked("delta", "/lake"), end, pa.schema([]), files, [""] * len(files))
    every = [(f"/lake/{n}", row) for n, count in enumerate(counts) for row in range(count)]
    begin = end - len(every)
    low = data.draw(st.integers(begin, end))
    high = data.draw(st.integers(low, end))
    found = [
        (part.file, part.first_row + row) for part in history.rows_at(low, high) for row in range(part.end - part.start)
    ]
    assert found == every[low - begin : high - begin]
    assert history.ranges == {0: (begin, end)}


@pytest.mark.proves("guarantees.md#history-in-a-lake")
def test_files_that_are_gone_or_were_written_over_are_told_apart_from_the_others(
    settings: Settings, tmp_path: Path
) -> None:
    place = tmp_path / "lake"
    place.mkdir()
    for number in range(4):
        pq.write_table(rows(2), place / f"{number}.parquet")
    history = take(settings, asked("parquet", place))
    assert history.readable(-8, 0) == ([(-8, 0)], {})
    whole = (place / "1.parquet").read_bytes()
    (place / "1.parquet").write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    (place / "3.parquet").unlink()
    runs, lost = history.readable(-8, 0)
    assert runs == [(-8, -6), (-4, -2)]
    assert {Path(name).name: how for name, how in lost.items()} == {
        "1.parquet": "is not what it was (its SHA-256 is another)",
        "3.parquet": "is gone",
    }
    assert history.readable(-4, -2) == ([(-4, -2)], {})
    with pytest.raises(TableDamageError, match=r"3\.parquet is gone.*put the files back"):
        raise history.refusal(lost)
    (place / "1.parquet").write_bytes(whole)
    pq.write_table(rows(2), place / "3.parquet")
    assert history.readable(-8, 0) == ([(-8, 0)], {})


def refused(settings: Settings, table: LakeTable) -> str:
    with pytest.raises(RequestError) as error:
        take(settings, table)
    return str(error.value)


@pytest.mark.proves("guarantees.md#history-in-a-lake")
def test_a_table_whose_rows_are_not_those_of_its_files_is_refused(settings: Settings, tmp_path: Path) -> None:
    schema = rows(0).schema
    vectors, mapped = tmp_path / "vectors", tmp_path / "mapped"
    DeltaTable.create(str(vectors), schema, configuration={"delta.enableDeletionVectors": "true"})
    names = {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    DeltaTable.create(str(mapped), schema, configuration=names)
    assert "deletion vectors" in refused(settings, asked("delta", vectors))
    assert "maps its columns by name" in refused(settings, asked("delta", mapped))


def test_a_table_that_is_not_what_the_definition_says_is_refused(settings: Settings, tmp_path: Path) -> None:
    delta, folder = tmp_path / "delta", tmp_path / "folder"
    write_deltalake(str(delta), rows(2))
    folder.mkdir()
    assert "is not a Delta table" in refused(settings, asked("delta", folder))
    assert "has no file that ends with .parquet" in refused(settings, asked("parquet", folder))
    assert "is a Delta table" in refused(settings, asked("parquet", delta))
    assert "has no version 7" in refused(settings, asked("delta", delta, number=7))
    assert "column who of delta table" in refused(
        settings, asked("delta", delta, time="at", columns={"k": "k"}, key="who")
    )
    pq.write_table(rows(2), folder / "a.parquet")
    pq.write_table(rows(2, kind=pa.timestamp("ms", "UTC")), folder / "b.parquet")
    assert "b.parquet has other columns than" in refused(settings, asked("parquet", folder))
    (folder / "b.parquet").unlink()
    pq.write_table(rows(2).set_column(1, "at", pa.array(["2026", "2027"])), folder / "a.parquet")
    assert "column at of Parquet files in" in refused(settings, asked("parquet", folder))
    assert "pyiceberg knows no catalog 'nowhere'" in refused(settings, asked("iceberg", "a.b", catalog="nowhere"))


def test_an_iceberg_table_with_a_renamed_column_is_refused_since_older_files_have_the_old_name(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    for name, value in where.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    catalog = SqlCatalog("lake", **where)
    catalog.create_namespace("web")
    table = catalog.create_table("web.visits", schema=rows(0).schema)
    table.append(rows(3))
    first = table.current_snapshot().snapshot_id
    table.append(rows(2))
    named = asked("iceberg", "web.visits", catalog="lake")
    assert take(settings, named).ranges == {0: (-5, 0)}
    assert take(settings, asked("iceberg", "web.visits", catalog="lake", number=first)).ranges == {0: (-3, 0)}
    assert "has no snapshot 5" in refused(settings, asked("iceberg", "web.visits", catalog="lake", number=5))
    with table.update_schema() as change:
        change.rename_column("k", "customer")
    assert "had another name once" in refused(settings, named)
