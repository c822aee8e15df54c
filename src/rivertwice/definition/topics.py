"""The topics that the pipelines of a project read."""

from __future__ import annotations

from collections.abc import Iterable

from rivertwice.core import Settings, TopicName
from rivertwice.definition.definition import Definition
from rivertwice.log import ensure_topic


def create_topics(settings: Settings, definitions: Iterable[Definition]) -> dict[str, int]:
    """Create the topics that are absent, kept for ever; return each topic's number of partitions. A pattern creates none.

    Raises:
        ConfigError: a topic exists with another number of partitions than its definition declares.
        ServiceError: Kafka does not answer.
    """
    sources = [source for each in definitions for source in each.sources.values()]
    topics = {source.topic: source.partitions for source in sources if not TopicName(source.topic).is_pattern}
    for topic, partitions in topics.items():
        ensure_topic(settings, topic, partitions, {})
    return topics
