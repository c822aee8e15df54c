"""`rivertwice show --write`: all rows in a file or none, in order, the same bytes for the same rows."""

from __future__ import annotations

import csv
import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from homes.backfill import make_home
from homes.results import FIRST, SCHEMA, keep_days, make_served
from rivertwice.read.export import JsonLines, export_rows
from rivertwice.read.find import find_rows
from rivertwice.storage.table import Table
from rivertwice.timeline.served import export_sha256
from rivertwice.timeline.served_stamp import SERVED_KEY, ServedStamp
from unit.read.test_show import runner

NAMES = SCHEMA.names[1:]


def exported(settings: Any, target: Path, *options: str) -> dict[str, Any]:
    result = runner(settings)("show", "p", "--write", str(target), *options, output="json")
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_json_lines_have_every_row_in_order_and_the_hash_of_served(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path)
    target = tmp_path / "rows.jsonl"
    report = exported(settings, target)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(rows) == report["rows"] == 360
    assert list(rows[0]) == NAMES
    assert rows == sorted(rows, key=lambda row: (row["window_start"], row["k"]))
    assert report["bytes"] == target.stat().st_size
    assert report["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest() == export_sha256(home)
    assert report["status"]["batch"] == 9


def test_a_csv_tells_a_null_from_an_empty_text(tmp_path: Path) -> None:
    settings, _ = make_served(tmp_path)
    target = tmp_path / "rows.csv"
    exported(settings, target, "--columns", "window_start,k,note,n", "--from", "2024-01-02", "--to", "2024-01-03")
    lines = target.read_text().splitlines()
    assert lines[:4] == [
        '"window_start","k","note","n"',
        '"2024-01-02T00:00:00Z","a",,100',
        '"2024-01-02T00:00:00Z","b","",100',
        '"2024-01-02T00:00:00Z","c","null",100',
    ]
    assert len(list(csv.reader(lines))) == 73


@pytest.mark.proves("guarantees.md#show-query-export-open")
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_the_same_rows_in_other_files_are_the_same_bytes(tmp_path: Path, ending: str) -> None:
    settings, home = make_served(tmp_path)
    before = exported(settings, tmp_path / f"before.{ending}")
    rows = Table(home.tables.served).read()
    assert rows is not None
    backwards = rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))
    Table(home.tables.served).overwrite(backwards, metadata={SERVED_KEY: ServedStamp(1, "t1", 9).plain()})
    after = exported(settings, tmp_path / f"after.{ending}")
    assert after["sha256"] == before["sha256"]


def test_parquet_and_a_folder_by_days_have_the_same_rows(tmp_path: Path) -> None:
    settings, _ = make_served(tmp_path)
    exported(settings, tmp_path / "rows.parquet")
    report = exported(settings, tmp_path / "folder")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == [f"day=2024-01-0{n}" for n in range(1, 6)]
    assert report["files"] == 5
    whole = pq.read_table(tmp_path / "rows.parquet")
    by_days = pa.concat_tables(pq.ParquetFile(path).read() for path in sorted((tmp_path / "folder").rglob("*.parquet")))
    assert whole.equals(by_days)
    assert whole.num_rows == 360
    assert whole.schema.field("window_start").type == pa.timestamp("us", "UTC")


def test_a_day_is_exported_from_its_own_files(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=40)
    keep_days(home, 17)
    assert exported(settings, tmp_path / "day.csv", "--from", "2024-01-18", "--to", "2024-01-19")["rows"] == 72


def test_a_target_that_exists_is_left_unless_it_may_be_replaced(tmp_path: Path) -> None:
    settings, _ = make_served(tmp_path, days=1)
    target = tmp_path / "rows.csv"
    target.write_text("mine")
    refused = runner(settings)("show", "p", "--write", str(target))
    assert refused.exit_code == 1
    assert "exists and was left as it is; to replace it, run the command again with --overwrite" in refused.output
    assert target.read_text() == "mine"
    assert exported(settings, target, "--overwrite")["rows"] == 72


