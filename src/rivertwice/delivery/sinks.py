"""The protocol of every sink, and the choice of the sink that a definition asks for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import pyarrow as pa

from rivertwice.config import Settings
from rivertwice.delivery.model import DeliveredColumns, Holding, Parcel, Position
from rivertwice.delivery.refusals import SetAside, none_aside
from rivertwice.pipeline.delivery_model import (
    Delivery,
    IcebergDelivery,
    KafkaDelivery,
    PostgresDelivery,
    WebhookDelivery,
)


class Sink(Protocol):
    """The destination of parcels. `open` is called first, and again after every error: it checks if the last parcel was taken."""

    def open(self, shape: DeliveredColumns, schema: pa.Schema) -> Position | None:
        """Connect and return the sink's position, None if it has none.

        Raises:
            ConfigError: the sink differs from the definition.
            LedgerError: it has a position, but not the data that belongs to it.
            ServiceError: it does not answer.
        """
        ...

    def deliver(self, parcel: Parcel, set_aside: SetAside = none_aside) -> None:
        """Take records and position, all or nothing (as far as the destination allows it).

        `set_aside` is called once, before the position is taken, with the records that the destination refuses for good,
        often none; they are left out. An error that it raises ends the step.

        Raises:
            ConfigError: the destination refuses every record, or differs from the definition.
            LostRaceError, LeaseLostError: another deliverer uses the sink; nothing was taken.
            ServiceError, UnknownOutcomeError: the outcome is unknown; `open` returns the position.
        """
        ...

    def forget(self) -> None:
        """Forget the position, so that everything is delivered again. Only a person asks for this."""
        ...

    def close(self) -> None:
        """Close connections; never raises for a broken one."""
        ...


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose destination can be asked for what it holds."""

    def inspect(self) -> AbstractContextManager[Holding]:
        """Read what the destination holds, without `open`: a deliverer that runs is not disturbed.

        Raises:
            ConfigError: it cannot be read.
            ServiceError: it does not answer.
        """
        ...


def make_sink(settings: Settings, pipeline: str, name: str, asked: Delivery) -> Sink:
    """Return the sink of a definition; nothing is connected yet."""
    if isinstance(asked, KafkaDelivery):
        from rivertwice.delivery.kafka_sink import KafkaSink

        return KafkaSink(settings, pipeline, name, asked)
    if isinstance(asked, PostgresDelivery):
        from rivertwice.delivery.postgres_sink import PostgresSink

        return PostgresSink(pipeline, name, asked)
    if isinstance(asked, IcebergDelivery):
        from rivertwice.delivery.iceberg_sink import IcebergSink

        return IcebergSink(pipeline, name, asked)
    if isinstance(asked, WebhookDelivery):
        from rivertwice.delivery.webhook_sink import WebhookSink

        return WebhookSink(settings.pipeline(pipeline), name, asked)
    raise AssertionError(asked.to)  # refused when the definition was read
