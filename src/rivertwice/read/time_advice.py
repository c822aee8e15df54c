"""Where the time of batches went: their phases, why one was slow, and which setting would help. Pure: figures in, sentences out.

Reading, decoding, transforming and the state are one Spark job, whose stages run these together record by record. So they are one phase.
Of the state is known how long its tasks took together, which gives the least time of the clock that it needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from rivertwice.definition import DefinitionFile
from rivertwice.timeline import BatchTimes

PHASES: Mapping[str, str] = {
    "plan": "asking Kafka and planning",
    "rows": "read, decode, transform and state",
    "side": "dead letters, late rows and tables",
    "write": "the commit",
    "checkpoint": "the checkpoint",
    "other": "Spark and Python around the job",
}
"""Phases of a batch in the order in which they come; their seconds add up to the batch's."""
IDLE, DOWN = "idle", "no driver"
_PLAN = ("latestOffset", "getBatch", "queryPlanning", "walCommit")
MUCH = 0.3
"""A share of a batch from which a part is named as its reason."""
SKEW, FEW_RECORDS, MANY_FILES, OFTEN = 0.8, 1_000, 8, 3
FULL = 0.9
"""A batch with more than this share of `max_offsets_per_trigger` counts as full."""
LEAST_BATCHES = 20
_TRIGGERS = (1, 2, 5, 10, 30, 60)
LONG_IDLE = timedelta(minutes=10)


def phases_of(times: BatchTimes) -> dict[str, float]:
    """Return the seconds of a batch by phase."""
    spark, sink = times.spark, times.sink
    milliseconds = {
        "plan": sum(spark.get(name, 0) for name in _PLAN),
        "rows": sink.get("rows", 0),
        "side": sink.get("tables", 0) + sink.get("side", 0),
        "write": sink.get("commit", 0) + sink.get("ledger", 0),
        "checkpoint": spark.get("commitOffsets", 0),
    }
    milliseconds["other"] = max(0, times.ms - sum(milliseconds.values()))
    return {phase: milliseconds[phase] / 1000 for phase in PHASES}


def state_least(times: BatchTimes, *names: str) -> float:
    """Return the least seconds of the clock that parts of the state took: its tasks' time, over the tasks that may run at one moment."""
    return sum(times.state.get(f"{name}_ms", 0) for name in names) / times.slots / 1000


@dataclass(frozen=True)
class Usual:
    """What batches of a pipeline are like: medians."""

    read: float
    seconds: float

    @classmethod
    def of(cls, batches: Sequence[BatchTimes]) -> Usual:
        """Return the medians of some batches, at least one."""
        return cls(median(each.read for each in batches), median(each.ms for each in batches) / 1000)


def reason_of(times: BatchTimes, usual: Usual, *, is_first: bool) -> str:
    """Return why a batch took its time: the phase that took most of it, and what made it so, if a figure says that.

    Args:
        is_first: it is the first batch of its driver.
    """
    phases, whole = phases_of(times), max(times.ms, 1) / 1000
    worst = max(phases, key=phases.__getitem__)
    text = f"{PHASES[worst]} took {_percent(phases[worst] / whole)}"
    detail = next(_details(times, usual, worst, whole, is_first=is_first), None)
    return text if detail is None else f"{text}: {detail}"


def _details(times: BatchTimes, usual: Usual, worst: str, whole: float, *, is_first: bool) -> Iterator[str]:
    if is_first:
        yield "it is the driver's first batch, which loads code and state"
    if worst == "write" and times.files >= MANY_FILES:
        yield f"it wrote {times.files} files, one for each day of its rows"
    if worst != "rows":
        return
    commit, update = state_least(times, "commit"), state_least(times, "update", "remove")
    if commit >= MUCH * whole:
        yield f"the state's commit took at least {_percent(commit / whole)}"
    if update >= MUCH * whole:
        yield f"what goes into and out of the state took at least {_percent(update / whole)}"
    if times.read >= OFTEN * max(usual.read, 1) and times.read >= FEW_RECORDS:
        yield f"it read {times.read:,} records, and most batches read {usual.read:,.0f}"
    if times.parts > 1 and times.part_share >= SKEW and times.read >= FEW_RECORDS:
        yield f"partition {times.part} had {_percent(times.part_share)} of its records, which one task reads"


def _percent(share: float) -> str:
    return f"{min(share, 1.0):.0%}".replace("%", " %")


@dataclass(frozen=True)
class TimeAdvice:
    """A setting to change, and what that should bring.

    Attributes:
        setting: a key of the definition, or a variable. now, to: its value, and the one to try.
        why: what was seen. brings: what to expect, by these figures; and what it costs.
        saves: share of the batches' time that it should save; None: these figures do not say.
    """

    setting: str
    now: str
    to: str
    why: str
    brings: str
    saves: float | None = None


