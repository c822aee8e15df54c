"""Results are read alike from a folder and from S3: shown, queried, exported and given to Python."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import rivertwice
from homes.backfill import YAML
from homes.project import make_project
from homes.results import SCHEMA, rows_of_day
from rivertwice.cli.main import cli
from rivertwice.core.homes import parse_place
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.timeline.served import export_sha256
from rivertwice.timeline.served_stamp import SERVED_KEY, ServedStamp


@pytest.fixture
def settings(store_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    settings = make_project(tmp_path, {"p": {"pipeline.yaml": YAML}}, shared=parse_place(store_place))
    monkeypatch.setenv("RIVERTWICE_SHARED", store_place)
    for day in range(3):
        rows = pa.Table.from_pylist(list(rows_of_day(day)), SCHEMA)
        metadata = {SERVED_KEY: ServedStamp(1, "t1", day).plain()}
        Table(settings.pipeline("p").tables.served).append(rows, metadata=metadata)
    return settings


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_served_rows_are_read_by_every_way(settings: Settings, tmp_path: Path) -> None:
    where = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]

    def run(*arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(cli, [*where, *arguments])
        assert result.exit_code == 0, result.output
        value: dict[str, object] = json.loads(result.stdout)
        return value

    day = ["--from", "2024-01-02", "--to", "2024-01-03"]
    assert run("show", "p", *day, "--limit", "100")["total"] == 72
    counted = "SELECT count(*) AS n FROM p WHERE window_start >= '2024-01-02' AND window_start < '2024-01-03'"
    assert run("query", counted)["rows"] == [{"n": 72}]
    target = tmp_path / "rows.jsonl"
    report = run("show", "p", "--write", str(target))
    assert report["rows"] == 216
    assert report["sha256"] == export_sha256(settings.pipeline("p")) == hashlib.sha256(target.read_bytes()).hexdigest()
    rows = rivertwice.open(settings.project, home=settings.home).served("p", "2024-01-02", "2024-01-03")
    assert rows.to_pandas()["n"].sum() == sum(range(100, 124)) * 3
    assert rows.status.batch == 2
