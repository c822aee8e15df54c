"""Plain values: what is damaged, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from rivertwice.storage import TornEntry
from rivertwice.timeline import LedgerRow, StreamTable

OWN_FILE, LOG, AGAIN, WAY_OUT = "its own data file", "the changelog's commits", "recorded ranges", "cannot be repaired"
"""Where lost rows come from."""


@dataclass(frozen=True)
class Damage:
    """One thing that is damaged.

    Attributes:
        what: version, file or batch, and how it is damaged.
        meaning: what that means for what is served, or for a person.
        cure: what a repair does about it, or what a person can do if a repair does nothing.
    """

    table: str
    what: str
    meaning: str
    cure: str
    curable: bool = True


@dataclass(frozen=True)
class LostRows:
    """A batch whose rows in a table are not those that were committed.

    Attributes:
        row: the batch, as the ledger has it.
        late_ms: the watermark its rows were late by (epoch ms).
        found: number of its rows in the table; they are replaced.
        rows: what was committed, proved by the ledger's digest or number, if an own data file still has it; else None.
    """

    table: str
    row: LedgerRow
    late_ms: int
    expected: int
    found: int
    rows: pa.Table | None = None


@dataclass(frozen=True)
class Findings:
    """The damages of one pipeline.

    Attributes:
        torn: table to its torn log entries. broken: table to data files that are gone or not whole, and how.
        lost: batches whose rows are to be written again.
        holes: timeline to batches that have no ledger row left. copied: batches that only the ledger's table lost.
        adopted: table to the rows of its torn commits that their data files still have, if they cannot be computed again.
    """

    torn: Mapping[str, Sequence[TornEntry]] = field(default_factory=dict)
    broken: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    lost: Sequence[LostRows] = ()
    holes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    copied: Sequence[LedgerRow] = ()
    adopted: Mapping[str, pa.Table] = field(default_factory=dict)
    damages: Sequence[Damage] = ()

    @property
    def anything(self) -> bool:
        """Whether anything is damaged."""
        return bool(self.damages)


PROOF = {
    StreamTable.CHANGELOG: "proved by the ledger's digest",
    StreamTable.DEAD: "proved by the ledger's number and their addresses",
    StreamTable.LATE: "proved by the ledger's number",
}
