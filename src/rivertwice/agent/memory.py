"""What the agent remembers of one pipeline between its passes and across its own restarts.

It is the agent's write-ahead log: the intended action is recorded before it is taken, so that a crash between the
two is recognisable. One JSON file per pipeline under `HOME/agent/pipelines/`, format 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.agent.backoff import CONTENDED_AFTER, FULL_AFTER, Failure, FailureClass, full_disk_ends, lease_losses
from rivertwice.agent.by_schedule import Plan, Run
from rivertwice.core import Settings, Started, parse_iso, require_pipeline, to_plain
from rivertwice.storage import read_json, replace_json

FORMAT = 1
KEPT_FAILURES = 50
RESTORED, REFUSED, DIED = "restored", "refused", "died"
CONTENDED = "contended"
FULL = "disk"
LASTING_PAGES = frozenset({CONTENDED, FULL})  # about more than one driver, so a start does not make them news again


@dataclass(frozen=True)
class DriverRef:
    """A driver process, named so that a recycled pid cannot be taken for it.

    Attributes:
        pid_started: the name of its start (`processes`).
        epoch: epoch of its lease; None until it holds one.
        since: when the agent started or adopted it.
    """

    pid: int
    pid_started: Started
    epoch: int | None
    since: datetime


@dataclass(frozen=True)
class Ended:
    """A driver that the agent knew and that is gone.

    Attributes:
        clean: it drained and recorded that.
        position: (timeline, batch) that it last reported as committed, or None.
        at_end: it had read what the log had at its start.
    """

    driver: DriverRef
    failure: FailureClass
    clean: bool
    message: str
    position: tuple[str, int] | None
    at_end: bool = False


@dataclass(frozen=True)
class Intended:
    """The last action, recorded before it was taken; `done` once it was."""

    kind: str
    reason: str
    at: datetime
    done: bool


@dataclass(frozen=True)
class FallBack:
    """The restore that the agent started because the live checkpoint is damaged.

    Attributes:
        attempt: 1 for the first process of this damage; a process that was killed is followed by another.
        outcome: `restored`, `refused` (with the reason), `died` (without a word), or empty while it is under way.
        position: (new timeline, batch it forked at), once restored.
    """

    pid: int
    pid_started: Started
    since: datetime
    attempt: int
    outcome: str = ""
    message: str = ""
    position: tuple[str, int] | None = None


@dataclass(frozen=True)
class FallBackEnded:
    """The end of a fall-back's process.

    Attributes:
        position: (new timeline, batch it forked at), if it restored.
    """

    outcome: str
    message: str
    position: tuple[str, int] | None


@dataclass(frozen=True)
class Memory:
    """Everything the agent remembers of one pipeline.

    Attributes:
        driver: the driver believed to run.
        failures: the newest failures, oldest first.
        position: the furthest (timeline, batch) known to be committed when a driver failed.
        broken_at: when the agent stopped retrying; a newer intent makes it try again.
        paged: pages already sent for the present driver, or for a contention that lasts.
        intended: the write-ahead record.
        asleep_since: when the driver was ended because no record came (`stream.hibernate`); None: it is to run.
        plan: of a stream by schedule; None: its driver runs all the time.
        run: the newest run by schedule; None: there was none.
    """

    driver: DriverRef | None = None
    failures: tuple[Failure, ...] = ()
    position: tuple[str, int] | None = None
    broken_at: datetime | None = None
    broken_because: str = ""
    paged: tuple[str, ...] = ()
    last_start_at: datetime | None = None
    intended: Intended | None = None
    fall_back: FallBack | None = None
    asleep_since: datetime | None = None
    plan: Plan | None = None
    run: Run | None = None


def remember_fall_back(memory: Memory, ended: FallBackEnded) -> Memory:
    """Return the memory after a fall-back's end. Pure.

    A restored checkpoint makes the failures before it history.
    """
    if memory.fall_back is None:
        return memory
    known = replace(memory.fall_back, outcome=ended.outcome, message=ended.message, position=ended.position)
    if ended.outcome != RESTORED:
        return replace(memory, fall_back=known)
    return replace(memory, fall_back=known, failures=(), position=ended.position or memory.position)


def lasting_pages(memory: Memory) -> tuple[str, ...]:
    """Return the pages sent that are not about one driver alone. Pure."""
    return tuple(key for key in memory.paged if key in LASTING_PAGES)


def remember_end(memory: Memory, ended: Ended, now: datetime) -> Memory:
    """Return the memory after a driver's end: forgotten, and counted if it was not a clean drain. Pure."""
    forgotten = replace(memory, driver=None, paged=())
    if ended.clean:
        run = memory.run
        if ended.at_end and run is not None and run.ended_at is None:
            run = replace(run, ended_at=now)
        return replace(forgotten, failures=(), position=ended.position or memory.position, run=run)
    progressed = ended.position is not None and ended.position != memory.position
    failure = Failure(
        at=now, failure=ended.failure, progressed=progressed, epoch=ended.driver.epoch, message=ended.message
    )
    failures = (*memory.failures, failure)[-KEPT_FAILURES:]
    return replace(
        forgotten,
        failures=failures,
        paged=tuple(key for key in memory.paged if key in _lasting(failures)),
        position=ended.position or memory.position,
    )


def _lasting(failures: Sequence[Failure]) -> set[str]:
    """Return the pages whose cause lasts after these ends."""
    lasts = {CONTENDED: lease_losses(failures) >= CONTENDED_AFTER, FULL: full_disk_ends(failures) >= FULL_AFTER}
    return {key for key, still in lasts.items() if still}


def _path(settings: Settings, name: str) -> Path:
    return settings.home / "agent" / "pipelines" / f"{require_pipeline(name)}.json"


def load_memory(settings: Settings, name: str) -> Memory:
    """Return what is remembered of a pipeline; an empty memory if nothing is."""
    data = read_json(_path(settings, name))
    if data is None or data.get("format") != FORMAT:
        return Memory()
    driver, intended, fall_back = data["driver"], data["intended"], data.get("fall_back")
    plan, run = data.get("plan"), data.get("run")
    return Memory(
        driver=None if driver is None else DriverRef(**{**driver, "since": parse_iso(driver["since"])}),
        failures=tuple(
            Failure(**{**row, "at": parse_iso(row["at"]), "failure": FailureClass(row["failure"])})
            for row in data["failures"]
        ),
        position=_position(data["position"]),
        broken_at=_instant(data["broken_at"]),
        broken_because=data["broken_because"],
        paged=tuple(data["paged"]),
        last_start_at=_instant(data["last_start_at"]),
        asleep_since=_instant(data.get("asleep_since")),
        plan=None if plan is None else Plan(**{**plan, "since": parse_iso(plan["since"])}),
        run=None
        if run is None
        else Run(parse_iso(run["begun_at"]), _instant(run["ended_at"]), _instant(run["before"])),
        intended=None if intended is None else Intended(**{**intended, "at": parse_iso(intended["at"])}),
        fall_back=None
        if fall_back is None
        else FallBack(
            **{
                **fall_back,
                "since": parse_iso(fall_back["since"]),
                "position": _position(fall_back["position"]),
            }
        ),
    )


def save_memory(settings: Settings, name: str, memory: Memory) -> None:
    """Write a pipeline's memory, atomically."""
    replace_json(_path(settings, name), {"format": FORMAT, **to_plain(memory)})


def _instant(text: str | None) -> datetime | None:
    return None if text is None else parse_iso(text)


def _position(value: list[Any] | None) -> tuple[str, int] | None:
    return None if value is None else (str(value[0]), int(value[1]))
