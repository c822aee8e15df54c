"""Conflicts between the sources of one definition. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.pipeline.model import DefinitionFile


def find_sources_conflict(definition: DefinitionFile) -> str | None:
    """Return why a definition may not have so many sources, or None."""
    if not definition.streams:
        return "every source is a table, so there are no events to compute results from; add a stream"
    if len(definition.sources) > 1 and not definition.window.kind.takes_several_sources:
        return (
            f"sources are {list(definition.sources)}, but windows and sessions take exactly one; keep one, or let the window have intervals "
            "(every, lookback, lookahead, at), which join several, or a fold (fold, at), which follows keys through several"
        )
    return None


def find_topics_conflict(definition: DefinitionFile) -> str | None:
    """Return why the sources' topics conflict, or None: a record's topic identifies its source."""
    topics = definition.topics
    twice = [topic for topic in topics if topics.count(topic) > 1]
    if twice:
        views = [view for view, source in definition.sources.items() if source.topic == twice[0]]
        return (
            f"sources {' and '.join(views)} both read topic {twice[0]!r}, so a record's source would be unknown; give each "
            "source a topic of its own, or read the topic by one source"
        )
    if "watermark_policy" not in definition.model_fields_set:
        return None
    if not definition.window.kind.has_watermark:
        return f"watermark_policy is {definition.watermark_policy!r}, but a fold has no watermark; remove it"
    if len(definition.streams) == 1:
        return (
            f"watermark_policy is {definition.watermark_policy!r}, but there is one stream, whose watermark needs no policy; "
            "remove it"
        )
    return None
