"""Shared by the kinds that are written in SQL: the rules for their files and for the count column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rivertwice.nearest import meant
from rivertwice.pipeline.files import FOLD_FILE, ROWS_FILE, TRANSFORM_FILE
from rivertwice.pipeline.fold_model import find_stray_fold_part
from rivertwice.pipeline.kinds.kind import Kind
from rivertwice.pipeline.refusals import check_sql
from rivertwice.pipeline.window_call import check_transform_shape

if TYPE_CHECKING:
    from rivertwice.pipeline.model import Definition, DefinitionFile


class GroupedKind(Kind):
    """A kind that groups one source's records: by a window of Spark's function, and the keys."""

    def find_conflict(self, definition: DefinitionFile) -> str | None:
        """Return which other part of a definition conflicts with such windows, or None."""
        return find_stray_fold_part(definition) or find_count_conflict(definition)

    def find_file_conflict(self, definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
        """Return which file conflicts with such windows, as "FILE: why", or None."""
        return find_stray_fold_file(definition, files)

    def check_code(self, definition: Definition, where: str, fields: Collection[str]) -> None:
        """Refuse SQL that could not be recomputed, or that does not group by the window and the keys."""
        file = f"{where}/{TRANSFORM_FILE}"
        check_sql(definition.transform_sql, file, compared=definition.compare, fields=fields)
        check_transform_shape(definition, file)
        if definition.rows_sql is not None:
            check_sql(definition.rows_sql, f"{where}/{ROWS_FILE}", compared=definition.compare, fields=fields)


def find_stray_fold_file(definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
    """Return why a definition that is no fold may not have a fold's file, or None."""
    if FOLD_FILE not in files:
        return None
    return (
        f"{FOLD_FILE}: the window is {definition.window.text}, and {FOLD_FILE} is for folds; remove it, or give "
        "window: {fold: 1 day, at: COLUMN}"
    )


def find_count_conflict(definition: DefinitionFile) -> str | None:
    """Return why the count column does not fit the balance, or None."""
    if definition.count_column is None:
        return "count_column is missing; name the column that is count(*): the balance is built on it"
    if definition.count_column not in definition.columns:
        return f"count_column {definition.count_column!r} is not among columns {list(definition.columns)}; correct it{meant(definition.count_column, definition.columns)}"
    if definition.columns[definition.count_column].compare != "exact":
        return f"count_column {definition.count_column!r} must be compared exactly; the balance is built on it"
    return None