def test_a_folder_that_holds_other_things_is_not_replaced(tmp_path: Path) -> None:
    settings, _ = make_served(tmp_path, days=1)
    folder = tmp_path / "folder"
    assert exported(settings, folder)["files"] == 1
    assert exported(settings, folder, "--overwrite")["files"] == 1
    (folder / "thesis.txt").write_text("mine")
    refused = runner(settings)("show", "p", "--write", str(folder), "--overwrite")
    assert refused.exit_code == 1
    assert "holds more than an export" in refused.output
    assert (folder / "thesis.txt").read_text() == "mine"


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, _ = make_served(tmp_path)
    target = tmp_path / "out" / "rows.jsonl"
    target.parent.mkdir()
    target.write_text("before")

    def full(self: JsonLines, rows: pa.Table) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonLines, "write", full)
    refused = runner(settings)("show", "p", "--write", str(target), "--overwrite")
    assert refused.exit_code == 1
    assert "No space left on device" in refused.output
    assert target.read_text() == "before"
    assert [path.name for path in target.parent.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("target", "words"),
    [("rows.xlsx", "write a name that ends in .jsonl, .csv, .parquet"), ("no/rows.csv", "run `mkdir -p ")],
)
def test_a_target_that_cannot_be_written_is_refused(tmp_path: Path, target: str, words: str) -> None:
    settings, _ = make_served(tmp_path, days=1)
    refused = runner(settings)("show", "p", "--write", str(tmp_path / target))
    assert refused.exit_code == 1
    assert words in refused.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--write", "rows.csv", "--limit", "5"), "--limit does not go with --write"),
        (("--write", "rows.csv", "--late"), "--late does not go with --write"),
        (("--late", "--table", "ledger"), "--table does not go with --late"),
        (("--overwrite",), "--overwrite needs --write TARGET"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    settings, _ = make_served(tmp_path, days=1)
    refused = runner(settings)("show", "p", *options)
    assert refused.exit_code == 2
    assert said in refused.output


def test_values_of_every_type_are_written(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    rows = pa.table(
        {
            "window_start": pa.array([FIRST, FIRST + timedelta(microseconds=1)], pa.timestamp("us", "UTC")),
            "f": pa.array([float("nan"), 0.1 + 0.2]),
            "raw": pa.array([b"\xff\x00", None]),
            "many": pa.array([[1, 2], None], pa.list_(pa.int64())),
            "day": pa.array([FIRST.date(), None]),
            "yes": pa.array([True, None]),
        }
    )
    Table(home.tables.served).append(rows, metadata={SERVED_KEY: ServedStamp(1, "t1", 9).plain()})
    exported(settings, tmp_path / "rows.jsonl")
    first, second = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert first == (
        '{"window_start":"2024-01-01T00:00:00Z","f":"NaN","raw":"/wA=","many":[1,2],"day":"2024-01-01","yes":true}'
    )
    assert '"window_start":"2024-01-01T00:00:00.000001Z","f":0.30000000000000004,"raw":null' in second
    exported(settings, tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text().splitlines()[1:] == [
        '"2024-01-01T00:00:00Z",nan,"/wA=","[1, 2]",2024-01-01,true',
        '"2024-01-01T00:00:00.000001Z",0.30000000000000004,,,,',
    ]
    shown = runner(settings)("show", "p", "--limit", "1", "--order", "oldest")
    assert shown.exit_code == 0, shown.output
    assert r"\xff" in shown.output


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_the_rows_of_an_export_are_of_one_version_of_the_table(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=2)
    rows = find_rows(settings, "p")
    Table(home.tables.served).overwrite(SCHEMA.empty_table(), metadata={SERVED_KEY: ServedStamp(1, "t1", 9).plain()})
    assert export_rows(rows, tmp_path / "rows.csv").rows == 144
    assert exported(settings, tmp_path / "later.csv")["rows"] == 0
