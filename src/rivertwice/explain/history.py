"""How a number changed, from the rows that were ever emitted or published for its address. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rivertwice.explain.model import Change, State

Values = Mapping[str, Any]
Differs = Callable[[Values, Values], tuple[str, ...]]
"""Gives the columns in which two rows differ."""


@dataclass(frozen=True)
class EmittedRow:
    """A row of the changelog.

    Attributes:
        timeline, batch: who emitted it. at: when that was committed.
        is_on_path: whether the batch is on the head's path.
        is_final: whether the window was closed by then.
    """

    timeline: str
    batch: int
    at: datetime
    is_on_path: bool
    is_final: bool
    values: Values


@dataclass(frozen=True)
class PublishedRow:
    """A publication that covers the window.

    Attributes:
        sequence, backfill, at: of the publication. reason: of the backfill.
        serves: whether its definition is one of the head's path.
        values: its row; None: it has none for the address.
    """

    sequence: int
    backfill: str
    at: datetime
    reason: str | None
    serves: bool
    values: Values | None


@dataclass(frozen=True)
class HeadMove:
    """A move of the head: the entry's number, when it was, to which timeline, and why."""

    sequence: int
    at: datetime
    timeline: str
    reason: str


@dataclass(frozen=True)
class Closing:
    """The batch whose watermark closed the window."""

    timeline: str
    batch: int
    at: datetime


def tell_history(
    emitted: Sequence[EmittedRow],
    published: Sequence[PublishedRow],
    moves: Sequence[HeadMove],
    closing: Closing | None,
    differs: Differs,
) -> tuple[Change, ...]:
    """Return how the number changed, oldest first.

    A batch that the head left comes as `left`, with the move that left it. A window that closed over a row emitted before becomes
    `final` with the batch that closed it.

    Args:
        emitted: the rows of the address, of all timelines.
        published: the publications that cover its window.
        moves: of the head.
        closing: None while the window is open.
        differs: compares two rows.
    """
    changes = [_of_batch(row, moves) for row in emitted]
    own = [row for row in emitted if row.is_on_path]
    if own and closing is not None:
        newest = max(own, key=lambda row: row.batch)
        if not newest.is_final:
            by = f"batch {closing.timeline}/{closing.batch} closed the window"
            changes.append(Change(closing.at, State.FINAL, by, None, newest.values))
    changes += [_of_publication(row) for row in published]
    return _compared(sorted(changes, key=lambda change: change.at), differs)


def _of_batch(row: EmittedRow, moves: Sequence[HeadMove]) -> Change:
    by = f"batch {row.timeline}/{row.batch}"
    if row.is_on_path:
        return Change(row.at, State.FINAL if row.is_final else State.PROVISIONAL, by, None, row.values)
    left = next((move for move in moves if move.at > row.at and move.timeline != row.timeline), None)
    why = None if left is None else f"the head moved to {left.timeline} ({left.reason}), sequence {left.sequence}"
    return Change(row.at, State.LEFT, by, why, row.values)


def _of_publication(row: PublishedRow) -> Change:
    by = f"backfill {row.backfill}, sequence {row.sequence}"
    if not row.serves:
        return Change(row.at, State.UNUSED, by, "its definition is none of the head's path", row.values)
    return Change(row.at, State.WITHDRAWN if row.values is None else State.CORRECTED, by, row.reason, row.values)


def _compared(changes: Sequence[Change], differs: Differs) -> tuple[Change, ...]:
    compared: list[Change] = []
    before: Values | None = None
    is_first = True
    for change in changes:
        if change.state is State.UNUSED:
            compared.append(change)
            continue
        changed: tuple[str, ...] = ()
        if not is_first and before is not None and change.values is not None:
            changed = differs(before, change.values)
        elif not is_first and before is not change.values:
            changed = tuple(before or change.values or ())
        compared.append(replace(change, changed=changed))
        before, is_first = change.values, False
    return tuple(compared)
