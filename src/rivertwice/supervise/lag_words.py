"""The text about a lag: the figure, its age, and why it is not known now. Pure; for `status` and the page in Airflow.

Each function takes what `view_stream` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rivertwice.supervise.health import UNRESPONSIVE

LAG_FRESH_S = 20.0
"""A driver asks the log for its end every five seconds; an older lag was true once, and is shown with its age."""


def is_lag_fresh(item: Mapping[str, Any]) -> bool:
    """Say whether the lag is kept up to date."""
    return item["driver"] is not None and item["lag_age_s"] is not None and item["lag_age_s"] <= LAG_FRESH_S


def lag_text(item: Mapping[str, Any]) -> str | None:
    """Return the lag: with its age if it is not up to date, `not known` if it was never measured, None before a driver."""
    if item["lag"] is None:
        return None if item["heartbeat_age_s"] is None else "not known"
    if is_lag_fresh(item):
        return str(item["lag"])
    return f"{item['lag']}, {_ago(item['lag_age_s'])} ago"


def stale_lag_text(item: Mapping[str, Any]) -> str | None:
    """Return why the lag is not known now, and what measures it; None if it is known, or nothing ever ran."""
    if item["heartbeat_age_s"] is None or (is_lag_fresh(item) and item["state"] != UNRESPONSIVE):
        return None
    who = "no driver lives" if item["driver"] is None else "the driver gets no answer from Kafka"
    if item["state"] == UNRESPONSIVE:
        who = f"the driver (pid {item['driver']['pid']}) lives but has said nothing for {_ago(item['heartbeat_age_s'])}: look at its log"
    known = (
        "nobody has asked since the last driver or the last head move"
        if item["lag"] is None
        else f"{item['lag']} is what waited at {item['lag_at']}, {_ago(item['lag_age_s'])} ago"
    )
    return (
        f"{item['name']}: the lag is not known now, for {who}; {known}; `rivertwice metrics {item['name']}` asks Kafka"
    )


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