def advise(batches: Sequence[BatchTimes], idle: Sequence[float], definition: DefinitionFile) -> list[TimeAdvice]:
    """Return the settings that would save time; none if there are too few batches to tell.

    Args:
        batches: in the order in which they ran, first batches of drivers left out.
        idle: seconds between two batches of one driver, each.
    """
    if len(batches) < LEAST_BATCHES:
        return []
    return [
        *_full(batches, definition),
        *_often(batches, sum(idle), definition),
        *_partitions(batches, definition),
        *_checkpoint(batches),
        *_resting(batches, idle, definition),
    ]


def _full(batches: Sequence[BatchTimes], definition: DefinitionFile) -> Iterator[TimeAdvice]:
    most = definition.stream.max_offsets_per_trigger
    full = [each for each in batches if each.read >= FULL * most]
    if 2 * len(full) < len(batches):
        return
    whole = sum(each.ms for each in full) / 1000
    fixed = whole - sum(phases_of(each)["rows"] for each in full)
    yield TimeAdvice(
        "stream.max_offsets_per_trigger",
        str(most),
        str(4 * most),
        f"{len(full)} of {len(batches)} batches were full; {_percent(fixed / whole)} of their time is outside of the job that reads records",
        f"a quarter of the batches for the same records, so about {_percent(0.75 * fixed / whole)} less time; larger batches forgive "
        "more lateness, so reconcile afterwards",
        0.75 * fixed / whole,
    )


def _often(batches: Sequence[BatchTimes], idle_s: float, definition: DefinitionFile) -> Iterator[TimeAdvice]:
    pins, usual = definition.stream, Usual.of(batches)
    busy = sum(each.ms for each in batches) / 1000
    span = busy + idle_s
    if pins.trigger_seconds or pins.runs_at is not None or usual.read >= FEW_RECORDS or 2 * busy < span:
        return
    seconds = next((each for each in _TRIGGERS if each >= 4 * usual.seconds), _TRIGGERS[-1])
    rate = sum(each.read for each in batches) / span
    if rate * seconds >= FULL * pins.max_offsets_per_trigger:
        return  # batches would be full
    now, then = 60 * len(batches) / span, 60 / seconds
    yield TimeAdvice(
        "stream.trigger",
        "0 s",
        f"{seconds} s",
        f"batches took {_percent(busy / span)} of the time and read {usual.read:,.0f} records each; a batch of few records costs much the "
        "same as one of more",
        f"{then:.0f} batches a minute instead of {now:.0f}, so about {_percent(1 - then / now)} less work; results come up to {seconds} s later",
        1 - then / now,
    )


def _partitions(batches: Sequence[BatchTimes], definition: DefinitionFile) -> Iterator[TimeAdvice]:
    partitions, slots = batches[-1].state.get("partitions", 0), batches[-1].slots
    if partitions <= slots:
        return
    whole = sum(each.ms for each in batches) / 1000
    commit = sum(state_least(each, "commit") for each in batches)
    changed = sum(each.state.get("updated", 0) for each in batches) / len(batches) / partitions
    if commit < MUCH * whole or changed >= FEW_RECORDS:
        return
    saves = commit / whole * (1 - slots / partitions)
    yield TimeAdvice(
        "stream.shuffle_partitions",
        str(partitions),
        str(slots),
        f"the state's commit took at least {_percent(commit / whole)} of the time: all {partitions} partitions are committed in each batch, "
        f"{slots} at a time, and {changed:.0f} rows of each changed",
        f"about {_percent(saves)} less time; `rivertwice upgrade {definition.name}` rewrites the state",
        saves,
    )


def _checkpoint(batches: Sequence[BatchTimes]) -> Iterator[TimeAdvice]:
    whole = sum(each.ms for each in batches) / 1000
    took = sum(phases_of(each)["checkpoint"] for each in batches)
    if took >= MUCH * whole:
        yield TimeAdvice(
            "RIVERTWICE_HOME",
            "where it is",
            "a folder on a local SSD",
            f"the checkpoint took {_percent(took / whole)} of the time; on a local disk two small files take some hundredths of a second",
            f"up to {_percent(took / whole)} less time",
        )


def _resting(batches: Sequence[BatchTimes], idle: Sequence[float], definition: DefinitionFile) -> Iterator[TimeAdvice]:
    pins = definition.stream
    long = [each for each in idle if each >= 2 * LONG_IDLE.total_seconds()]
    busy = sum(each.ms for each in batches) / 1000
    if not long or pins.hibernate is not None or pins.runs_at is not None or 2 * sum(long) < busy + sum(idle):
        return
    yield TimeAdvice(
        "stream.hibernate",
        "off",
        "10 minutes",
        f"no record came for {sum(long) / 3600:.1f} h in pauses of 20 minutes and more",
        "no driver in such a pause, which costs about one CPU-second a minute and half a gigabyte; the first record after it waits for a "
        "start of the driver",
    )
