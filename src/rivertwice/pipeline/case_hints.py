"""Why an event of a case became a dead letter that the case does not expect: what the file says of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from rivertwice.errors import RequestError
from rivertwice.instants import parse_iso
from rivertwice.nearest import meant
from rivertwice.pipeline.case_files import Case, Row
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.paths import parts_of, value_at
from rivertwice.pipeline.source_model import Source

MOST = 3


def hints(definition: Definition, case: Case, dead: Mapping[str, str]) -> list[str]:
    """Return a sentence for each field of a dead event that the schema does not hold, or whose text has no time zone.

    Args:
        definition: the pipeline's.
        case: whose events.
        dead: id to reason of events that were not accepted, and were expected to be.
    """
    sentences: list[str] = []
    for event in case.events:
        if event.id not in dead or event.value is None:
            continue
        view = event.source or next(iter(definition.sources))
        source = definition.sources.get(view)
        if source is not None:
            sentences += [
                f"event {event.id!r}: {sentence}" for sentence in _of_fields(source, {**case.defaults, **event.value})
            ]
    more = len(sentences) - MOST
    return sentences[:MOST] + ([f"and {more} more like these"] if more > 0 else [])


def _of_fields(source: Source, value: Row) -> Iterator[str]:
    named = {parts_of(source, name)[0] for name in source.schema_}
    absent = [name for name in named if name not in value]
    for name in value:
        if name not in named:
            yield f"{name} is no field of the schema{meant(name, absent)}"
    for name, kind in source.schema_.items():
        text = value_at(value, parts_of(source, name))
        is_instant = kind == "timestamp" and name not in source.epochs
        if is_instant and isinstance(text, str) and "zone" in (why := _why_no_instant(text)):
            yield f"{name}: {why}"
        elif is_instant and isinstance(text, int):
            yield f"{name} is the number {json.dumps(text)}; for numbers since 1970 write epochs: {{{name}: ms}} (or s, us) in the source"


def _why_no_instant(text: str) -> str:
    try:
        parse_iso(text)
    except RequestError as error:
        return str(error)
    return ""
