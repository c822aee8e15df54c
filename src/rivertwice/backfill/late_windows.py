"""Which windows a backfill should recompute: those that the newest reconcile found LATE in what is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from rivertwice.backfill.model import Seed, SessionsView
from rivertwice.backfill.ranges import HalfOpenRange, align_outwards, merge, reach, subtract
from rivertwice.backfill.session_observe import without_published
from rivertwice.core import PipelineHome, RequestError, base_of
from rivertwice.definition import Definition
from rivertwice.log import REPAIRABLE
from rivertwice.storage import Table
from rivertwice.timeline import Publication, Verdict, to_epoch_ms, verdicts_of


@dataclass(frozen=True)
class LateWindows:
    """What the newest reconcile found LATE in what is served, without what was published since.

    Attributes:
        ranges: event times to recompute (epoch ms, half-open).
        windows: starts of the windows, as ranges; empty if a start does not identify a window.
    """

    ranges: tuple[HalfOpenRange, ...]
    windows: tuple[HalfOpenRange, ...] = ()
    sessions: SessionsView | None = None


@dataclass(frozen=True)
class Repairs:
    """The publications that can have repaired something, by when they were made.

    Attributes:
        semantics: fingerprints of the definitions whose publications count.
        verdicts: of served rows whose windows are looked for.
    """

    publications: Sequence[Publication]
    semantics: AbstractSet[str]
    verdicts: tuple[str, ...] = (Verdict.LATE,)

    def after(self, sequence: int) -> list[Publication]:
        """Return those that count and came after an entry of the sequence."""
        return [
            publication
            for publication in self.publications
            if publication.seq > sequence and publication.semantics in self.semantics
        ]


def require_publishable(definition: Definition) -> None:
    """Refuse a definition whose windows cannot be published.

    Raises:
        RequestError: it is a fold, which has nothing to repair.
    """
    if not definition.has_lone_windows:
        message = (
            f"{definition.name} is a fold: none of its events is ever late, and each row depends on all records of its key before it, so "
            f"a window cannot be recomputed alone; `rivertwice upgrade {base_of(definition.name)} --new-version` computes all of a changed fold, and "
            "with --recompute of the same one, beside it; at a first start `rivertwice start NAME --from-batch` loads a long log"
        )
        raise RequestError(message)


def find_late(home: PipelineHome, definition: Definition, repairs: Repairs) -> LateWindows:
    """Return what the newest reconcile found LATE, without what publications repaired since."""
    return (_late_windows if definition.session_keys is None else _late_sessions)(home, definition, repairs)


def _late_windows(home: PipelineHome, definition: Definition, repairs: Repairs) -> LateWindows:
    """Find windows of one length by their starts: without those that are in a range published since."""
    newest = _newest_late(home, ("window_start",), repairs.verdicts)
    if newest is None:
        return LateWindows(())
    verdicts, sequence = newest
    size, step = window_ms(definition)
    late = align_outwards(((start, start + 1) for start in to_epoch_ms(verdicts["window_start"]).tolist()), step)
    windows = subtract(late, merge(pair for publication in repairs.after(sequence) for pair in publication.ranges))
    return LateWindows(tuple(reach(windows, size, step)), windows)


def _late_sessions(home: PipelineHome, definition: Definition, repairs: Repairs) -> LateWindows:
    """Find sessions by key and stretch: without those that a session published since overlaps."""
    newest = _newest_late(home, ("window_start", "window_end", "key"), repairs.verdicts)
    if newest is None:
        return LateWindows((), sessions=SessionsView(()))
    verdicts, sequence = newest
    starts, ends = to_epoch_ms(verdicts["window_start"]), to_epoch_ms(verdicts["window_end"])
    stretches = zip(verdicts["key"].to_pylist(), starts, ends, strict=True)
    late = [Seed(key, int(start), int(end)) for key, start, end in stretches]
    seeds = without_published(home, definition, late, repairs.after(sequence))
    return LateWindows(tuple(merge((seed.start_ms, seed.end_ms) for seed in seeds)), sessions=SessionsView(seeds))


def _newest_late(
    home: PipelineHome, columns: Sequence[str], verdicts: Sequence[str] = (Verdict.LATE,)
) -> tuple[pa.Table, int] | None:
    """Return what the newest reconcile found LATE or repairable, and the last entry of the sequence that it had read.

    Args:
        home: of the pipeline.
        columns: further columns of the verdicts.
        verdicts: instead of LATE.
    """
    runs = Table(home.tables.reconciles).read(columns=["run", "created_at", "sequence"])
    if runs is None or runs.num_rows == 0:
        return None
    newest = runs.sort_by([("created_at", "descending")]).slice(0, 1).to_pylist()[0]
    names = ["run", "pair", "verdict", "reason", *columns]
    repairable = [
        {name: row[name] for name in names}
        for row in verdicts_of(home, newest["run"], wanted=[*verdicts, Verdict.NOT_COMPARABLE])
        if row["pair"] == "served" and _is_repairable(row, verdicts)
    ]
    table = Table(home.tables.verdicts).open()
    if table is None:
        return None
    schema = table.schema
    return pa.Table.from_pylist(repairable, pa.schema([schema.field(name) for name in names])), newest["sequence"]


def _is_repairable(row: Mapping[str, Any], verdicts: Sequence[str]) -> bool:
    """Say whether a row has one of the verdicts; one that a gap of the archive could fill goes with LATE ones."""
    fills = Verdict.LATE in verdicts and str(row["reason"]).startswith(REPAIRABLE)
    return row["verdict"] in verdicts or fills


def window_ms(definition: Definition) -> tuple[int, int]:
    """Return length of a window and time between two starts, in milliseconds."""
    ms = timedelta(milliseconds=1)
    return definition.window.length // ms, definition.window.step // ms
