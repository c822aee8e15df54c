"""Verdicts and causes of old reconcile runs are removed, so that what is stored does not grow with every run for ever.

The run itself stays in `reconciles`, with its counts, its balance and its alerts. A run that a kept run or a kept seal builds on
keeps its rows. Those of a reconcile that was killed before its row in `reconciles` belong to no run; they go when they are as old.
What users' suites found goes as well, but for the newest run over each subject, which says all that holds, and for what a person
accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from rivertwice.config import PipelineHome, Place
from rivertwice.config.settings import VERDICTS_KEPT
from rivertwice.store import delta
from rivertwice.store.delta_counts import rows_by
from rivertwice.store.sql import is_among
from rivertwice.timeline.judgements import Increment


def select_old_runs(
    runs: Sequence[Mapping[str, Any]], seals: Sequence[Mapping[str, Any]], now: datetime, keep: timedelta
) -> tuple[set[str], set[str]]:
    """Return the runs whose verdicts and causes, and those whose seals, can go. Pure.

    Args:
        runs: `run`, `created_at` and `increment` (JSON or None) of each stored run.
        seals: `run` and `created_at` of each seal.
        now: the present instant.
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
        now: the present instant.
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
    results = delta.read(tables.quality, columns=["run", "subject", "created_at", "reason"])
    _remove(tables.quality, set() if results is None else select_old_quality(results.to_pylist(), now, keep))
    return len(_remove(tables.causes, old) | _remove(tables.verdicts, old))


def _killed(verdicts: Place, known: Set[str], oldest: datetime) -> set[str]:
    """Return the runs that have verdicts of before an instant, but are not known to exist."""
    return {
        run for run, created_at in rows_by(verdicts, ["run", "created_at"]) if run not in known and created_at < oldest
    }


def _rows(path: Place) -> list[dict[str, Any]]:
    table = delta.open_table(path)
    if table is None:
        return []
    names = [field.name for field in table.schema().fields if field.name in ("run", "created_at", "increment")]
    rows = delta.read(path, columns=names, at=table)
    return [] if rows is None else rows.to_pylist()


def _remove(path: Place, runs: Set[str]) -> set[str]:
    """Remove the rows of some runs; return those that had any."""
    table = delta.open_table(path) if runs else None
    if table is None:
        return set()
    found = {name for (name,) in rows_by(path, ["run"]) if name in runs}
    if found:
        empty = pa.schema(table.schema().to_arrow()).empty_table()
        delta.replace_rows(path, empty, where=is_among("run", sorted(found)), at=table)
    return found
