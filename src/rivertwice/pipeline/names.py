"""Names of columns and topics, and how optional fields are published."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator

from rivertwice.config import TOPIC, explain_topic

_COLUMN = re.compile(r"^[a-z][a-z0-9_]{0,63}\Z")


def _column(value: str) -> str:
    if not _COLUMN.match(value):
        message = (
            f"{value[:80]!r} cannot name a column; names start with a lower-case letter and hold at most 64 "
            "of a-z, 0-9 and _ (a leading _ is reserved)"
        )
        raise ValueError(message)
    return value


def _topic(value: str) -> str:
    if not TOPIC.match(value):
        raise ValueError(explain_topic(value))
    return value


Column = Annotated[str, AfterValidator(_column)]
Topic = Annotated[str, AfterValidator(_topic)]


def without_null(schema: dict[str, Any]) -> None:
    """Publish an optional field without null: YAML leaves it out."""
    kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
    schema.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
    schema.pop("default")


VALID_FROM, VALID_TO = "valid_from", "valid_to"
VERSION = {VALID_FROM, VALID_TO}
"""Columns of a table's view: when a version was valid; `valid_to` is NULL if it still is."""
RECORD = "record"
"""Column of an interval's views: the record's place in its topic; it is unique, so it breaks ties. In a fold's rows: the event's place."""
SOURCE = "source"
"""Column of a fold's rows, if it has several sources: the view of the event's source."""
ROW = "row"
"""Column of a fold's rows: the row's number among the rows of its event, from 0."""
