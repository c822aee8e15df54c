"""The `window()` call of a transform, checked against the definition's window. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

from rivertwice.errors import DefinitionError
from rivertwice.pipeline.durations import format_duration, parse_duration
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.refusals import tokens

_CALL = re.compile(r"^(?:[a-z_][a-z0-9_]* \. )?(?P<field>[a-z_][a-z0-9_]*|`[^`]+`) , '(?P<size>[^']*)'$")


def check_transform_shape(definition: Definition, where: str) -> None:
    """Refuse a transform whose rows could not be counted or whose window is not the definition's.

    Raises:
        DefinitionError: names what was found, what was wanted and the remedy.
    """
    words = [word.lower() for word in tokens(definition.transform_sql)]
    for index, word in enumerate(words):
        in_filter = words[max(0, index - 2) : index] == ["filter", "("]
        if word == "having" or (word == "where" and not in_filter):
            message = (
                f"{where} filters rows with {word.upper()}; rows left out there have no address, so the balance of "
                "read and counted rows cannot be drawn: put the condition into rows.sql"
            )
            raise DefinitionError(message)
    calls = [index for index, word in enumerate(words) if word == "window" and words[index + 1 : index + 2] == ["("]]
    size = definition.window.size
    _, source = definition.source
    wanted = f"window({source.event_time}, '{format_duration(size)}')"
    if not calls:
        message = f"{where} has no window() call, but the definition groups by {wanted}; add it to GROUP BY"
        raise DefinitionError(message)
    for index in calls:
        arguments = " ".join(words[index + 2 : words.index(")", index)])
        match = _CALL.match(arguments)
        found = _size(match.group("size")) if match else None
        if match is None or match.group("field").strip("`") != source.event_time or found != size:
            message = (
                f"{where} groups by window({arguments.replace(' , ', ', ')}), but the definition's window is {wanted}; windows are "
                "tumbling, over the event time itself and without offset: give both the same"
            )
            raise DefinitionError(message)


def _size(text: str) -> timedelta | None:
    try:
        return parse_duration(text.strip().removeprefix("interval ").strip())
    except ValueError:
        return None
