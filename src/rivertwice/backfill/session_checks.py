"""What a backfill's sessions must be: those of its plan, each in the chunk and on the day of its start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.model import BackfillPlan, Chunk, PlannedSession, PlannedSessions
from rivertwice.backfill.session_observe import spans_of
from rivertwice.backfill.session_plan import sessions_of
from rivertwice.pipeline.definition import Definition
from rivertwice.timeline.keys import key_digest
from rivertwice.timeline.serving import withdrawn_rows

SHOWN = 3


@dataclass(frozen=True)
class AuditFinding:
    """One finding of an audit; `detail` names the first offenders, or what was counted."""

    name: str
    passed: bool
    detail: str


def check_sessions(
    plan: BackfillPlan, planned: PlannedSessions, definition: Definition, rows: pa.Table
) -> AuditFinding:
    """Compare the rows, chunk by chunk, with the sessions that were looked up when it was planned: stretch, key and records."""
    found = Counter(_found(definition, rows))
    wanted = Counter(one for chunk in plan.chunks for one in _wanted(planned, chunk))
    differ = sorted((found - wanted) + (wanted - found))
    days = pc.strftime(rows[definition.window.start_column], format="%Y-%m-%d")
    strayed = rows.num_rows - (pc.sum(pc.equal(days, rows["_day"])).as_py() or 0)
    shown = ", ".join(
        f"chunk {chunk}: {start}, {records} records" for chunk, _, (_, start, _, records) in differ[:SHOWN]
    )
    detail = f"{len(differ)} rows are not as they were planned" + (f" ({shown})" if shown else "")
    return AuditFinding("sessions", not differ and not strayed, f"{detail}, {strayed} lie on another day")


_Placed = tuple[int, bool, PlannedSession]
"""Chunk, whether it vanishes, session."""


def _found(definition: Definition, rows: pa.Table) -> Iterator[_Placed]:
    spans = spans_of(rows, definition)
    gone = withdrawn_rows(rows).tolist()
    for chunk, vanishes, span in zip(rows["_chunk"].to_pylist(), gone, spans, strict=True):
        yield chunk, vanishes, PlannedSession(key_digest(span.key), *span[1:4])


def _wanted(planned: PlannedSessions, chunk: Chunk) -> Iterator[_Placed]:
    published, vanishing = sessions_of(planned, chunk)
    yield from ((chunk.index, False, one) for one in published)
    yield from ((chunk.index, True, one) for one in vanishing)
