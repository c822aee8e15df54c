"""What the log cannot show, compared with its other copy: who wrote a batch, publications, and the rows that are served. Pure.

A ledger row is stored twice: in its table and in the changelog's commit of its batch (as long as Delta keeps that one). A
publication's plan is a separate file. What is served is a choice among changelog and corrections, so it can be chosen again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from rivertwice.backfill import BackfillPlan
from rivertwice.core import Row, from_ms, to_iso
from rivertwice.definition import Definition
from rivertwice.reconcile.frames import addresses
from rivertwice.reconcile.model import SERVED, STREAM, DefectFinding, RowColumns, RowId, RowVerdict
from rivertwice.timeline import LedgerRow, Publication, Timeline, select_served

IDENTITY = (
    "pipeline",
    "epoch",
    "bundle",
    "cluster_id",
    "topic_ids",
    "batch_timestamp_ms",
    "references",
    "committed_at",
)
"""Fields of a ledger row that are not in the log; all others are derived from it."""
Key = tuple[str, int]
"""(timeline, batch)."""


@dataclass(frozen=True)
class PublishedCopies:
    """The other copies of what a reconcile looks at.

    Attributes:
        commits: ledger rows as the changelog's newest commits carry them.
        table: batches that the ledger's own table holds, of all timelines.
        timelines: records of the path's timelines.
        known: names of all recorded timelines.
        applied: timeline to the newest batch that the changelog took from it.
        plans: backfill to its plan, or to why it cannot be read; absent where this home has none.
    """

    commits: Sequence[LedgerRow] = ()
    table: Set[Key] = frozenset()
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    known: Collection[str] = ()
    applied: Mapping[str, int] = field(default_factory=dict)
    plans: Mapping[str, BackfillPlan | str] = field(default_factory=dict)

    @property
    def by_key(self) -> dict[Key, LedgerRow]:
        """Commits by timeline and batch."""
        return {(row.timeline, row.batch): row for row in self.commits}


def heal_rows(rows: Sequence[LedgerRow], copies: PublishedCopies) -> list[LedgerRow]:
    """Return the ledger rows, corrected where the commits contradict them: what was committed counts.

    Rows that the table lacks are taken from the commits. Rows after the newest commit are left out. A batch is judged by the
    bundle that its commit names. `check_ledger_copies` names each of these.
    """
    committed = copies.by_key
    remaining = [
        replace(row, bundle=committed[key].bundle) if (key := (row.timeline, row.batch)) in committed else row
        for row in rows
        if row.batch <= copies.applied.get(row.timeline, row.batch)
    ]
    remaining_keys = {(row.timeline, row.batch) for row in remaining}
    lost = [row for key, row in committed.items() if key not in remaining_keys]
    return [*remaining, *lost]


def check_ledger_copies(
    pipeline: str, rows: Sequence[LedgerRow], path: Sequence[LedgerRow], copies: PublishedCopies
) -> list[DefectFinding]:
    """Compare the ledger with its commits and its timelines' records.

    Args:
        rows: the ledger as it is stored, all timelines.
        path: batches on the head's path, in order.
    """
    committed = copies.by_key
    on_path = {(row.timeline, row.batch) for row in path}
    findings: list[DefectFinding] = []
    for row in rows:
        key = (row.timeline, row.batch)
        if row.timeline not in copies.known or row.batch > copies.applied.get(row.timeline, row.batch):
            what = "has no record" if row.timeline not in copies.known else "has no such batch in the changelog"
            message = f"the ledger holds batch {row.batch} of timeline {row.timeline}, which {what}"
            findings.append(DefectFinding("ledger", message, row.batch))
        elif key in on_path:
            findings += _identity(pipeline, row, committed.get(key), copies.timelines.get(row.timeline))
    return [*findings, *_missing_rows(path, copies), *_epochs(path, committed)]


def _identity(pipeline: str, row: LedgerRow, commit: LedgerRow | None, line: Timeline | None) -> list[DefectFinding]:
    """Return the fields of a row that its commit contradicts, or, without a commit, its timeline's record and offsets file."""
    wanted: dict[str, Any] = {"pipeline": pipeline}
    if line is not None:
        wanted |= {"cluster_id": line.cluster_id, "topic_ids": dict(line.topic_ids)}
    stamp = _timestamp_in(row.offsets_text)
    if stamp is not None:
        wanted["batch_timestamp_ms"] = stamp
    if commit is not None:
        wanted |= {name: getattr(commit, name) for name in IDENTITY}
    source = "its commit" if commit is not None else "its timeline's record"
    return [
        DefectFinding(
            "ledger",
            f"ledger of batch {row.batch}: {name} is {getattr(row, name)}, {source} says {expected}",
            row.batch,
        )
        for name, expected in wanted.items()
        if getattr(row, name) != expected
    ]


def _timestamp_in(text: str) -> int | None:
    for line in text.splitlines():
        value = json.loads(line) if line.startswith("{") else {}
        if "batchTimestampMs" in value:
            return int(value["batchTimestampMs"])
    return None


