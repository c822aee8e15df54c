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
    """One finding of an audit; `detail` names the first rows that are wrong, or what was counted."""

    name: str
    passed: bool
    detail: str


def check_sessions(
    plan: BackfillPlan, planned: PlannedSessions, definition: Definition, rows: pa.Table
) -> AuditFinding:
    """Compare the rows, chunk by chunk, with the planned sessions: stretch, key and number of records."""
    actual = Counter(_placed_rows(definition, rows))
    wanted = Counter(placed for chunk in plan.chunks for placed in _placed_plan(planned, chunk))
    differing = sorted((actual - wanted) + (wanted - actual))
    days = pc.strftime(rows[definition.window.start_column], format="%Y-%m-%d")
    on_other_day = rows.num_rows - (pc.sum(pc.equal(days, rows["_day"])).as_py() or 0)
    shown = ", ".join(
        f"chunk {chunk}: {start}, {records} records" for chunk, _, (_, start, _, records) in differing[:SHOWN]
    )
    detail = f"{len(differing)} rows are not as they were planned" + (f" ({shown})" if shown else "")
    return AuditFinding("sessions", not differing and not on_other_day, f"{detail}, {on_other_day} lie on another day")


_Placed = tuple[int, bool, PlannedSession]
"""Chunk, whether it vanishes, session."""


def _placed_rows(definition: Definition, rows: pa.Table) -> Iterator[_Placed]:
    spans = spans_of(rows, definition)
    withdrawn = withdrawn_rows(rows).tolist()
    for chunk, vanishes, span in zip(rows["_chunk"].to_pylist(), withdrawn, spans, strict=True):
        yield chunk, vanishes, PlannedSession(key_digest(span.key), *span[1:4])


def _placed_plan(planned: PlannedSessions, chunk: Chunk) -> Iterator[_Placed]:
    published, vanishing = sessions_of(planned, chunk)
    yield from ((chunk.index, False, session) for session in published)
    yield from ((chunk.index, True, session) for session in vanishing)
