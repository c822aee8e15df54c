"""What readers of a sink must see: each step whole, once and in order; and what they hold is what is served at the position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.model.violations import fail
from rivertwice.deliver.model import WITHDRAW, DeliveredRecord, Position

WHOLE = "readers see all of a step or nothing"
ONCE = "each row of each step is seen exactly once, in order"
FORWARD = "a sink's position goes from step to step, and never back"
SERVED = "what a reader holds is what is served at the sink's position"
EQUAL = "in the end each reader holds what is served"
DELIVERED = "in the end each sink has everything"


class Reader:
    """Folds what a sink shows, as any consumer does, and compares it with the truth.

    Attributes:
        rows: what it holds, by key. position: of the last step that it saw.
        truth: returns what is served at a position; None compares nothing.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.rows: dict[str, Any] = {}
        self.position: Position | None = None
        self.truth: Callable[[Position], Mapping[str, Any]] | None = None

    @property
    def number(self) -> int:
        """Number of the last step that it saw."""
        return 0 if self.position is None else self.position.number

    def commits(self, records: Sequence[DeliveredRecord], position: Position | None) -> None:
        """See a transaction."""
        if position is None:
            fail(WHOLE, f"{[record.key for record in records]} without their position")
        if position.number != self.number + 1:
            fail(FORWARD, f"step {position.number} after step {self.number}")
        for record in records:
            before = self.rows.get(record.key)
            if before != (None if record.old is None else record.old[0]):
                fail(ONCE, f"{record.op} of {record.key} replaces {record.old}, the reader holds {before}")
            if record.op == WITHDRAW:
                del self.rows[record.key]
            else:
                self.rows[record.key] = record.values[0]
        self.position = position
        truth = {} if self.truth is None else self.truth(position)
        if self.truth is not None and self.rows != truth:
            fail(SERVED, f"{sorted(self.rows)} at {position}, served are {sorted(truth)}")
