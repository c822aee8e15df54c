"""Plans as files (`backfills/ID/plan.json`, written once, checked by hash), and the tables of corrections."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.backfill.model import (
    BackfillPlan,
    Beyond,
    Chunk,
    Exclusion,
    OffsetRuns,
    PlannedSession,
    PlannedSessions,
)
from rivertwice.backfill.plan import plan_id
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.core import PipelineHome, RequestError, require_name
from rivertwice.definition import Definition
from rivertwice.storage import Table, encode_json, put_json_if_absent, read_json, replace_json

FORMAT = 1


def backfill_folder(home: PipelineHome, backfill: str) -> Path:
    """Return the folder of one backfill; the id is checked against the allowed pattern."""
    return home.backfills / require_name(backfill, "backfill")


def plan_to_json(plan: BackfillPlan) -> dict[str, Any]:
    """Return the plan as plain JSON: offsets under text keys, ranges as pairs."""
    body: dict[str, Any] = _plain(asdict(plan))
    if plan.sessions is None:
        del body["sessions"]
    return body


def plan_from_json(body: Mapping[str, Any]) -> BackfillPlan:
    """Return the value that `plan_to_json` was given."""
    values = dict(body)
    for name in ("offsets", "archive", "kafka"):
        values[name] = _runs(values[name])
    values["as_of"] = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in values["as_of"].items()}
    values["ranges"] = _pairs(values["ranges"])
    values["cut"] = tuple(Exclusion(**part) for part in values["cut"])
    values["replaces"] = tuple(values["replaces"])
    values["chunks"] = tuple(
        Chunk(chunk["index"], _pairs(chunk["ranges"]), _runs(chunk["offsets"]), chunk["estimate"])
        for chunk in values["chunks"]
    )
    if values.get("sessions") is not None:
        values["sessions"] = _sessions(values["sessions"])
    return BackfillPlan(**values)


def save_plan(home: PipelineHome, plan: BackfillPlan) -> BackfillPlan:
    """Store a plan and return the stored one.

    A plan with the same id is the same backfill: the first one stays, so a new run continues where it stopped.
    """
    body = plan_to_json(plan)
    stored = {"format": FORMAT, "sha256": _hash(body), "plan": body}
    if put_json_if_absent(backfill_folder(home, plan.id) / "plan.json", stored):
        return plan
    return load_backfill_plan(home, plan.id)


def load_backfill_plan(home: PipelineHome, backfill: str) -> BackfillPlan:
    """Read a stored plan.

    Raises:
        RequestError: the plan does not exist, its format is not known, or it is not what was written.
    """
    path = backfill_folder(home, backfill) / "plan.json"
    stored = read_json(path)
    if stored is None:
        message = (
            f"there is no backfill {backfill} of {home.root.name}; known: {', '.join(list_backfills(home)) or 'none'}"
        )
        raise RequestError(message)
    if stored.get("format") != FORMAT:
        message = (
            f"{path.name} of {backfill} has format {stored.get('format')!r}, this version reads {FORMAT}; plan again"
        )
        raise RequestError(message)
    if _hash(stored["plan"]) != stored["sha256"]:
        message = f"{path.name} of {backfill} was changed after it was written, so it is not the plan that was explained; plan again"
        raise RequestError(message)
    plan = plan_from_json(stored["plan"])
    if plan.id != backfill or plan_id(plan) != plan.id:
        message = (
            f"{path.name} of {backfill} holds the plan {plan.id}, whose content has id {plan_id(plan)}; plan again"
        )
        raise RequestError(message)
    return plan


def note_planned(home: PipelineHome, request: str, backfill: str) -> None:
    """Store which backfill a request led to; an empty text: there is nothing to do."""
    replace_json(_note(home, request), {"format": FORMAT, "backfill": backfill})


def planned_for(home: PipelineHome, request: str) -> str:
    """Return the backfill that a request led to, empty if there is nothing to do.

    Raises:
        RequestError: the request was not planned.
    """
    note = read_json(_note(home, request))
    if note is None:
        message = f"request {request} of {home.root.name} was not planned; plan it first"
        raise RequestError(message)
    return str(note["backfill"])


def _note(home: PipelineHome, request: str) -> Path:
    return home.backfills / "asked" / f"{require_name(request, 'request')}.json"


def list_backfills(home: PipelineHome) -> list[str]:
    """Return the ids of all stored plans, oldest first."""
    paths = sorted(home.backfills.glob("*/plan.json"), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    return [path.parent.name for path in paths]


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode_json(body)).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _pairs(values: Any) -> tuple[HalfOpenRange, ...]:
    return tuple((int(start), int(end)) for start, end in values)


def _sessions(values: Mapping[str, Any]) -> PlannedSessions:
    return PlannedSessions(
        published=tuple(PlannedSession(*fields) for fields in values["published"]),
        vanishing=tuple(PlannedSession(*fields) for fields in values["vanishing"]),
        asked=_pairs(values["asked"]),
        beyond=tuple(Beyond(*fields) for fields in values["beyond"]),
        beyond_count=values["beyond_count"],
        settled_ms=values["settled_ms"],
    )


def _runs(values: Mapping[str, Mapping[str, Any]]) -> OffsetRuns:
    return {topic: {int(p): _pairs(pairs) for p, pairs in parts.items()} for topic, parts in values.items()}


# The corrections table: how a chunk's rows and its commit are written, and read back.

CORRECTIONS_FORMAT = 1
logger = logging.getLogger(__name__)
BACKFILL_KEY = "backfill"
PARTITION_BY = ("_day",)


@dataclass(frozen=True)
class ChunkRecord:
    """What a chunk's commit contains about itself.

    Attributes:
        records: window start in epoch milliseconds -> accepted records of that window, counted before the transform.
        offsets: few runs of offsets that have all of these records; None: not known (sessions, and what 0.1 wrote).
        chunks: how many chunks the plan has; 0: not known.
        seconds: that it took to compute; 0: not known.
    """

    chunk: int
    rows: int
    records: Mapping[int, int]
    offsets: OffsetRuns | None = None
    chunks: int = 0
    seconds: float = 0.0

    def to_json(self, backfill: str) -> dict[str, Any]:
        """Return the value of the commit's metadata."""
        records = {str(start): count for start, count in sorted(self.records.items())}
        value = {"id": backfill, "chunk": self.chunk, "rows": self.rows, "records": records, "seconds": self.seconds}
        return value if self.offsets is None else {**value, "offsets": _plain(self.offsets), "chunks": self.chunks}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ChunkRecord:
        """Read the value of a commit's metadata."""
        records = {int(start): int(count) for start, count in value["records"].items()}
        offsets = _runs(value["offsets"]) if "offsets" in value else None
        chunks, seconds = int(value.get("chunks", 0)), float(value.get("seconds", 0))
        return cls(int(value["chunk"]), int(value["rows"]), records, offsets, chunks, seconds)


