"""How a number changed: provisional, final, corrected, withdrawn, left, in the order of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rivertwice.read.explain_model import Closing, EmittedRow, HeadMove, NumberChange, PublishedRow, State, tell_history

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


def differing(left: Any, right: Any) -> tuple[str, ...]:
    return tuple(name for name in left if left[name] != right[name])


def row(batch: int, total: int, *, final: bool = False, timeline: str = "t1", on_path: bool = True) -> EmittedRow:
    return EmittedRow(timeline, batch, at(batch), on_path, final, {"n": 1, "total": total})


def published(seq: int, total: int | None, *, serves: bool = True) -> PublishedRow:
    values = None if total is None else {"n": 1, "total": total}
    return PublishedRow(seq, f"bf-{seq}", at(100 + seq), "late record", serves, values)


def shown(changes: tuple[NumberChange, ...]) -> list[tuple[str, int | None, tuple[str, ...]]]:
    return [(each.state, None if each.values is None else each.values["total"], each.changed) for each in changes]


def test_updates_become_final_with_the_batch_that_closes_the_window() -> None:
    closing = Closing("t1", 9, at(9))
    told = tell_history([row(3, 5), row(1, 4)], [published(2, 7)], [], closing, differing)
    assert shown(told) == [
        (State.PROVISIONAL, 4, ()),
        (State.PROVISIONAL, 5, ("total",)),
        (State.FINAL, 5, ()),
        (State.CORRECTED, 7, ("total",)),
    ]
    assert told[2].by == "batch t1/9 closed the window"
    assert told[3].why == "late record"


def test_a_row_that_its_closing_batch_emits_is_final_once() -> None:
    assert shown(tell_history([row(9, 5, final=True)], [], [], Closing("t1", 9, at(9)), differing)) == [
        (State.FINAL, 5, ())
    ]


def test_an_open_window_has_no_final_number() -> None:
    assert [each.state for each in tell_history([row(1, 4)], [], [], None, differing)] == [State.PROVISIONAL]


def test_a_row_that_is_only_published_begins_with_its_publication() -> None:
    told = tell_history([], [published(2, 7), published(3, None)], [], Closing("t1", 9, at(9)), differing)
    assert shown(told) == [(State.CORRECTED, 7, ()), (State.WITHDRAWN, None, ("n", "total"))]


def test_a_batch_that_the_head_left_says_which_move_left_it() -> None:
    moves = [HeadMove(1, at(0), "t1", "first start"), HeadMove(4, at(6), "t2", "restore of sp-1")]
    emitted = [row(5, 4, final=True, on_path=False), row(7, 6, final=True, timeline="t2")]
    told = tell_history(emitted, [], moves, Closing("t2", 7, at(7)), differing)
    assert shown(told) == [(State.LEFT, 4, ()), (State.FINAL, 6, ("total",))]
    assert told[0].why == "the head moved to t2 (restore of sp-1), sequence 4"


def test_a_publication_that_does_not_serve_changes_nothing() -> None:
    told = tell_history(
        [row(9, 5, final=True)],
        [published(1, 8, serves=False), published(2, 5)],
        [],
        Closing("t1", 9, at(9)),
        differing,
    )
    assert shown(told) == [(State.FINAL, 5, ()), (State.UNUSED, 8, ()), (State.CORRECTED, 5, ())]
