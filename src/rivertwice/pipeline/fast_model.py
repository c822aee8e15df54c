"""What a definition may contain under `fast`: rows of single records that go to a topic within milliseconds. Pure.

`fast.sql` reads one record at a time, so it needs no window and no state. It runs in a process of its own, beside the stream. It does
not change the stream's results, so it is in no fingerprint of the stream.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from rivertwice.pipeline.durations import Duration
from rivertwice.pipeline.names import Column, Topic
from rivertwice.pipeline.strict import Strict

if TYPE_CHECKING:
    from rivertwice.pipeline.model import DefinitionFile

SHORTEST = timedelta(seconds=5)
"""Spark's shortest interval of real-time mode (`spark.sql.streaming.realTimeMode.minBatchDuration`)."""


class FastPath(Strict):
    """Where the rows of `fast.sql` go."""

    topic: Topic = Field(description="Topic of the rows, as JSON; created if absent.")
    partitions: int = Field(default=4, ge=1, le=1000, description="Partitions the topic is created with.")
    key: Column = Field(description="The column of fast.sql whose text is the record's key.")
    interval: Duration = Field(
        default=SHORTEST,
        description="How often the position is stored: after a crash at most so much is sent again, under the same `record`.",
    )

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.interval < SHORTEST:
            message = f"interval is {self.interval.total_seconds():g} s, and Spark's real-time mode has none below 5 s; rows do not wait for it"
            raise ValueError(message)
        return self


def find_fast_conflict(definition: DefinitionFile) -> str | None:
    """Return which part of the definition conflicts with `fast`, or None."""
    if definition.fast is None:
        return None
    if len(definition.sources) != 1:
        return f"fast reads the one source of a pipeline, but there are {list(definition.sources)}; give it a pipeline of its own"
    _, source = definition.source
    if source.tombstones == "delete" or source.envelope != "none":
        return (
            "fast takes plain records, but the source's are change events or may delete; give it a pipeline of its own"
        )
    if source.format == "protobuf":
        return (
            "fast runs without Python, which decodes Protobuf here; write the topic in Avro or JSON, or leave fast out"
        )
    if definition.fast.topic in definition.topics:
        return f"fast.topic is {definition.fast.topic!r}, which the pipeline reads; its rows would come back as records: name another"
    return None
