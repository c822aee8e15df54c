"""Intervals (`every` in a definition): a range of event time is computed at once, from raw records."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rivertwice.core import DefinitionError
from rivertwice.definition.folds import find_stray_fold_part
from rivertwice.definition.kinds.kind import MOST_PASSES, Kind, find_stray_slide
from rivertwice.definition.kinds.lint import WindowLint
from rivertwice.definition.kinds.sql import find_stray_fold_file
from rivertwice.definition.parts import RECORD, VERSION, DefinitionFiles, format_duration
from rivertwice.definition.refusals import check_sql

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rivertwice.definition.model import Definition, DefinitionFile
    from rivertwice.definition.windows import Window


class IntervalLint(WindowLint):
    """The SQL sees the records of one window at a time."""

    per_window = True
    grouped = "are columns of the result"


class Intervals(Kind):
    """Ranges of `every`, whose rows are computed from the records of a window around each. The length is that of the window."""

    setting = "every"
    takes_several_sources = True
    keeps_records = True
    follows_records = True
    lint = IntervalLint()

    def length(self, window: Window) -> timedelta:
        """Return the length of a window."""
        return window.lookback + self.step(window) + window.lookahead

    def step(self, window: Window) -> timedelta:
        """Return the time between the starts of two windows."""
        assert window.every is not None, "the definition was checked"
        return window.every

    def text(self, window: Window) -> str:
        """Return the windows in words."""
        reach = f"{format_duration(window.lookback)} before and {format_duration(window.lookahead)} after"
        return f"intervals of {format_duration(self.step(window))} that see {reach}"

    def find_window_conflict(self, window: Window) -> str | None:
        """Return why lookback, lookahead or the column of time cannot be accepted, or None."""
        every, none = self.step(window), timedelta(0)
        if window.at is None:
            return "intervals need at: the result column, a timestamp, by which a row belongs to an interval; name it"
        for name, reach in (("lookback", window.lookback), ("lookahead", window.lookahead)):
            if reach < none or reach % every:
                return (
                    f"{name} {format_duration(reach)} is not a multiple of every {format_duration(every)}; intervals are cut "
                    "by every, so give one of them another length"
                )
        passes = self.length(window) // every
        if passes > MOST_PASSES:
            return (
                f"lookback, every and lookahead are {passes} times every: each record would be kept and read that often, "
                f"at most {MOST_PASSES} times is allowed; make every longer"
            )
        return find_stray_slide(window)

    def find_conflict(self, definition: DefinitionFile) -> str | None:
        """Return which other part of a definition conflicts with such windows, or None."""
        window = definition.window
        stray = find_stray_fold_part(definition)
        if stray:
            return stray
        if definition.count_column is not None:
            return f"count_column is {definition.count_column!r}, but rows of intervals are not counted by a column; remove it"
        if not definition.keys:
            return "intervals need keys: the result columns that tell a row from all others of its interval; name them"
        if window.at not in (*definition.keys, *definition.columns):
            return f"window.at {window.at!r} is neither a key nor a column; add it to the result, or correct it"
        beating = next((view for view, source in definition.sources.items() if source.heartbeat), None)
        if beating is not None:
            return f"source {beating!r} has a heartbeat, but intervals leave out no records by themselves; remove it, and write the condition into {DefinitionFiles.TRANSFORM_FILE}'s WHERE"
        reserved = {window.start_column, window.end_column, RECORD}
        for view, source in definition.sources.items():
            taken = sorted((reserved | (VERSION if source.is_table else set())) & set(source.schema_))
            if taken:
                return (
                    f"field {taken[0]!r} of source {view!r} has the name of a column that intervals add to every view; rename the "
                    "window's columns (window.start_column, window.end_column), or the field before the log"
                )
        return None

    def find_file_conflict(self, definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
        """Return which file conflicts with such windows, as "FILE: why", or None."""
        return find_stray_fold_file(definition, files)

    def check_code(self, definition: Definition, where: str, fields: Collection[str]) -> None:
        """Refuse SQL that could not be recomputed, and `rows.sql`: its conditions belong in the statement."""
        sql, compared = definition.transform_sql, definition.compare
        check_sql(sql, f"{where}/{DefinitionFiles.TRANSFORM_FILE}", compared=compared, per_window=True, fields=fields)
        if definition.rows_sql is not None:
            message = f"{where}/{DefinitionFiles.ROWS_FILE}: intervals take no {DefinitionFiles.ROWS_FILE}; write the condition into {DefinitionFiles.TRANSFORM_FILE}'s WHERE"
            raise DefinitionError(message)

    def fingerprint_parts(self, window: Window) -> list[str]:
        """Return what distinguishes windows."""
        reach = [format_duration(duration) for duration in (self.step(window), window.lookback, window.lookahead)]
        return ["slices", *reach, str(window.at), window.start_column, window.end_column]

    def case_keys(self, definition: Definition, expected: list[dict[str, Any]]) -> list[str]:
        """Return only the keys if a case leaves the start out: a window begins before its interval."""
        if not all(definition.window.start_column in row for row in expected):
            return definition.keys
        return super().case_keys(definition, expected)
