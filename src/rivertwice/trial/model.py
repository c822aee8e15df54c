"""The values of a trial: what is asked, what was compared, and how the rows of two definitions differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rivertwice.backfill.model import BackfillPlan
from rivertwice.instants import TimeRange
from rivertwice.pipeline.definition import Definition

LOG, SERVED = "log", "served"
SAME, COMPARED, INCOMPARABLE = "same", "compared", "incomparable"
EQUAL, CHANGED, ONLY_NEW, ONLY_OLD, REPEATED = "equal", "changed", "only new", "only old", "repeated"
DECLARED = "declared"
LAST = timedelta(hours=2)
EXAMPLES = 20


@dataclass(frozen=True)
class TrialRequest:
    """What is asked.

    Attributes:
        pipeline: its name.
        range: event time; None: the newest `last`, up to the end of the newest closed window.
        last: how much event time, if there is no range.
        against: `log`: the rows that the running definition gives over the same records; `served`: what is served now.
        limit: rows that are shown as examples at most.
    """

    pipeline: str
    range: TimeRange | None = None
    last: timedelta = LAST
    against: str = LOG
    limit: int = EXAMPLES


@dataclass(frozen=True)
class Version:
    """One of the two definitions. The timeline is the one that runs it; None for the definition in the project."""

    bundle: str
    semantics: str
    timeline: str | None = None


@dataclass(frozen=True)
class Side:
    """A definition and what it is run over; without a plan it has no row there."""

    definition: Definition
    plan: BackfillPlan | None


@dataclass(frozen=True)
class Stretch:
    """What both definitions were run over.

    Attributes:
        start, end: event time, half-open, from the first window to the last one.
        windows: closed windows of it, or sessions, by the new definition.
        records: offsets that were read. They are read once if both definitions decode alike, else once for each.
        left_out: what was asked and is not compared, and why.
    """

    start: datetime
    end: datetime
    windows: int
    records: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Retyped:
    """A column that both results have, with another type."""

    old: str
    new: str


@dataclass(frozen=True)
class SchemaChange:
    """How the columns of the two results differ: name to type."""

    added: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    retyped: Mapping[str, Retyped] = field(default_factory=dict)

    @property
    def types(self) -> dict[str, tuple[str, str]]:
        """Column to its type in both results, where they differ."""
        return {name: (change.old, change.new) for name, change in self.retyped.items()}

    @property
    def is_empty(self) -> bool:
        """Whether the columns are the same."""
        return not (self.added or self.gone or self.retyped)


@dataclass(frozen=True)
class Expected:
    """Differences that somebody declared to be meant.

    Attributes:
        change: `changed`, `only new` or `only old`.
        columns: of a changed row, those that may differ; all others must be equal.
        where: a predicate of SQL over `old` and `new` (the two rows; null if a side has none), the keys, `window_start` and
            `window_end`; None: every such row.
        reason: why they are meant.
    """

    change: str
    columns: tuple[str, ...]
    where: str | None
    reason: str


@dataclass(frozen=True)
class ColumnChange:
    """In how many rows a column differs, and by how much at most; None: it is no number, or one of the values is null."""

    name: str
    rows: int
    largest: float | None


@dataclass(frozen=True)
class Change:
    """Two values of a column; None also stands for a side that has no such row."""

    old: Any
    new: Any


@dataclass(frozen=True)
class Example:
    """A row that differs.

    Attributes:
        kind: `changed`, `only new`, `only old` or `repeated`.
        window_start, window_end: its window.
        key: key column to value.
        values: column to its values: those that changed, or all columns of a row that one side alone has.
    """

    kind: str
    window_start: datetime
    window_end: datetime
    key: Mapping[str, Any]
    values: Mapping[str, Change]


@dataclass(frozen=True)
class Comparison:
    """How the rows of two definitions differ.

    Attributes:
        old_rows, new_rows: rows of each side.
        equal, changed, only_new, only_old: pairs of window and key, by what was found; those that were declared are not among them.
        repeated: pairs of window and key for which a side has several rows: which of them belong together is not known.
        windows, windows_differing: windows with a row on a side; those in which any row differs.
        columns: that changed, those with most rows first.
        examples: of rows that differ, by window and key.
        declared: pairs that differ as declared, by the place of the first declaration that has them.
    """

    old_rows: int
    new_rows: int
    equal: int = 0
    changed: int = 0
    only_new: int = 0
    only_old: int = 0
    repeated: int = 0
    windows: int = 0
    windows_differing: int = 0
    columns: tuple[ColumnChange, ...] = ()
    examples: tuple[Example, ...] = ()
    declared: tuple[int, ...] = ()

    @property
    def differing(self) -> int:
        """Pairs of window and key that are neither equal nor differ as declared."""
        return self.changed + self.only_new + self.only_old + self.repeated


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    Attributes:
        outcome: `same` (nothing that a result depends on differs, so nothing was run), `compared`, or `incomparable` (rows of the
            two cannot be put beside each other).
        reason: why nothing was run, or why rows cannot be compared; empty if they were.
        old, new: the running definition and the one in the project.
        changes: components of the fingerprint that differ.
        stretch, schema, rows: None if nothing was run.
    """

    pipeline: str
    against: str
    outcome: str
    reason: str
    old: Version
    new: Version
    changes: tuple[str, ...]
    stretch: Stretch | None = None
    schema: SchemaChange | None = None
    rows: Comparison | None = None

    @property
    def differs(self) -> bool:
        """Whether a column or a row differs, or none could be compared."""
        if self.outcome != COMPARED or self.rows is None or self.schema is None:
            return self.outcome == INCOMPARABLE
        return bool(self.rows.differing) or not self.schema.is_empty
