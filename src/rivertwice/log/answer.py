"""Whether Kafka answers, and how long a start waits for the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from rivertwice.config import Settings
from rivertwice.errors import ServiceError
from rivertwice.log import kafka
from rivertwice.log.client_options import python_options
from rivertwice.waits import Deadline

START_SECONDS = 90.0
_QUIET = logging.getLogger("rivertwice.log.quiet")  # a broker that is still starting is not logged
_QUIET.setLevel(logging.CRITICAL)


def ask_cluster_id(settings: Settings, seconds: float) -> str | None:
    """Return the cluster's id if a broker answers within so many seconds."""
    options: dict[str, Any] = {**python_options(settings), "logger": _QUIET}
    client = AdminClient(options)
    try:
        answer = client.list_topics(timeout=seconds)
    except KafkaException:
        return None
    return str(answer.cluster_id) if answer.brokers else None


def await_kafka(settings: Settings, require_starting: Callable[[], None] | None = None) -> str:
    """Wait until Kafka answers at the configured address, or the embedded broker's, and return the cluster's id.

    Args:
        settings: address and credentials.
        require_starting: raises if waiting has no purpose any more; for the embedded broker. None for a Kafka that somebody
            else runs.

    Raises:
        ServiceError: Kafka did not answer in time, or refuses this client.
        ConfigError: no address is known.
    """
    bootstrap = settings.bootstrap_servers()
    for _ in Deadline.after(START_SECONDS).polls(0.05):
        cluster_id = ask_cluster_id(settings, 1.0)
        if cluster_id is not None:
            return cluster_id
        if require_starting is not None:
            require_starting()
        elif (refused := kafka.refusal(settings)) is not None:
            message = f"Kafka at {bootstrap} refuses this client ({refused}), so nothing can be read; check RIVERTWICE_KAFKA_*"
            raise ServiceError(message)
    where = "the address" if settings.bootstrap else f"{settings.broker / 'logs'} or the address"
    message = f"no broker answers at {bootstrap} after {START_SECONDS:.0f} s; see {where}"
    raise ServiceError(message)
