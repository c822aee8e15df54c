"""Session windows: `session` is the gap that ends them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.definition.kinds.kind import find_stray_reach, find_stray_slide
from rivertwice.definition.kinds.lint import UNBOUNDED, WindowLint, shows_state
from rivertwice.definition.kinds.sql import GroupedKind
from rivertwice.definition.lint_finding import LintFinding, LintLevel
from rivertwice.definition.parts import format_duration

if TYPE_CHECKING:
    from rivertwice.definition.model import Definition, DefinitionFile
    from rivertwice.definition.parts import LatePolicy
    from rivertwice.definition.windows import Window


class SessionLint(WindowLint):
    """A session can stay open as long as its key has events."""

    def state_bound(self, definition: Definition) -> LintFinding:
        """Return P8: only the data shows whether a key ever pauses."""
        text = (
            f"a session ends {format_duration(definition.window.length)} after its last event: a key that never rests keeps its "
            "session open; whether one does, the data shows"
        )
        remedy = f"{shows_state(definition.name)}; bound it by a tumbling window if a key can be busy for ever"
        return LintFinding(UNBOUNDED, LintLevel.NOT_CHECKED, text, remedy)


class Sessions(GroupedKind):
    """Windows whose ends depend on the events of a key. Their length and step are the gap, the shortest they can be."""

    setting = "session"
    function = "session_window"
    is_aligned = False
    follows_records = True
    lint = SessionLint()

    def length(self, window: Window) -> timedelta:
        """Return the length of a window."""
        assert window.session is not None, "the definition was checked"
        return window.session

    def step(self, window: Window) -> timedelta:
        """Return the time between the starts of two windows."""
        return self.length(window)

    def text(self, window: Window) -> str:
        """Return the windows in words."""
        return f"session, gap {format_duration(self.length(window))}"

    def first_end_ms(self, window: Window, event_ms: int) -> int:
        """Return the end of a session of one event."""
        return event_ms + self.length(window) // timedelta(milliseconds=1)

    def find_key_conflict(self, definition: DefinitionFile) -> str | None:
        """Return why the keys cannot be a session's, or None."""
        schema = definition.source[1].schema_
        wrong = [key for key in definition.keys if schema.get(key, "double") == "double"]
        if definition.keys and not wrong:
            return None
        problem = "there are none" if not definition.keys else f"{wrong[0]!r} is {schema.get(wrong[0], 'no field')}"
        return (
            "sessions are built per key, and what the stream did is derived by following each key, so keys must be fields "
            f"of the source's schema and no doubles; {problem}: name at least one such field"
        )

    def find_late_conflict(self, late: LatePolicy) -> str | None:
        """Return why a late policy conflicts with such windows, or None."""
        if late.policy != "correct":
            return None
        return (
            "late.policy is correct, but a late row does not say which session it belongs to, and a session may come apart without any, so "
            "none is queued; say side_output, which keeps the late rows: a backfill without a range repairs what a reconcile found LATE"
        )

    def find_window_conflict(self, window: Window) -> str | None:
        """Return which other fields of `window` a session does not have, or None."""
        return find_stray_reach(window) or find_stray_slide(window)

    def session_keys(self, definition: DefinitionFile) -> list[str] | None:
        """Return the key columns: together with the time range they identify a session."""
        return definition.keys

    def sample_time(self, window: Window, index: int) -> timedelta:
        """Return the time of a made-up event: after each five events a pause that ends the session."""
        return super().sample_time(window, index) + index // 5 * 2 * self.length(window)

    def fingerprint_parts(self, window: Window) -> list[str]:
        """Return what distinguishes windows."""
        return ["session", format_duration(self.length(window)), window.start_column, window.end_column]
