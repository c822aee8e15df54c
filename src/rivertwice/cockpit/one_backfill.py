"""One backfill with its plan, its audit, and what was served before and after it by the verdicts of the reconciles around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.audit import read_audit
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.store import load_plan
from rivertwice.cockpit.selection import count_rows, describe_plan, read_in_ranges
from rivertwice.cockpit.serving import Runs, Serving, open_serving, read_runs
from rivertwice.config import Settings
from rivertwice.instants import to_iso
from rivertwice.pipeline.definition import Definition
from rivertwice.reconcile.view import shape_of
from rivertwice.store import delta
from rivertwice.store.sql import all_of, equals, is_within
from rivertwice.timeline.keys import key_texts
from rivertwice.timeline.lineage import head_path
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served_rows import is_on_path, newest_rows, publications_of
from rivertwice.timeline.serving import WITHDRAWN

MOST_COMPARED = 200_000
"""Rows of a backfill that are compared with the stream's; of a larger one the audit counts the rows."""


def describe_backfill(settings: Settings, name: str, backfill: str) -> dict[str, Any]:
    """Return a stored backfill as plain values.

    Raises:
        RequestError: there is no such backfill.
    """
    serving = open_serving(settings, name)
    plan = load_plan(serving.home, backfill)
    audit = read_audit(serving.home, backfill)
    entries = read_sequence(serving.home)
    publication = next((each for each in publications_of(entries) if each.backfill == backfill), None)
    entry = None if publication is None else next(each for each in entries if each.seq == publication.seq)
    runs = read_runs(serving.home)
    before = after = None
    if runs is not None and entry is not None:
        before = _verdicts(serving, runs.upto(entry.created_at), plan)
        is_later = runs.newest["created_at"] > entry.created_at and runs.newest["sequence"] >= entry.seq
        after = _verdicts(serving, runs, plan) if is_later else None
    elif runs is not None:
        before = _verdicts(serving, runs, plan)
    return {
        "id": plan.id,
        "reason": plan.reason,
        "plan": describe_plan(plan),
        "audit": None
        if audit is None
        else {
            "passed": audit["passed"],
            "rows": audit["rows"],
            "accepted": audit.get("accepted", ""),
            "checks": audit["checks"],
        },
        "published_at": None if entry is None else to_iso(entry.created_at),
        "before": before,
        "after": after,
        "changed": None if serving.definition is None else count_changed(serving, serving.definition, plan),
    }


def _verdicts(serving: Serving, runs: Runs | None, plan: BackfillPlan) -> dict[str, Any] | None:
    """Return what a reconcile said of the served rows of the plan's windows; None: its verdicts were removed, or there was none."""
    rows = None if runs is None else read_in_ranges(serving, runs, plan.ranges)
    if runs is None or not rows:
        return None
    return {"run": runs.newest["run"], "at": to_iso(runs.newest["created_at"]), "counts": count_rows(rows)}


def count_changed(serving: Serving, definition: Definition, plan: BackfillPlan) -> dict[str, int] | None:
    """Return how many rows of a backfill differ from the stream's, are new or vanish; None: it has too many, or none yet.

    Only the corrections of the backfill and the stream's rows of its windows are read.
    """
    if not plan.ranges or plan.sessions is not None:
        return None
    start = definition.window.start_column
    within = is_within(start, [(plan.ranges[0][0], plan.ranges[-1][1])])
    rows = delta.read(serving.home.tables.corrections, matching=all_of([equals("_backfill", plan.id), within]))
    if rows is None or not 0 < rows.num_rows <= MOST_COMPARED:
        return None
    if WITHDRAWN in rows.column_names:
        rows = rows.filter(pc.invert(pc.fill_null(rows[WITHDRAWN], False)))
    stream = _stream_rows(serving, definition, within)
    shape = shape_of(definition)
    ours, theirs = (_by_address(table, definition, shape.columns) for table in (rows, stream))
    inside = {address for address in theirs if any(low <= address[0] < high for low, high in plan.ranges)}
    changed = sum(1 for address in ours.keys() & inside if shape.differences(ours[address], theirs[address]))
    return {
        "rows": len(ours),
        "changed": changed,
        "new": len(ours.keys() - inside),
        "vanished": len(inside - ours.keys()),
    }


def _stream_rows(serving: Serving, definition: Definition, within: str) -> pa.Table:
    """Return the rows that batches of the head's path emitted for some windows."""
    rows = delta.read(serving.home.tables.changelog, matching=within)
    return pa.table({}) if rows is None else newest_rows(rows.filter(is_on_path(head_path(serving.home))), definition)


def _by_address(
    table: pa.Table, definition: Definition, columns: Sequence[str]
) -> dict[tuple[int, str], tuple[Any, ...]]:
    if not table.num_rows:
        return {}
    starts = pc.cast(pc.cast(table[definition.window.start_column], pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    values = zip(*(table[name].to_pylist() for name in columns), strict=True)
    keys = key_texts(table, definition.row_keys)
    return {(start, key): row for start, key, row in zip(starts.to_pylist(), keys, values, strict=True)}
