"""Rows as the page shows them: by window and key, with the way to their explanation, and as a file of bounded size."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from homes.cockpit import Past, add_letter, make_past
from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.read import rows_page
from rivertwice.read.rows_page import RowsQuery


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Definition]:
    settings = make_past(tmp_path_factory.mktemp("rows"), Past(days=4, keys=3), ("p",))
    return settings, load_definition(settings.definitions / "p")


def test_rows_are_chosen_by_window_and_key_and_lead_to_their_explanation(past: tuple[Settings, Definition]) -> None:
    page = RowsQuery(key='{"k": "k001"}', start=datetime(2026, 1, 2, tzinfo=UTC), limit=2).read(*past)
    assert [row[page.columns.index("k")] for row in page.rows] == ["k001", "k001"]
    assert page.rows[0][0] > page.rows[1][0]  # the newest first
    assert page.places[0] == (page.rows[0][0], '{"k": "k001"}')
    (oldest,) = RowsQuery(limit=1, oldest=True).read(*past).rows
    assert oldest[0] == "2026-01-01T00:00:00Z"


def test_rows_of_another_table_lead_nowhere_and_an_unknown_table_is_named(past: tuple[Settings, Definition]) -> None:
    assert RowsQuery("ledger").read(*past).places == ()
    with pytest.raises(RequestError, match="passwords"):
        RowsQuery("passwords").read(*past)
    with pytest.raises(RequestError, match="is not a JSON object"):
        RowsQuery(key="k001").read(*past)


@pytest.mark.proves("howto-cockpit.md#look-at-rows")
def test_a_records_own_values_are_for_who_may_decide_about_it(
    past: tuple[Settings, Definition], tmp_path: Path
) -> None:
    add_letter(past[0], "p", b"what it says")
    shown = RowsQuery("dead-letters", raw=True).read(*past)
    assert (shown.rows[0][shown.columns.index("value")], shown.withheld) == ("d2hhdCBpdCBzYXlz", "")
    page = RowsQuery("dead-letters").read(*past)
    assert {"key", "value", "headers"} & set(page.columns) == set()
    assert (len(page.rows), page.withheld) == (
        1,
        "key, value, headers of dead-letters of p: only for users with the permission to start operate__p",
    )
    RowsQuery("dead-letters").write(*past, tmp_path / "rows.csv")
    assert "d2hhdCBpdCBzYXlz" not in (tmp_path / "rows.csv").read_text()
    with pytest.raises(RequestError, match="has no column 'value'"):
        RowsQuery("dead-letters", key='{"value": "d2hhdCBpdCBzYXlz"}').read(*past)


def test_a_file_has_all_rows_that_are_asked_for_and_too_many_are_refused(
    past: tuple[Settings, Definition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RowsQuery(key='{"k": "k001"}', limit=1)
    asked.write(*past, tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(lines) - 1 == len(RowsQuery(key='{"k": "k001"}', limit=200).read(*past).rows) > 3
    monkeypatch.setattr(rows_page, "MOST_IN_FILE", 3)
    for query in (asked, RowsQuery()):
        with pytest.raises(
            RequestError, match=r"at most 3 rows, .* `rivertwice show p --table served --write rows.parquet`"
        ):
            query.write(*past, tmp_path / "rows.parquet")
    assert not (tmp_path / "rows.parquet").exists()