def _missing_rows(path: Sequence[LedgerRow], copies: PublishedCopies) -> list[DefectFinding]:
    """Return batches that the table lacks though it holds a later one of the timeline: a driver copies them in order."""
    findings = []
    last: dict[str, int] = {}
    for timeline, batch in copies.table:
        last[timeline] = max(batch, last.get(timeline, batch))
    for row in path:
        if (row.timeline, row.batch) not in copies.table and row.batch < last.get(row.timeline, 0):
            message = f"the ledger has no row for batch {row.batch} of {row.timeline}, which the changelog holds"
            findings.append(DefectFinding("ledger", message, row.batch))
    for before, row in pairwise(path):
        if row.batch != before.batch + 1:
            message = (
                f"the ledger goes from batch {before.batch} of {before.timeline} to batch {row.batch} of {row.timeline}"
            )
            findings.append(DefectFinding("ledger", message, row.batch))
    return findings


def _epochs(path: Sequence[LedgerRow], committed: Mapping[Key, LedgerRow]) -> list[DefectFinding]:
    """Return batches whose epoch falls; a batch that has a commit is compared with the commit instead."""
    return [
        DefectFinding(
            "ledger",
            f"ledger of batch {row.batch}: epoch is {row.epoch}, the batch before it has {before.epoch}",
            row.batch,
        )
        for before, row in pairwise(path)
        if row.epoch < before.epoch
        and not {(ledger_row.timeline, ledger_row.batch) for ledger_row in (before, row)} & set(committed)
    ]


def check_publications(
    publications: Iterable[Publication], plans: Mapping[str, BackfillPlan | str]
) -> list[DefectFinding]:
    """Compare each publication with the plan of its backfill, where this home has it."""
    findings = []
    for publication in publications:
        plan = plans.get(publication.backfill)
        if isinstance(plan, str):
            findings.append(DefectFinding("publications", f"publication {publication.seq}: {plan}"))
        elif plan is not None:
            pairs = (
                ("ranges", publication.ranges, plan.ranges),
                ("semantics", publication.semantics, plan.semantics),
                ("bundle", publication.bundle, plan.bundle),
                ("as_of", publication.as_of, plan.as_of),
                ("amendments", publication.amendments, plan.amendments),
                ("sessions", publication.sessions, plan.sessions is not None),
            )
            findings += [
                DefectFinding(
                    "publications",
                    f"publication {publication.seq} of {publication.backfill}: {name} is {recorded}, the plan says {planned}",
                )
                for name, recorded, planned in pairs
                if recorded != planned
            ]
    return findings


def choose_again(
    definition: Definition,
    stream: pa.Table,
    corrections: pa.Table | None,
    publications: Sequence[Publication],
    semantics: Set[str],
    closed_ms: int,
) -> pa.Table:
    """Return what must be served, chosen by the served table's own rule."""
    window = definition.window
    return select_served(
        stream,
        corrections,
        publications,
        semantics=semantics,
        closed_ms=closed_ms,
        start_column=window.start_column,
        end_column=window.end_column,
        session_keys=definition.session_keys,
    )


def wrong_rows(verdicts: Iterable[RowVerdict]) -> tuple[set[RowId], set[RowId]]:
    """Return the rows of the changelog, and the served rows, that are a DEFECT by themselves."""
    wrong: dict[str, set[RowId]] = {STREAM: set(), SERVED: set()}
    for verdict in verdicts:
        if any(cause == "unexplained" for cause, _ in verdict.defects):
            wrong[verdict.pair].add(verdict.row)
    return wrong[STREAM], wrong[SERVED]


def check_served_rows(
    served: pa.Table, chosen: pa.Table, shape: RowColumns, wrong_stream: Set[RowId], wrong_served: Set[RowId]
) -> list[DefectFinding]:
    """Compare the served rows, all columns, with those that changelog and corrections give.

    A served row of the stream with other values is a verdict; here it is only checked whether it names the right batch.

    Args:
        chosen: the same, as `choose_again` gives it.
        wrong_stream: rows of the changelog that are a DEFECT; these are not checked.
        wrong_served: served rows that are a DEFECT; where the served row is right, the correction is what was altered.
    """
    names = served.schema.names
    chosen = chosen.select(names).cast(served.schema)
    order = [(name, "ascending") for name in names]
    if served.num_rows == chosen.num_rows and served.sort_by(order).equals(chosen.sort_by(order)):
        return []
    served_by_row, chosen_by_row = _by_address(served, shape), _by_address(chosen, shape)
    findings = []
    for row in sorted({*served_by_row, *chosen_by_row} - wrong_stream):
        served_rows, chosen_rows = served_by_row.get(row, []), chosen_by_row.get(row, [])
        if Counter(map(repr, served_rows)) == Counter(map(repr, chosen_rows)):
            continue
        is_published = any(entry["_status"] == "published" for entry in (*served_rows, *chosen_rows))
        if not is_published and Counter(map(_values, served_rows)) != Counter(map(_values, chosen_rows)):
            continue
        kind = "corrections" if is_published and row not in wrong_served else "served"
        where = f"the row {row.key} of the window at {to_iso(from_ms(row.start_ms))}"
        message = f"{where} is served as {_listed(served_rows)}, changelog and corrections give {_listed(chosen_rows)}"
        findings.append(DefectFinding(kind, message))
    return findings


def _by_address(table: pa.Table, shape: RowColumns) -> dict[RowId, list[Row]]:
    grouped: dict[RowId, list[dict[str, Any]]] = {}
    for row, values in zip(addresses(table, shape), table.to_pylist(), strict=True):
        grouped.setdefault(row, []).append(values)
    return grouped


def _values(row: Mapping[str, Any]) -> str:
    return repr({name: value for name, value in row.items() if not name.startswith("_")})


def _listed(rows: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(", ".join(f"{n} {v}" for n, v in row.items() if v is not None) for row in rows) or "nothing"
