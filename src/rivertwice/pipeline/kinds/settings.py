"""Fields of `window` in `pipeline.yaml` that belong to some kinds only: the other kinds refuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.pipeline.windows import Window

MOST_PASSES = 60
"""A record belongs to at most so many hopping windows: a recompute runs the transform once for each of them."""


def find_stray_reach(window: Window, *, takes_at: bool = False) -> str | None:
    """Return why the fields of intervals do not fit another kind, or None."""
    if window.lookback or window.lookahead or (window.at is not None and not takes_at):
        return "lookback, lookahead and at are for intervals; remove them, or give every instead of size or session"
    return None


def find_stray_slide(window: Window) -> str | None:
    """Return why slide does not fit a kind that does not slide, or None."""
    if window.slide is None:
        return None
    return "sessions and intervals do not slide, nor do folds; remove slide, or give a size instead"
