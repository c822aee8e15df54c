"""Curves of a pipeline over a range: from the ring of samples, and from the ledger where the ring has none.

A curve has 300 steps; each has the least, largest and mean figure, so that a peak of a second is seen in a week. A step where nothing
was known is a gap. The ledger is read by this process's cursor, which reads what was committed since its last look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.agent import CURVES, LEVELS, STATES, RingLevel, Slots, lags_of
from rivertwice.core import PipelineHome, RequestError, Settings, from_ms
from rivertwice.definition import Definition
from rivertwice.log import TopicSets
from rivertwice.read.marks import KINDS, CurveEvent, find_marks
from rivertwice.read.where_time import WhereTime, describe_time
from rivertwice.timeline import committed_batches

STEPS = 300
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """One figure in each step: the least, largest and mean value, NaN where it is not known."""

    least: Floats
    most: Floats
    mean: Floats

    def else_from(self, other: Figures) -> Figures:
        """Return these figures, and another's where these are not known."""
        known = ~np.isnan(self.most)
        return Figures(
            np.where(known, self.least, other.least),
            np.where(known, self.most, other.most),
            np.where(known, self.mean, other.mean),
        )

    @property
    def is_known(self) -> bool:
        """Whether it is known in any step."""
        return bool((~np.isnan(self.most)).any())


def unknown() -> Figures:
    """Return figures of which nothing is known."""
    return Figures(*(np.full(STEPS, np.nan) for _ in range(3)))


def level_of(name: str) -> RingLevel:
    """Return a range by its name.

    Raises:
        RequestError: there is no such range.
    """
    for level in LEVELS:
        if level.name == name:
            return level
    message = f"range {name[:20]!r} is none of {', '.join(level.name for level in LEVELS)}; no curve was read; choose one of them"
    raise RequestError(message)


@dataclass(frozen=True)
class Curve:
    """A figure in each step; None where it is not known."""

    least: Sequence[float | None]
    most: Sequence[float | None]
    mean: Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """The curves of a range.

    Attributes:
        times: start of each step, epoch s.
        parts: partition to the largest lag of each step.
        states: the worst of each step.
        from_ledger: curves that the ledger has completed.
        marks: what happened in the range. kinds: kind of a mark to words.
        time: where the time of the newest batches went.
    """

    range: str
    step_s: int
    from_: datetime
    to: datetime
    times: Sequence[int]
    curves: Mapping[str, Curve]
    parts: Mapping[str, Sequence[float | None]]
    states: Sequence[str]
    from_ledger: Sequence[str]
    marks: Sequence[CurveEvent] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    time: WhereTime | None = None


def read_curves(settings: Settings, definition: Definition, range_name: str, now: datetime) -> Series:
    """Return the curves of a range, what happened in it, and where the time went.

    Raises:
        RequestError: there is no such range.
    """
    name = definition.name
    sets = TopicSets.load(settings, definition.topics)
    parts = [
        f"{each.topic}/{number}"
        for each in definition.sources.values()
        for number in sets.numbers(each.topic) or range(each.partitions)
    ]
    home = settings.pipeline(name)
    found = describe_series(home, range_name, parts, now)
    marks = find_marks(settings, name, found.from_, found.to)
    return replace(found, marks=marks, kinds=KINDS, time=describe_time(home, definition, level_of(range_name), now))


def describe_series(home: PipelineHome, range_name: str, parts: Iterable[str], now: datetime) -> Series:
    """Return the curves of a range.

    Args:
        range_name: `1h`, `6h`, `24h`, `7d` or `30d`.
        parts: names of its partitions, `topic/0`.
        now: its end.

    Raises:
        RequestError: there is no such range.
    """
    level = level_of(range_name)
    last = level.start_of(now)
    times = np.arange(last - (STEPS - 1) * level.step_s, last + 1, level.step_s)
    slots = level.read(home, now)
    places = (slots["start"] - times[0]) // level.step_s
    curves = {curve: _of_ring(slots, places, curve) for curve in CURVES}
    completed = []
    if any(np.isnan(curves[curve].most).any() for curve in ("read_per_s", "batch_s")):
        for curve, figures in from_batches(_batches(home, int(times[0])), times, level.step_s, now).items():
            whole = curves[curve].else_from(figures)
            if np.isnan(curves[curve].most).sum() > np.isnan(whole.most).sum():
                completed.append(curve)
            curves[curve] = whole
    known = {curve: own for curve, own in curves.items() if own.is_known}
    return Series(
        range=level.name,
        step_s=level.step_s,
        from_=from_ms(int(times[0]) * 1000),
        to=from_ms((int(times[-1]) + level.step_s) * 1000),
        times=times.tolist(),
        curves={curve: Curve(_plain(own.least), _plain(own.most), _plain(own.mean)) for curve, own in known.items()},
        parts={name: _plain(_spread(lags, places)) for name, lags in lags_of(slots, parts).items()},
        states=_states(slots, places),
        from_ledger=completed,
    )


