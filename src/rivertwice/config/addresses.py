"""Addresses in the settings: what cannot be one is refused as it is read, not when a job has waited for it. Pure."""

from __future__ import annotations

import re

from rivertwice.errors import ConfigError
from rivertwice.nearest import nearest

_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?\Z|yarn\Z|(spark|k8s)://.+\Z")
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):(\d{1,5})\Z")


def require_bootstrap(text: str) -> str:
    """Return Kafka's `bootstrap.servers` if it is `HOST:PORT`, or several with commas between.

    Raises:
        ConfigError: one of them is no such address.
    """
    for server in text.split(","):
        match = _BROKER.match(server.strip())
        if match is None or not 0 < int(match.group(2)) < 65_536:
            lack = "" if ":" in server else f", for instance {server.strip() or '127.0.0.1'}:9092"
            message = (
                f"RIVERTWICE_BOOTSTRAP is {text!r}, and {server.strip()!r} is no address of a broker, so Kafka cannot be reached; write "
                f"HOST:PORT{lack}, with commas between several"
            )
            raise ConfigError(message)
    return text


def require_master(text: str) -> str:
    """Return the address of Spark's master if it is one that Spark knows.

    Raises:
        ConfigError: it is none.
    """
    if not _MASTER.match(text):
        close = nearest(text.partition("[")[0], ("local", "yarn"))
        hint = f"; did you mean {close}{text[len(text.partition('[')[0]) :]}?" if close else ""
        message = (
            f"RIVERTWICE_SPARK_MASTER is {text!r}, which is no master of Spark, so no job would start; write local[*], "
            f"spark://HOST:7077, k8s://https://HOST:443 or yarn{hint}"
        )
        raise ConfigError(message)
    return text


def require_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, where the agent serves its figures.

    Raises:
        ConfigError: it is no such address.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        message = f"RIVERTWICE_METRICS is {text!r}, which is no address, so no figures would be served; write HOST:PORT, for instance 127.0.0.1:9464"
        raise ConfigError(message)
    return host, int(port)
