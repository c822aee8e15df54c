"""Whether too many of the newest records are dead letters: the same for an alert, a reconcile's gate, `status` and the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rivertwice.config import PipelineHome
from rivertwice.deadletters.model import OPEN
from rivertwice.deadletters.summary import summarise_dead_letters
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.paths import parts_of
from rivertwice.store.remembered import Remembered
from rivertwice.timeline.committed import committed_batches, newest_batches
from rivertwice.timeline.lineage import Segment, head_path

RECENT = 100
"""Batches that count as recent."""
NEWEST_RECORDS, SUDDEN = 100, 0.1
"""Dead letters among the newest records count by themselves from this share on, and of no fewer records."""


class CountedBatch(Protocol):
    """A batch of which it is known how many records it read, and how many of them are dead letters."""

    @property
    def read(self) -> int:
        """Records."""
        ...

    @property
    def bad(self) -> int:
        """Dead letters."""
        ...


@dataclass(frozen=True)
class NewestDead:
    """Dead letters among the newest records of the head's path.

    Attributes:
        share: of them; None: no record was read.
        open: dead letters of which nothing was decided.
        text: what the newest dead letters have in common, in words; empty if there are none.
    """

    share: float | None = None
    open: int = 0
    text: str = ""

    def describe(self, limit: float) -> str:
        """Return what is wrong, in words; empty: not more than the limit allows, or all of them were decided about. Pure."""
        if self.share is None or self.share <= limit or not self.open:
            return ""
        fact = f"{self.share * 100:.3g} % of the newest records cannot be decoded or break a rule (limit {limit * 100:.3g} %)"
        return f"{fact}: {self.text}" if self.text else fact


def dead_share(batches: Sequence[CountedBatch]) -> float | None:
    """Return the share of dead letters among the newest records; None without records.

    That is the newest hundred batches, or the newest batches of at least a hundred records if they have a much larger share: a
    producer that renamed a field breaks every record from now on, and these are few among a hundred batches. Pure.
    """
    recent = batches[-RECENT:]
    over_all = _share(recent)
    count = 0
    for place in reversed(range(len(recent))):
        count += recent[place].read
        if count >= NEWEST_RECORDS:
            newest = _share(recent[place:])
            return (
                max(newest, over_all) if newest is not None and over_all is not None and newest >= SUDDEN else over_all
            )
    return over_all


def _share(batches: Sequence[CountedBatch]) -> float | None:
    read = sum(batch.read for batch in batches)
    return sum(batch.bad for batch in batches) / read if read else None


def fields_of(definition: Definition) -> Mapping[str, Collection[str]]:
    """Return topic to the names that its records may have at the top, as the definition declares them. Pure."""
    return {
        source.topic: {parts_of(source, field)[0] for field in source.schema_} for source in definition.sources.values()
    }


def read_newest_dead(home: PipelineHome, definition: Definition) -> NewestDead:
    """Return the dead letters among the newest records of the head's path; no letter is read if there are none."""
    path, tables = head_path(home), home.tables
    return _NEWEST.get(
        (str(home.root), tuple(path)),
        (tables.ledger, tables.changelog, tables.dead_letters, tables.amendments),
        lambda: _read(home, definition, path),
    )


def _read(home: PipelineHome, definition: Definition, path: Sequence[Segment]) -> NewestDead:
    committed = committed_batches(home, path)
    share = dead_share(newest_batches(home, committed, path, RECENT))
    if not share:
        return NewestDead(share)
    summary = summarise_dead_letters(home, committed, fields_of(definition))
    return NewestDead(share, summary.total(OPEN), summary.newest)


_NEWEST: Remembered[NewestDead] = Remembered(32)
