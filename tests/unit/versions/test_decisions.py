"""What is decided about versions, apart from what is read and written: the protocol model calls the same functions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.timeline.served_stamp import BESIDE, ServedStamp, is_own, mark_of, serving_version_of
from rivertwice.timeline.version_records import Version
from rivertwice.versions.begin import needs_frozen, require_droppable, select_under_way
from rivertwice.versions.changes import ColumnsChange
from rivertwice.versions.model import Proof
from rivertwice.versions.parity import find_missing, find_refusals
from rivertwice.versions.serve import has_served, require_unmoved, stamp_to_serve
from rivertwice.versions.try_model import Comparison, Retyped, SchemaChange

NOW = datetime(2026, 11, 26, tzinfo=UTC)
FIRST, SECOND = (PipelineHome(Path("/home/pipelines") / name) for name in ("p", "p@v2"))
STAMP = ServedStamp(3, "t1", 7)
V2 = Version("p@v2", "p", "b2", "d2", {"semantics": "s2"}, ("transform",), "test", NOW)


@pytest.mark.parametrize("serving", ["p", "p@v2"])
def test_of_two_versions_exactly_one_writes_what_consumers_read(serving: str) -> None:
    places = [home.served_while(serving) for home in (FIRST, SECOND)]
    assert places.count(FIRST.public_served) == 1
    assert len(set(places)) == 2
    assert (FIRST.served_while(serving) == FIRST.public_served) == (serving == "p")


def test_a_table_belongs_to_the_version_whose_mark_its_stamp_has() -> None:
    marks = {
        (home, place): mark_of(home, place)
        for home in (FIRST, SECOND)
        for place in (home.public_served, home.own_served)
    }
    assert list(marks.values()) == ["", BESIDE, "p@v2", ""]
    shown = replace(STAMP, version=marks[SECOND, SECOND.public_served])
    assert is_own(shown, "p@v2")
    assert not is_own(shown, marks[FIRST, FIRST.public_served])
    assert is_own(None, "p@v2"), "a table that does not exist is whoever's comes first"


@pytest.mark.parametrize(("shown", "serving"), [(None, "p"), (STAMP, "p"), (replace(STAMP, version="p@v2"), "p@v2")])
def test_the_stamp_of_what_consumers_read_says_who_serves(shown: ServedStamp | None, serving: str) -> None:
    assert serving_version_of(shown, "p") == serving_version_of(shown, "p@v2") == serving


def test_a_switch_stamps_the_rows_with_the_version_and_their_batch() -> None:
    assert stamp_to_serve(SECOND, STAMP) == replace(STAMP, version="p@v2")
    assert stamp_to_serve(FIRST, replace(STAMP, version=BESIDE)) == STAMP
    with pytest.raises(RequestError, match="p@v2 has no closed window yet"):
        stamp_to_serve(SECOND, None)


def test_a_switch_that_another_one_overtook_is_lost() -> None:
    require_unmoved("p", "p")
    with pytest.raises(LostRaceError, match="another process let p@v2 serve meanwhile"):
        require_unmoved("p", "p@v2")


def test_the_first_version_and_one_that_served_need_no_comparison() -> None:
    assert has_served(FIRST, [])
    assert not has_served(SECOND, [])
    assert not has_served(SECOND, [{"from": "p@v2", "to": "p"}])
    assert has_served(SECOND, [{"from": "p", "to": "p@v2"}, {"from": "p@v2", "to": "p"}])


def test_a_version_that_does_not_serve_yet_is_continued_or_given_up() -> None:
    assert select_under_way([], "p", "d2") is None
    assert select_under_way([V2], "p", "d2") is V2
    assert select_under_way([V2], "p@v2", "d3") is None
    assert select_under_way([replace(V2, dropped_at=NOW)], "p", "d3") is None
    with pytest.raises(RequestError, match=r"p@v2 is under way, with another definition.*version drop p@v2"):
        select_under_way([V2], "p", "d3")


def test_a_version_that_serves_or_runs_is_not_dropped() -> None:
    require_droppable(V2, "p", None)
    with pytest.raises(RequestError, match="p@v2 serves; let another version serve first"):
        require_droppable(V2, "p@v2", None)
    with pytest.raises(RequestError, match=r"the stream of p@v2 runs \(process 7\)"):
        require_droppable(V2, "p", 7)


def test_the_first_definition_is_frozen_as_long_as_a_version_runs() -> None:
    dropped = replace(V2, dropped_at=NOW)
    assert [needs_frozen(versions) for versions in ([], [dropped], [dropped, replace(V2, name="p@v3")])] == [
        False,
        False,
        True,
    ]


def test_the_gate_wants_both_proofs_and_the_whole_load() -> None:
    proved, lacking = Proof("p", "r1", 10), Proof("p@v2", None, 0, lacks="no reconcile has proved p@v2")
    assert find_missing((proved, proved), None) == ()
    assert find_missing((proved, lacking), "its load is not done") == (lacking.lacks, "its load is not done")


@pytest.mark.proves("guarantees.md#version-switch")
@pytest.mark.parametrize(
    ("rows", "schema", "refusals"),
    [
        (Comparison(5, 5, equal=5), SchemaChange(), ()),
        (Comparison(5, 5, equal=4, changed=1), SchemaChange(), ("1 row differs without a cause",)),
        (Comparison(5, 6, only_new=2, only_old=1), SchemaChange(), ("3 rows differ without a cause",)),
        (
            Comparison(0, 0),
            SchemaChange(),
            ("no window was compared: neither version serves one that both proofs cover",),
        ),
        (
            Comparison(1, 1, equal=1),
            SchemaChange(retyped={"n": Retyped("int", "bigint")}),
            ("column n is retyped, which is not declared",),
        ),
    ],
)
def test_one_row_or_column_without_a_cause_is_enough_to_refuse(
    rows: Comparison, schema: SchemaChange, refusals: tuple[str, ...]
) -> None:
    assert find_refusals(rows, schema, ColumnsChange()) == refusals
