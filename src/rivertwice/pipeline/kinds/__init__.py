"""The kinds of windows, one module each: `Kind` lists the questions, and only these modules answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.pipeline.kinds.intervals import Intervals
from rivertwice.pipeline.kinds.kind import Kind
from rivertwice.pipeline.kinds.sessions import Sessions
from rivertwice.pipeline.kinds.stateful import Stateful
from rivertwice.pipeline.kinds.tumbling_hopping import TumblingHopping

if TYPE_CHECKING:
    from rivertwice.pipeline.windows import Window

__all__ = ["KINDS", "Kind", "kind_of"]

KINDS: tuple[Kind, ...] = (TumblingHopping(), Sessions(), Intervals(), Stateful())


def kind_of(window: Window) -> Kind:
    """Return the kind of a window: the one whose setting is given. A window that was checked has exactly one."""
    return next(kind for kind in KINDS if getattr(window, kind.setting) is not None)
