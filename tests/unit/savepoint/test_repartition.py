"""Another number of state partitions, without Spark: what an offsets file says, which files are renamed, what a checkpoint must show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from homes.savepoint import FINGERPRINT, NOW, TOPIC, make_home, offsets_text, row
from rivertwice.core.errors import RequestError, SavepointError
from rivertwice.savepoint.operations.fork import plan_child
from rivertwice.savepoint.operations.record import Restore
from rivertwice.savepoint.operations.steps import PLANNED_RESTORE, PLANNED_UPGRADE, UPGRADE
from rivertwice.savepoint.replay import _lay_out, _show_changes
from rivertwice.savepoint.resting import require_own_state
from rivertwice.savepoint.state_files import name_of_version, name_without_id, readable_state, repartition_state
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


ID, OTHER = "b2c7b077-3c44-4769-b8aa-62f677bcd682", "0d5ac8a6-9b5c-4f3a-8f49-0f1c7a1a2b3c"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (f"3_{ID}.changelog", "3.changelog"),
        (f".3_{ID}.changelog.crc", ".3.changelog.crc"),
        (f"3_{OTHER}.changelog", None),  # of an attempt that was not committed
        (f"2_{ID}.zip", "2.zip"),  # older than all commits, and the only one
        (f"1_{ID}.zip", None),
        (f"1_{OTHER}.zip", None),
        (f"000009-{ID}.sst", f"000009-{ID}.sst"),
        ("schema", "schema"),
        ("3", "3"),
    ],
)
def test_a_committed_file_of_a_state_is_named_without_its_id(name: str, plain: str | None) -> None:
    beside = [
        f"3_{ID}.changelog",
        f"3_{OTHER}.changelog",
        f"2_{ID}.zip",
        f".2_{ID}.zip.crc",
        f"1_{ID}.zip",
        f"1_{OTHER}.zip",
    ]
    assert name_without_id(name, {3: f'v2\n{{"stateUniqueIds":{{"0":[["{ID}"]]}}}}'}, beside) == plain


def test_a_spark_whose_reader_knows_no_ids_gets_links_that_are_gone_afterwards(tmp_path) -> None:
    checkpoint = tmp_path / "copy"
    for name in (
        "commits/2",
        f"state/0/0/3_{ID}.changelog",
        f"state/0/0/3_{OTHER}.changelog",
        "state/0/_metadata/metadata",
    ):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(ID)
    with readable_state(SimpleNamespace(version="4.0.2"), checkpoint) as place:
        found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        assert (place / "state/0/0/3.changelog").resolve() == checkpoint / f"state/0/0/3_{ID}.changelog"
    assert found == {"commits/2", "state/0/0/3.changelog", "state/0/_metadata/metadata"}
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    with readable_state(SimpleNamespace(version="4.1.2"), checkpoint) as place:
        assert place == checkpoint


def test_a_spark_that_cannot_rewrite_a_state_is_asked_for_nothing(tmp_path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(offsets_text(3))
    with pytest.raises(
        RequestError, match=r"into 5 partitions needs Spark 4\.2; this is 4\.1\.2; install pyspark 4\.2\.0"
    ):
        repartition_state(SimpleNamespace(version="4.1.2"), tmp_path, 3, 5)
    assert [path.name for path in tmp_path.rglob("*")] == ["offsets", "3"]


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
