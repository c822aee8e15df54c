"""Which batches count: segments of a path, timelines and their names, and by which watermark a batch's rows are late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homes.backfill import add_timeline, make_home
from homes.ledger import NOW, ledger_row
from rivertwice.core.errors import LedgerError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import (
    Fork,
    Segment,
    Timeline,
    create_timeline,
    find_move_off,
    head_definition,
    head_path,
    late_watermarks_ms,
    path_ledger,
    path_semantics,
    select_free_name,
    select_on_path,
    timeline_ledger,
    trace_path,
)
from rivertwice.timeline.sequence import Entry, EntryKind, move_head

T1 = Timeline("p", "t1", None, 0, {"flights": {"0": 0}}, "b1", {"semantics": "m"}, "c", {"flights": "id"}, NOW)


@pytest.fixture
def home(tmp_path: Path) -> PipelineHome:
    return Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")


@pytest.mark.parametrize(
    ("timeline", "batch", "inside"),
    [("t1", 2, False), ("t1", 3, True), ("t1", 5, True), ("t1", 6, False), ("t2", 4, False)],
)
def test_a_segment_holds_its_timelines_batches_from_first_to_last(timeline: str, batch: int, inside: bool) -> None:
    assert Segment("t1", 3, 5).contains(timeline, batch) is inside


def test_the_last_segment_has_no_end() -> None:
    assert Segment("t1", 3, None).contains("t1", 10**9)
    assert not Segment("t1", 3, None).contains("t2", 10**9)


def test_the_number_of_buckets_of_a_fold_is_handed_on_by_every_fork(home: PipelineHome) -> None:
    line = replace(T1, fold_buckets=64)
    child = line.fork(ledger_row(7, bundle="b2"), "t2", NOW)
    for made in (line, child):
        create_timeline(home, made)
        assert Timeline.load(home, made.timeline) == made
        assert made.fold_buckets == 64


def test_a_timeline_of_0_1_has_a_state_for_each_key(home: PipelineHome) -> None:
    create_timeline(home, T1)
    assert Timeline.load(home, "t1").fold_buckets == 0
    assert "fold_buckets" not in (home.timelines / "t1" / "timeline.json").read_text()


def test_a_fork_goes_on_behind_its_parents_batch() -> None:
    made = T1.fork(ledger_row(7, bundle="b2"), "t2", NOW)
    assert (made.timeline, made.parent, made.first_batch) == ("t2", Fork("t1", 7), 8)
    assert (made.genesis, made.bundle) == ({"flights": {"0": 80}}, "b2")


def test_a_fork_of_an_upgraded_timeline_keeps_its_definition() -> None:
    upgraded = replace(T1, timeline="t2", parent=Fork("t1", 7), bundle="new")
    assert upgraded.fork(ledger_row(7, bundle="old"), "t3", NOW).bundle == "new"


def test_a_path_goes_through_all_ancestors_root_first() -> None:
    lines = {
        "t1": T1,
        "t2": replace(T1, timeline="t2", parent=Fork("t1", 4), first_batch=5),
        "t3": replace(T1, timeline="t3", parent=Fork("t2", 6), first_batch=7),
    }
    assert trace_path("t3", lines.__getitem__) == [Segment("t1", 0, 4), Segment("t2", 5, 6), Segment("t3", 7, None)]
    assert trace_path("t1", lines.__getitem__) == [Segment("t1", 0, None)]


@pytest.mark.parametrize(
    ("batch", "since", "found"),
    [
        (("t1", 5), 1, None),  # before the fork: what was seen of it is served still
        (("t1", 8), 1, 3),
        (("t1", 8), 3, None),  # seen: whoever looked at sequence 3 looked at t2
        (("t2", 7), 3, None),
    ],
)
def test_a_head_move_leaves_the_batches_after_its_fork(batch: tuple[str, int], since: int, found: int | None) -> None:
    path = [Segment("t1", 0, 5), Segment("t2", 6, None)]
    entries = [
        Entry(1, EntryKind.HEAD, {"timeline": "t1"}, NOW),
        Entry(2, "publication", {}, NOW),
        Entry(3, EntryKind.HEAD, {"timeline": "t2"}, NOW),
    ]
    move = find_move_off(entries, path, batch, since)
    assert (None if move is None else move.seq) == found


def test_rows_are_chosen_by_the_path_and_never_twice() -> None:
    rows = [ledger_row(batch) for batch in (3, 0, 2, 1)] + [ledger_row(2, "t2")]
    chosen = select_on_path(rows, [Segment("t1", 0, 1), Segment("t2", 2, None)])
    assert [(row.timeline, row.batch) for row in chosen] == [("t1", 0), ("t1", 1), ("t2", 2)]
    assert select_on_path(rows, []) == []


def test_rows_are_late_by_the_watermark_of_the_batch_before() -> None:
    assert late_watermarks_ms([ledger_row(batch) for batch in (4, 5, 6)]) == [0, 4000, 5000]
    assert late_watermarks_ms([ledger_row(4)]) == [0]
    assert late_watermarks_ms([]) == []


def test_names_of_timelines_are_never_used_twice(home: PipelineHome) -> None:
    assert select_free_name([]) == "t1"
    assert select_free_name({"t1", "t2", "t4"}) == "t3"
    create_timeline(home, T1)
    (home.timelines / "t2").mkdir(parents=True)  # of a start that died before its record
    assert Timeline.next_name(home) == "t3"


def test_a_timeline_whose_name_is_taken_is_not_recorded_again(home: PipelineHome) -> None:
    assert create_timeline(home, T1)
    assert not create_timeline(home, replace(T1, first_batch=T1.first_batch + 7))
    assert Timeline.load(home, "t1") == T1


def test_timelines_are_listed_in_the_order_of_their_creation(home: PipelineHome) -> None:
    for name in ("t10", "t2", "t1"):
        create_timeline(home, replace(T1, timeline=name))
    assert Timeline.names(home) == ["t1", "t2", "t10"]


def test_a_record_is_read_as_written_and_a_missing_one_is_named(home: PipelineHome) -> None:
    with pytest.raises(LedgerError, match=r"timeline t9 of p has no record of format 1; known timelines: none"):
        Timeline.load(home, "t9")
    forked = replace(T1, timeline="t2", parent=Fork("t1", 4), first_batch=5)
    for line in (T1, forked):
        create_timeline(home, line)
        assert Timeline.load(home, line.timeline) == line
    with pytest.raises(LedgerError, match="known timelines: t1, t2"):
        Timeline.load(home, "t9")


def test_a_record_of_another_format_is_refused(home: PipelineHome) -> None:
    create_timeline(home, T1)
    (file,) = home.root.rglob("timeline.json")
    file.write_text(file.read_text().replace('"format":1', '"format":2').replace('"format": 1', '"format": 2'))
    with pytest.raises(LedgerError, match="no record of format 1"):
        Timeline.load(home, "t1")


def test_before_the_first_start_there_is_no_path_ledger_or_definition(home: PipelineHome) -> None:
    assert (head_path(home), path_ledger(home), head_definition(home)) == ([], [], None)


def test_path_ledger_and_definition_of_the_head_are_its_timelines(tmp_path: Path) -> None:
    _, home, bundle = make_home(tmp_path, batches=4)
    add_timeline(home, bundle, "t2", Fork("t1", 1), 2, semantics="other")
    append_ledger(home, [ledger_row(2, "t2", bundle=bundle.id)])
    assert [row.batch for row in path_ledger(home)] == [0, 1, 2, 3]
    assert [(row.timeline, row.batch) for row in timeline_ledger(home, "t2")] == [("t1", 0), ("t1", 1), ("t2", 2)]
    move_head(home, "t2", reason="test", expected_seq=1, now=NOW)
    assert head_path(home) == [Segment("t1", 0, 1), Segment("t2", 2, None)]
    assert [(row.timeline, row.batch) for row in path_ledger(home)] == [("t1", 0), ("t1", 1), ("t2", 2)]
    assert path_semantics(home, head_path(home)) == {bundle.fingerprint.semantics, "other"}
    definition = head_definition(home)
    assert definition is not None
    assert definition.name == "p"
