"""The balance over (record, window) pairs: every record read is emitted, open, late, dead or excluded. None is a remainder.

A record belongs to `windows` windows: one if they tumble or are sessions, size / slide if they hop. So

    (read - dead - excluded) * windows = emitted + open + late

where read, dead and excluded count records (one that never came to a window has no pairs), and emitted, open and late
count pairs. It must hold per partition, and in the total with `emitted` as the changelog itself counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rivertwice.log.addresses import Part


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
