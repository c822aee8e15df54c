"""When a stream that is waited for has caught up: `rivertwice start --wait`. The decision is pure; `look` reads.

A stream has caught up when it has read the log as far as it was when the wait began, and the watermark that those records give
is in effect. Spark raises it in the batch after the one that read them, which has no records if none came since. Records that
come after that batch are judged by the new watermark; records that came before it would not be.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.agent.by_schedule import is_answered
from rivertwice.agent.launch import agent_status
from rivertwice.agent.memory import load_memory
from rivertwice.core import Settings
from rivertwice.definition import Definition
from rivertwice.log import StoredOffsets
from rivertwice.stream import covers, lease_owner
from rivertwice.timeline import Exit, Heartbeat, Intent, LedgerRow, path_ledger, rule_of, watermarks_after


class WaitState:
    """How a wait for a stream stands."""

    WAITS = "waits"
    CAUGHT_UP = "caught_up"
    FAILED = "failed"


QUIET = timedelta(seconds=20)
"""A stream that has read everything and was idle for this time has caught up, whatever the ledger says of the next batch."""


@dataclass(frozen=True)
class StreamLook:
    """What one look shows of a stream that is waited for.

    Attributes:
        desired: the desired state; None: none was recorded.
        given_up: why the agent gave the stream up since the wait began; None: it did not.
        epoch: of the living driver; None: no driver is running.
        ran: of a stream by schedule: whether a run that began since the wait did has read to the log's end; None: it runs all the time.
        rises: whether the batch after the last committed one raises the watermark, by the ledger; None: it was not looked up.
    """

    has_agent: bool
    desired: str | None
    given_up: str | None
    epoch: int | None
    beat: Heartbeat | None
    ran: bool | None = None
    rises: bool | None = None


@dataclass(frozen=True)
class Wait:
    """A wait, as far as it has come.

    Attributes:
        ends: topic to partition to the end of the log when the wait began.
        covered: the first batch that was seen to have read as far, with its timeline; None: none was yet.
        quiet_since: since when the driver reports `idle` at the same batch; None: it does not.
        state: WAITS, CAUGHT_UP or FAILED.
    """

    ends: StoredOffsets
    covered: tuple[str, int | None] | None = None
    quiet_since: datetime | None = None
    state: str = WaitState.WAITS
    reason: str = ""


def has_read(seen: StreamLook, ends: StoredOffsets) -> bool:
    """Say whether a living driver reports that it has committed the log up to these ends. Pure."""
    beat = seen.beat
    is_alive = beat is not None and beat.epoch == seen.epoch and beat.state in ("running", "idle")
    return beat is not None and is_alive and covers(beat.end_offsets, ends)


def decide_wait(wait: Wait, seen: StreamLook) -> Wait:
    """Return the wait after a look. Pure."""
    if seen.given_up is not None:
        return _failed(wait, f"the agent has stopped retrying: {seen.given_up}")
    if seen.desired != "running":
        return _failed(wait, "somebody stopped it meanwhile")
    if seen.epoch is None and not seen.has_agent:
        return _failed(wait, "no driver and no agent is running")
    beat = seen.beat
    if beat is not None and seen.ran:
        return Wait(wait.ends, (beat.timeline, beat.batch), state=WaitState.CAUGHT_UP)
    if beat is None or not has_read(seen, wait.ends):
        return Wait(wait.ends)
    at = (beat.timeline, beat.batch)
    covered = wait.covered or at
    quiet_since = None
    if beat.state == "idle":
        quiet_since = wait.quiet_since if wait.covered == at and wait.quiet_since is not None else beat.at
    has_settled = (
        at != covered  # another batch was committed since
        or (seen.rises is False)
        or (beat.batch_s is None and beat.state == "idle")  # a driver that finds nothing to read runs no batch
        or (quiet_since is not None and beat.at - quiet_since >= QUIET)
    )
    has_settled = has_settled and seen.ran is None  # a run by schedule says itself when it has
    return Wait(wait.ends, covered, quiet_since, WaitState.CAUGHT_UP if has_settled else WaitState.WAITS)


def _failed(wait: Wait, reason: str) -> Wait:
    return Wait(wait.ends, wait.covered, wait.quiet_since, WaitState.FAILED, reason)


def look(settings: Settings, definition: Definition, wait: Wait, asked_at: datetime) -> StreamLook:
    """Return what is true of a stream now. The ledger is read only once the driver has read far enough."""
    home = settings.pipeline(definition.name)
    owner, beat, intent = lease_owner(home), Heartbeat.load(home), Intent.load(home)
    memory = load_memory(settings, definition.name)
    given_up = memory.broken_because if memory.broken_at is not None and memory.broken_at >= asked_at else None
    seen = StreamLook(
        has_agent=agent_status(settings) is not None,
        desired=None if intent is None else intent.desired,
        given_up=given_up,
        epoch=None if owner is None else owner.epoch,
        beat=beat,
        ran=None if memory.plan is None else is_answered(memory.run, asked_at),
    )
    if beat is None or beat.batch_s is None or not has_read(seen, wait.ends):
        return seen
    return StreamLook(**{**seen.__dict__, "rises": does_rise(path_ledger(home), definition, beat)})


def does_rise(rows: list[LedgerRow], definition: Definition, beat: Heartbeat) -> bool:
    """Say whether the batch after the one that a driver reports raises the watermark, so that Spark runs it without records. Pure."""
    if not any(source.has_watermark for source in definition.streams.values()):
        return False
    place = next((n for n, row in enumerate(rows) if (row.timeline, row.batch) == (beat.timeline, beat.batch)), None)
    if place is None:
        return True
    return watermarks_after(rows, rule_of(definition), place)[0] > rows[place].batch_watermark_ms


def last_failure(settings: Settings, name: str, since: datetime) -> Exit | None:
    """Return how a driver failed since an instant; None: none did."""
    last = Exit.load(settings.pipeline(name))
    return last if last is not None and not last.clean and last.at >= since else None
