"""What is judged before the driver judges row by row: nothing in a small run. Executors do more (`spread.spark_sieve`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rivertwice.core import PipelineHome
from rivertwice.log import Part
from rivertwice.reconcile.assess import RederivedLedger
from rivertwice.reconcile.derive import DerivedLog
from rivertwice.reconcile.gaps import Missing
from rivertwice.reconcile.kinds import Judge
from rivertwice.reconcile.model import DefectFinding, LateRow, PairCount
from rivertwice.reconcile.observe import read_tables
from rivertwice.reconcile.recorded import (
    Contents,
    Emitted,
    RecordedDeadLetter,
    check_dead_columns,
    check_dead_letters,
    check_late_columns,
    check_late_rows,
    count_by_batch,
)
from rivertwice.reconcile.results import Stamp, StoredVerdict, Written
from rivertwice.reconcile.view import HeadView, shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Sieved:
    """Rows that were judged where they are, without the driver; here none."""

    @property
    def text(self) -> str:
        """What was judged, in words."""
        return ""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row by pair, window, verdict and presence, with how many result rows it stands for."""
        return ()

    @property
    def dirty(self) -> int:
        """How many windows have a row in which stream, expected and truth differ."""
        return 0

    def counts(self, until_ms: int | None = None) -> Counter[tuple[str, str]]:
        """Return the rows by pair and verdict; with `until_ms` only those of windows that end at or before it (epoch ms)."""
        return Counter()

    def pairs(self, until_ms: int | None = None) -> int:
        """Return how many records the emitted rows count; with `until_ms` those of windows that end at or before it."""
        return 0

    def served_after(self, settled_ms: int) -> int:
        """Return how many rows are served of windows that end after an instant (epoch ms)."""
        return 0

    def stored(self) -> list[StoredVerdict]:
        """Return what is stored of the rows that agree or are open."""
        return []

    def write(self, home: PipelineHome, stamp: Stamp) -> Written:
        """Write the verdicts that do not agree, and all causes, to files of their tables."""
        return Written()

    def release(self) -> None:
        """Release what executors keep; called when everything is stored."""


@dataclass(frozen=True)
class Split:
    """What the driver judges, and what was judged already.

    Attributes:
        view: with the tables' rows of the windows that the driver judges.
        judges: of these windows, by the numbers of their definitions.
        sieved: all other rows. findings: what is wrong with those that are served.
    """

    view: HeadView
    judges: Mapping[int, Judge]
    sieved: Sieved
    findings: Sequence[DefectFinding] = ()


@dataclass(frozen=True)
class SideTables:
    """Dead letters and kept late rows, compared with the log.

    Attributes:
        dead: dead letters that the log requires; empty if executors have them.
        dead_counts: those recorded, by partition.
    """

    findings: Sequence[DefectFinding]
    dead: Sequence[RecordedDeadLetter]
    dead_counts: Mapping[Part, int]


def check_side_tables(
    view: HeadView,
    dead: Sequence[RecordedDeadLetter],
    late: Sequence[LateRow],
    contents: Contents,
    missing: Sequence[Missing] = (),
) -> SideTables:
    """Compare the dead letters and late rows of a view with those that the log requires, and what it holds of them. Pure."""
    findings, counts = check_dead_letters(view, dead, missing)
    findings += [*check_late_rows(view, late, missing), *check_dead_columns(view, contents)]
    return SideTables([*findings, *check_late_columns(view, late, contents)], dead, counts)


Done = Callable[[str, str], None]
"""Is called at the end of a phase with its name and a detail."""


class Sieve:
    """Leaves every row to the driver."""

    def __init__(self, spark: SparkSession, view: HeadView, log: DerivedLog, derived: RederivedLedger) -> None:
        """Create the judges of a log."""
        self._spark = spark
        self._log = log
        self._derived = derived
        self._view = view
        self.judge = log.judged_by(derived.chain, view.groups, view.cures)
        older = log.judged_by_older(derived.chain, view.groups, view.cures)
        self.judges: Mapping[int, Judge] = {**older, view.groups[-1]: self.judge}

    def split(self) -> Split:
        """Return the windows that the driver judges, and what is known of all others."""
        view = self._view
        if view.prefix is not None:
            shape = shape_of(view.newest.definition)
            self.judge.answer_together(shape, view.first_new, view.prefix.scope.settled_ms)
        return Split(self._whole, self.judges, Sieved())

    @cached_property
    def _whole(self) -> HeadView:
        return self._view if self._view.handles is None else read_tables(self._view)

    def check_sides(self, late: Sequence[LateRow]) -> SideTables:
        """Compare dead letters and kept late rows with what the log requires; `late` are the late records of new batches."""
        view = self._whole
        rejected = [entry for entry in self._log.rejected() if entry[0][0] >= view.first_new]
        dead = [dead_letter for dead_letter, _ in rejected]
        contents = Contents(
            self._log.late_contents(late) if view.newest.definition.late.keeps_rows else {},
            {(dead_letter[1], dead_letter[2]): columns for dead_letter, columns in rejected},
        )
        return check_side_tables(view, dead, late, contents, self._derived.missing)

    def pairs(self) -> list[PairCount]:
        """Return the pairs of record and window; without those that a seal counts."""
        prefix = self._view.prefix
        if prefix is not None:
            return self.judge.pairs_since(self._view.first_new, prefix.scope.settled_ms)
        if len(self.judges) == 1:
            return self.judge.pairs()
        return [pair for number, judge in self.judges.items() for pair in judge.pairs(number)]

    def emitted(self) -> Emitted:
        """Return what the changelog has of each batch."""
        rows = self._whole.stream
        return {} if rows is None else count_by_batch(rows, self._view.newest.definition.result_columns)
