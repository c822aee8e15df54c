"""The values of a trial: its two definitions, what is asked, what was compared, and how rows differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rivertwice.core import TimeRange
from rivertwice.definition import ChangedComponent, Definition, find_no_counterpart

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
        range: event time; None: the newest `last`, up to the end of the newest closed window.
        last: how much event time, if there is no range.
        against: `log`: the rows that the running definition gives over the same records; `served`: what is served now.
        limit: rows that are shown as examples at most.
        watermark: compare what the stream emits with what it would emit by this watermark delay, instead of two definitions.
    """

    pipeline: str
    range: TimeRange | None = None
    last: timedelta = LAST
    against: str = LOG
    limit: int = EXAMPLES
    watermark: timedelta | None = None


@dataclass(frozen=True)
class Version:
    """One of the two definitions. The timeline is the one that runs it; None for the definition in the project."""

    bundle: str
    semantics: str
    timeline: str | None = None


@dataclass(frozen=True)
class TrialRange:
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
    """

    change: str
    columns: tuple[str, ...]
    where: str | None
    reason: str


@dataclass(frozen=True)
class ColumnChange:
    """In how many rows a column differs, and by how much at most; None: it is not a number, or one of the values is null."""

    name: str
    rows: int
    largest: float | None


@dataclass(frozen=True)
class RowChange:
    """Two values of a column; None also stands for a side that has no such row."""

    old: Any
    new: Any


@dataclass(frozen=True)
class Example:
    """A row that differs.

    Attributes:
        kind: `changed`, `only new`, `only old` or `repeated`.
        values: column to its values: those that changed, or all columns of a row that one side alone has.
    """

    kind: str
    window_start: datetime
    window_end: datetime
    key: Mapping[str, Any]
    values: Mapping[str, RowChange]


@dataclass(frozen=True)
class Comparison:
    """How the rows of two definitions differ.

    Attributes:
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
        outcome: `same` (they do not differ in what a result depends on), `compared`, or `incomparable` (rows of the
            two cannot be put beside each other).
        reason: why nothing was run, or why rows cannot be compared; empty if they were.
        old, new: the running definition and the one in the project.
        changes: components of the fingerprint that differ.
        stretch, schema, rows: None if nothing was run.
        watermark: the delay that was asked for; None: two definitions were compared.
    """

    pipeline: str
    against: str
    outcome: str
    reason: str
    old: Version
    new: Version
    changes: tuple[str, ...]
    stretch: TrialRange | None = None
    schema: SchemaChange | None = None
    rows: Comparison | None = None
    watermark: timedelta | None = None

    @property
    def differs(self) -> bool:
        """Whether a column or a row differs, or none could be compared."""
        if self.outcome != COMPARED or self.rows is None or self.schema is None:
            return self.outcome == INCOMPARABLE
        return bool(self.rows.differing) or not self.schema.is_empty


# What two definitions of a pipeline have in common: whether a trial can run, and whether their rows can be compared. Pure.

WITHOUT_EFFECT = frozenset({"watermark", "watermark_policy", "late_policy", "emit"})
"""Components that decide when a stream emits rows and which records are late. A batch has all records of a window at once."""


def select_effective(changes: Sequence[ChangedComponent]) -> tuple[str, ...]:
    """Return the components that differ and that the rows of a batch depend on."""
    return tuple(
        change.component
        for change in changes
        if "semantics" in change.touches and change.component not in WITHOUT_EFFECT
    )


def describe_sameness(pipeline: str, changes: Sequence[ChangedComponent]) -> str:
    """Return why no row can differ, for changes without an effective one."""
    named = [change.component for change in changes if "semantics" in change.touches]
    if not named:
        return (
            f"the definition of {pipeline} in the project is the one that its stream runs (what no row depends on, such as comments and stream "
            "settings, does not count), so no row can differ; nothing was run"
        )
    return (
        f"only {', '.join(named)} changed, which decides when the stream emits rows and which records are late; a batch has all records of "
        f"a window at once, so no row can differ; nothing was run. `rivertwice advise {pipeline}` says what a watermark costs"
    )


def find_refusal(old: Definition, new: Definition) -> str | None:
    """Return why no trial can run, or None."""
    name = new.name
    if not old.has_lone_windows or not new.has_lone_windows:
        return (
            f"{name} is a fold: each of its rows depends on all events of its key before it, so a part of the log does not give them; "
            f"nothing was run. Write a case and run `rivertwice test {name}`, or start the changed fold under another name"
        )
    unread = sorted(set(new.topics) - set(old.topics))
    if unread:
        return (
            f"the changed definition of {name} reads {', '.join(unread)}, which its stream does not read, so no batch says which records "
            f"belong to a window; nothing was run. `rivertwice upgrade {name} --new-version` runs it beside the other and reads its topics from the beginning"
        )
    return None


def compare_schemas(old: Mapping[str, str], new: Mapping[str, str]) -> SchemaChange:
    """Return how the columns of two results differ, given by name to type."""
    both = [name for name in new if name in old]
    return SchemaChange(
        added={name: kind for name, kind in new.items() if name not in old},
        gone={name: kind for name, kind in old.items() if name not in new},
        retyped={name: Retyped(old[name], new[name]) for name in both if old[name] != new[name]},
    )


def find_incomparable(old: Definition, new: Definition, schema: SchemaChange) -> str | None:
    """Return why rows of the two cannot be put beside each other, or None."""
    return find_no_counterpart(old, new, schema.types)
