"""The kinds of windows for backfills. Windows of a kind without a planner cannot be published."""

from __future__ import annotations

from collections.abc import Mapping

from rivertwice.backfill.kinds.planner import Planner
from rivertwice.backfill.kinds.sessions import SessionPlanner
from rivertwice.backfill.kinds.windows import WindowPlanner
from rivertwice.core.errors import RequestError
from rivertwice.core.installed import base_of
from rivertwice.definition.definition import Definition
from rivertwice.definition.kinds import Kind
from rivertwice.definition.kinds.intervals import Intervals
from rivertwice.definition.kinds.sessions import Sessions
from rivertwice.definition.kinds.tumbling_hopping import TumblingHopping

__all__ = ["Planner", "find_planner", "planner_of"]

_PLANNERS: Mapping[type[Kind], Planner] = {
    TumblingHopping: WindowPlanner(),
    Intervals: WindowPlanner(),
    Sessions: SessionPlanner(),
}


def find_planner(definition: Definition) -> Planner | None:
    """Return what looks for windows of a definition to recompute; None if they cannot be published."""
    return _PLANNERS.get(type(definition.window.kind))


def planner_of(definition: Definition) -> Planner:
    """Return what looks for windows of a definition to recompute.

    Raises:
        RequestError: its windows cannot be published: it is a fold, which has nothing to repair.
    """
    planner = find_planner(definition)
    if planner is None:
        message = (
            f"{definition.name} is a fold: none of its events is ever late, and each row depends on all records of its key before it, so "
            f"no window is recomputed alone; `rivertwice upgrade {base_of(definition.name)} --new-version` computes all of a changed fold, and "
            "with --recompute of the same one, beside it; at a first start `rivertwice start NAME --from-batch` loads a long log"
        )
        raise RequestError(message)
    return planner
