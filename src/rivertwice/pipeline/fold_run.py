"""A fold, one event after the other: the same code in the stream's workers and in every recompute's. Pure but for the code it runs.

`fold.py` is run from the text that the definition holds, which is the bundle's; no path is looked at. Before each event the
state is made again from its JSON, so nothing that a failed call did to it stays.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Context, localcontext
from types import ModuleType
from typing import Any

from rivertwice.errors import FoldError
from rivertwice.instants import EPOCH
from rivertwice.pipeline.fold_values import FoldValueError, dump, load, settle_all

ERROR = "error"
"""The result column that takes what a fold raised; without it, the stream stops there."""
SOURCE_MARK = "_source"
"""What tells, in an event of several sources, which it is of."""
PARTITION_SHIFT = 44
_DIGITS = 76  # twice the longest decimal: no sum or product of two loses a digit
_MOST_TEXT = 500
_PLACE = re.compile(r"0x[0-9a-f]+")

FoldFunction = Callable[[dict[str, Any] | None, dict[str, Any]], Any]
Emitted = tuple[int, int, int, int, str]
"""Number of the source, event time in microseconds since 1970, place of the record, number of the row of its event, and the row as JSON."""


@dataclass(frozen=True)
class FoldSource:
    """What a worker needs of a source.

    Attributes:
        view: its name, which `event["_source"]` is where there are several. topic: for messages.
        event: field of an event to its type. event_time: the field that is its time.
        by: column of the state's key to the field that is it.
    """

    view: str
    topic: str
    event: Mapping[str, str]
    event_time: str
    by: Mapping[str, str]


@dataclass(frozen=True)
class FoldSpec:
    """All that a worker needs.

    Attributes:
        name: for messages.
        text: what `fold.py` says.
        sources: in the order in which a batch reads them; an event's number among them says whose it is.
        state: field of the state to its type.
        rows: result column to its type, the state's key among them. at: the column that is the event's time.
    """

    name: str
    text: str
    sources: tuple[FoldSource, ...]
    state: Mapping[str, str]
    rows: Mapping[str, str]
    at: str


@functools.cache
def load_fold(text: str) -> FoldFunction:
    """Return the function `fold` of a text; a text is run once in a process."""
    name = f"rivertwice_fold_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(text, "fold.py", "exec"), module.__dict__)  # noqa: S102 (trusted code of the repository, checked)
    found: FoldFunction = module.__dict__["fold"]
    return found


class FoldRun:
    """Follows keys; holds nothing between two events but the code."""

    def __init__(self, spec: FoldSpec) -> None:
        """Run the text, once in a process."""
        self._spec = spec
        self._fold = load_fold(spec.text)

    def step(
        self, state: str | None, event: str, partition: int, offset: int, source: int = 0
    ) -> tuple[str | None, list[Emitted]]:
        """Return the state behind an event and its rows.

        Args:
            state: the key's state as JSON, None if it has none.
            event: the event as JSON.
            partition: where the record lies.
            offset: where the record lies.
            source: number of the source that the record is of.

        Raises:
            FoldError: fold.py raised, or returned what was not declared, and there is no column `error`.
        """
        spec, mine = self._spec, self._spec.sources[source]
        fields = load(mine.event, event)
        at: datetime = fields[mine.event_time]
        given = {**{name: fields[field] for name, field in mine.by.items()}, spec.at: at}
        told = {**fields, SOURCE_MARK: mine.view} if len(spec.sources) > 1 else dict(fields)
        try:
            with localcontext(Context(prec=_DIGITS)):
                kept, rows = self._called(None if state is None else load(spec.state, state), told, given)
        except Exception as error:  # whatever the user's code raises
            if ERROR not in spec.rows:
                raise FoldError(_stopped(spec.name, mine.topic, error, partition, offset)) from error
            kept, rows = state, [dump(spec.rows, dict.fromkeys(spec.rows) | given | {ERROR: _told(error)})]
        record = partition << PARTITION_SHIFT | offset
        us = (at - EPOCH) // timedelta(microseconds=1)
        return kept, [(source, us, record, number, row) for number, row in enumerate(rows)]

    def _called(
        self, state: dict[str, Any] | None, event: dict[str, Any], given: Mapping[str, Any]
    ) -> tuple[str | None, list[str]]:
        spec = self._spec
        result = self._fold(state, event)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], list | tuple):
            message = f"fold returned {type(result).__name__}, not (state or None, list of rows); return both"
            raise FoldValueError(message)
        after, rows = result
        kept = None if after is None else dump(spec.state, settle_all("state", spec.state, after))
        return kept, [dump(spec.rows, self._row(row, given)) for row in rows]

    def _row(self, row: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        found = settle_all("row", self._spec.rows, row)
        for name, value in given.items():
            if name in row and found[name] != value:
                message = (
                    f"the row's {name} is {found[name]!r}, the event's is {value!r}; leave it out: it is filled in"
                )
                raise FoldValueError(message)
        return {**found, **given}


def _told(error: Exception) -> str:
    return _PLACE.sub("0x", f"{type(error).__name__}: {error}")[:_MOST_TEXT]


def _stopped(name: str, topic: str, error: Exception, partition: int, offset: int) -> str:
    return (
        f"fold.py of {name} failed on the record {topic}/{partition}@{offset} with {_told(error)}; nothing of its batch "
        f"was committed, and the stream cannot go past it; give the result a column `{ERROR}` (string) to have such records as "
        "rows, or write a rule that makes them dead letters; either is another definition"
    )
