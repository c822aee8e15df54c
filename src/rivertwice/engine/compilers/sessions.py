"""Session windows: like tumbling ones, but an event begins them and the keys must be the fields themselves."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rivertwice.definition import Definition, Window
from rivertwice.engine.compilers.tumbling_hopping import GroupedPlanCheck, WindowCompiler
from rivertwice.engine.plan_check import computed_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SessionPlanCheck(GroupedPlanCheck):
    """Judges a statement that groups by session_window() and exactly the keys."""

    origin = "the first event on"

    def find_refusals(self, definition: Definition, plan: DataFrame) -> list[str]:
        """Return the refusals of the base class, and those of a session: keys that the statement computes."""
        computed = [
            f"it computes the key {name!r}, but a session's key must be the field itself, so that what the stream "
            f"did with each key can be derived: group by {name}, and rename or clean it before the log"
            for name in computed_keys(plan, definition.keys)
        ]
        return [*super().find_refusals(definition, plan), *computed]

    def is_window(self, window: Window, start: datetime, end: datetime) -> bool:
        """Say whether a session lasts at least as long as the gap."""
        return end - start >= window.length


class SessionCompiler(WindowCompiler):
    """Spark's own session windows, in stream and batch."""

    plan_check = SessionPlanCheck()
