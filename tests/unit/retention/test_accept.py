"""Going past a gap: behind it exactly, only the gap that was named, and the same whatever step is cut off."""

from __future__ import annotations

import json

import pytest

from homes.savepoint import NOW, TOPIC, make_home, offsets_text, row
from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.log.addresses import Part
from rivertwice.log.gaps import Acceptance, Gap, GapReason, accepted_gaps
from rivertwice.reconcile.observe import _jumps
from rivertwice.reconcile.rederive import derive_ranges
from rivertwice.retention import accept
from rivertwice.storage.local import replace_json
from rivertwice.storage.table import Table
from rivertwice.stream.checkpoint import moved_to
from rivertwice.stream.damage import find_damage, read_view
from rivertwice.stream.gaps import as_continued, next_offsets
from rivertwice.stream.seal import is_sealed
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, head_path, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.watermarks import WatermarkRule

P0 = Part(TOPIC, 0)
GAP = Gap("p", "t1", 3, TOPIC, "id", GapReason.EXPIRED, {0: (40, 55)}, {}, 3000, None, NOW)


@pytest.fixture
def stopped(tmp_path, monkeypatch) -> tuple[Settings, PipelineHome]:  # type: ignore[no-untyped-def]
    """A stream behind batch 3, with batch 4 planned over records that Kafka has deleted up to 55."""
    settings, home = make_home(tmp_path)
    Table(home.tables.changelog).append(row_table(), transactions={"p#t1": 3})
    GAP.record(home)
    monkeypatch.setattr(accept, "observe_gaps", lambda *_: [GAP])
    monkeypatch.setattr(accept, "load_bundle_definition", lambda *_: None)
    monkeypatch.setattr(accept.kafka, "begin_offsets", lambda *_: {0: 55})
    return settings, home


def row_table():  # type: ignore[no-untyped-def]
    import pyarrow as pa

    return pa.table({"_timeline": ["t1"], "_batch": [3]})


def go(settings: Settings) -> str:
    return accept.accept_gap(settings, "p", GAP.id, by="test", now=NOW).timeline


def test_the_child_has_the_parents_state_and_begins_right_behind_the_gap(stopped) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    assert go(settings) == "t2"
    line = Timeline.load(home, "t2")
    assert (head(home), line.parent, line.first_batch, line.genesis) == ("t2", Fork("t1", 3), 4, {TOPIC: {"0": 55}})
    child = home.checkpoint("t2")
    assert json.loads((child / "offsets" / "3").read_text().split("\n")[2]) == {TOPIC: {"0": 55}}
    assert (child / "offsets" / "3").read_text().split("\n")[1] == offsets_text(3).split("\n")[1]
    assert not (child / "offsets" / "4").exists()
    assert not (child / "offsets" / ".3.crc").exists()
    assert (child / "state/0/0" / "4_aa.changelog").read_text() == "state of 3"
    assert next_offsets(child, line, TOPIC) == {0: 55}
    assert (home.checkpoint("t1") / "offsets" / "4").exists()  # nothing is destroyed
    assert accepted_gaps(home) == {"t2": GAP}
    assert not home.drain.exists()


def test_the_childs_checkpoint_is_what_the_ledger_says_it_must_be(stopped) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    go(settings)
    rows = path_ledger(home)
    line = Timeline.load(home, "t2")
    view = read_view(home.checkpoint("t2"))
    assert "offsets/3 is not what the ledger recorded" in str(
        find_damage(view, rows, lambda _: WatermarkRule({TOPIC: 0}))
    )
    found = find_damage(view, as_continued(rows, line), lambda _: WatermarkRule({TOPIC: 0}))
    assert "offsets/3" not in str(found)
    assert as_continued(rows, Timeline.load(home, "t1")) == rows


def test_accepting_twice_is_accepting_once(stopped) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    assert (go(settings), go(settings)) == ("t2", "t2")
    assert Timeline.names(home) == ["t1", "t2"]


@pytest.mark.parametrize(
    "step", ["copy_committed", "create_timeline", "record_acceptance", "seal_timeline", "move_head"]
)
def test_cut_off_before_any_step_it_serves_nothing_and_ends_the_same(stopped, monkeypatch, step: str) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(accept, step, crash)
        with pytest.raises(KeyboardInterrupt):
            go(settings)
    assert head(home) == "t1"
    child = go(settings)
    assert (head(home), Timeline.load(home, child).genesis) == (child, {TOPIC: {"0": 55}})
    accepted = Acceptance.load(home, GAP.id)
    assert accepted is not None
    assert accepted.timeline == child


