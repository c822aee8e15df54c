"""Tumbling and hopping (sliding) windows: `size`, perhaps with `slide`, aligned to the epoch."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.definition.kinds.kind import MOST_PASSES, find_stray_reach
from rivertwice.definition.kinds.sql import GroupedKind
from rivertwice.definition.parts import format_duration

if TYPE_CHECKING:
    from rivertwice.definition.windows import Window


class TumblingHopping(GroupedKind):
    """Windows of one length that follow each other, or overlap."""

    setting = "size"
    has_independent_rows = True

    def length(self, window: Window) -> timedelta:
        """Return the length of a window."""
        assert window.size is not None, "the definition was checked"
        return window.size

    def step(self, window: Window) -> timedelta:
        """Return the time between the starts of two windows."""
        return window.slide or self.length(window)

    def text(self, window: Window) -> str:
        """Return the windows in words."""
        every = "" if window.slide is None else f" every {format_duration(window.slide)}"
        return f"{format_duration(self.length(window))}{every}"

    def contract_text(self, window: Window) -> str:
        """Return the windows as a contract describes them."""
        return f"{'tumbling' if window.slide is None else 'hopping'}, {self.text(window)}"

    def find_window_conflict(self, window: Window) -> str | None:
        """Return why the slide cannot be accepted, or None."""
        stray = find_stray_reach(window)
        if stray or window.slide is None:
            return stray
        size, slide = self.length(window), window.slide
        if slide >= size:
            return (
                f"slide {format_duration(slide)} is not shorter than size {format_duration(size)}; windows "
                "that do not overlap are tumbling: remove slide"
            )
        if size % slide or size // slide > MOST_PASSES:
            return (
                f"slide {format_duration(slide)} must go into size {format_duration(size)} without rest and at "
                f"most {MOST_PASSES} times: every record belongs to that many windows"
            )
        return None

    def find_updates_conflict(self, window: Window) -> str | None:
        """Return None: these windows have rows before they close."""
        del window
        return None

    def fingerprint_parts(self, window: Window) -> list[str]:
        """Return what distinguishes windows."""
        slide = [] if window.slide is None else ["slide", format_duration(window.slide)]
        return [format_duration(self.length(window)), window.start_column, window.end_column, *slide]
