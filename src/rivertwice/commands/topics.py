"""topics: what the pipelines read, on a Kafka that somebody else runs."""

from __future__ import annotations

import click

from rivertwice.commands.asking import changes_unasked
from rivertwice.commands.frame import Frame, FriendlyGroup, as_table, example, pass_frame


@click.group(cls=FriendlyGroup, epilog=example("rivertwice topics create"))
def topics() -> None:
    """Create the topics that the pipelines read."""


@topics.command("create", epilog=example("rivertwice topics create"))
@changes_unasked("topics", because="those that exist stay as they are")
@pass_frame
def topics_create(frame: Frame) -> None:
    """Wait for Kafka, then create the topics that are absent.

    `rivertwice up` does the same; this is for a Kafka that is not the embedded one, once per deployment. A topic that exists
    is left as it is; one whose number of partitions differs from its definition is refused.
    """
    from rivertwice.log.answer import await_kafka
    from rivertwice.log.topics import create_topics
    from rivertwice.pipeline.definition import load_all

    await_kafka(frame.settings)
    partitions = create_topics(frame.settings, load_all(frame.settings.definitions).values())
    frame.emit(partitions, lambda: as_table(("topic", "partitions"), sorted(partitions.items())))
