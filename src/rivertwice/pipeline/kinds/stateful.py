"""Stateful processing, `fold` in a definition: a function follows each key, event by event, and rows wait for nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.files import FOLD_FILE, ROWS_FILE, TRANSFORM_FILE
from rivertwice.pipeline.fold_code import check_fold
from rivertwice.pipeline.fold_model import find_fold_conflict
from rivertwice.pipeline.kinds.kind import Kind
from rivertwice.pipeline.names import RECORD, ROW, SOURCE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rivertwice.pipeline.model import Definition, DefinitionFile
    from rivertwice.pipeline.parts import LatePolicy
    from rivertwice.pipeline.windows import Window

FOREVER_MS = 253_402_214_400_000
"""9999-12-31: rows of a fold are final at once, as if the watermark stood there."""


class Stateful(Kind):
    """No windows: rows lie under the stretch of `fold` that holds their event, which is an address and nothing else."""

    setting = "fold"
    code_file = FOLD_FILE
    keeps_every_key = True
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
        """Return that rows are final when they are emitted, whatever the watermark is."""
        del watermark_ms
        return FOREVER_MS

    def find_late_conflict(self, late: LatePolicy) -> str | None:
        """Return why a late policy does not go with such windows, or None."""
        if not late.keeps_rows:
            return None
        return f"late.policy is {late.policy}, but nothing of a fold waits or is late; remove it"

    def find_conflict(self, definition: DefinitionFile) -> str | None:
        """Return what else of a definition does not go with such windows, or None."""
        return find_fold_conflict(definition)

    def row_keys(self, definition: DefinitionFile) -> list[str]:
        """Return the keys, and in front of them the place of the event."""
        return [*([SOURCE] if definition.has_several_sources else []), RECORD, ROW, *definition.keys]

    def find_file_conflict(self, definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
        """Return which file does not go with a fold, as "FILE: why", or None."""
        del definition
        stray = [name for name in (TRANSFORM_FILE, ROWS_FILE) if name in files]
        return (
            f"{stray[0]}: a fold takes no {stray[0]}; write it into {FOLD_FILE}, and remove the file" if stray else None
        )

    def check_code(self, definition: Definition, where: str, fields: Collection[str]) -> None:
        """Refuse a function that reads a clock, or anything but the event and the state."""
        del fields
        assert definition.fold_py is not None, "the files were checked"
        check_fold(definition.fold_py, f"{where}/{FOLD_FILE}", compared=definition.compare)

    def fingerprint_parts(self, window: Window) -> list[str]:
        """Return what tells windows apart."""
        return ["fold", format_duration(self.length(window)), str(window.at), window.start_column, window.end_column]

    def guarantee(self) -> str:
        """Return what a contract guarantees of each record."""
        return "every record is in exactly one of emitted, dead, excluded (it yielded no row); a row is emitted once"

    def find_upgrade_obstacle(self, *, chooses_records: bool) -> str | None:
        """Return why a changed component cannot be carried over, or None."""
        del chooses_records
        return (
            "a fold goes on from states that it would have folded otherwise: none of its later rows could be compared"
        )

    def case_keys(self, definition: Definition, expected: list[dict[str, Any]]) -> list[str]:
        """Return the id of the event, and which of its rows it is."""
        del definition, expected
        return [RECORD, ROW]

    def case_rows(self, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the expected rows, each the first of its event unless it says otherwise."""
        return [{ROW: 0, **row} for row in expected]
