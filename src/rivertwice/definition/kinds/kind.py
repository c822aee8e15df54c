"""The interface of a kind of windows. Pure: neither this module nor the kinds import Spark at module level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from rivertwice.core import Row
from rivertwice.definition.kinds.lint import WindowLint
from rivertwice.definition.parts import DefinitionFiles

if TYPE_CHECKING:
    from rivertwice.definition.model import Definition, DefinitionFile
    from rivertwice.definition.parts import LatePolicy
    from rivertwice.definition.windows import Window


class Kind(ABC):
    """One kind of windows. It has no state: each method takes a window or a definition.

    Attributes:
        setting: the field of `window` in `pipeline.yaml` that chooses the kind.
        function: Spark's function that makes the windows.
        is_aligned: whether windows begin at multiples of their step from the epoch and have one length; else an event begins a
            window, and the window can grow.
        has_watermark: whether results wait for a watermark.
        keeps_records: whether the state holds raw records with all their fields, used or not.
        takes_cures: whether the record of a dead letter can be corrected and read again.
        has_newest_rows: whether each key has a newest row, which replaces the earlier ones.
        follows_records: whether a window or its rows depend on records that another definition may not take.
        keeps_every_key: whether the state never forgets a key by itself.
        has_independent_rows: whether what is known of a row depends on its own window and records alone, so that executors may
            judge each where it is.
        has_lone_windows: whether a window is computed from the records of its own times, so that a backfill can publish it.
    """

    setting: ClassVar[str]
    function: ClassVar[str] = "window"
    takes_several_sources: ClassVar[bool] = False
    is_aligned: ClassVar[bool] = True
    has_watermark: ClassVar[bool] = True
    keeps_records: ClassVar[bool] = False
    takes_cures: ClassVar[bool] = True
    has_newest_rows: ClassVar[bool] = False
    keeps_every_key: ClassVar[bool] = False
    has_independent_rows: ClassVar[bool] = False
    follows_records: ClassVar[bool] = False
    has_lone_windows: ClassVar[bool] = True
    code_file: ClassVar[str] = DefinitionFiles.TRANSFORM_FILE
    lint: ClassVar[WindowLint] = WindowLint()

    @abstractmethod
    def length(self, window: Window) -> timedelta:
        """Return the length of a window."""

    @abstractmethod
    def step(self, window: Window) -> timedelta:
        """Return the time between the starts of two windows."""

    @abstractmethod
    def text(self, window: Window) -> str:
        """Return the windows in words."""

    def contract_text(self, window: Window) -> str:
        """Return the windows as a contract describes them."""
        return self.text(window)

    def closed_ms(self, watermark_ms: int) -> int:
        """Return the window end up to which rows are final at a watermark (epoch ms)."""
        return watermark_ms

    def first_end_ms(self, window: Window, event_ms: int) -> int:
        """Return the end of the earliest window of an event (epoch ms)."""
        step = self.step(window) // timedelta(milliseconds=1)
        return event_ms // step * step + step

    def last_end_ms(self, window: Window, before_ms: int) -> int | None:
        """Return the end of the last window that may start before an instant, both in epoch ms; None: no watermark closes it.

        Where events begin windows, the last may end later than that.
        """
        step = self.step(window) // timedelta(milliseconds=1) if self.is_aligned else 1
        return (before_ms - 1) // step * step + self.length(window) // timedelta(milliseconds=1)

    def find_key_conflict(self, definition: DefinitionFile) -> str | None:
        """Return why the keys cannot be keys of such windows, or None."""
        del definition
        return None

    def find_late_conflict(self, late: LatePolicy) -> str | None:
        """Return why a late policy conflicts with such windows, or None."""
        del late
        return None

    @abstractmethod
    def find_window_conflict(self, window: Window) -> str | None:
        """Return which other fields of `window` conflict with such windows, or None."""

    @abstractmethod
    def find_conflict(self, definition: DefinitionFile) -> str | None:
        """Return which other part of a definition conflicts with such windows, or None."""

    def find_updates_conflict(self, window: Window) -> str | None:
        """Return why rows cannot be emitted with every batch that changes them, or None."""
        return (
            f"emit is updates, but the window is {self.text(window)}: only tumbling and hopping windows have rows before they close "
            "(a fold's are final at once); say emit: final"
        )

    @abstractmethod
    def find_file_conflict(self, definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
        """Return which file conflicts with such windows, as "FILE: why", or None.

        Args:
            files: name to text.
        """

    @abstractmethod
    def check_code(self, definition: Definition, where: str, fields: Collection[str]) -> None:
        """Check the text that computes rows, without Spark.

        Args:
            fields: names of all fields of the sources, in lower case.

        Raises:
            DefinitionError: it could not be recomputed; names the file, the cause and the remedy.
        """

    def sample_time(self, window: Window, index: int) -> timedelta:
        """Return the time of a made-up event after the first, by its index: several events are in each window."""
        return index * self.length(window) * 3 / 8

    def row_keys(self, definition: DefinitionFile) -> list[str]:
        """Return the result columns that identify a row in its window."""
        return definition.keys

    def session_keys(self, definition: DefinitionFile) -> list[str] | None:
        """Return the key columns if windows are identified by key and time range, else None."""
        del definition
        return None

    @abstractmethod
    def fingerprint_parts(self, window: Window) -> list[str]:
        """Return what distinguishes windows. It is hashed, so it must not change: stored fingerprints stay valid."""

    def guarantee(self) -> str:
        """Return what a contract guarantees of each record."""
        return "every (record, window) pair is in exactly one of emitted, open, late, dead, excluded; a window is emitted once"

    def find_upgrade_obstacle(self, *, chooses_records: bool) -> str | None:
        """Return why a changed component cannot be carried over, or None: other rules decide.

        Args:
            chooses_records: whether the component decides which records reach the state; the watermark and the late policy do not.
        """
        if not (chooses_records and self.follows_records):
            return None
        return "sessions and intervals whose records two definitions chose cannot be compared"

    def case_keys(self, definition: Definition, expected: list[dict[str, Any]]) -> list[str]:
        """Return the columns that identify a row of a case."""
        del expected
        return [definition.window.start_column, *definition.keys]

    def case_rows(self, expected: list[dict[str, Any]]) -> list[Row]:
        """Return the expected rows of a case, with the values that may be left out filled in."""
        return expected


# Fields of `window` in `pipeline.yaml` that belong to some kinds only: the other kinds refuse them.

MOST_PASSES = 60
"""The maximum number of hopping windows of a record: a recompute runs the transform once for each of them."""


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
