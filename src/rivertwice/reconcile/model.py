"""Plain values of a reconcile: result rows by address, late rows, verdicts, the balance of records. No engine types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, NamedTuple

from rivertwice.definition import same_value
from rivertwice.log import Part
from rivertwice.timeline import Verdict

OLDER = "older"
"""Presence of a fold's row that cannot be compared and need not be: it raises no alert."""

STREAM = "stream"
SERVED = "served"

ALSO = "; and "
"""Between a defect of the ledger and a defect of the row itself, in one reason."""


class RowId(NamedTuple):
    """Address of one result row: its window (epoch ms, half-open) and its key columns as sorted JSON."""

    start_ms: int
    end_ms: int
    key: str


Values = tuple[Any, ...]
Rows = Mapping[RowId, Values]


@dataclass(frozen=True)
class RowColumns:
    """Which columns a result row has and how two of them are compared.

    Attributes:
        keys: key columns besides the window.
        columns: value columns, in the order of every `Values` tuple.
        tolerances: column to the largest absolute difference that still counts as equal; others are exact.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    tolerances: Mapping[str, float] = field(default_factory=dict)
    count_column: str | None = None

    def count(self, values: Values | None) -> int:
        """Return how many input rows a result row was made of; 0 for an absent row."""
        if values is None or self.count_column is None:
            return 0
        return int(values[self.columns.index(self.count_column)] or 0)

    def differences(self, left: Values, right: Values) -> list[str]:
        """Return the names of the columns in which two rows differ."""
        return [
            name
            for name, left_value, right_value in zip(self.columns, left, right, strict=True)
            if not same_value(left_value, right_value, self.tolerances.get(name))
        ]


@dataclass(frozen=True)
class StreamRow:
    """A changelog row on the head's path.

    Attributes:
        is_due: whether its batch had to emit it, by the re-derived watermarks; None: the ledger has no such batch.
    """

    values: Values
    timeline: str
    batch: int
    is_due: bool | None


@dataclass(frozen=True)
class ServedRow:
    """A row of the served table."""

    values: Values
    status: str
    backfill: str | None


@dataclass(frozen=True)
class LateRow:
    """An accepted record that the stream had to leave out, by address."""

    row: RowId
    topic: str
    partition: int
    offset: int
    batch: int
    late_watermark_ms: int
    event_time: datetime


@dataclass(frozen=True)
class AmendedRow:
    """A record that was a dead letter and has been amended: the truth counts it, the stream could not.

    Attributes:
        first_seq, until_seq: decisions from which on, and up to which, it holds; None: it does now.
    """

    row: RowId
    topic: str
    partition: int
    offset: int
    event_time: datetime
    first_seq: int
    until_seq: int | None

    def changed_since(self, seq: int) -> bool:
        """Say whether it holds now and did not as of a decision, or the other way round."""
        held_before = self.first_seq <= seq and (self.until_seq is None or seq < self.until_seq)
        return held_before != (self.until_seq is None)


@dataclass(frozen=True)
class SessionGroup:
    """Result rows whose windows differ between stream and truth though they are made of the same records: sessions.

    Attributes:
        truth: address of the session that all records make.
        parts: addresses of the sessions the stream made of those it did not drop.
        late: records that it dropped. split: records that came when a session they touch had been emitted.
        amended: records that it could not take, because they were dead letters then.
    """

    truth: RowId
    parts: tuple[RowId, ...]
    late: tuple[LateRow, ...] = ()
    split: tuple[LateRow, ...] = ()
    amended: tuple[AmendedRow, ...] = ()


@dataclass(frozen=True)
class OrderDependentRows:
    """Rows of a fold that depend on the order in which partitions were read, because their key has records in several.

    Attributes:
        rows: address to reason, for rows that no order of the log makes true.
        older: those about which `order: any` states nothing: not the newest row of their key, or the key is gone.
        unsettled: key (JSON) to how its newest row differs in another order, though the definition says that it does not.
    """

    rows: Mapping[RowId, str] = field(default_factory=dict)
    older: Set[RowId] = frozenset()
    unsettled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ServedSession:
    """What must be served of one session of the truth that publications overlap, if that is not the session itself.

    Attributes:
        truth: its address. If an amended record that holds no more had joined several sessions, the address of the first; if
            it alone had made one, the address of that one.
        others: addresses of the other joined ones.
        to_serve: address to values of what must be served; None: the log does not give such a session.
        late: records in none of them that the stream dropped. since: others, which came after the publication.
        split: records that split what the stream emitted of it.
        amended: dead letters that were amended since. former: amended records that were counted and hold no more.
        unexplained: how many records are in none of them and came in time.
    """

    truth: RowId
    to_serve: Mapping[RowId, Values | None]
    late: tuple[LateRow, ...] = ()
    since: tuple[LateRow, ...] = ()
    split: tuple[LateRow, ...] = ()
    amended: tuple[AmendedRow, ...] = ()
    former: tuple[AmendedRow, ...] = ()
    unexplained: int = 0
    others: tuple[RowId, ...] = ()

    @property
    def decided(self) -> tuple[AmendedRow, ...]:
        """Decisions about dead letters that the served rows do not show."""
        return (*self.amended, *self.former)


@dataclass(frozen=True)
class RowVerdict:
    """What is known of one result row of one pair.

    Attributes:
        presence: which sides hold the row, for instance `both` or `expected only`.
        late: late records of the row. dead: records of it that were dead letters and have been amended.
        unexplained: records that are missing or too many without a cause.
        ledger: the defect of the ledger that puts the row in doubt, or empty; `reason` begins with it.
    """

    pair: str
    row: RowId
    verdict: str
    reason: str
    presence: str
    late: int = 0
    dead: int = 0
    unexplained: int = 0
    late_share: float = 0.0
    ledger: str = ""

    @property
    def defects(self) -> list[tuple[str, str]]:
        """Why the row is a DEFECT, as (cause, detail): the ledger, the row itself, or both; empty for other verdicts."""
        if self.verdict != Verdict.DEFECT:
            return []
        own_reason = self.reason.removeprefix(self.ledger).removeprefix(ALSO) if self.ledger else self.reason
        causes = [("ledger", self.ledger), ("unexplained", own_reason)]
        return [(cause, detail) for cause, detail in causes if detail]


@dataclass(frozen=True)
class DefectFinding:
    """A defect that belongs to no single result row."""

    kind: str
    message: str
    batch: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


# The balance over (record, window) pairs: every record read is emitted, open, late, dead or excluded. None is a remainder.
#
# A record belongs to `windows` windows: one if they tumble or are sessions, size / slide if they hop. So
#
#     (read - dead - excluded) * windows = emitted + open + late
#
# where read, dead and excluded count records (one that never came to a window has no pairs), and emitted, open and late
# count pairs. It must hold per partition, and in the total with `emitted` as the changelog itself counts it.


@dataclass(frozen=True)
class Account:
    """The pairs of one partition, or of all.

    Attributes:
        read: records in the offset ranges, by subtraction of offsets.
        emitted: pairs in closed windows that were not late. In the total they are counted from the changelog's own
            count column, so the balance can fail.
        open: pairs in windows that are not closed. late: pairs the stream left out. excluded: records the transform's
            row filter left out.
        dead: dead letters; counted from the dead-letter table.
        windows: how many windows each record belongs to.
    """

    read: int = 0
    emitted: int = 0
    open: int = 0
    late: int = 0
    dead: int = 0
    excluded: int = 0
    windows: int = 1

    @property
    def unexplained(self) -> int:
        """Pairs without a cause; anything but 0 is a defect."""
        due = (self.read - self.dead - self.excluded) * self.windows
        return due - self.emitted - self.open - self.late

    @property
    def late_share(self) -> float:
        """Late pairs among all that belong to a window."""
        due = self.emitted + self.open + self.late
        return self.late / due if due else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the account with its derived figures."""
        return {**asdict(self), "unexplained": self.unexplained, "late_share": self.late_share}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Account:
        """Read what `to_json` returned."""
        return cls(**{column.name: data[column.name] for column in fields(cls)})


