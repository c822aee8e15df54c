"""catch-up: what waits for a stream, and how the oldest part of it is left to batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from rivertwice.commands.advise import DurationType
from rivertwice.commands.asking import Consent, Preview, asks_first
from rivertwice.commands.frame import DEFECT, Frame, example, pass_frame, to_plain
from rivertwice.commands.options import name_argument
from rivertwice.errors import ServiceError
from rivertwice.waits import Deadline

if TYPE_CHECKING:
    from rivertwice.retention.backlog import Backlog, HandOver


@click.command(
    "catch-up",
    epilog=example(
        "rivertwice catch-up flight_delays",
        "rivertwice catch-up flight_delays --by-batch",
        "rivertwice catch-up flight_delays --by-batch --keep '2 hours' --yes",
    ),
)
@name_argument()
@click.option("--check", is_flag=True, help="Exit 3 if Kafka may delete records before the stream has read them.")
@click.option("--by-batch", is_flag=True, help="Leave the oldest part of what waits to batch; asks first.")
@click.option(
    "--keep", type=DurationType(), help="What the stream reads itself: so much of the newest, for instance '2 hours'."
)
@click.option(
    "--timeout", type=click.IntRange(1), default=300, show_default=True, help="Seconds to wait for the stream to stop."
)
@asks_first("with --by-batch the head moves to a timeline that skips records", confirm=True)
@pass_frame
def catch_up(
    frame: Frame, name: str, check: bool, by_batch: bool, keep: timedelta | None, consent: Consent, timeout: int
) -> None:
    """Show what waits for a stream; leave the oldest to batch.

    It shows how many records wait for NAME, when it has caught up, and whether Kafka deletes some before.

    With --by-batch the stream continues with the newest records, and the others are left to batch: they are archived first,
    a reconcile names the windows that they belong to, and a backfill publishes these. No record is lost.
    """
    from rivertwice.instants import utc_now
    from rivertwice.retention.hand_over import plan_hand_over, view_backlog

    settings, now = frame.settings, utc_now()
    backlogs = view_backlog(settings, frame.known_pipeline(name), now)
    if not by_batch:
        frame.emit(_plain(backlogs), lambda: "\n".join(backlog_text(name, each) for each in backlogs))
        if check and any(each.is_outrun for each in backlogs):
            raise SystemExit(DEFECT)
        return
    plan = plan_hand_over(settings, name, backlogs[0], keep)
    shown = Preview({**_plain(backlogs), "plan": to_plain(plan)}, lambda: plan_text(name, backlogs[0], plan))
    if consent.given(name, f"Leave {plan.records} records of {name} to batch?", lambda: shown):
        _hand_over(frame, name, plan, now, timeout)


def _hand_over(frame: Frame, name: str, plan: HandOver, now: datetime, timeout: int) -> None:
    from rivertwice.retention.hand_over import hand_over
    from rivertwice.timeline.intent import read_intent, write_intent

    home = frame.settings.pipeline(name)
    intent = read_intent(home)
    was_wanted = intent is not None and intent.desired == "running"
    if was_wanted:
        write_intent(home, "stopped", "catch-up", now)
    try:
        _wait_stopped(frame, name, timeout)
        accepted = hand_over(frame.settings, name, plan, by="cli", now=now, progress=frame.progress)
    finally:
        if was_wanted:
            write_intent(home, "running", "catch-up", now)
    frame.emit(
        {"gap": accepted.gap, "timeline": accepted.timeline, "records": plan.records},
        f"{name} continues after {plan.records} records, on timeline {accepted.timeline}; next: `rivertwice savepoint take {name}`, and once the "
        f"stream has closed their windows `rivertwice reconcile {name}`, `rivertwice backfill run {name}`",
    )


def _wait_stopped(frame: Frame, name: str, timeout: int) -> None:
    from rivertwice.stream.lease import lease_owner
    from rivertwice.supervise.launch import agent_status

    home = frame.settings.pipeline(name)
    owner = lease_owner(home)
    if owner is not None and agent_status(frame.settings) is None:
        message = f"driver pid {owner.pid} of {name} runs and no agent lives that would stop it; nothing was done; `rivertwice agent start`"
        raise ServiceError(message)
    for _ in Deadline.after(timeout).polls(0.2):
        if lease_owner(home) is None:
            return
    message = (
        f"the driver of {name} still drains after {timeout} s; nothing was done; run it again, with a longer --timeout"
    )
    raise ServiceError(message)


def _plain(backlogs: Sequence[Backlog]) -> dict[str, Any]:
    topics = {}
    for each in backlogs:
        seconds = each.caught_up_s
        topics[each.topic] = {
            **to_plain(each),
            "records": each.records,
            "caught_up_s": None if seconds is None or math.isinf(seconds) else round(seconds, 1),
            "is_outrun": each.is_outrun,
        }
    return {"topics": topics}


def backlog_text(name: str, backlog: Backlog) -> str:
    """Return what waits, for people. Pure."""
    if not backlog.records:
        return f"{backlog.topic}: nothing waits for {name}"
    span = ""
    if backlog.oldest_ms is not None and backlog.newest_ms is not None:
        span = f", stamped over {timedelta(seconds=(backlog.newest_ms - backlog.oldest_ms) // 1000)}"
    lines = [f"{backlog.topic}: {backlog.records} records wait for {name}{span}"]
    seconds = backlog.caught_up_s
    arriving = f"{backlog.arriving:.1f} a second arrive"
    if backlog.pace is None or seconds is None:
        lines.append(f"pace       not known before its next batches; {arriving}")
    elif math.isinf(seconds):
        lines.append(f"pace       {backlog.pace:.1f} records a second, {arriving}: it never catches up")
    else:
        lines.append(
            f"pace       {backlog.pace:.1f} records a second, {arriving}: caught up in {timedelta(seconds=round(seconds))}"
        )
    if backlog.left is None:
        lines.append("retention  Kafka deletes none of them by time")
    else:
        state = "records would be lost" if backlog.is_outrun else "after that"
        lines.append(
            f"retention  Kafka may delete the first of them in {timedelta(seconds=round(backlog.left.total_seconds()))}: {state}"
        )
    if backlog.is_outrun:
        lines.append(f"remedy     raise the topic's retention, or `rivertwice catch-up {name} --by-batch`")
    return "\n".join(lines)


def plan_text(name: str, backlog: Backlog, plan: HandOver) -> str:
    """Return what a hand-over would do, for people. Pure."""
    parts = ", ".join(f"{partition}: [{start}, {end})" for partition, (start, end) in sorted(plan.ranges.items()))
    return "\n".join(
        [
            backlog_text(name, backlog),
            f"by batch   {plan.records} records, partition {parts}: archived, then skipped by the stream; nothing was done",
            f"by stream  {backlog.records - plan.records} records; the state stays as it is, on a new timeline",
            "after it   a reconcile names the windows of the skipped records, and a backfill publishes them; every later reconcile of this "
            "timeline judges everything",
            f"to do it: rivertwice catch-up {name} --by-batch --yes",
        ]
    )
