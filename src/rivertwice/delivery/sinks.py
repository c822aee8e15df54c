"""What every sink does, and which one a definition asks for."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from rivertwice.config import Settings
from rivertwice.delivery.model import DeliveredColumns, Parcel, Position
from rivertwice.delivery.refusals import SetAside, none_aside
from rivertwice.pipeline.delivery_model import Delivery, KafkaDelivery, PostgresDelivery, WebhookDelivery


class Sink(Protocol):
    """Where parcels go. `open` comes first, and again after every error: it finds out what became of the last parcel."""

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Connect and return the position that the sink holds, None if it holds nothing.

        Raises:
            ConfigError: the sink is not what the definition says.
            LedgerError: it holds a position, and not what belongs to it.
            ServiceError: it does not answer.
        """
        ...

    def deliver(self, parcel: Parcel, set_aside: SetAside = none_aside) -> None:
        """Take records and position, all or nothing (where that can be promised).

        `set_aside` is called once, before the position is taken, with the records that the destination refuses for good,
        often none; they are left out. Whatever it raises ends the step.

        Raises:
            ConfigError: the destination refuses every record, or is not what the definition says.
            LostRaceError, LeaseLostError: another deliverer was here; nothing was taken.
            ServiceError, UnknownOutcomeError: open again, and see.
        """
        ...

    def forget(self) -> None:
        """Forget the position: all is delivered again. Only a person asks for this."""
        ...

    def close(self) -> None:
        """Let go of connections; never raises for one that is broken."""
        ...


def make_sink(settings: Settings, pipeline: str, name: str, asked: Delivery) -> Sink:
    """Return the sink of a definition; nothing is connected yet."""
    if isinstance(asked, KafkaDelivery):
        from rivertwice.delivery.kafka_sink import KafkaSink

        return KafkaSink(settings, pipeline, name, asked)
    if isinstance(asked, PostgresDelivery):
        from rivertwice.delivery.postgres_sink import PostgresSink

        return PostgresSink(pipeline, name, asked)
    if isinstance(asked, WebhookDelivery):
        from rivertwice.delivery.webhook_sink import WebhookSink

        return WebhookSink(settings.pipeline(pipeline), name, asked)
    raise AssertionError(asked.to)  # refused when the definition was read
