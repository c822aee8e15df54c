"""Shared by the kinds that are written in SQL: the rules for their files and for the count column."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.core import DefinitionError, meant
from rivertwice.definition.folds import find_stray_fold_part
from rivertwice.definition.kinds.kind import Kind
from rivertwice.definition.parts import DefinitionFiles, format_duration, parse_duration
from rivertwice.definition.refusals import check_sql, token_places, tokens

if TYPE_CHECKING:
    from rivertwice.definition.model import Definition, DefinitionFile


# The `window()` or `session_window()` call of a transform, checked against the definition's window. Pure.

_CALL = re.compile(
    r"^(?:[a-z_][a-z0-9_]* \. )?(?P<field>[a-z_][a-z0-9_]*|`[^`]+`) , '(?P<size>[^']*)'(?: , '(?P<slide>[^']*)')?$"
)
_FUNCTIONS = ("window", "session_window")


def check_transform_shape(definition: Definition, where: str) -> None:
    """Refuse a transform whose rows could not be counted or whose window is not the definition's.

    Raises:
        DefinitionError: names the actual and the expected call, and the remedy.
    """
    words = [word.lower() for word in tokens(definition.transform_sql)]
    places = token_places(definition.transform_sql)
    for index, word in enumerate(words):
        in_filter = words[max(0, index - 2) : index] == ["filter", "("]
        if word == "having" or (word == "where" and not in_filter):
            message = (
                f"{where}: {places[index]}it filters rows with {word.upper()}; rows left out there have no address, so the balance of "
                "read and counted rows cannot be drawn: put the condition into rows.sql"
            )
            raise DefinitionError(message)
    expected = wanted_call(definition)
    function = definition.window.function
    calls = [index for index, word in enumerate(words) if word in _FUNCTIONS and words[index + 1 : index + 2] == ["("]]
    if not calls:
        message = f"{where}: there is no {function}() call, but the definition groups by {expected}; add it to GROUP BY"
        raise DefinitionError(message)
    for index in calls:
        if ")" not in words[index:]:
            message = f"{where}: {places[index]}{words[index]}( has no closing parenthesis; the definition groups by {expected}: write that"
            raise DefinitionError(message)
        arguments = " ".join(words[index + 2 : words.index(")", index)])
        if words[index] != function or not _is_wanted(definition, arguments):
            message = (
                f"{where}: {places[index]}it groups by {words[index]}({arguments.replace(' , ', ', ')}), but the definition's window is "
                f"{expected}; windows are over the event time itself and without offset: give both the same"
            )
            raise DefinitionError(message)


def wanted_call(definition: Definition) -> str:
    """Return the call that makes the definition's windows."""
    window = definition.window
    _, source = definition.source
    durations = [window.length] if window.slide is None else [window.length, window.slide]
    texts = [f"'{format_duration(duration)}'" for duration in durations]
    return f"{window.function}({', '.join([source.event_time, *texts])})"


def _is_wanted(definition: Definition, arguments: str) -> bool:
    window = definition.window
    match = _CALL.match(arguments)
    if match is None or match.group("field").strip("`") != definition.source[1].event_time:
        return False
    slide = match.group("slide")
    sizes = (_size(match.group("size")), None if slide is None else _size(slide))
    return sizes == (window.length, window.slide)


def _size(text: str) -> timedelta | None:
    try:
        return parse_duration(text.strip().removeprefix("interval ").strip())
    except ValueError:
        return None


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
        file = f"{where}/{DefinitionFiles.TRANSFORM_FILE}"
        check_sql(definition.transform_sql, file, compared=definition.compare, fields=fields)
        check_transform_shape(definition, file)
        if definition.rows_sql is not None:
            check_sql(
                definition.rows_sql, f"{where}/{DefinitionFiles.ROWS_FILE}", compared=definition.compare, fields=fields
            )


def find_stray_fold_file(definition: DefinitionFile, files: Mapping[str, str]) -> str | None:
    """Return why a definition that is not a fold may not have a fold's file, or None."""
    if DefinitionFiles.FOLD_FILE not in files:
        return None
    return (
        f"{DefinitionFiles.FOLD_FILE}: the window is {definition.window.text}, and {DefinitionFiles.FOLD_FILE} is for folds; remove it, or give "
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