def backfill_app(backfill: str) -> str:
    """Return the application id of a backfill's commits; their version is the chunk's index."""
    return f"backfill/{backfill}"


def stamp_rows(result: pa.Table, backfill: str, chunk: int, start_column: str) -> pa.Table:
    """Return result rows as `corrections` stores them."""
    count = result.num_rows
    stamps = {
        "_format": pa.array([CORRECTIONS_FORMAT] * count, pa.int32()),
        "_backfill": pa.array([backfill] * count, pa.string()),
        "_chunk": pa.array([chunk] * count, pa.int32()),
        "_day": pc.strftime(result[start_column], format="%Y-%m-%d").cast(pa.string()),
    }
    columns = {**stamps, **{name: result[name] for name in result.schema.names}}
    return pa.table(columns)


def chunk_records(home: PipelineHome, backfill: str) -> list[ChunkRecord]:
    """Return the records of a backfill's commits, oldest first."""
    commits = Table(home.tables.corrections).commits(BACKFILL_KEY)
    return [ChunkRecord.from_json(value) for _, value in commits if value["id"] == backfill]


def declared_rows(home: PipelineHome, backfill: str) -> dict[int, int]:
    """Return chunk to the number of rows that its commit declares, for the commits that are kept."""
    return {record.chunk: record.rows for record in chunk_records(home, backfill)}


def held_rows(home: PipelineHome, backfill: str) -> dict[int, int]:
    """Return chunk to the number of its rows in the table."""
    counted = Table(home.tables.corrections).rows_by(("_backfill", "_chunk"))
    return {int(chunk): count for (name, chunk), count in counted.items() if name == backfill}


def missing_chunks(applied: int, declared: Mapping[int, int], held: Mapping[int, int]) -> list[int]:
    """Return which of the first `applied` chunks have neither a commit that is kept nor a row. Pure.

    A chunk without rows whose commit was dropped long ago is among them: computed again it has no rows either.
    """
    return [chunk for chunk in range(applied) if chunk not in declared and not held.get(chunk)]


def write_chunk(
    home: PipelineHome,
    plan: BackfillPlan,
    definition: Definition,
    result: pa.Table,
    record: ChunkRecord,
    *,
    again: bool = False,
    declared: bool = False,
) -> None:
    """Commit a chunk's rows.

    Args:
        again: the chunk, or a later one, was committed before.
        declared: an earlier commit of this chunk is kept, and only its rows are gone.
    """
    Table(home.tables.corrections, partition_by=PARTITION_BY).append(
        stamp_rows(result, plan.id, record.chunk, definition.window.start_column),
        transactions=None if again else {backfill_app(plan.id): record.chunk},
        metadata=None if declared else {BACKFILL_KEY: record.to_json(plan.id)},
        widen=plan.sessions is not None,
    )
    logger.info("backfill %s of %s: chunk %s committed", plan.id, plan.pipeline, record.chunk)