def from_batches(batches: pa.Table, times: npt.NDArray[np.int64], step_s: int, now: datetime) -> Mapping[str, Figures]:
    """Return what committed batches tell of each step. Pure.

    From the first batch on it is known how many records were read in a step, also if it was none. Seconds of a batch and the delay of
    the watermark are known in steps with a batch.

    Args:
        batches: `committed_at`, `read`, `emitted`, `batch_watermark_ms`, `batch_timestamp_ms`; the one before the first step too.
        times: starts of the steps, epoch s.
        now: later steps are not known.
    """
    if not batches.num_rows:
        return {}
    at = (
        pc.cast(pc.cast(batches["committed_at"], pa.timestamp("ms", "UTC"), safe=False), pa.int64()).to_numpy() / 1000.0
    )
    places = np.floor((at - times[0]) / step_s).astype(np.int64)
    inside = (places >= 0) & (places < STEPS)
    first = max(int(places.min()), 0)
    figures: dict[str, Figures] = {}
    for curve, column in (("read_per_s", "read"), ("emitted_per_s", "emitted")):
        sums = np.bincount(places[inside], weights=batches[column].to_numpy()[inside], minlength=STEPS) / step_s
        sums[:first] = np.nan
        sums[times > now.timestamp()] = np.nan
        figures[curve] = Figures(sums, sums, sums)
    watermark = batches["batch_watermark_ms"].to_numpy() / 1000.0
    has_watermark = inside & (watermark > 0)
    figures["watermark_delay_s"] = _by_step(places[has_watermark], (at - watermark)[has_watermark])
    begun = batches["batch_timestamp_ms"].to_numpy() / 1000.0
    figures["batch_s"] = _by_step(places[inside], np.maximum(at - begun, 0.0)[inside])
    return figures


def _by_step(places: npt.NDArray[np.int64], values: Floats) -> Figures:
    counts = np.bincount(places, minlength=STEPS)
    found = unknown()
    known = counts > 0
    found.mean[known] = (np.bincount(places, weights=values, minlength=STEPS)[known]) / counts[known]
    least, most = np.full(STEPS, np.inf), np.full(STEPS, -np.inf)
    np.minimum.at(least, places, values)
    np.maximum.at(most, places, values)
    found.least[known], found.most[known] = least[known], most[known]
    return found


def _batches(home: PipelineHome, since_s: int) -> pa.Table:
    """Return the batches of the head's path that were committed since an instant, and the one before them."""
    table = committed_batches(home).table
    at = pc.cast(pc.cast(table["committed_at"], pa.timestamp("ms", "UTC"), safe=False), pa.int64()).to_numpy()
    begin = int(np.argmax(at >= since_s * 1000)) if (at >= since_s * 1000).any() else len(at)
    return table.slice(max(0, begin - 1))


def _of_ring(slots: Slots, places: npt.NDArray[np.int64], curve: str) -> Figures:
    number = CURVES.index(curve)
    return Figures(
        *(_spread(slots[name][:, number] if len(slots) else np.empty(0), places) for name in ("least", "most", "mean"))
    )


def _spread(values: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> Floats:
    whole = np.full(STEPS, np.nan)
    whole[places] = values
    return whole


def _states(slots: Slots, places: npt.NDArray[np.int64]) -> list[str]:
    states = [""] * STEPS
    for place, number in zip(places.tolist(), slots["state"].tolist(), strict=True):
        states[place] = STATES[number] if number < len(STATES) else ""
    return states


def _plain(values: Floats) -> Sequence[float | None]:
    """Return figures with four significant digits; None where one is not known."""
    return [None if np.isnan(value) else float(f"{value:.4g}") for value in values.tolist()]
