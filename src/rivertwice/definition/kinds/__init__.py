"""The kinds of windows, one module each: `Kind` lists the questions, and only these modules answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.definition.kinds.intervals import Intervals
from rivertwice.definition.kinds.kind import Kind
from rivertwice.definition.kinds.sessions import Sessions
from rivertwice.definition.kinds.stateful import Stateful
from rivertwice.definition.kinds.tumbling_hopping import TumblingHopping

if TYPE_CHECKING:
    from rivertwice.definition.windows import Window

__all__ = ["KINDS", "Kind", "kind_of"]

KINDS: tuple[Kind, ...] = (TumblingHopping(), Sessions(), Intervals(), Stateful())


def kind_of(window: Window) -> Kind:
    """Return the kind of a window: the one whose setting is given. A window that was checked has exactly one."""
    return next(kind for kind in KINDS if getattr(window, kind.setting) is not None)
