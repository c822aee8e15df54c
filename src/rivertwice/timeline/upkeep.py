"""Upkeep of a pipeline's tables: small files are merged, files that no commit names are removed, old verdicts go.

A stream that commits twice a second writes 170,000 files a day into each table; without upkeep every reader slows down.
Upkeep runs beside the stream:

1. Copy into the ledger what only the changelog's commits have: step 4 drops old commits, and the ledger must keep them.
2. Merge small files where a partition has many. An append at the same moment does not conflict with it.
3. Remove the verdicts and causes of old reconcile runs that no newer run builds on (`old_judgements`).
4. Delete files that no commit has named for the table's own retention, drop the older commits that the checkpoint of an
   earlier upkeep covers, and write a checkpoint of the log.
5. Once a day, list the tables' folders and delete files of killed writers: those that no commit names and that are a week old.

A crash between two steps leaves a table that is only larger than necessary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rivertwice.config import PipelineHome, Place, Tables
from rivertwice.config.settings import VERDICTS_KEPT
from rivertwice.errors import LostRaceError
from rivertwice.instants import parse_iso, to_iso
from rivertwice.locks import lock, lock_if_free
from rivertwice.store.files import read_json, replace_json
from rivertwice.store.table_upkeep import TableShape, compact, shape_of, sweep, sweep_unnamed
from rivertwice.timeline.ledger import heal_ledger
from rivertwice.timeline.lineage import head_definition
from rivertwice.timeline.old_judgements import drop_old_judgements

LOG = logging.getLogger(__name__)
COMPACT_AT = 50
"""Small files of one partition from which they are merged."""
LISTED_EVERY = timedelta(days=1)
"""So often the tables' folders are listed for files that no commit names."""


@dataclass(frozen=True)
class Chore:
    """Work to do on one table.

    Attributes:
        merge: merge its small files.
        reason: for people.
    """

    table: str
    merge: bool
    reason: str


@dataclass(frozen=True)
class Kept:
    """What upkeep did to one table: files before and after, and files deleted from disk."""

    table: str
    files_before: int
    files_after: int
    deleted: int
    note: str


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
    home: PipelineHome, compact_at: int = COMPACT_AT, *, now: datetime, verdicts_kept: timedelta = VERDICTS_KEPT
) -> list[Kept]:
    """Do the upkeep of all tables of one pipeline; one process at a time, others return at once and do nothing.

    Args:
        home: of the pipeline.
        compact_at: so many small files of a partition are merged.
        now: the present instant.
        verdicts_kept: how long rows of a reconcile are kept.
    """
    with lock_if_free(_lock_file(home)) as has_lock:
        if not has_lock:
            return []
        healed = heal_ledger(home)
        if healed:
            LOG.info("upkeep of %s copied %s ledger rows", home.root.name, healed)
        _drop_old(home, now, verdicts_kept)
        paths = tables_of(home.tables, _views(home))
        shapes = {name: shape_of(path) for name, path in paths.items()}
        listed = read_json(home.root / _LISTED)
        lists = is_listing_due(None if listed is None else parse_iso(listed["at"]), now)
        chores = plan_upkeep(shapes, compact_at)
        done = [_do(paths[chore.table], chore, shapes[chore.table], lists=lists) for chore in chores]
        if lists:
            replace_json(home.root / _LISTED, {"format": 1, "at": to_iso(now)})
        return done


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


def _do(path: Place, chore: Chore, before: TableShape | None, *, lists: bool) -> Kept:
    files = 0 if before is None else before.files
    note = chore.reason
    try:
        if chore.merge:
            compact(path)
        deleted = sweep(path) + (sweep_unnamed(path) if lists else 0)
    except (LostRaceError, FileNotFoundError) as error:
        deleted, note = 0, f"another writer was faster, tried again next time: {error}"
    after = shape_of(path)
    return Kept(chore.table, files, 0 if after is None else after.files, deleted, note)


def no_upkeep(home: PipelineHome) -> AbstractContextManager[None]:
    """Keep this host's upkeep away from a pipeline's tables for the block; one that runs is waited for."""
    return lock(_lock_file(home))


_LISTED = "upkeep-listed.json"


def _lock_file(home: PipelineHome) -> Path:
    return home.root / "upkeep.lock"