def test_the_parent_takes_no_further_batch(stopped) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    go(settings)
    assert is_sealed(Table(home.tables.changelog).applied_version("p#t1"))


@pytest.mark.proves("howto-log.md#a-gap-records-that-the-stream-had-not-read-are-gone")
def test_a_gap_that_grew_is_another_one_and_is_recorded(stopped, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    grown = Gap(**{**vars(GAP), "ranges": {0: (40, 60)}})
    monkeypatch.setattr(accept, "observe_gaps", lambda *_: [grown])
    with pytest.raises(RequestError, match=rf"more is gone.*{grown.id}"):
        go(settings)
    assert (head(home), {gap.id for gap in Gap.recorded(home)}) == ("t1", {GAP.id, grown.id})


def test_a_committed_batch_that_is_not_finished_needs_its_records_again(stopped) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    append_ledger(home, [row(4)])
    with pytest.raises(RequestError, match="needed once more for the state"):
        go(settings)
    assert head(home) == "t1"


def test_an_operation_that_holds_the_stream_is_not_disturbed(stopped) -> None:  # type: ignore[no-untyped-def]
    import psutil

    settings, home = stopped
    me = psutil.Process()
    replace_json(home.drain, {"format": 1, "by": "restore", "pid": me.pid, "pid_started": me.create_time()})
    with pytest.raises(LostRaceError, match="another operation"):
        go(settings)
    assert home.drain.exists()
    replace_json(home.drain, {"format": 1, "by": "restore", "pid": 1 << 22, "pid_started": 1.0})  # died
    assert go(settings) == "t2"


def test_a_stream_that_has_read_nothing_begins_anew_behind_the_gap(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    settings, home = make_home(tmp_path, planned=-1, finished=-1, committed=-1)
    gap = Gap(**{**vars(GAP), "batch": None, "ranges": {0: (0, 55)}, "watermark_ms": 0})
    gap.record(home)
    monkeypatch.setattr(accept, "observe_gaps", lambda *_: [gap])
    monkeypatch.setattr(accept, "load_bundle_definition", lambda *_: None)
    monkeypatch.setattr(accept.kafka, "begin_offsets", lambda *_: {0: 55})
    child = accept.accept_gap(settings, "p", gap.id, by="test", now=NOW).timeline
    line = Timeline.load(home, child)
    assert (line.parent, line.first_batch, line.genesis) == (None, 0, {TOPIC: {"0": 55}})


def test_a_second_gap_before_the_childs_first_batch_is_passed_too(stopped, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    settings, home = stopped
    go(settings)
    second = Gap(**{**vars(GAP), "timeline": "t2", "ranges": {0: (55, 70)}})
    second.record(home)
    monkeypatch.setattr(accept, "observe_gaps", lambda *_: [second])
    monkeypatch.setattr(accept.kafka, "begin_offsets", lambda *_: {0: 70})
    assert accept.accept_gap(settings, "p", second.id, by="test", now=NOW).timeline == "t3"
    assert (Timeline.load(home, "t3").parent, Timeline.load(home, "t3").genesis) == (Fork("t2", 3), {TOPIC: {"0": 70}})
    rows = path_ledger(home)
    assert [row.batch for row in rows] == [0, 1, 2, 3]
    assert as_continued(rows, Timeline.load(home, "t3"))[-1].end_offsets == {TOPIC: {"0": 70}}
    end = {TOPIC: {"0": 80}}
    text = moved_to(offsets_text(4), end)
    append_ledger(home, [row(4, "t3", start_offsets={TOPIC: {"0": 70}}, end_offsets=end, offsets_text=text)])
    jumps = _jumps(home, [segment.timeline for segment in head_path(home)], path_ledger(home), [TOPIC])
    assert [(jump.index, jump.skipped, jump.start) for jump in jumps] == [(4, GAP, {P0: 55}), (4, second, {P0: 70})]
    ranges, defects = derive_ranges(path_ledger(home), [TOPIC], {P0: 0}, {jump.index: jump.start for jump in jumps})
    assert (ranges[-1], defects) == ({P0: (70, 80)}, [])
