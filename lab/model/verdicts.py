"""What Spark and the judges make of the rows of a reconcile, in a few lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from lab.model.stream import TOPIC, WINDOW_MS, Address, Record, window_end
from rivertwice.definition.definition import parse_files
from rivertwice.reconcile.model import SERVED, STREAM, RowId, RowVerdict
from rivertwice.reconcile.seals.model import meaning_of
from rivertwice.reconcile.view import DefinitionVersion
from rivertwice.timeline.serving import Publication
from rivertwice.timeline.verdicts import Verdict

EXACT, RELAXED = "b1", "b2"
TOLERANCE = {EXACT: 0, RELAXED: 1}
"""Bundle to the records that a row may lack."""
Windows = Mapping[int, frozenset[Address]]
_YAML = """
name: p
description: model
sources:
  events:
    topic: events
    partitions: 2
    schema: {{k: string, at: timestamp}}
    required: [k]
    event_time: at
    watermark: 8 s
    max_future: 1 hour
window: {{size: 10 s}}
keys: [k]
count_column: n
columns: {{n: {{}}, d: {{compare: tolerance, tolerance: {tolerance}}}}}
"""
_SQL = b"""SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, 0.0 AS d
FROM events GROUP BY window(at, '10 seconds'), k"""


@cache
def version_of(bundle: str) -> DefinitionVersion:
    """Return the definition of a bundle; both make the same rows, and compare them differently."""
    text = _YAML.format(tolerance=TOLERANCE[bundle] + 0.5)
    return DefinitionVersion(parse_files({"pipeline.yaml": text.encode(), "transform.sql": _SQL}, "p"), "s", "d")


@cache
def true_meaning(bundle: str) -> str:
    """Return the meaning of a bundle by the product's rule."""
    return meaning_of(version_of(bundle))


@dataclass
class Sides:
    """What is compared.

    Attributes:
        emitted, served: window end to the records that its row counts; served None: there is no such table.
        truth: window end to its records; late, dead: those of them that came too late, and those amended since.
        closed_ms, served_ms: windows that end at or before it are emitted, and served.
        loaded: window end to its records that the stream did not read, because a first load left them out.
        winners: window end to the publication that serves it.
        tolerance: records that a row may lack.
    """

    closed_ms: int
    served_ms: int = 0
    tolerance: int = 0
    emitted: Windows = field(default_factory=dict)
    served: Windows | None = None
    truth: dict[int, set[Address]] = field(default_factory=dict)
    late: dict[int, set[Address]] = field(default_factory=dict)
    dead: dict[int, set[Address]] = field(default_factory=dict)
    loaded: dict[int, set[Address]] = field(default_factory=dict)
    winners: Mapping[int, Publication] = field(default_factory=dict)

    def add_loaded(self, address: Address, record: Record) -> None:
        """Add a record that a first load left out."""
        if record.kind == "ok":
            self.loaded.setdefault(window_end(record.event_ms), set()).add(address)

    def add(self, address: Address, record: Record, late_ms: int) -> int | None:
        """Add a record of the log under the address that the archive has; return its window's end if it came too late."""
        if record.kind != "ok":
            return None
        end = window_end(record.event_ms)
        self.truth.setdefault(end, set()).add(address)
        if end > late_ms:
            return None
        self.late.setdefault(end, set()).add(address)
        return end

    def add_amended(self, address: Address, record: Record) -> None:
        """Add a dead letter that was given a value."""
        for side in (self.truth, self.dead):
            side.setdefault(window_end(record.event_ms), set()).add(address)


def row_of(end: int) -> RowId:
    """Return the address of a window's only row."""
    return RowId(end - WINDOW_MS, end, "")


def judge_sides(sides: Sides) -> list[RowVerdict]:
    """Return the verdict of each window that any side has."""
    verdicts = [_judge_stream(sides, end) for end in sorted({*sides.truth, *sides.emitted})]
    if sides.served is not None:
        verdicts += [_judge_served(sides, end) for end in sorted({*sides.truth, *sides.loaded, *sides.served})]
    return verdicts


def _judge_stream(sides: Sides, end: int) -> RowVerdict:
    late, dead = sides.late.get(end, set()), sides.dead.get(end, set())
    if end > sides.closed_ms:
        return RowVerdict(STREAM, row_of(end), Verdict.OPEN, "", "")
    expected = sides.truth.get(end, set()) - late - dead
    differing = expected ^ set(sides.emitted.get(end, frozenset()))
    return _verdict(STREAM, end, len(differing) > sides.tolerance, len(late), len(dead))


def _judge_served(sides: Sides, end: int) -> RowVerdict:
    assert sides.served is not None, "the caller asked"
    if end > sides.served_ms:
        return RowVerdict(SERVED, row_of(end), Verdict.OPEN, "", "")
    truth, served = _served_truth(sides, end), set(sides.served.get(end, frozenset()))
    if truth == served:
        return _verdict(SERVED, end, False, 0, 0)
    winner, dead = sides.winners.get(end), sides.dead.get(end, set())
    if winner is None:
        late = sides.late.get(end, set())
        due = truth - late - dead
    else:
        late = {address for address in truth - dead if _is_since(winner, address)}
        due = {address for address in truth - dead if not _is_since(winner, address)}
    return _verdict(SERVED, end, len(due ^ served) > sides.tolerance, len(late), len(dead))


def _served_truth(sides: Sides, end: int) -> set[Address]:
    truth, loaded = sides.truth.get(end, set()), sides.loaded.get(end)
    return truth | loaded if loaded else truth


def _is_since(winner: Publication, address: Address) -> bool:
    return address[1] >= int(winner.as_of[TOPIC].get(address[0] % 10, 0))


def _verdict(pair: str, end: int, differs: bool, late: int, dead: int) -> RowVerdict:
    if differs:
        return RowVerdict(pair, row_of(end), Verdict.DEFECT, "", "both")
    return RowVerdict(
        pair, row_of(end), Verdict.LATE if late or dead else Verdict.AGREES, "", "both", late=late, dead=dead
    )


def count_verdicts(verdicts: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return pair to verdict to rows, without zeros."""
    counts: dict[str, dict[str, int]] = {}
    for (pair, verdict), rows in Counter(verdicts).items():
        counts.setdefault(pair, {})[verdict] = rows
    return counts


def winners_of(ends: Sequence[int], publications: Sequence[Publication], seqs: Sequence[int]) -> dict[int, Publication]:
    """Return window end to its publication, given the winner's number for each."""
    by_seq = {publication.seq: publication for publication in publications}
    return {end: by_seq[seq] for end, seq in zip(ends, seqs, strict=True) if seq >= 0}
