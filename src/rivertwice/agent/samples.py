"""Keep a sample of each stream every few seconds, for curves. A thread of the agent; its cost does not grow with history.

What the driver's heartbeat contains is read from it. What only the agent measures (the state's bytes, and the lag while no driver is
running) is taken from its newest look for the alerts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.agent.alerting import AlertScan
from rivertwice.agent.cost import CostMeter
from rivertwice.agent.health import Condition, StreamObservation, observe_stream
from rivertwice.agent.keeper import Keeper
from rivertwice.agent.ring import MISSED, RingSample, ring_file, write_sample
from rivertwice.agent.view import LAG_FRESH_S
from rivertwice.core import Settings, from_ms
from rivertwice.timeline import Heartbeat

EVERY_S = 6.0
LOOK_FRESH = timedelta(seconds=75)
"""The agent measures every half minute; a look that is older is not what is true now."""


@dataclass(frozen=True)
class Before:
    """The heartbeat of the last sample, from which rates are counted."""

    epoch: int
    at: datetime
    read: int
    emitted: int


def take_sample(
    observation: StreamObservation,
    look: AlertScan | None,
    before: Before | None,
    now: datetime,
    cost: Mapping[str, float] | None = None,
) -> RingSample:
    """Return what is true of a stream now; a figure that is not known is left out. Pure.

    Args:
        look: what the agent measured last, if it did.
        before: the last sample's heartbeat, if there was one.
        cost: curves of what the driver uses.
    """
    wanted = observation.intent is not None and observation.intent.desired == "running"
    beat = observation.heartbeat
    is_own = observation.owner is not None and beat is not None and beat.epoch == observation.owner.epoch
    speaking = beat if is_own and observation.state != Condition.UNRESPONSIVE else None
    fresh = None if look is None or now - look.at > LOOK_FRESH else look
    measured = None if fresh is None else fresh.measures
    values: dict[str, float | None] = dict(cost or {})
    if fresh is not None:
        values |= {MISSED + name: missed for name, missed in fresh.missed.items()}
    parts: Mapping[str, int] = {}
    if beat is not None and beat.watermark_ms:
        values["watermark_delay_s"] = (now - from_ms(beat.watermark_ms)).total_seconds()
    if speaking is not None and speaking.lag is not None and _age(speaking.lag_at or speaking.at, now) <= LAG_FRESH_S:
        values["lag"] = speaking.lag
        parts = {f"{topic}/{p}": lag for topic, lags in speaking.lag_parts.items() for p, lag in lags.items()}
    elif measured is not None and measured.lag_records is not None:
        values["lag"] = measured.lag_records
        parts = _whole_names(measured.partition_lag, beat)
    if observation.owner is None:
        values |= {"read_per_s": 0.0, "emitted_per_s": 0.0}
    elif speaking is not None:
        values |= {"batch_s": speaking.slowest_s, **_rates(speaking, before)}
    if measured is not None:
        values["state_bytes"] = measured.state_bytes
    state = observation.state if wanted or observation.state != "down" else "stopped"
    if state in (Condition.HIBERNATING, Condition.SCHEDULED, Condition.QUEUED):
        state = "idle"  # a slot keeps the worst of its states, and this one is fine
    return RingSample(
        now, state, wanted, {name: float(value) for name, value in values.items() if value is not None}, parts
    )


def note_of(beat: Heartbeat | None) -> Before | None:
    """Return what the next sample counts its rates from; None for a heartbeat of 0.1, which has no counts. Pure."""
    if beat is None or beat.read is None or beat.emitted is None:
        return None
    return Before(beat.epoch, beat.at, beat.read, beat.emitted)


def _rates(beat: Heartbeat, before: Before | None) -> dict[str, float]:
    """Return records and result rows per second since the last sample; nothing if the driver is another one."""
    own = note_of(beat)
    if own is None or before is None or before.epoch != own.epoch or own.at <= before.at:
        return {}
    seconds = (own.at - before.at).total_seconds()
    return {
        "read_per_s": (own.read - before.read) / seconds,
        "emitted_per_s": (own.emitted - before.emitted) / seconds,
    }


def _whole_names(lags: Mapping[str, int], beat: Heartbeat | None) -> dict[str, int]:
    """Return lags by `topic/partition`: the agent's figures leave out the topic if there is one only."""
    topics = [] if beat is None else list(beat.end_offsets)
    if all("/" in name for name in lags):
        return dict(lags)
    return {f"{topics[0]}/{name}": lag for name, lag in lags.items()} if len(topics) == 1 else {}


def _age(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()


class SampleKeeper(Keeper):
    """Writes a sample of each pipeline into its ring. One that cannot be written is a gap in the curves, and nothing else."""

    what, every_s = "samples", EVERY_S

    def __init__(
        self,
        settings: Settings,
        names: Callable[[], list[str]],
        stop: threading.Event,
        newest_of: Callable[[str], AlertScan | None],
    ) -> None:
        """Create the thread; `newest_of` gives what was measured last of a pipeline."""
        super().__init__(settings, names, stop)
        self._newest_of = newest_of
        self._meter = CostMeter(settings.home)
        self._before: dict[str, Before | None] = {}

    def look(self, name: str, now: datetime) -> RingSample:
        """Write the sample of one pipeline, and return it."""
        observation = observe_stream(self._settings, name, now)
        cost = self._meter.look(name, None if observation.owner is None else observation.owner.pid, now)
        sample = take_sample(observation, self._newest_of(name), self._before.get(name), now, cost)
        self._before[name] = note_of(observation.heartbeat)
        write_sample(ring_file(self._settings.pipeline(name)), sample)
        return sample
