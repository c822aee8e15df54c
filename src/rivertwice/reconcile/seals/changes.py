"""Whose commits came to the tables since a seal: the stream's and our own jobs', or another program's. Pure, but for the reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rivertwice.config import PipelineHome
from rivertwice.store.delta import NONCE
from rivertwice.store.delta_mend import OPERATION
from rivertwice.store.delta_read import Change, changes_since, version_of

WATCHED = ("changelog", "ledger", "served", "corrections", "dead_letters", "late_rows", "sequence", "amendments")
"""Tables whose rows verdicts depend on."""
OWN, REPLACED, REWRITTEN, FOREIGN = "own", "replaced", "rewritten", "foreign"
_WITHOUT_ROWS = frozenset(
    {"CREATE TABLE", "OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMN", "ADD FEATURE"}
)
_REPAIRS = frozenset({"FSCK", OPERATION})  # files that are gone, and torn commits, are taken out of the log
_SERVED = "served"


@dataclass(frozen=True)
class TableChanges:
    """What happened to one table since a seal.

    Attributes:
        version: newest Delta version. since: the seal's.
        changes: the commits between; None: their log entries are gone.
    """

    table: str
    version: int
    since: int
    changes: Sequence[Change] | None


def read_changes(home: PipelineHome, versions: Mapping[str, int] | None) -> list[TableChanges]:
    """Return the commits that came to each watched table after a version; with None, the tables' versions alone.

    A table that did not exist has the version -1.
    """
    if versions is None:
        newest = {table: version_of(getattr(home.tables, table)) for table in WATCHED}
        return [TableChanges(table, version, version, ()) for table, version in newest.items()]
    tables = []
    for table in WATCHED:
        since = versions.get(table, -1)
        version, changes = changes_since(getattr(home.tables, table), since)
        tables.append(TableChanges(table, version, since, changes))
    return tables


def classify_change(table: str, change: Change) -> str:
    """Say what a commit did: appended (own), replaced some rows, rewrote rows, or was made by another program (foreign)."""
    if change.operation in _WITHOUT_ROWS:
        return OWN
    if change.operation in _REPAIRS:
        return REWRITTEN
    if not change.keys & {NONCE, _SERVED}:
        return FOREIGN
    if change.operation == "WRITE" and change.mode.lower() == "append":
        return OWN
    return REPLACED if table == "served" and change.is_partial and _SERVED in change.keys else REWRITTEN


def find_foreign(tables: Sequence[TableChanges]) -> str | None:
    """Return which commits another program made, so rows that were compared before may have changed; None: there are none."""
    commits = [
        f"version {change.version} of the table {each.table} ({change.operation or 'no operation named'})"
        for each in tables
        for change in each.changes or ()
        if classify_change(each.table, change) == FOREIGN
    ]
    if not commits:
        return None
    return f"another program made {commits[0]}{f' and {len(commits) - 1} more commits' if commits[1:] else ''}"


def find_rewritten(tables: Sequence[TableChanges]) -> str | None:
    """Return why rows that were compared before may be others now, though rivertwice itself wrote them; None: they are not."""
    for each in tables:
        if each.changes is None:
            return f"commits of the table {each.table} after version {each.since} are not kept any more"
        kinds = {classify_change(each.table, change): change.version for change in each.changes}
        if REWRITTEN in kinds:
            return f"version {kinds[REWRITTEN]} of the table {each.table} replaced rows that had been compared"
    return None


def has_replaced(tables: Sequence[TableChanges]) -> bool:
    """Say whether some rows of `served` were replaced, as a publication or a head move does."""
    return any(classify_change(each.table, change) == REPLACED for each in tables for change in each.changes or ())
