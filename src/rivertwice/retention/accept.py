"""Continue after a gap because a person accepted it: a new timeline that begins after the gap, with the state as it was.

While this runs, no driver runs and the drain marker keeps drivers away. A crash may come after any step; if the protocol
is run again, it continues:

1. Look again: the gap must be the one that was named. If more records are gone now, that is another gap, to be accepted again.
2. Copy the parent's checkpoint, trimmed to its last committed batch, and let that batch end after the gap.
3. Put the copy in the child's place, then record the child. It is not served yet.
4. Record the acceptance, once. A reconcile accepts a jump only if this record names it.
5. Seal the parent, and move the head to the child if the parent has no batch after the copied one.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from datetime import datetime

from rivertwice.core import LostRaceError, PipelineHome, RequestError, SavepointError, Settings
from rivertwice.definition import load_bundle_definition
from rivertwice.log import Acceptance, Gap, GapReason, StoredOffsets, encode_ends, kafka, record_acceptance
from rivertwice.savepoint import copy_committed
from rivertwice.stream import at_rest, moved_to, next_offsets, observe_gaps, read_sets, seal_timeline
from rivertwice.timeline import Timeline, create_timeline, head, head_path, last_seq, move_head, newest_batch

_log = logging.getLogger(__name__)


def accept_gap(settings: Settings, pipeline: str, gap_id: str, *, by: str, now: datetime) -> Acceptance:
    """Let a stopped stream continue after a gap; the caller writes the intent. See the module's protocol.

    Raises:
        RequestError: there is no such gap, it is not the present one, or it cannot be accepted.
        LeaseLostError: a driver runs.
        LostRaceError: another operation holds the stream, or the head was moved meanwhile.
    """
    home = settings.pipeline(pipeline)
    gap = Gap.load(home, gap_id)
    with at_rest(home, gap.id, now, running="no gap is in its way"):
        accepted = Acceptance.load(home, gap_id)
        if accepted is None:
            _check_current(settings, home, gap, now)  # step 1
        return continue_after(settings, home, gap, by=by, now=now)


def continue_after(settings: Settings, home: PipelineHome, gap: Gap, *, by: str, now: datetime) -> Acceptance:
    """Let a stream that is at rest continue after a gap that was checked and recorded: steps 2 to 5."""
    accepted = Acceptance.load(home, gap.id)
    if accepted is None:
        child = _fork(settings, home, gap, now)  # steps 2 and 3
        record_acceptance(home, Acceptance(gap.id, child, by, now))  # step 4
        accepted = Acceptance.load(home, gap.id) or Acceptance(gap.id, child, by, now)
    _move(home, gap, accepted, now)  # step 5
    _log.warning("%s continues after %s on timeline %s: %s", home.root.name, gap.id, accepted.timeline, gap.describe())
    return accepted


def decide_acceptance(asked: Gap, present: Gap | None, head_timeline: str | None) -> str | None:
    """Return the reason why a gap cannot be accepted now, or None. Pure."""
    if asked.cause != GapReason.EXPIRED:
        return asked.message()
    if head_timeline != asked.timeline:
        return (
            f"gap {asked.id} is of timeline {asked.timeline}, but the head is {head_timeline} by now; "
            "start the stream: if a gap is in its way it is named"
        )
    if present is None:
        return f"gap {asked.id} is no longer there: Kafka has every record the stream needs next; start it without --accept-gap"
    if present.id != asked.id:
        return (
            f"more is gone by now than gap {asked.id} says, so it does not cover what would be skipped; "
            + present.message()
        )
    return None


def _check_current(settings: Settings, home: PipelineHome, gap: Gap, now: datetime) -> None:
    name = head(home)
    line = Timeline.load(home, gap.timeline)
    present = observe_gaps(settings, home, load_bundle_definition(home.bundles, line.bundle), line, now)
    for present_gap in present:
        present_gap.record(home)
    same_topic = next((present_gap for present_gap in present if present_gap.topic == gap.topic), None)
    refusal = decide_acceptance(gap, same_topic, name)
    if refusal is not None:
        raise RequestError(refusal)


def _fork(settings: Settings, home: PipelineHome, gap: Gap, now: datetime) -> str:
    parent = Timeline.load(home, gap.timeline)
    child = Timeline.next_name(home)
    begin = _begins_after_gap(settings, home, gap, parent)
    if gap.batch is None:  # no batch is committed, so there is no state to copy: the child begins again
        line = replace(parent, timeline=child, parent=None, first_batch=0, genesis=begin, created_at=now)
    else:
        last = newest_batch(home, head_path(home))
        assert last is not None, "the gap is after a batch"
        if last.batch != gap.batch:
            message = (
                f"batch {last.batch} of timeline {gap.timeline} is committed, but its checkpoint finished only batch "
                f"{gap.batch}: its records are needed once more for the state, and they are in the gap; "
                f"`rivertwice savepoint restore {home.root.name}` replays them from the archive, if it has them"
            )
            raise RequestError(message)
        work = home.scratch / f"{gap.id}-{secrets.token_hex(4)}"
        row = copy_committed(home, gap.timeline, work)
        if row.batch != gap.batch:
            message = f"the checkpoint's copy is at batch {row.batch}, not at {gap.batch}; run it again"
            raise SavepointError(message)
        path = work / "offsets" / str(row.batch)
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        path.write_text(read_sets(work).text_to_kafka(moved_to(row.offsets_text, begin)))
        target = home.checkpoint(child)
        target.parent.mkdir(parents=True, exist_ok=True)
        work.rename(target)
        line = replace(parent.fork(row, child, now), genesis=begin)
    if not create_timeline(home, line):
        message = f"timeline {child} was created by another process meanwhile; nothing serves it; run it again"
        raise LostRaceError(message)
    return child


def _begins_after_gap(settings: Settings, home: PipelineHome, gap: Gap, parent: Timeline) -> StoredOffsets:
    """Return where the child begins in every topic: after the gap if there is one, else at the parent's position.

    A gap in another topic still stops the child; it must be accepted separately.
    """
    begins: dict[str, dict[str, int]] = {}
    for topic in parent.topic_ids:
        position = next_offsets(home.checkpoint(parent.timeline), parent, topic)
        if gap.batch is None:
            position = dict.fromkeys(kafka.begin_offsets(settings, topic), 0) | position
        skipped = gap.ranges if topic == gap.topic else {}
        begins[topic] = encode_ends({p: skipped[p][1] if p in skipped else place for p, place in position.items()})
    return begins


def _move(home: PipelineHome, gap: Gap, accepted: Acceptance, now: datetime) -> None:
    newest_seq = last_seq(home)
    name = head(home)
    if name == accepted.timeline:
        return
    if name != gap.timeline:
        message = (
            f"gap {gap.id} of timeline {gap.timeline} was accepted for {accepted.timeline}, but the head is {name} by now; "
            "nothing was moved; start the stream as it is"
        )
        raise LostRaceError(message)
    seal_timeline(home, gap.pipeline, gap.timeline)  # a driver that continues now cannot commit to the parent
    last = newest_batch(home, head_path(home))
    newest = None if last is None else last.batch
    if newest != gap.batch:
        message = (
            f"timeline {gap.timeline} committed up to batch {newest} after gap {gap.id} was accepted after batch "
            f"{gap.batch}: somebody ran it meanwhile; nothing was moved; start the stream as it is"
        )
        raise LostRaceError(message)
    move_head(
        home, accepted.timeline, reason=f"went on past {gap.id}: {gap.describe()}", expected_seq=newest_seq, now=now
    )
