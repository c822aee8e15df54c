"""The `window()` or `session_window()` call of a transform, checked against the definition's window. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.errors import DefinitionError
from rivertwice.pipeline.durations import format_duration, parse_duration
from rivertwice.pipeline.refusals import token_places, tokens

if TYPE_CHECKING:
    from rivertwice.pipeline.model import Definition

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
