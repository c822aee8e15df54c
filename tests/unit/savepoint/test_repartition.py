"""Another number of state partitions, without Spark: what an offsets file says, which files are renamed, what a checkpoint must show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homes.savepoint import FINGERPRINT, NOW, TOPIC, make_home, offsets_text, row
from rivertwice.core.errors import SavepointError
from rivertwice.savepoint.operations.fork import plan_child
from rivertwice.savepoint.operations.record import Restore
from rivertwice.savepoint.operations.steps import PLANNED_RESTORE, PLANNED_UPGRADE, UPGRADE
from rivertwice.savepoint.replay import _lay_out, _show_changes
from rivertwice.savepoint.resting import require_own_state
from rivertwice.savepoint.state_files import name_of_version
from rivertwice.stream.checkpoint import moved_to, parse_offsets, partitions_of, with_partitions
from rivertwice.stream.gaps import as_continued, continued_rows
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline

LINE = Timeline("p", "t1", None, 0, {TOPIC: {"0": 0}}, "b", FINGERPRINT, "c", {TOPIC: "id"}, NOW)


def test_an_offsets_file_with_another_number_is_the_same_otherwise() -> None:
    text = offsets_text(3)
    assert partitions_of(text) == 2
    other = with_partitions(text, 5)
    assert partitions_of(other) == 5
    assert parse_offsets(other, 3).end_offsets == parse_offsets(text, 3).end_offsets
    assert parse_offsets(other, 3).batch_watermark_ms == parse_offsets(text, 3).batch_watermark_ms
    assert with_partitions(text, 2) is text
    assert partitions_of("v1\n{}\n{}") is None


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("9_0a1b.zip", "8_0a1b.zip"),
        (".9_0a1b.zip.crc", ".8_0a1b.zip.crc"),
        ("9_0a1b.changelog", "8_0a1b.changelog"),
        ("8_0a1b.zip", None),
        ("19_0a1b.zip", None),
        ("000009-0a1b.sst", None),
        ("schema", None),
    ],
)
def test_only_files_of_the_written_version_get_the_version_before(name: str, renamed: str | None) -> None:
    assert name_of_version(name, 9, 8) == renamed


def test_the_childs_record_has_the_number_and_later_ones_inherit_it(tmp_path) -> None:
    _, home = make_home(tmp_path)
    parent = Timeline.load(home, "t1") if (home.timelines / "t1").exists() else LINE
    restore = Restore("restore-1", "sp", "t1", "t2", was_running=True, started_at=NOW, partitions=5)
    child = plan_child(home, parent, row(3), restore, NOW)
    assert (child.shuffle_partitions, child.parent) == (5, Fork("t1", 3))
    assert plan_child(home, parent, row(3), replace(restore, partitions=None), NOW).shuffle_partitions == 0
    create_timeline(home, replace(child, timeline="t8"))
    assert Timeline.load(home, "t8").shuffle_partitions == 5
    assert child.fork(row(4, "t2"), "t3", NOW).shuffle_partitions == 5


def test_a_checkpoint_shows_the_new_number_at_the_fork(tmp_path) -> None:
    _, home = make_home(tmp_path)
    for line in (
        replace(LINE, timeline="u1"),
        replace(
            LINE, timeline="u2", parent=Fork("u1", 3), first_batch=4, genesis=row(3).end_offsets, shuffle_partitions=5
        ),
        replace(
            LINE, timeline="u3", parent=Fork("u2", 5), first_batch=6, genesis=row(5).end_offsets, shuffle_partitions=5
        ),
        replace(
            LINE, timeline="u4", parent=Fork("u2", 3), first_batch=4, genesis=row(3).end_offsets, shuffle_partitions=7
        ),
    ):
        create_timeline(home, line)
    rows = [row(2, "u1"), row(3, "u1")]
    grown = [replace(row(batch, "u2"), offsets_text=with_partitions(offsets_text(batch), 5)) for batch in (4, 5)]
    shown = continued_rows(home, [*rows, *grown], Timeline.load(home, "u3"))
    assert [partitions_of(each.offsets_text) for each in shown] == [2, 5, 5, 5]
    assert [each.offsets_text for each in shown[2:]] == [each.offsets_text for each in grown]
    shown = continued_rows(home, rows, Timeline.load(home, "u4"))  # its parent had no batch of its own
    assert [partitions_of(each.offsets_text) for each in shown] == [2, 7]
    assert continued_rows(home, rows, Timeline.load(home, "u1")) == rows


def test_a_gap_and_another_number_at_one_fork_are_both_shown() -> None:
    end = {TOPIC: {"0": 99}}
    line = replace(LINE, timeline="t2", parent=Fork("t1", 3), first_batch=4, genesis=end, shuffle_partitions=5)
    (shown,) = as_continued([row(3)], line)
    assert (shown.end_offsets, shown.offsets_text) == (end, with_partitions(moved_to(offsets_text(3), end), 5))


def test_a_timeline_of_another_number_without_a_batch_is_no_base() -> None:
    line = replace(LINE, timeline="t2", parent=Fork("t1", 3), genesis=row(3).end_offsets, shuffle_partitions=5)
    with pytest.raises(SavepointError, match="has its state in 5 partitions and has no batch yet"):
        require_own_state(line, LINE, row(3))
    require_own_state(replace(line, shuffle_partitions=2), LINE, row(3))


def test_a_replay_stops_before_the_batch_that_has_another_number(tmp_path, monkeypatch) -> None:
    rewritten: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "rivertwice.savepoint.replay.repartition_state", lambda *arguments: rewritten.append(arguments[2:])
    )
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(offsets_text(3))
    rows = [row(4), row(5), *(replace(row(n), offsets_text=with_partitions(offsets_text(n), 5)) for n in (6, 7))]
    assert [each.batch for each in _lay_out(None, tmp_path, rows)] == [4, 5]  # type: ignore[arg-type]
    (tmp_path / "offsets" / "5").write_text(offsets_text(5))
    assert [each.batch for each in _lay_out(None, tmp_path, rows[2:])] == [6, 7]  # type: ignore[arg-type]
    assert rewritten == [(3, 2), (5, 5)]
    assert _lay_out(None, tmp_path / "none", rows[:1]) == rows[:1]  # type: ignore[arg-type]
    assert len(rewritten) == 2
    _show_changes(tmp_path, rows)
    assert [partitions_of((tmp_path / "offsets" / n).read_text()) for n in "35"] == [2, 5]


def test_only_an_upgrade_says_that_it_may_rewrite_the_state() -> None:
    for plan, says in ((PLANNED_UPGRADE, True), (UPGRADE, True), (PLANNED_RESTORE, False)):
        assert any("rewrite the state" in step.does for step in plan.steps) is says
