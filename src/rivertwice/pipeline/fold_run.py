"""Run a fold, one event after the other: the same code in the stream's workers and in every recompute. Pure except for the user's code.

`fold.py` is run from the text that the definition holds, which is the bundle's; no file is read. Before each event the
state is built again from its JSON, so a failed call leaves no change in it.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, localcontext
from types import ModuleType
from typing import Any

from rivertwice.errors import FoldError
from rivertwice.pipeline.fold_values import FoldValueError, prepare_fields

ERROR = "error"
"""The result column for the error that a fold raised; without this column the stream stops at the record."""
SOURCE_MARK = "_source"
"""The field that names an event's source, if there are several sources."""
PARTITION_SHIFT = 44
_CONTEXT = Context(prec=76)  # twice the longest decimal: no sum or product of two loses a digit
_MOST_TEXT = 500
_PLACE = re.compile(r"0x[0-9a-f]+")

FoldFunction = Callable[[dict[str, Any] | None, dict[str, Any]], Any]
Emitted = tuple[int, int, int, int, str]
"""Number of the source, event time in microseconds since 1970, place of the record, number of the row of its event, and the row as JSON."""


@dataclass(frozen=True)
class FoldSource:
    """What a worker needs to know about a source.

    Attributes:
        view: its name, which is `event["_source"]` if there are several sources. topic: for messages.
        event: field of an event to its type. event_time: the field that is its time.
        by: column of the state's key to the source's field.
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
        text: the text of `fold.py`.
        sources: in the order in which a batch reads them; an event gives its source by its number in this order.
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
    fold: FoldFunction = module.__dict__["fold"]
    return fold


class FoldRun:
    """Follows keys; keeps only the code between two events."""

    def __init__(self, spec: FoldSpec) -> None:
        """Run the text, once in a process."""
        self._spec = spec
        self._fold = load_fold(spec.text)
        self._events = [prepare_fields(source.event) for source in spec.sources]
        self._state, self._rows = prepare_fields(spec.state), prepare_fields(spec.rows)
        self._has_several_sources = len(spec.sources) > 1

    def step(
        self, state: str | None, event: str, partition: int, offset: int, source: int = 0
    ) -> tuple[str | None, list[Emitted]]:
        """Return the state after an event, and the event's rows.

        Args:
            state: the key's state as JSON, None if it has none.
            event: the event as JSON.
            partition: partition of the record.
            offset: offset of the record.
            source: number of the record's source.

        Raises:
            FoldError: fold.py raised, or returned what was not declared, and there is no column `error`.
        """
        spec, fold_source, read = self._spec, self._spec.sources[source], self._events[source]
        fields = read.parse(event)
        us: int = fields[fold_source.event_time]
        read.read(fields)
        filled = {name: fields[field] for name, field in fold_source.by.items()}
        filled[spec.at] = fields[fold_source.event_time]
        if self._has_several_sources:
            fields[SOURCE_MARK] = fold_source.view
        try:
            with localcontext(_CONTEXT):  # a copy: what the code changes of it ends with the event
                next_state, rows = self._called(None if state is None else self._state.load(state), fields, filled)
        except Exception as error:  # the user's code may raise any exception
            if ERROR not in spec.rows:
                raise FoldError(_stopped(spec.name, fold_source.topic, error, partition, offset)) from error
            row = dict.fromkeys(spec.rows) | filled | {ERROR: _error_text(error)}
            next_state, rows = state, [self._rows.dump(row)]
        record = partition << PARTITION_SHIFT | offset
        return next_state, [(source, us, record, number, row) for number, row in enumerate(rows)]

    def _called(
        self, state: dict[str, Any] | None, event: dict[str, Any], filled: Mapping[str, Any]
    ) -> tuple[str | None, list[str]]:
        result = self._fold(state, event)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], list | tuple):
            message = f"fold returned {type(result).__name__}, not (state or None, list of rows); return both"
            raise FoldValueError(message)
        after, rows = result
        next_state = None if after is None else self._state.save("state", after)
        return next_state, [self._rows.dump(self._row(row, filled)) for row in rows]

    def _row(self, row: Any, filled: Mapping[str, Any]) -> dict[str, Any]:
        settled = self._rows.settle("row", row)
        for name, value in filled.items():
            if name in row and settled[name] != value:
                message = (
                    f"the row's {name} is {settled[name]!r}, the event's is {value!r}; leave it out: it is filled in"
                )
                raise FoldValueError(message)
            settled[name] = value
        return settled


def _error_text(error: Exception) -> str:
    return _PLACE.sub("0x", f"{type(error).__name__}: {error}")[:_MOST_TEXT]


def _stopped(name: str, topic: str, error: Exception, partition: int, offset: int) -> str:
    return (
        f"fold.py of {name} failed on the record {topic}/{partition}@{offset} with {_error_text(error)}; nothing of its batch "
        f"was committed, and the stream cannot go past it; give the result a column `{ERROR}` (string) to have such records as "
        f"rows, or write a rule that makes them dead letters; then `rivertwice upgrade {name} --new-version --yes`, or `rivertwice "
        f"start {name}` if no batch is committed yet"
    )
