"""Where a driver that was killed while it placed its first batch continues, and what is placed at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homes.project import FLIGHTS
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.log.addresses import Part
from rivertwice.storage.local import replace_json
from rivertwice.stream import placing
from rivertwice.stream.damage import find_bad_checksum, fits_checksum
from rivertwice.stream.placing import (
    BatchEnds,
    FirstBatch,
    find_first,
    most_placed,
    replace_whole,
    stored_ends,
    tolerance_ms,
)


@pytest.fixture
def context(tmp_path: Path) -> Any:
    home = Settings(tmp_path, tmp_path / "home").pipeline("p")
    line = SimpleNamespace(timeline="t1", first_batch=0)
    for name in ("offsets", "commits"):
        (home.checkpoint("t1") / name).mkdir(parents=True)
    return SimpleNamespace(home=home, timeline=line, checkpoint=home.checkpoint("t1"), app="p#t1")


def put(context: Any, *names: str) -> None:
    for name in names:
        (context.checkpoint / name).write_text("v1")


def test_a_new_checkpoint_begins_with_a_batch_that_nobody_planned(context: Any) -> None:
    assert find_first(context) == FirstBatch(0, is_planned=False, is_draft=False)
    put(context, "offsets/0", "commits/0", "offsets/1", "commits/1")
    assert find_first(context) == FirstBatch(2, is_planned=False, is_draft=False)


def test_a_planned_batch_without_a_marker_keeps_its_range(context: Any) -> None:
    put(context, "offsets/0", "commits/0", "offsets/1")
    assert find_first(context) == FirstBatch(1, is_planned=True, is_draft=False)


def test_a_killed_drivers_draft_is_known_by_its_marker(context: Any) -> None:
    put(context, "offsets/0")
    replace_json(context.home.unplaced("t1"), {"format": 1, "batch": 0})
    assert find_first(context) == FirstBatch(0, is_planned=True, is_draft=True)


def test_the_marker_of_an_earlier_batch_says_nothing_of_this_one(context: Any) -> None:
    put(context, "offsets/0", "commits/0", "offsets/1")
    replace_json(context.home.unplaced("t1"), {"format": 1, "batch": 0})
    assert not find_first(context).is_draft


def test_a_batch_that_is_committed_is_no_draft(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(context, "offsets/0")
    replace_json(context.home.unplaced("t1"), {"format": 1, "batch": 0})
    monkeypatch.setattr(placing.Table, "applied_version", lambda *_: 0)
    assert not find_first(context).is_draft


def test_replaced_ends_have_a_checksum_of_their_own(context: Any) -> None:
    put(context, "offsets/0", "offsets/.0.crc")
    text = "v1\n" + "x" * 1300
    replace_whole(context.checkpoint / "offsets" / "0", text)
    assert (context.checkpoint / "offsets" / "0").read_text() == text
    assert fits_checksum(text.encode(), (context.checkpoint / "offsets" / ".0.crc").read_bytes())
    assert not fits_checksum(text[:-1].encode(), (context.checkpoint / "offsets" / ".0.crc").read_bytes())
    assert find_bad_checksum(context.checkpoint) is None
    assert sorted(path.name for path in context.checkpoint.parent.iterdir()) == ["checkpoint"]


def test_ends_are_stored_as_spark_stores_them() -> None:
    cut = BatchEnds({Part("b", 0): 5, Part("a", 1): 7, Part("a", 0): 6}, 9)
    assert stored_ends(cut.ends) == {"a": {"0": 6, "1": 7}, "b": {"0": 5}}


@pytest.mark.parametrize(("share", "expected"), [(0.25, 900_000), (1, 3_600_000), (0, None)])
def test_the_tolerance_is_the_share_of_the_watermark(share: float, expected: int | None) -> None:
    definition = load_definition(FLIGHTS)
    definition = definition.model_copy(
        update={"stream": definition.stream.model_copy(update={"catch_up_share": share})}
    )
    assert tolerance_ms(definition) == expected


def test_a_placed_batch_stays_below_the_limit_that_spark_shares_out() -> None:
    definition = load_definition(FLIGHTS)
    assert most_placed(definition) == definition.stream.max_offsets_per_trigger - 1