@dataclass(frozen=True)
class PairCount:
    """Records of one partition in one window that passed the row filter, late or not."""

    part: Part
    end_ms: int
    late: bool
    rows: int


def balance_partitions(
    read: Mapping[Part, int],
    dead: Mapping[Part, int],
    accepted: Mapping[Part, int],
    pairs: Iterable[PairCount],
    closed_ms: int,
    *,
    windows: int = 1,
    without_output: Mapping[Part, int] | None = None,
) -> dict[Part, Account]:
    """Return one account per partition, re-derived from the log; `dead` is counted from the dead-letter table.

    What the row filter left out is what was accepted and is in no window: each record that passed is in `windows`. For a
    fold, the records without a row are counted separately (`without_output`).
    """
    emitted: dict[Part, int] = {}
    opened: dict[Part, int] = {}
    late: dict[Part, int] = {}
    for pair in pairs:
        target = late if pair.late else emitted if pair.end_ms <= closed_ms else opened
        target[pair.part] = target.get(pair.part, 0) + pair.rows
    accounts = {}
    for part in sorted(read):
        included = sum(side.get(part, 0) for side in (emitted, opened, late))
        left_out = (
            accepted.get(part, 0) - included // windows if without_output is None else without_output.get(part, 0)
        )
        accounts[part] = Account(
            read=read[part],
            emitted=emitted.get(part, 0),
            open=opened.get(part, 0),
            late=late.get(part, 0),
            dead=dead.get(part, 0),
            excluded=left_out,
            windows=windows,
        )
    return accounts


def balance_total(accounts: Mapping[Part, Account], changelog_rows: int) -> Account:
    """Return the account of all partitions, its `emitted` counted from what the changelog contains."""
    return Account(
        read=sum(account.read for account in accounts.values()),
        emitted=changelog_rows,
        open=sum(account.open for account in accounts.values()),
        late=sum(account.late for account in accounts.values()),
        dead=sum(account.dead for account in accounts.values()),
        excluded=sum(account.excluded for account in accounts.values()),
        windows=max((account.windows for account in accounts.values()), default=1),
    )
