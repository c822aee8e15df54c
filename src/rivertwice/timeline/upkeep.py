"""Upkeep of a pipeline's tables: small files are merged, files that no commit names are removed, old verdicts go.

A stream that commits twice a second writes 170,000 files a day into each table; without upkeep every reader slows down.
Upkeep is due by the number of the stream's commits (`is_due`) and runs beside the stream:

1. Copy into the ledger what only the changelog's commits have: step 4 drops old commits, and the ledger must keep them.
2. Merge small files where a partition has many. An append at the same moment does not conflict with it.
3. Remove the verdicts and causes of old reconcile runs that no newer run builds on (`old_judgements`).
4. Delete files that no commit has named for the table's own retention, drop the older commits that the checkpoint of an
   earlier upkeep covers, and write a checkpoint of the log.
5. Once a day, list the tables' folders and delete files of killed writers: those that no commit names and that are a week old.

A crash between two steps leaves a table that is only larger than necessary.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rivertwice.core import (
    VERDICTS_KEPT,
    LostRaceError,
    PipelineHome,
    Place,
    Row,
    Tables,
    lock,
    lock_if_free,
    parse_iso,
    to_iso,
)
from rivertwice.storage import Table, TableCare, TableShape, Where, read_json, replace_json
from rivertwice.timeline.judgements import Increment
from rivertwice.timeline.ledger import heal_ledger
from rivertwice.timeline.lineage import head_definition
from rivertwice.timeline.served import SERVED_FILE_BYTES

# Verdicts and causes of old reconcile runs are removed, so that what is stored does not grow with every run for ever.
#
# The run itself stays in `reconciles`, with its counts, its balance and its alerts. A run that a kept run or a kept seal builds on
# keeps its rows. Those of a reconcile that was killed before its row in `reconciles` belong to no run; they go when they are as old.
# What users' suites found goes as well, except for the newest run over each subject, which says all that holds, and for what a person
# accepted.


def select_old_runs(
    runs: Sequence[Mapping[str, Any]], seals: Sequence[Mapping[str, Any]], now: datetime, keep: timedelta
) -> tuple[set[str], set[str]]:
    """Return the runs whose verdicts and causes, and those whose seals, can go. Pure.

    Args:
        runs: `run`, `created_at` and `increment` (JSON or None) of each stored run.
        seals: `run` and `created_at` of each seal.
        keep: rows of runs that are younger stay; so does the newest run, and the newest seal.
    """
    oldest = now - keep
    sealed = _kept(seals, oldest)
    base_of = {row["run"]: _base(row) for row in runs}
    needed = {*_kept(runs, oldest), *sealed}
    for name in list(needed):
        base = base_of.get(name)
        while base is not None and base not in needed:
            needed.add(base)
            base = base_of.get(base)
    return set(base_of) - needed, {row["run"] for row in seals} - sealed


def select_old_quality(rows: Sequence[Mapping[str, Any]], now: datetime, keep: timedelta) -> set[str]:
    """Return the runs of users' suites whose results can go. Pure.

    Args:
        rows: `run`, `subject`, `created_at` and `reason` of each stored result; of one that a person accepted the reason says why.
        keep: results that are younger stay.
    """
    found = [row for row in rows if row["reason"] is None]
    newest = {row["subject"]: row["run"] for row in sorted(found, key=lambda row: (row["created_at"], row["run"]))}
    needed = {row["run"] for row in rows if row["created_at"] >= now - keep or row["reason"] is not None}
    return {row["run"] for row in rows} - needed - set(newest.values())


def _kept(rows: Sequence[Mapping[str, Any]], oldest: datetime) -> set[str]:
    newest = max(rows, key=lambda row: row["created_at"], default=None)
    return {row["run"] for row in rows if row["created_at"] >= oldest or row is newest}


def _base(row: Mapping[str, Any]) -> str | None:
    text = row.get("increment")
    return None if text is None else Increment.from_json(json.loads(text)).base


def drop_old_judgements(home: PipelineHome, now: datetime, keep: timedelta = VERDICTS_KEPT) -> int:
    """Remove the verdicts and causes of old runs, and old seals; return of how many runs there were any.

    Repeated or killed at any moment, it is done by the next call. What a run counted stays in `reconciles`.

    Raises:
        LostRaceError: a reconcile stored rows at the same moment; the next call removes the rest.
    """
    tables = home.tables
    runs, seals = _rows(tables.reconciles), _rows(tables.seals)
    old, old_seals = select_old_runs(runs, seals, now, keep)
    _remove(tables.seals, old_seals)  # first: no seal is left whose run has no rows
    if old:  # else nothing is as old, and the verdicts need not be read
        old |= _killed(tables.verdicts, {row["run"] for row in runs}, now - keep)
    results = Table(tables.quality).read(columns=["run", "subject", "created_at", "reason"])
    _remove(tables.quality, set() if results is None else select_old_quality(results.to_pylist(), now, keep))
    return len(_remove(tables.causes, old) | _remove(tables.verdicts, old))


def _killed(verdicts: Place, known: Set[str], oldest: datetime) -> set[str]:
    """Return the runs that have verdicts of before an instant, but are not known to exist."""
    return {
        run
        for run, created_at in Table(verdicts).rows_by(["run", "created_at"])
        if run not in known and created_at < oldest
    }


def _rows(path: Place) -> list[Row]:
    table = Table(path).open()
    if table is None:
        return []
    names = [name for name in table.schema.names if name in ("run", "created_at", "increment")]
    rows = table.read(columns=names)
    return [] if rows is None else rows.to_pylist()


def _remove(path: Place, runs: Set[str]) -> set[str]:
    """Remove the rows of some runs; return those that had any."""
    table = Table(path).open() if runs else None
    if table is None:
        return set()
    found = {name for (name,) in Table(path).rows_by(["run"]) if name in runs}
    if found:
        empty = table.schema.empty_table()
        Table(path).replace_rows(empty, where=Where("run").is_among(sorted(found)), at=table)
    return found


LOG = logging.getLogger(__name__)
COMPACT_AT = 50
"""Small files of one partition from which they are merged."""
LISTED_EVERY = timedelta(days=1)
"""So often the tables' folders are listed for files that no commit names."""
COMMITS_AT = 200
"""Commits of the stream from which upkeep is due."""
QUIET_EVERY = timedelta(hours=6)
"""Upkeep is due after this time in any case: as long as removed files are kept."""


