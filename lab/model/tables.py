"""The tables as a reconcile sees them: their commits, whoever made them, and what was changed in rows that were there.

Erasures, foreign writes and amendments do not touch the rows that stream, backfills and `served` use: they are laid over them
when a reconcile reads. So they disturb no other protocol, and no other invariant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lab.model.stream import Address
from rivertwice.reconcile.seals.look import WATCHED, TableChanges
from rivertwice.storage.table import NONCE, TableChange
from rivertwice.timeline.ledger import LedgerRow

OWN = frozenset({NONCE})
SERVED_BUILD = frozenset({"served", NONCE})
NOBODY: frozenset[str] = frozenset()
ARCHIVE = "archive"
_ERASED = 10  # is added to the partition of an erased record's address: the row is another one


@dataclass(frozen=True)
class Contents:
    """What differs from the rows that were written.

    Attributes:
        amended: dead letters that a person has given a value, in order of decision.
        erased: table, or the archive, to the records of which it has lost the value.
        harmed: window of a batch, or of `served` with its rows, that lost a record; or batch whose ledger row is another one.
        erasing: an erasure has begun and is not done.
    """

    amended: tuple[Address, ...] = ()
    erased: Mapping[str, frozenset[Address]] | None = None
    harmed: frozenset[tuple[object, ...]] = frozenset()
    erasing: bool = False

    def rows(self, table: str, place: tuple[object, ...], held: frozenset[Address]) -> frozenset[Address]:
        """Return the records of a window's row as they are read."""
        if (table, *place) in self.harmed and held:
            held = held - {min(held)}
        return frozenset(self.address(table, address) for address in held)

    def address(self, table: str, address: Address) -> Address:
        """Return a record's address as a table, or the archive, has it."""
        erased = (self.erased or {}).get(table, frozenset())
        return (address[0] + _ERASED, address[1]) if address in erased else address

    def ledger_row(self, row: LedgerRow, held: frozenset[Address]) -> LedgerRow:
        """Return a batch's ledger row as it is read; `held` are the records of the rows that it emitted."""
        if held & (self.erased or {}).get("ledger", frozenset()):
            row = replace(row, digest=f"{row.digest} erased")
        if ("ledger", row.timeline, row.batch) in self.harmed:
            row = replace(row, epoch=row.epoch + 100)
        return row


class Tables:
    """The commits of the watched tables, and all that their contents have been."""

    def __init__(self) -> None:
        """Begin without tables."""
        self.commits: dict[str, list[TableChange]] = {table: [] for table in WATCHED}
        self.gone: dict[str, int] = dict.fromkeys(WATCHED, 0)
        self.foreign: dict[str, list[int]] = {table: [] for table in WATCHED}
        self.history: list[Contents] = [Contents()]

    @property
    def now(self) -> Contents:
        """The contents as they are."""
        return self.history[-1]

    def note(
        self,
        table: str,
        operation: str = "WRITE",
        mode: str = "Append",
        *,
        is_partial: bool = False,
        keys: frozenset[str] = OWN,
    ) -> None:
        """Record a commit."""
        made = self.commits[table]
        made.append(TableChange(len(made), operation, mode, is_partial, keys))

    def note_foreign(self, table: str, operation: str, contents: Contents) -> None:
        """Record a commit of another program, and what it left."""
        self.foreign[table].append(len(self.commits[table]))
        self.history.append(contents)
        self.note(table, operation, "", keys=NOBODY)

    def version(self, table: str) -> int:
        """Return a table's newest version, -1 if it does not exist."""
        return len(self.commits[table]) - 1

    def changes(self, versions: Mapping[str, int] | None) -> list[TableChanges]:
        """Return what `read_changes` of the product returns."""
        seen = []
        for table in WATCHED:
            newest = self.version(table)
            since = newest if versions is None else versions.get(table, -1)
            is_kept = since <= newest and since + 1 >= self.gone[table]
            seen.append(TableChanges(table, newest, since, self.commits[table][since + 1 :] if is_kept else None))
        return seen

    def forget_commits(self, table: str, kept: int) -> None:
        """Let only the newest entries of a table's log stay."""
        self.gone[table] = max(self.gone[table], len(self.commits[table]) - kept)

    def erase(self, table: str, address: Address) -> None:
        """Take a value out of a table, or the archive."""
        erased = dict(self.now.erased or {})
        erased[table] = erased.get(table, frozenset()) | {address}
        self.history.append(replace(self.now, erased=erased))
