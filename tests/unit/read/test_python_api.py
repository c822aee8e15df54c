"""`rivertwice.open`: the same rows as pandas, Arrow, Polars, DuckDB and pyarrow; importing it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest

import rivertwice
from homes.backfill import hours, make_home
from homes.results import keep_days, make_served
from rivertwice.core.errors import ConfigError, RequestError, ServiceError
from rivertwice.read.project import Project
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.timeline.served import rebuild_served
from unit.timeline.test_served import publish_rows


@pytest.fixture
def project(tmp_path: Path) -> Project:
    settings, _ = make_served(tmp_path)
    return rivertwice.open(settings.project, home=settings.home)


def test_a_project_lists_its_pipelines_and_gives_their_rows(project: Project) -> None:
    assert project.pipelines == ["p"]
    rows = project.served("p", start="2024-01-02", end="2024-01-03", key={"k": "a"}, columns=["window_start", "n"])
    frame = rows.to_pandas().sort_values("window_start")
    assert list(frame.columns) == ["window_start", "n"]
    assert frame["n"].tolist() == list(range(100, 124))
    assert str(frame["window_start"].dtype) == "datetime64[us, UTC]"
    assert rows.status.batch == 9
    assert rows.status.is_current


@pytest.mark.parametrize(
    "range_of",
    [
        ("2024-01-02", "2024-01-03"),
        (date(2024, 1, 2), datetime(2024, 1, 3, tzinfo=UTC)),
        ("2024-01-02T00:00Z", date(2024, 1, 3)),
    ],
)
def test_every_way_of_reading_gives_the_rows_of_the_range(project: Project, range_of: tuple[str, str]) -> None:
    rows = project.served("p", *range_of)
    assert rows.count() == rows.to_arrow().num_rows == rows.to_polars().height == 72
    assert sum(batch.num_rows for batch in rows.batches()) == 72
    assert rows.scan().filter(pl.col("k") == "a").select(pl.len()).collect().item() == 24
    assert rows.dataset().count_rows() == 72
    with duckdb.connect() as connection:
        connection.register("delays", rows.dataset())
        assert connection.execute("SELECT count(*) FROM delays WHERE k = 'b'").fetchall() == [(24,)]


def test_lazy_frames_of_polars_read_the_files_that_filters_leave(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=20)
    keep_days(home, 4)
    lazy = rivertwice.open(settings.project, home=settings.home).served("p").scan()
    start, end = datetime(2024, 1, 5, tzinfo=UTC), datetime(2024, 1, 6, tzinfo=UTC)
    assert lazy.filter(pl.col("window_start") >= start, pl.col("window_start") < end).collect().height == 72


def test_an_open_range_has_one_end(project: Project) -> None:
    assert project.served("p", start="2024-01-05").count() == 72
    assert project.served("p", end="2024-01-03").count() == 144
    assert project.served("p").count() == 360


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_rows_whose_files_upkeep_removed_are_an_error_and_not_fewer_rows(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path)
    rows = rivertwice.open(settings.project, home=settings.home).served("p")
    stored = Table(home.tables.served).read()
    assert stored is not None
    Table(home.tables.served).overwrite(stored)
    TableCare(home.tables.served).purge()  # as upkeep, which waits for six hours
    with pytest.raises(ServiceError, match=r"a file of served of p is gone.*open them again"):
        rows.to_arrow()
    assert rivertwice.open(settings.project, home=settings.home).served("p").to_arrow().num_rows == 360


def test_tables_beside_the_served_one_are_read_alike(project: Project) -> None:
    assert project.ledger("p").to_arrow().num_rows == 10
    assert project.rows("p", "changelog").to_pandas()["k"].unique().tolist() == ["a"]
    assert project.query("SELECT count(*) AS n FROM p").to_pylist() == [{"n": 360}]
    with pytest.raises(RequestError, match="never reconciled"):
        project.verdicts("p")
    with pytest.raises(RequestError, match="never reconciled"):
        project.causes("p")
    with pytest.raises(RequestError, match="emit: updates"):
        project.provisional("p")


def test_what_cannot_be_meant_is_refused(project: Project) -> None:
    with pytest.raises(RequestError, match="no pipeline 'q'"):
        project.served("q")
    with pytest.raises(RequestError, match="has no time zone"):
        project.served("p", start=datetime(2024, 1, 1))  # noqa: DTZ001
    with pytest.raises(RequestError, match="did you mean n"):
        project.served("p", columns=["nn"])


def test_without_polars_the_package_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match=r"uv pip install 'rivertwice\[polars\]'"):
        project.served("p").to_polars()


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    code = "import rivertwice, sys; print(sorted(name for name in sys.modules if name.startswith(('rivertwice.', 'pyarrow', 'pydantic'))))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_the_package_exports_what_its_page_names() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto-results.md").read_text()
    assert rivertwice.__all__ == ["open"]
    assert all(f"rivertwice.{name}(" in page for name in rivertwice.__all__)
    for method in ("served", "provisional", "verdicts", "causes", "ledger", "rows", "query"):
        assert hasattr(Project, method)
        assert f".{method}(" in page


@pytest.mark.proves("howto-results.md#only-what-is-current", "guarantees.md#show-query-export-open")
def test_rows_that_must_be_current_are_refused_in_python_too(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    rebuild_served(home, bundle.definition)
    publish_rows(home, bundle, "b1", hours((1, 2)), [(1, "z", 7)], 2)
    loose = rivertwice.open(settings.project, home=settings.home)
    strict = rivertwice.open(settings.project, home=settings.home, require_current=True)
    asked = {
        "rows": lambda: strict.served("p"),
        "one call": lambda: loose.served("p", require_current=True),
        "a query": lambda: strict.query("SELECT k FROM p"),
        "one query": lambda: loose.query("SELECT k FROM p", require_current=True),
    }
    for ask in asked.values():
        with pytest.raises(RequestError, match=r"served of p is not current: .*`rivertwice admin rebuild p`"):
            ask()
    assert loose.served("p").status.is_current is False
    assert strict.served("p", require_current=False).count() == loose.served("p").count()
    assert strict.ledger("p").to_arrow().num_rows == 10, "the project asks it of tables that say what they show"
    with pytest.raises(RequestError, match="ledger of p does not say which batch"):
        loose.ledger("p", require_current=True)
    rebuild_served(home, bundle.definition)
    for ask in asked.values():
        ask()