@dataclass(frozen=True)
class Chore:
    """Work to do on one table."""

    table: str
    merge: bool
    reason: str


@dataclass(frozen=True)
class Record:
    """The stored record of upkeep (`upkeep-listed.json`).

    Attributes:
        listed_at: when the tables' folders were last listed.
        done_at: when all tables were last looked after; None in a record of 0.1.
        commit: the changelog's newest commit at that time.
    """

    listed_at: datetime
    done_at: datetime | None = None
    commit: int = -1


@dataclass(frozen=True)
class UpkeepState:
    """What upkeep did to one table: files before and after, files deleted from disk, and whether another writer was faster."""

    table: str
    files_before: int
    files_after: int
    deleted: int
    note: str
    is_outrun: bool = False


def tables_of(tables: Tables, views: Iterable[str] = ()) -> dict[str, Place]:
    """Return the tables that upkeep covers, by name; `views` are those of table sources, whose versions are kept."""
    names = (
        "changelog",
        "ledger",
        "dead_letters",
        "late_rows",
        "sequence",
        "corrections",
        "served",
        "provisional",
        "verdicts",
        "causes",
        "reconciles",
        "seals",
        "quality",
    )
    versions = {f"versions/{view}": tables.versions(view) for view in views}
    return {name: getattr(tables, name) for name in names} | versions


def _views(home: PipelineHome) -> list[str]:
    definition = head_definition(home)
    return [] if definition is None else list(definition.tables)


def plan_upkeep(shapes: Mapping[str, TableShape | None], compact_at: int = COMPACT_AT) -> list[Chore]:
    """Return the chores for tables of these shapes, in the tables' order; absent tables have none. Pure."""
    chores = []
    for name, shape in shapes.items():
        if shape is None:
            continue
        merge = shape.small_in_one_partition >= compact_at
        many = f"{shape.small_in_one_partition} small files in one partition"
        reason = f"{many}, {compact_at} or more" if merge else f"{many}, fewer than {compact_at}: only swept"
        chores.append(Chore(name, merge, reason))
    return chores


def keep_up(
    home: PipelineHome,
    compact_at: int = COMPACT_AT,
    *,
    now: datetime,
    verdicts_kept: timedelta = VERDICTS_KEPT,
    unswept: Set[str] = frozenset(),
) -> list[UpkeepState]:
    """Do the upkeep of all tables of one pipeline; one process at a time, others return at once and do nothing.

    Args:
        compact_at: from how many small files a partition is merged.
        verdicts_kept: how long rows of a reconcile are kept.
        unswept: tables whose removed files stay, because a catalog may still name them.
    """
    with lock_if_free(_lock_file(home)) as has_lock:
        if not has_lock:
            return []
        healed = heal_ledger(home)
        if healed:
            LOG.info("upkeep of %s copied %s ledger rows", home.root.name, healed)
        _drop_old(home, now, verdicts_kept)
        paths = tables_of(home.tables, _views(home))
        TableCare(home.tables.served).set_file_bytes(SERVED_FILE_BYTES)  # one of an older version has files of any size
        shapes = {name: TableCare(path).shape() for name, path in paths.items()}
        last = read_record(home)
        lists = is_listing_due(None if last is None else last.listed_at, now)
        commit = Table(home.tables.changelog).newest_commit()
        chores = plan_upkeep(shapes, compact_at)
        done = [
            _do(paths[chore.table], chore, shapes[chore.table], lists=lists, sweeps=chore.table not in unswept)
            for chore in chores
        ]
        listed_at = now if last is None or lists else last.listed_at
        if any(table_report.is_outrun for table_report in done):
            write_record(home, Record(listed_at) if last is None else replace(last, listed_at=listed_at))
        else:
            write_record(home, Record(listed_at, now, commit))
        return done


