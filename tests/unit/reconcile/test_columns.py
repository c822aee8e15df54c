"""Every column of a kept late row, and of a dead letter, is compared with what the log says of its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from histories.kinds import make_definition
from homes.ledger import NOW
from rivertwice.core.instants import EPOCH
from rivertwice.log.addresses import Part
from rivertwice.reconcile.copies import PublishedCopies
from rivertwice.reconcile.model import LateRow, RowId
from rivertwice.reconcile.recorded import Contents, check_dead_columns, check_late_columns
from rivertwice.reconcile.view import DefinitionVersion, HeadView
from rivertwice.timeline.lineage import Timeline

PART = Part("events", 0)
AT = EPOCH + timedelta(seconds=70)
CONTENTS = Contents(
    late={(PART, 10): {"record_time": AT, "fields": '{"k":"a","v":1}'}}, dead={(PART, 11): {"record_time": AT}}
)
STORED: dict[str, Any] = {
    "_timeline": "t1",
    "_batch": 5,
    "window_start": EPOCH + timedelta(seconds=60),
    "window_end": EPOCH + timedelta(seconds=120),
    "event_time": AT,
    "late_watermark": EPOCH + timedelta(seconds=130),
    "cluster_id": "c",
    "topic_id": "id",
    "topic": "events",
    "partition": 0,
    "offset": 10,
    "record_time": AT,
    "fields": '{"k": "a", "v": 1}',
}
LATE = LateRow(RowId(60_000, 120_000, '{"k": "a"}'), "events", 0, 10, 5, 130_000, AT)
LINE = Timeline("p", "t1", None, 0, {}, "b", {}, "c", {"events": "id"}, NOW)


@dataclass
class Row:
    timeline: str = "t1"
    batch: int = 5


@dataclass
class View:
    """The things of a head view that the check looks at."""

    kind: str = "tumbling"
    late: pa.Table | None = None
    dead: pa.Table | None = None
    rows: list[Row] = field(default_factory=lambda: [Row()])
    groups: tuple[int, ...] = (0,)
    copies: PublishedCopies = field(default_factory=lambda: PublishedCopies(timelines={"t1": LINE}))
    index: dict[tuple[str, int], int] = field(default_factory=lambda: {("t1", 5): 0})

    @property
    def newest(self) -> DefinitionVersion:
        definition = make_definition(self.kind)
        late = definition.late.model_copy(update={"policy": "side_output"})
        return DefinitionVersion(definition.model_copy(update={"late": late}), "s", "d")


def check(kind: str = "tumbling", **changes: Any) -> list[str]:
    view = View(kind, late=pa.Table.from_pylist([{**STORED, **changes}]))
    return [one.message for one in check_late_columns(cast(HeadView, view), [LATE], CONTENTS)]


def test_a_rightful_late_row_raises_nothing_however_its_fields_are_spaced() -> None:
    assert check() == []


SECOND = timedelta(seconds=1)


@pytest.mark.proves("guarantees.md#late-rows")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_end", STORED["window_end"] + SECOND),
        ("event_time", AT + SECOND),
        ("late_watermark", STORED["late_watermark"] - timedelta(milliseconds=1)),
        ("cluster_id", "d"),
        ("topic_id", "di"),
        ("record_time", AT + SECOND),
        ("fields", '{"k": "a", "v": 2}'),
        ("fields", "no JSON"),
    ],
)
def test_each_altered_column_is_named_with_what_the_log_says(name: str, value: Any) -> None:
    (message,) = check(**{name: value})
    assert message.startswith(f"the late row of record events/0@10 (batch 5): {name} is {value}, the log says ")


def test_the_late_row_of_a_session_holds_the_window_of_its_record_alone() -> None:
    gap = make_definition("session").window.length
    alone = {"window_start": AT, "window_end": AT + gap}
    assert check("session", **alone) == []
    (message,) = check("session", **{**alone, "window_start": AT - SECOND})
    assert "window_start is" in message


@pytest.mark.parametrize(("name", "value"), [("cluster_id", "d"), ("topic_id", "di"), ("record_time", AT + SECOND)])
def test_where_a_dead_letter_says_that_it_comes_from_is_compared(name: str, value: Any) -> None:
    right = {key: STORED[key] for key in ("_timeline", "_batch", "topic", "partition", "cluster_id", "topic_id")}
    letter = {**right, "offset": 11, "reason": "json", "record_time": AT}

    def found(row: dict[str, Any]) -> list[str]:
        view = View(dead=pa.Table.from_pylist([row]))
        return [one.message for one in check_dead_columns(cast(HeadView, view), CONTENTS)]

    assert found(letter) == []
    (message,) = found({**letter, name: value})
    assert message.startswith(f"dead letter events/0@11 (batch 5): {name} is {value}, the log says ")
