"""Every damage of the small files that Spark would not notice by itself is found by what the ledger says."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from homes.savepoint import TOPIC, make_home, offsets_text, row, with_checksum
from rivertwice.core.errors import CheckpointError, LeaseLostError, LedgerError
from rivertwice.core.homes import PipelineHome
from rivertwice.stream.damage import check_checkpoint, find_bad_checksum, find_damage, read_view, sweep_unplanned
from rivertwice.timeline.lineage import Fork, Timeline, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.watermarks import WatermarkRule, watermark_after

DELAY_MS = 20_000
RULE = WatermarkRule({TOPIC: DELAY_MS})
LAST = 3


def commit_text(batch: int) -> str:
    return f"v2\n{json.dumps({'nextBatchWatermarkMs': 1000 * (batch + 1), 'stateUniqueIds': {}})}"


@pytest.fixture
def home(tmp_path) -> PipelineHome:
    """Batches 0..3 are committed, 4 is planned; a batch's largest event time gives the next one's watermark."""
    _, made = make_home(tmp_path, planned=LAST + 1, finished=LAST, committed=-1)
    for batch in range(LAST + 1):
        (made.checkpoint("t1") / "commits" / str(batch)).write_text(commit_text(batch))
    return made


ROWS = [row(batch, max_event_ms=1000 * (batch + 1) + 20_000) for batch in range(LAST + 1)]


def damage_of(home: PipelineHome) -> str | None:
    return find_damage(read_view(home.checkpoint("t1")), ROWS, lambda _: RULE)


def test_a_whole_checkpoint_is_found_whole_at_every_step_of_a_batch(home):
    checkpoint = home.checkpoint("t1")
    assert damage_of(home) is None
    for name in ("offsets/4", "offsets/.4.crc"):
        (checkpoint / name).unlink()
    assert damage_of(home) is None  # between two batches
    (checkpoint / "commits/3").unlink()
    assert damage_of(home) is None  # killed after the commit, before commits/3


def test_the_watermark_that_follows_a_batch_never_falls():
    assert watermark_after(row(3, max_event_ms=None), DELAY_MS) == 3000
    assert watermark_after(row(3, max_event_ms=10), DELAY_MS) == 3000
    assert watermark_after(row(3, max_event_ms=50_000), DELAY_MS) == 30_000


@pytest.mark.proves("guarantees.md#changelog")
@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["metadata"], "metadata is missing"),
        (["commits/2", "commits/3"], "finished batch 1"),
        (["offsets/3", "offsets/4", "offsets/.3.crc", "offsets/.4.crc", "commits/3"], "planned batch 2"),
        (["offsets/3"], "offsets/3 is missing"),
        (["commits/3"], "planned batch 4 .* finished only batch 2"),
        (["offsets", "commits"], "finished batch -1"),
        (["offsets/4"], "offsets/4 is gone, though its checksum is there"),
        ([""], "metadata is missing"),
    ],
)
def test_files_that_are_gone_are_found(home, names, found):
    for name in names:
        path = home.checkpoint("t1") / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    damage = damage_of(home)
    assert damage is not None
    assert re.search(found, damage)


@pytest.mark.parametrize("name", ["metadata", "offsets/2", "offsets/3", "offsets/4", "commits/3"])
@pytest.mark.parametrize("kind", ["truncated", "zeroed", "flipped"])
def test_bytes_that_changed_are_found(home, name, kind):
    path = home.checkpoint("t1") / name
    data = path.read_bytes()
    at = data.index(b"000") if b"000" in data else len(data) // 2
    bad = {
        "truncated": data[: len(data) // 2],
        "zeroed": bytes(len(data)),
        "flipped": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
    }[kind]
    path.write_bytes(bad)
    if name == "metadata" and kind == "flipped":
        return  # another id of the same shape means nothing to Spark; its own checksum finds it
    assert damage_of(home) is not None, bad


def test_a_plan_that_goes_back_is_found(home):
    path = home.checkpoint("t1") / "offsets/4"
    path.write_text(offsets_text(4).replace(json.dumps({TOPIC: {"0": 50}}), json.dumps({TOPIC: {"0": 39}})))
    assert "before the end of batch 3" in (damage_of(home) or "")


@pytest.mark.parametrize(
    "name", ["metadata", "sources/0/0", "state/0/_metadata/metadata", "state/0/1/_metadata/schema"]
)
def test_a_small_file_that_is_not_what_its_checksum_says_is_found(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(range(256)) * 5)
    assert find_bad_checksum(tmp_path) is None  # nothing to compare with
    with_checksum(path)
    assert find_bad_checksum(tmp_path) is None
    good = path.read_bytes()
    for bad in (good[:600], bytes(len(good)), good[:700] + b"!" + good[701:], b""):
        path.write_bytes(bad)
        assert find_bad_checksum(tmp_path) == f"{name} is not what its checksum says"
    path.write_bytes(good)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\0\0")
    assert find_bad_checksum(tmp_path) == f"{name} is not what its checksum says"
    path.unlink()
    assert find_bad_checksum(tmp_path) == f"{name} is gone, though its checksum is there"


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_changed_digit_of_an_offset_is_found_in_uncommitted_batches_too(home, number):
    path = home.checkpoint("t1") / "offsets" / str(number)
    end = f'{{"0": {10 * number + 10}}}'
    path.write_text(path.read_text().replace(end, end.replace("0}", "1}")))
    assert find_bad_checksum(home.checkpoint("t1")) == f"offsets/{number} is not what its checksum says"
    by_ledger = damage_of(home)
    assert by_ledger == (None if number > LAST else f"offsets/{number} is not what the ledger recorded for that batch")
    path.with_name(f".{number}.crc").unlink()
    assert find_bad_checksum(home.checkpoint("t1")) is None


def test_nothing_is_compared_before_the_first_committed_batch(home):
    assert find_damage(read_view(home.checkpoint("t1")), [], lambda _: RULE) is None


def is_own() -> None:
    """Say that the lease is held."""


def make_unplanned(home: PipelineHome) -> None:
    checkpoint = home.checkpoint("t1")
    for log in ("offsets", "commits"):
        for path in (checkpoint / log).iterdir():
            path.unlink()
    (checkpoint / "offsets" / ".0.49d55e5d.tmp").touch()


def test_only_a_checkpoint_in_which_no_batch_was_ever_planned_begins_anew(home):
    line = Timeline.load(home, str(head(home)))
    checkpoint = home.checkpoint("t1")
    assert not sweep_unplanned(home, line, [], is_own)  # batch 0 was planned: its range stands
    make_unplanned(home)
    assert not sweep_unplanned(home, line, ROWS, is_own)  # batches are committed: it is damaged, and that is said
    assert not sweep_unplanned(home, replace(line, parent=Fork("t0", 3)), [], is_own)
    assert checkpoint.exists()
    assert sweep_unplanned(home, line, [], is_own)
    assert not checkpoint.exists()
    assert not sweep_unplanned(home, line, [], is_own)
    assert list(checkpoint.parent.glob("*.unplanned")) == []


@pytest.mark.parametrize("knows", [True, False], ids=["lease is lost", "lease was not looked at"])
def test_a_driver_that_slept_leaves_the_checkpoint_in_which_another_has_planned(home, monkeypatch, knows):
    line, checkpoint = Timeline.load(home, str(head(home))), home.checkpoint("t1")
    plan = offsets_text(0)
    make_unplanned(home)

    def sleeps(path):
        """Look; before the look is used, a driver of another host begins and plans its first batch."""
        seen = read_view(path)
        if path == checkpoint and not (checkpoint / "offsets" / "0").exists():
            shutil.rmtree(checkpoint)
            (checkpoint / "offsets").mkdir(parents=True)
            (checkpoint / "offsets" / "0").write_text(plan)
        return seen

    def check_lease() -> None:
        if knows:
            raise LeaseLostError("taken over")

    monkeypatch.setattr("rivertwice.stream.damage.read_view", sleeps)
    with pytest.raises(LeaseLostError, match="taken over" if knows else "has planned a batch"):
        sweep_unplanned(home, line, [], check_lease)
    assert (checkpoint / "offsets" / "0").read_text() == plan
    assert list(checkpoint.parent.glob("*.unplanned")) == []


def test_a_damaged_start_is_refused_but_lost_rows_allow_a_savepoint(home, monkeypatch):
    line = replace(Timeline.load(home, str(head(home))), pipeline="p")
    applied = {"p#t1": LAST}
    monkeypatch.setattr("rivertwice.stream.damage.Table.applied_version", lambda _, app: applied.get(app))
    check_checkpoint(home, line, ROWS, lambda _: RULE)
    applied["p#t1"] = LAST - 1
    with pytest.raises(LedgerError, match="the table lost commits"):
        check_checkpoint(home, line, ROWS, lambda _: RULE)
    with pytest.raises(LedgerError, match="both lost rows"):
        check_checkpoint(home, line, ROWS[:-1], lambda _: RULE)
    applied["p#t1"] = LAST
    (home.checkpoint("t1") / "metadata").unlink()
    with pytest.raises(CheckpointError, match=r"metadata is missing.*rivertwice savepoint restore p"):
        check_checkpoint(home, line, ROWS, lambda _: RULE)
    assert path_ledger(home) == []
