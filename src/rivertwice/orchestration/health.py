"""What supervision makes of what it sees. Pure: values and `now` go in, a word and a sentence come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rivertwice.timeline.intent import Exit, Heartbeat, Intent

OK = "ok"
AGENT = "agent_dead"
DRIVER = "driver_down"
GIVEN_UP = "given_up"

AGENT_SILENT = timedelta(seconds=30)
DRIVER_SILENT = timedelta(seconds=120)


@dataclass(frozen=True)
class Seen:
    """What lies in the home now.

    Attributes:
        agent_at: the agent's last heartbeat.
        owner: whether a live process holds the lease.
        given_up: why the agent starts no driver any more, if so.
    """

    intent: Intent | None
    agent_at: datetime | None
    owner: bool
    heartbeat: Heartbeat | None
    last_exit: Exit | None
    given_up: str | None = None


@dataclass(frozen=True)
class Health:
    """A word and a sentence; `ok` also when the stream is stopped as wanted."""

    word: str
    message: str


def classify_health(seen: Seen, now: datetime) -> Health:
    """Say whether what is wanted is true.

    A stream that nobody wants to run is never a failure. Otherwise the agent must have spoken within 30 s, and the driver
    must hold the lease and have spoken within 120 s.
    """
    if seen.intent is None or seen.intent.desired != "running":
        return Health(OK, "stopped, as wanted" if seen.intent else "nobody has asked for it to run")
    if seen.given_up:
        return Health(GIVEN_UP, f"the agent has given up: {seen.given_up}; cure it, then `rivertwice start`")
    if seen.agent_at is None or now - seen.agent_at > AGENT_SILENT:
        said = "never" if seen.agent_at is None else f"{(now - seen.agent_at).total_seconds():.0f} s ago"
        driver = "the driver still runs" if seen.owner else "no driver runs"
        return Health(
            AGENT,
            f"the agent last spoke {said}; {driver}, but nobody would start it again: run `rivertwice agent start`",
        )
    beat = seen.heartbeat
    if not seen.owner:
        return Health(DRIVER, f"running is wanted but no driver holds the lease{_ending(seen.last_exit)}")
    if beat is not None and now - beat.at > DRIVER_SILENT:
        silent = (now - beat.at).total_seconds()
        return Health(DRIVER, f"driver pid {beat.pid} (epoch {beat.epoch}) lives but last spoke {silent:.0f} s ago")
    return Health(OK, "running" if beat is None else f"epoch {beat.epoch}, batch {beat.batch}, {beat.state}")


def choose_grace(failures: int, grace: float, epoch: float) -> float:
    """Return how long a fault may last before it fails the epoch.

    It doubles with each epoch that failed before, up to the epoch's own length, so that a fault that nobody cures raises an
    alert less and less often instead of one a minute.
    """
    return min(grace * 2.0 ** min(failures, 16), epoch)


def describe_seen(seen: Seen) -> Mapping[str, Any]:
    """Return what the asset store keeps: plain values only."""
    beat = seen.heartbeat
    return {
        "desired": seen.intent.desired if seen.intent else None,
        "epoch": beat.epoch if beat else None,
        "pid": beat.pid if beat else None,
        "timeline": beat.timeline if beat else None,
        "batch": beat.batch if beat else None,
        "state": beat.state if beat else None,
        "watermark_ms": beat.watermark_ms if beat else None,
        "lag": beat.lag if beat else None,
    }


def _ending(last: Exit | None) -> str:
    return (
        ""
        if last is None
        else f"; the last one to say why (epoch {last.epoch}) ended as {last.failure}: {last.message}"
    )
