"""The agent's figures over HTTP, for Prometheus: `RIVERTWICE_METRICS=HOST:PORT`, path `/metrics`.

A request gives what the agent measured last, at most half a minute ago (`alerting.EVERY_S`), and costs no look at Kafka or a table.
The server is prometheus_client's own. It has no login: bind it to loopback, or to a network that only Prometheus reaches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rivertwice.agent.act import record_event
from rivertwice.agent.alerting import AlertScan
from rivertwice.agent.prometheus import MeasuresCollector, measured_age
from rivertwice.core import Settings

log = logging.getLogger(__name__)


class NewestCollector(Collector):
    """Gives what was measured last, and how old that is: a figure of a pipeline that cannot be measured any more is not new."""

    def __init__(self, newest: Callable[[], Mapping[str, AlertScan]], clock: Callable[[], datetime]) -> None:
        """Take what gives the newest figures by pipeline, and the clock."""
        self._newest = newest
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        newest, now = self._newest(), self._clock()
        yield from MeasuresCollector(
            [each.measures for each in newest.values()], {name: each.states for name, each in newest.items()}
        ).collect()
        age = measured_age()
        for name, each in newest.items():
            age.add_metric([name], (now - each.at).total_seconds())
        yield age


def serve_metrics(
    settings: Settings, newest: Callable[[], Mapping[str, AlertScan]], clock: Callable[[], datetime]
) -> Callable[[], None] | None:
    """Start the server if an address is set; return what stops it, or None.

    An address that is taken does not keep the agent from its work: it is an event, and an error in its log.
    """
    if settings.metrics is None:
        return None
    host, port = settings.metrics
    registry = CollectorRegistry()
    registry.register(NewestCollector(newest, clock))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        text = (
            f"RIVERTWICE_METRICS is {host}:{port}, where nothing can listen ({error}), so Prometheus gets no figures; choose another address, "
            "then start the agent again"
        )
        log.error("%s", text)
        record_event(settings, "error", None, text, clock())
        return None
    log.info("metrics at http://%s:%s/metrics", host, port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)

    return stop
