"""Fields of `window` in `pipeline.yaml` that belong to some kinds only: refused where they mean nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.pipeline.windows import Window

MOST_PASSES = 60
"""A record belongs to at most so many hopping windows: each of them costs a recompute a run of the transform."""


def find_stray_reach(window: Window, *, takes_at: bool = False) -> str | None:
    """Return that the fields of intervals are given to another kind, or None."""
    if window.lookback or window.lookahead or (window.at is not None and not takes_at):
        return "lookback, lookahead and at are of intervals; remove them, or give every instead of size or session"
    return None


def find_stray_slide(window: Window) -> str | None:
    """Return that slide is given to a kind that does not slide, or None."""
    if window.slide is None:
        return None
    return "sessions and intervals do not slide, nor do folds; remove slide, or give a size instead"
