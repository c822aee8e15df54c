"""What is delivered next. Pure: position and tables in, a step out; the same decision after every crash.

Order: batches on the head's path; a publication as soon as all windows that it covers are closed at the position, or when no
batch waits. A restore forks at the last committed batch, so the position stays on the path and continues with the child's
first batch. If the position is not on the path any more (a rewind, another definition's timeline, another version of the pipeline
serves), one step changes the sink's rows to those that the new path serves.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rivertwice.core import LedgerError
from rivertwice.definition import FOREVER_MS
from rivertwice.deliver.model import (
    BATCHES,
    BEFORE_ALL,
    MOVED,
    PUBLISHED,
    Committed,
    DeliveredRecord,
    DeliveryStep,
    Line,
    Position,
    StepPart,
    View,
)
from rivertwice.timeline import Publication, Segment


@dataclass(frozen=True)
class Limits:
    """Batches are put into one step until one of these limits is reached; a single batch is never split."""

    batches: int = 500
    rows: int = 10_000


UNLIMITED = Limits(batches=sys.maxsize, rows=sys.maxsize)


def plan_next(position: Position | None, view: View, limits: Limits) -> DeliveryStep | None:
    """Return the next step, or None if the sink has everything.

    Raises:
        LedgerError: the position names a batch that the tables do not contain.
    """
    if not view.batches:
        return None
    if position is not None and not is_prefix_of_served(position, view):
        return _move(position, view)
    due = select_due(position, view)
    rest = waiting(position, view)
    if position is not None and due is not None and (not rest or _reach(due) <= view.held_closed_ms):
        to = _at(view.head, position.batch, due.seq, position.number + 1)
        return DeliveryStep(PUBLISHED, to, view.held_closed_ms, ranges=due.ranges)
    if not rest:
        return None
    chosen = _group(rest, due, limits)
    seq = view.seq if due is None else due.seq - 1
    number = 1 if position is None else position.number + 1
    to = _at(view.head, chosen[-1].batch, seq, number)
    return DeliveryStep(BATCHES, to, chosen[-1].closed_ms, batches=chosen)


def position_inside(
    before: Position | None, to: Position, records: Sequence[DeliveredRecord], begun: int, taken: int
) -> Position:
    """Return the position of a sink that has a part of a step.

    Args:
        to: the position after it, with the number of this part.
        records: all records of the step.
        begun: how many of them the sink had before.
        taken: how many it takes now.
    """
    done = begun + taken
    part = StepPart(replace(to, number=0), done, _digest(records[:done]), before is None)
    return replace(to if before is None else before, number=to.number, part=part)


def check_continued(part: StepPart, to: Position, records: Sequence[DeliveredRecord], sink: str, pipeline: str) -> None:
    """Refuse to deliver the rest of a step that is not the one that was begun.

    Raises:
        LedgerError: it leads elsewhere, or begins with other rows: an erasure renamed keys, or the tables are others.
    """
    if replace(to, number=0) == part.to and len(records) >= part.done and _digest(records[: part.done]) == part.keys:
        return
    message = (
        f"sink {sink} of {pipeline} has {part.done} records of the step to batch {part.to.batch} of {part.to.timeline} (sequence "
        f"{part.to.seq}), and the tables give other records for it now; deliver all with `rivertwice deliver "
        f"run {pipeline} --sink {sink} --again`"
    )
    raise LedgerError(message)


def _digest(records: Sequence[DeliveredRecord]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(f"{record.key}\n".encode())
    return digest.hexdigest()


def waiting(position: Position | None, view: View) -> Sequence[Committed]:
    """Return the batches on the head's path that were not delivered yet; the position is on that path."""
    if position is None:
        return view.batches
    return [batch for batch in view.batches if batch.batch > position.batch]


def select_due(position: Position | None, view: View) -> Publication | None:
    """Return the oldest publication that counts for the head and was not delivered yet."""
    delivered_seq = 0 if position is None else position.seq
    counting = (
        entry for entry in view.publications if entry.seq > delivered_seq and entry.semantics in view.head.semantics
    )
    return min(counting, key=lambda entry: entry.seq, default=None)


def is_prefix_of_served(position: Position, view: View) -> bool:
    """Say whether the sink's content is the beginning of what the head's path serves."""
    if view.held is None:
        message = f"the position names timeline {position.timeline}, of which nothing is known; nothing was delivered"
        raise LedgerError(message)
    return is_continued(position, view.held, view.head, view.publications)


def is_continued(position: Position, held: Line, head: Line, publications: Sequence[Publication]) -> bool:
    """Say whether a position on one line is the beginning of what another serves.

    Timelines are a tree: if the same timeline committed the position's batch on both paths, all earlier batches are the same. An
    upgrade adds semantics to the path. None of their publications may be one that the position has passed because it did not count.
    Versions of a pipeline have their own trees.
    """
    if held.version != head.version:
        return False
    added = head.semantics - held.semantics
    return (
        held.semantics <= head.semantics
        and not any(entry.seq <= position.seq and entry.semantics in added for entry in publications)
        and owner_of(held.path, position.batch) == owner_of(head.path, position.batch)
    )


def owner_of(path: Sequence[Segment], batch: int) -> str | None:
    """Return the timeline that committed a batch of this path, or None if the path begins after it."""
    return next((part.timeline for part in path if part.contains(part.timeline, batch)), None)


def count_waiting(position: Position | None, view: View | None) -> int:
    """Return how many batches of the head's path were not delivered yet; all, if the sink's position is on another path."""
    if view is None:
        return 0
    if position is not None and not is_prefix_of_served(position, view):
        return len(view.batches)
    return len(waiting(position, view))


def waiting_since(position: Position | None, view: View) -> datetime | None:
    """Return since when rows wait for a sink: those of a batch, of a publication, or of another head; None if none wait.

    Of publications and heads it is the newest one's instant.
    """
    if position is not None and not is_prefix_of_served(position, view):
        return view.seq_at
    instants = [batch.at for batch in waiting(position, view) if batch.rows][:1]
    if position is not None and select_due(position, view) is not None:
        instants.append(view.seq_at)
    return min((instant for instant in instants if instant is not None), default=None)


def _move(position: Position, view: View) -> DeliveryStep:
    """Move to the first batch of the new path with all windows closed that were closed, or else (also for a fold) to its last."""
    if view.held_closed_ms >= FOREVER_MS:
        return _moved(position, view, view.batches[-1])
    target = next((batch for batch in view.batches if batch.closed_ms >= view.held_closed_ms), view.batches[-1])
    return _moved(position, view, target)


def _moved(position: Position, view: View, target: Committed) -> DeliveryStep:
    to = _at(view.head, target.batch, view.seq, position.number + 1)
    return DeliveryStep(MOVED, to, target.closed_ms)


def _at(line: Line, batch: int, seq: int, number: int) -> Position:
    return Position(line.timeline, batch, seq, line.born, number, line.version)


def _group(rest: Sequence[Committed], due: Publication | None, limits: Limits) -> tuple[Committed, ...]:
    """Return the next batches of one step; the group ends where a publication is due."""
    chosen: list[Committed] = []
    rows = 0
    for batch in rest:
        if chosen and (len(chosen) == limits.batches or rows + batch.rows > limits.rows):
            break
        chosen.append(batch)
        rows += batch.rows
        if due is not None and _reach(due) <= batch.closed_ms:
            break
    return tuple(chosen)


def _reach(publication: Publication) -> int:
    return max((end for _, end in publication.ranges), default=BEFORE_ALL)