def read_record(home: PipelineHome) -> Record | None:
    """Return what is stored of the last upkeep of a pipeline, None if there was none."""
    stored = read_json(home.root / _LISTED)
    if stored is None:
        return None
    done_at = stored.get("done_at")
    return Record(
        parse_iso(stored["at"]), None if done_at is None else parse_iso(done_at), int(stored.get("commit", -1))
    )


def write_record(home: PipelineHome, record: Record) -> None:
    """Store when upkeep was done."""
    done = {} if record.done_at is None else {"done_at": to_iso(record.done_at), "commit": record.commit}
    replace_json(home.root / _LISTED, {"format": 1, "at": to_iso(record.listed_at), **done})


def is_due(last: Record, commit: int, now: datetime) -> bool:
    """Say whether a pipeline's tables are to be looked after. Pure.

    Args:
        commit: the changelog's newest commit. Each batch makes one, and at most as many in each other table of the stream.
        now: the present instant; a clock that was set back makes upkeep due.
    """
    if last.done_at is None or not 0 <= commit - last.commit < COMMITS_AT:
        return True
    return not last.done_at <= now < last.done_at + QUIET_EVERY


def keep_up_if_due(
    home: PipelineHome,
    *,
    since: datetime,
    now: datetime,
    verdicts_kept: timedelta = VERDICTS_KEPT,
    unswept: Callable[[], Set[str]] = frozenset,
) -> list[UpkeepState]:
    """Do the upkeep of a pipeline's tables if it is due. A look that finds it is not costs one listing of a log, in an object store one opening.

    Args:
        since: the caller's first look; a pipeline without a record counts as new then.
        verdicts_kept: how long rows of a reconcile are kept.
        unswept: as for `keep_up`; it is called when upkeep is due.
    """
    last = read_record(home) or Record(since, since, 0)
    if not is_due(last, max(0, Table(home.tables.changelog).newest_commit()), now):
        return []
    return keep_up(home, now=now, verdicts_kept=verdicts_kept, unswept=unswept())


def renew_properties(home: PipelineHome, skipped_by: Mapping[Place, Sequence[str]]) -> list[str]:
    """Give tables that an older version made the properties that make commits cheap; return the names of those that changed.

    Called by a driver that has the lease and has not begun its first batch. A change of properties makes appends fail that were
    begun before it. So upkeep, which copies ledger rows, is kept away; while it runs nothing is changed until the next start.
    """
    with lock_if_free(_lock_file(home)) as has_lock:
        if not has_lock:
            return []
        return [Table(place).name for place, columns in skipped_by.items() if TableCare(place).set_statistics(columns)]


def _drop_old(home: PipelineHome, now: datetime, verdicts_kept: timedelta) -> None:
    try:
        dropped = drop_old_judgements(home, now, verdicts_kept)
    except LostRaceError as error:
        LOG.info("old verdicts of %s stay until the next upkeep: %s", home.root.name, error)
        return
    if dropped:
        LOG.info("upkeep of %s removed the verdicts and causes of %s old runs", home.root.name, dropped)


def is_listing_due(listed: datetime | None, now: datetime) -> bool:
    """Say whether the tables' folders are listed again; a clock that was set back lists them too. Pure."""
    return listed is None or not listed <= now < listed + LISTED_EVERY


def _do(path: Place, chore: Chore, before: TableShape | None, *, lists: bool, sweeps: bool) -> UpkeepState:
    files = 0 if before is None else before.files
    note = (
        chore.reason if sweeps else f"{chore.reason}; removed files stay until a catalog that is behind is registered"
    )
    try:
        if chore.merge:
            TableCare(path).compact()
        deleted = TableCare(path).sweep() if sweeps else 0
        deleted += TableCare(path).sweep_unnamed() if lists and sweeps else 0
        is_outrun = False
    except (LostRaceError, FileNotFoundError) as error:
        deleted, note, is_outrun = 0, f"another writer was faster, tried again next time: {error}", True
    after = TableCare(path).shape()
    return UpkeepState(chore.table, files, 0 if after is None else after.files, deleted, note, is_outrun)


def no_upkeep(home: PipelineHome) -> AbstractContextManager[None]:
    """Keep this host's upkeep away from a pipeline's tables for the block; one that runs is waited for."""
    return lock(_lock_file(home))


_LISTED = "upkeep-listed.json"


def _lock_file(home: PipelineHome) -> Path:
    return home.root / "upkeep.lock"
