"""Stateful processing, `fold` in a definition: a function follows each key, event by event; rows are emitted at once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rivertwice.core import Row
from rivertwice.definition.fold_code import check_fold
from rivertwice.definition.folds import ERROR, find_fold_conflict
from rivertwice.definition.kinds.kind import Kind, find_stray_reach, find_stray_slide
from rivertwice.definition.kinds.lint import (
    DEFINITION,
    ERRORS,
    FIT,
    GLOBAL_ORDER,
    LATE_DROPS,
    PROCESSING_TIME,
    REPARTITION,
    UNBOUNDED,
    WindowLint,
    lifted,
    shows_lag,
    shows_state,
)
from rivertwice.definition.lint_finding import LintFinding, LintLevel
from rivertwice.definition.parts import RECORD, ROW, SOURCE, DefinitionFiles, format_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rivertwice.definition.lint_finding import CheckReport
    from rivertwice.definition.model import Definition, DefinitionFile
    from rivertwice.definition.parts import LatePolicy
    from rivertwice.definition.windows import Window

FOREVER_MS = 253_402_214_400_000
"""9999-12-31: rows of a fold are final at once, as if this were the watermark."""


class StatefulLint(WindowLint):
    """A function follows each key in the order of the log; no window closes, and no event is late."""

    def loaded(self, definition: Definition) -> list[LintFinding]:
        """Return the findings for passed checks; the results of the function are left to its cases."""
        names = ", ".join(definition.result_columns)
        text = f"it can be loaded, and Spark accepts the fold with the columns {names}"
        unchecked = "what the fold makes of events was not run; its cases do that"
        return [
            LintFinding(DEFINITION, LintLevel.HOLDS, text),
            LintFinding("fold", LintLevel.NOT_CHECKED, unchecked, f"run `rivertwice test {definition.name}`"),
        ]

    def order(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return P4: rows depend on the order in which each key was read."""
        del verdict
        by = ", ".join(definition.by)
        topics = "each topic" if definition.has_several_sources else "the topic"
        keyed = f"let producers key {topics} by {by}, and never add partitions"
        command = f"`rivertwice reconcile {definition.name}` names the keys for which it is not so"
        if definition.order == "any":
            text = (
                f"a fold follows each {by} as the log was read; the definition says that the newest row of a key does not depend on "
                "that order: a reconcile folds twice more, in other orders"
            )
            remedy = f"{command}; {keyed}: within a topic the order of a {by} still counts"
            return LintFinding(GLOBAL_ORDER, LintLevel.NOT_CHECKED, text, remedy)
        if definition.has_several_sources:
            text = (
                f"a fold follows each {by} as the log was read: topics have no common order, so what has records in several is "
                "NOT_COMPARABLE, though the stream is held to the order that it had"
            )
            remedy = f"{command}; say order: any, if the newest row of a key does not depend on it"
            return LintFinding(GLOBAL_ORDER, LintLevel.NOT_CHECKED, text, remedy)
        text = f"a fold follows each {by} in the order of the log; a key with records in several partitions is NOT_COMPARABLE"
        return LintFinding(GLOBAL_ORDER, LintLevel.NOT_CHECKED, text, f"{command}; {keyed}")

    def clock(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return the finding that a clock is refused when the function is read."""
        del verdict
        text = f"rows belong to the event time ({definition.window.at}); a clock in the fold is refused when it is read"
        if not definition.compare:
            return lifted(definition, PROCESSING_TIME)
        return LintFinding(PROCESSING_TIME, LintLevel.HOLDS, text)

    def keys(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return P5: only the data shows how evenly `by` divides the records."""
        del verdict
        by = ", ".join(definition.by)
        text = (
            f"states are kept by {by}, each a field of every source; whether few keys have most records, the data shows"
        )
        return LintFinding(REPARTITION, LintLevel.NOT_CHECKED, text, shows_lag(definition.name))

    def late_measured(self, definition: Definition) -> LintFinding:
        """Return the finding that no event is late."""
        del definition
        return LintFinding(
            LATE_DROPS, LintLevel.HOLDS, "a fold has no watermark: no event is late, and none is dropped"
        )

    def state_bound(self, definition: Definition) -> LintFinding:
        """Return P8: a key's state is kept until the function returns None for it."""
        by = ", ".join(definition.by)
        text = f"the state of every {by} is kept until the fold returns None for it; when, the data shows"
        remedy = f"{shows_state(definition.name)}; return None when a key is done, if keys come and go"
        return LintFinding(UNBOUNDED, LintLevel.NOT_CHECKED, text, remedy)

    def errors(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return whether an exception of the fold stops the stream."""
        del verdict
        if ERROR in definition.row_types:
            return LintFinding(
                ERRORS, LintLevel.HOLDS, f"an event on which the fold raises is a row with the column {ERROR}"
            )
        text = f"an event on which the fold raises stops the stream: the result has no column {ERROR}"
        remedy = f"declare a column {ERROR} of type string; then such an event is a row, and leaves the state as it was"
        return LintFinding(ERRORS, LintLevel.WARNS, text, remedy)

    def idle_source(self, definition: Definition) -> list[LintFinding]:
        """Return no finding: a silent source holds no result back."""
        del definition
        return []

    def fit(self, definition: Definition) -> LintFinding:
        """Return the finding that a batch could not give rows as soon."""
        del definition
        return LintFinding(FIT, LintLevel.HOLDS, "rows are emitted by the batch that reads their event")

    def effect_of_partitions(self, definition: Definition) -> str | None:
        """Return that keys which move to an added partition lose their order, unless the definition says that none counts."""
        if definition.order == "any":
            return None
        by = ", ".join(definition.by)
        return (
            f"producers that hash keys now send some of them to the new partitions, so for these the order of a {by} ends: a row may be "
            "made of events in another order, and a reconcile calls it NOT_COMPARABLE"
        )

    def remedy_for_partitions(self, partitions: int) -> str:
        """Return what to do about added partitions: a key's order ends there."""
        del partitions
        return "copy it, keyed, to a topic with all partitions from the first record on, and fold that"


class Stateful(Kind):
    """No windows: rows are stored under the range of `fold` that contains their event, which is only an address."""

    setting = "fold"
    code_file = DefinitionFiles.FOLD_FILE
    keeps_every_key = True
    has_lone_windows = False
    lint = StatefulLint()
    takes_several_sources = True
    has_watermark = False
    takes_cures = False
    has_newest_rows = True

    def length(self, window: Window) -> timedelta:
        """Return the length of a window."""
        assert window.fold is not None, "the definition was checked"
        return window.fold

    def step(self, window: Window) -> timedelta:
        """Return the time between the starts of two windows."""
        return self.length(window)

    def text(self, window: Window) -> str:
        """Return the windows in words."""
        return f"fold, by {format_duration(self.length(window))}"

    def closed_ms(self, watermark_ms: int) -> int:
        """Return a time after all window ends: rows are final when they are emitted, whatever the watermark is."""
        del watermark_ms
        return FOREVER_MS

    def last_end_ms(self, window: Window, before_ms: int) -> int | None:
        """Return None: rows are final at once, and no watermark ends what else an address may get."""
        del window, before_ms
        return None

    def find_late_conflict(self, late: LatePolicy) -> str | None:
        """Return why a late policy conflicts with such windows, or None."""
        if not late.keeps_rows:
            return None
        return f"late.policy is {late.policy}, but no record of a fold waits or is late; remove it"

    def find_window_conflict(self, window: Window) -> str | None:
        """Return that the column of the event's time is missing, or which fields do not fit a fold, or None."""
        stray = find_stray_reach(window, takes_at=True)
        if stray:
            return stray
        if window.at is None:
            return "a fold needs at: the result column, a timestamp, that holds the event's time; name it"
        return find_stray_slide(window)

    def find_conflict(self, definition: DefinitionFile) -> str | None:
        """Return which other part of a definition conflicts with such windows, or None."""
        return find_fold_conflict(definition)

    def row_keys(self, definition: DefinitionFile) -> list[str]:
        """Return the columns of the event's place, then the keys."""
        return [*([SOURCE] if definition.has_several_sources else []), RECORD, ROW, *definition.keys]

    def find_file_conflict(self, definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
        """Return which file conflicts with a fold, as "FILE: why", or None."""
        del definition
        stray = [name for name in (DefinitionFiles.TRANSFORM_FILE, DefinitionFiles.ROWS_FILE) if name in files]
        return (
            f"{stray[0]}: a fold takes no {stray[0]}; write it into {DefinitionFiles.FOLD_FILE}, and remove the file"
            if stray
            else None
        )

    def check_code(self, definition: Definition, where: str, fields: Collection[str]) -> None:
        """Refuse a function that reads a clock, or other values than the event and the state."""
        del fields
        assert definition.fold_py is not None, "the files were checked"
        check_fold(definition.fold_py, f"{where}/{DefinitionFiles.FOLD_FILE}", compared=definition.compare)

    def fingerprint_parts(self, window: Window) -> list[str]:
        """Return what distinguishes windows."""
        return ["fold", format_duration(self.length(window)), str(window.at), window.start_column, window.end_column]

    def guarantee(self) -> str:
        """Return what a contract guarantees of each record."""
        return "every record is in exactly one of emitted, dead, excluded (it yielded no row); a row is emitted once"

    def find_upgrade_obstacle(self, *, chooses_records: bool) -> str | None:
        """Return why a changed component cannot be carried over, or None."""
        del chooses_records
        return "a fold would continue from states that it would have computed differently: none of its later rows could be compared"

    def case_keys(self, definition: Definition, expected: list[dict[str, Any]]) -> list[str]:
        """Return the columns for the id of the event, and for the number of its row."""
        del definition, expected
        return [RECORD, ROW]

    def case_rows(self, expected: list[dict[str, Any]]) -> list[Row]:
        """Return the expected rows; a row without a number is the first of its event."""
        return [{ROW: 0, **row} for row in expected]
