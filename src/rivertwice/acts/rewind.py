"""Rewind: a new timeline computes again what followed a savepoint, and then serves. Windows may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rivertwice.acts.act import Act, Plan, ReadAgain, Row, World
from rivertwice.acts.savepoint import BaseRequest
from rivertwice.log import Part, key_parts
from rivertwice.savepoint import Rewind, find_repeated, read_rewinds

if TYPE_CHECKING:
    from rivertwice.savepoint import RewindReport

UNKNOWN_LATE = "not known: no reconcile of this head yet"


@dataclass(frozen=True)
class RewindDone:
    """A rewind that an earlier try of the same request had done: its id, the timeline, the head, and what was compared."""

    operation: str
    timeline: str
    head: str
    comparison: Mapping[str, Any]


class RewindRequest(BaseRequest):
    """A request to go back to a savepoint."""

    stop_before_head: bool = Field(
        False, title="Stop before the head", description="Catch up and compare, but let the old head serve."
    )


def _plan(world: World, request: RewindRequest) -> Plan:
    from rivertwice.core import to_plain
    from rivertwice.savepoint import show_rewind

    shown = show_rewind(world.settings, request.pipeline, request.base, unproved=request.unproved)
    refusals = shown.refusals if shown.resumes is None else ()
    keys = key_parts(Part(part.topic, part.partition) for part in shown.reread)
    reread = [
        ReadAgain(keys[Part(part.topic, part.partition)], part.start, part.end, part.log_begins)
        for part in shown.reread
    ]
    value = {**to_plain(shown), "reread": reread}
    return Plan(value, _rows(shown), shown.steps, None, refusals, shown.resumes, reread)


def _apply(world: World, request: RewindRequest) -> RewindReport | RewindDone:
    from rivertwice.savepoint import rewind_stream

    home = world.settings.pipeline(request.pipeline)
    done = find_repeated(read_rewinds(home), Rewind, world.asked_at, base=request.base, resumes=world.resumes)
    if done is not None:
        world.progress(f"{done.id} is done already: timeline {done.child}")
        return RewindDone(done.id, done.child, done.child, done.comparison or {})
    return rewind_stream(
        world.settings,
        request.pipeline,
        request.base,
        unproved=request.unproved,
        stop_before_head=request.stop_before_head,
        progress=world.progress,
    )


def _rows(shown: Any) -> list[Row]:
    remaining = [publication for publication in shown.publications if publication.keeps]
    where = "on the head's path" if shown.on_path else f"off the head's path; {shown.regained} batches count again"
    return [
        ("savepoint", f"{shown.savepoint} ({'proved' if shown.proved else 'taken, not proved'})"),
        ("fork", f"batch {shown.batch} of timeline {shown.timeline}, {where}"),
        ("would no longer count", f"{shown.batches} batches, up to batch {shown.head_batch} of timeline {shown.head}"),
        ("may change", f"{shown.windows} closed windows, {shown.rows} rows"),
        ("late records in them", UNKNOWN_LATE if shown.late is None else shown.late),
        ("dead letters in them", shown.dead),
        ("keep serving", f"{len(remaining)} of {len(shown.publications)} publications"),
        ("read again, from Kafka", f"{shown.records} records"),
        ("definition", "the savepoint's" if not shown.changed else f"changed in {', '.join(shown.changed)}"),
        ("takes about", "not known" if shown.estimate_s is None else f"{shown.estimate_s} s, and a driver's start"),
    ]


REWIND = Act(
    "savepoint.rewind",
    "Rewind",
    "The stream stops, a new timeline computes again what followed the savepoint, and then serves. Windows may change.",
    RewindRequest,
    _plan,
    _apply,
    confirm="a rewind lets other rows of its windows serve",
)
