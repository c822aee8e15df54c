"""What a backfill's rows must satisfy before they are served: pure checks over Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.corrections import ChunkRecord
from rivertwice.backfill.model import BackfillPlan, Chunk
from rivertwice.backfill.session_checks import SHOWN, AuditFinding, check_sessions
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.serving import to_epoch_ms, withdrawn_rows


def check_rows(
    plan: BackfillPlan,
    definition: Definition,
    rows: pa.Table,
    commits: Sequence[ChunkRecord],
    changelog: pa.Schema | None,
) -> list[AuditFinding]:
    """Check a backfill's rows.

    Args:
        plan: what was to be computed.
        definition: the plan's definition.
        rows: the backfill's rows of `corrections`.
        commits: what its commits contain.
        changelog: schema of the changelog; None if there is none to compare with.
    """
    checks = [_check_chunks(plan, rows, commits), _check_schema(definition, rows.schema, changelog)]
    if not checks[1].passed:
        return checks
    if plan.sessions is not None:
        remaining = rows.filter(pa.array(~withdrawn_rows(rows)))
        return [
            *checks,
            _check_keys(definition, rows),
            check_sessions(plan, plan.sessions, definition, rows),
            _check_counts(plan, definition, remaining, commits),
        ]
    return [
        *checks,
        _check_keys(definition, rows),
        _check_windows(plan, definition, rows),
        _check_counts(plan, definition, rows, commits),
    ]


def _check_chunks(plan: BackfillPlan, rows: pa.Table, commits: Sequence[ChunkRecord]) -> AuditFinding:
    commit_counts = Counter(commit.chunk for commit in commits)
    missing = [chunk.index for chunk in plan.chunks if not commit_counts[chunk.index]]
    wrong = [index for index, count in commit_counts.items() if count > 1 or index >= len(plan.chunks)]
    declared = {commit.chunk: commit.rows for commit in commits}
    row_counts = Counter(rows["_chunk"].to_pylist()) if "_chunk" in rows.schema.names else Counter()
    differing = [
        index for index in sorted(declared.keys() | row_counts.keys()) if declared.get(index, 0) != row_counts[index]
    ]
    detail = f"{len(commit_counts)} of {len(plan.chunks)} chunks committed"
    detail += f"; missing {missing[:SHOWN]}" if missing else ""
    detail += f"; unknown or committed twice {wrong[:SHOWN]}" if wrong else ""
    detail += f"; rows differ from the commit in {differing[:SHOWN]}" if differing else ""
    return AuditFinding("chunks", not (missing or wrong or differing), detail)


def _check_schema(definition: Definition, schema: pa.Schema, changelog: pa.Schema | None) -> AuditFinding:
    names = [name for name in schema.names if not name.startswith("_")]
    if names != definition.result_columns:
        return AuditFinding("schema", False, f"columns are {names}, the definition says {definition.result_columns}")
    if changelog is None:
        return AuditFinding("schema", True, f"{len(names)} columns; no changelog to compare with")
    differing = [
        f"{name} is {schema.field(name).type}, in the changelog {_type(changelog, name)}"
        for name in names
        if schema.field(name).type != _type(changelog, name)
    ]
    return AuditFinding(
        "schema", not differing, "; ".join(differing[:SHOWN]) or f"{len(names)} columns as in the changelog"
    )


def _type(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _check_keys(definition: Definition, rows: pa.Table) -> AuditFinding:
    names = [definition.window.start_column, definition.window.end_column, *definition.keys]
    counts = rows.group_by(names).aggregate([([], "count_all")])
    repeated = counts.filter(pc.field("count_all") > 1)
    shown = "; ".join(str(row) for row in repeated.slice(0, SHOWN).to_pylist())
    return AuditFinding(
        "keys",
        repeated.num_rows == 0,
        f"{repeated.num_rows} repeated of {counts.num_rows}" + (f": {shown}" if shown else ""),
    )


def _check_windows(plan: BackfillPlan, definition: Definition, rows: pa.Table) -> AuditFinding:
    starts = to_epoch_ms(rows[definition.window.start_column])
    ends = to_epoch_ms(rows[definition.window.end_column])
    good = (starts % plan.step == 0) & (ends == starts + plan.window_ms)
    chunks = np.array(rows["_chunk"].to_pylist(), dtype=np.int64)
    for chunk in plan.chunks:
        in_chunk = chunks == chunk.index
        good[in_chunk] &= starts_inside(starts[in_chunk], chunk)
    days = pc.strftime(rows[definition.window.start_column], format="%Y-%m-%d")
    good &= np.array(pc.equal(days, rows["_day"]).to_pylist(), dtype=bool)
    bad = np.flatnonzero(~good)
    shown = ", ".join(str(starts[i]) for i in bad[:SHOWN])
    return AuditFinding(
        "windows",
        len(bad) == 0,
        f"{len(bad)} of {rows.num_rows} rows out of place" + (f", starts {shown}" if shown else ""),
    )


def starts_inside(starts: npt.NDArray[np.int64], chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Return for each window start whether the window belongs to the chunk."""
    lows, highs = np.array(chunk.ranges, dtype=np.int64).T
    at = np.searchsorted(lows, starts, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (starts < highs[at])
    return inside


def _check_counts(
    plan: BackfillPlan, definition: Definition, rows: pa.Table, commits: Sequence[ChunkRecord]
) -> AuditFinding:
    """Compare, window by window, the count column's sum with the records counted before the transform."""
    if definition.count_column is None:
        return AuditFinding("counts", True, "rows of intervals count no records; their keys and windows were checked")
    summed: Counter[int] = Counter()
    starts = to_epoch_ms(rows[definition.window.start_column]).tolist()
    for start, count in zip(starts, rows[definition.count_column].to_pylist(), strict=True):
        summed[start] += count or 0
    counted: Counter[int] = Counter()
    for commit in commits:
        counted.update(commit.records)
    differing = sorted(start for start in summed.keys() | counted.keys() if summed[start] != counted[start])
    detail = f"{sum(summed.values())} counted by the result, {sum(counted.values())} accepted"
    shown = ", ".join(f"{start}: {summed[start]} against {counted[start]}" for start in differing[:SHOWN])
    return AuditFinding(
        "counts", not differing, detail + (f"; {len(differing)} windows differ: {shown}" if differing else "")
    )
